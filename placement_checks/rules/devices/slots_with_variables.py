from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from placement_checks.analysis.variables.slots import find_slots
from placement_checks.core.evidence import Evidence
from placement_checks.core.facts import FactKind
from placement_checks.core.placement import Placement
from placement_checks.core.results import Finding, Verdict
from placement_checks.rules.base import BEFORE_STEP, Rule, about, matches_any
from placement_checks.rules.requirements import Need
from placement_checks.util.text import plural


@dataclass(frozen=True)
class SlotsWithVariables(Rule):
    """Optimizer slots and moving averages sit with their variable.

    If a slot is on another device, every step sends it there and back. TensorFlow's own optimizers
    bind their slots to the variable. User-defined momenta and averages, and optimizers that create
    their slots under another device, do not.

    The rule recognizes a slot by its colocation with a variable (`_class`), by an update op that
    uses both, or by data flow: the slot has the variable's shape, the model does not read the
    slot, and the update of the slot depends on the variable, or the reverse. A slot may update
    several copies of a variable, for example if each GPU holds the optimizer state of a part of
    the variables; the slot must then be on the device of one of these copies.

    `allow` lists slots, or patterns such as */ExponentialMovingAverage, that may be on any device.
    """

    name = "slots-with-variables"
    kind = "assigned"
    requires = frozenset({Need.ASSIGNED, Need.REQUESTED})
    states = FactKind.SLOT_DEVICE
    intended = "these slots are copied to their variables in each step"
    breaks_in_changes = True
    threads = (
        "openai/universe-starter-agent#67: Adam's slots looked for in a placement log with grep",
    )

    allow: tuple[str, ...] = ()

    def check(self, evidence: Evidence) -> Verdict:
        placement = evidence.placement
        owners = _find_owners(placement)
        if not owners:
            return self.not_checked("no optimizer slot and no moving average is updated")
        findings = [
            _finding(placement, slot, variables[-1])
            for slot, variables in owners.items()
            if not matches_any(slot, self.allow)
            and all(
                placement.ops[slot].assigned != placement.ops[variable].assigned
                for variable in variables
            )
        ]
        if not findings and (no_gpus := Need.GPUS.missing(evidence)) is not None:
            return self.without(no_gpus)
        return self.verdict(findings, plural(len(owners), "slot"))


def _find_owners(placement: Placement) -> Mapping[str, Sequence[str]]:
    """Return for each slot the variables that it belongs to."""
    found = find_slots(placement)
    forms = {variable.name: variable[1:] for variable in placement.variables}
    owners: dict[str, list[str]] = defaultdict(list)
    for slot, variables in found.held.items():
        owners[slot] += [each for each in variables if forms[each] == forms[slot]]
    for slot in forms:
        owners[slot] += [other for other in placement.ops[slot].colocated if other in forms]
    for kind in (found.computed, found.averages):
        for slot, variables in kind.items():
            owners[slot] += variables
    return {slot: variables for slot, variables in owners.items() if variables}


def _finding(placement: Placement, slot: str, variable: str) -> Finding:
    op, primary = placement.ops[slot], placement.ops[variable]
    found = op.assigned.short if op.assigned else "no device"
    expected = primary.assigned.short if primary.assigned else "no device"
    strategy = placement.strategy
    is_of_strategy = strategy is not None and slot not in strategy.outside
    summary = f"{slot} is a slot of {variable} and sits on {found}"
    return Finding(
        **about(op, "assigned"),
        placed=slot,
        message=f"{summary}; the variable is on {expected}",
        devices=tuple(filter(None, (op.assigned, primary.assigned))),
        group_key=(found, expected),
        consequence=f"every step sends values between {found} and {expected} to update it",
        fix=f"create it {BEFORE_STEP}"
        if is_of_strategy  # a replica has created it
        else "create it under `with tf.device(variable.device):`, or under "
        "`with tf.compat.v1.colocate_with(variable):`",
    )
