from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from placement_checks.analysis.towers.analysis import TowerAnalysis, analyze
from placement_checks.analysis.variables.gradient_flow import gradient_flow
from placement_checks.core.evidence import Evidence
from placement_checks.core.op_types import VARIABLES, is_gradient_update
from placement_checks.core.placement import Placement, producer_of
from placement_checks.core.results import Finding, Verdict
from placement_checks.rules.base import Rule, about, matches_any
from placement_checks.rules.requirements import Need
from placement_checks.util.text import plural


@dataclass(frozen=True)
class SlotsWithVariables(Rule):
    """Optimizer slots and moving averages sit with their variable.

    If a slot is on another device, every step sends it there and back. TensorFlow's own optimizers
    bind their slots to the variable. User-defined momenta and averages, and optimizers that create
    their slots under another device, do not.

    The rule recognizes a slot by its colocation with a variable (`_class`), by an update op that
    uses both, or by data flow: it has the variable's shape, no tower reads it, and the update of
    one of them depends on the other. A slot may update several copies of a variable, for example
    if each GPU holds the optimizer state of a part of the variables; then it sits with one of
    them.

    `allow` lists slots, or patterns such as */ExponentialMovingAverage, that may be on any device.
    """

    name = "slots-with-variables"
    kind = "assigned"
    requires = frozenset({Need.ASSIGNED, Need.REQUESTED})
    explained_by = ("created-in-scope",)

    allow: tuple[str, ...] = ()

    def check(self, evidence: Evidence) -> Verdict:
        placement = evidence.placement
        slots: dict[str, list[str]] = defaultdict(list)
        for slot, variable in _slots(placement):
            slots[slot].append(variable)
        if not slots:
            return self.not_checked("no optimizer slot and no moving average is updated")
        findings = [
            _finding(placement, slot, variables[-1])
            for slot, variables in slots.items()
            if not matches_any(slot, self.allow)
            and all(
                placement.ops[slot].assigned != placement.ops[variable].assigned
                for variable in variables
            )
        ]
        if not findings and (no_gpus := Need.GPUS.missing(evidence)) is not None:
            return self.without(no_gpus)
        return self.verdict(findings, plural(len(slots), "slot"))


def _slots(placement: Placement) -> Iterator[tuple[str, str]]:
    analysis = analyze(placement)
    shapes = {variable.name: variable[1:] for variable in placement.variables}
    for variable, updates in analysis.updates.by_variable.items():
        for update in updates:
            for source in placement.ops[analysis.flow.names[update.op]].inputs[1:]:
                slot = producer_of(source)
                if slot in shapes and shapes[slot] == shapes[variable]:
                    yield slot, variable
    for variable in shapes:
        for other in placement.ops[variable].colocated:
            if other in shapes:
                yield variable, other
    yield from _slots_by_data_flow(analysis, shapes)


def _slots_by_data_flow(
    analysis: TowerAnalysis, shapes: Mapping[str, tuple[object, ...]]
) -> Iterator[tuple[str, str]]:
    """Yield slots and averages with updates that are composed of simple ops."""
    flow, read = analysis.flow, analysis.variables_read
    trained = gradient_flow(analysis.placement).trained
    for variable, updates in analysis.updates.by_variable.items():
        is_trained = variable in trained
        if not is_trained and variable in read:
            continue
        for update in updates:
            if is_gradient_update(flow.types[update.op]):
                continue
            for op in sorted(flow.reachable(update.values, until=analysis.own_towers.__getitem__)):
                name = flow.names[op]
                if flow.types[op] not in VARIABLES or shapes[name] != shapes[variable]:
                    continue
                if is_trained and name not in read and name in analysis.updates.by_variable:
                    yield name, variable
                elif not is_trained and name in trained:
                    yield variable, name


def _finding(placement: Placement, slot: str, variable: str) -> Finding:
    op, primary = placement.ops[slot], placement.ops[variable]
    found = op.assigned.short if op.assigned else "no device"
    expected = primary.assigned.short if primary.assigned else "no device"
    summary = f"{slot} is a slot of {variable} and sits on {found}"
    return Finding(
        **about(op, "assigned"),
        expected=expected,
        found=found,
        placed=slot,
        alike=(found, expected),
        message=f"{summary}; the variable is on {expected}",
        summary=summary,
        devices=tuple(filter(None, (op.assigned, primary.assigned))),
        consequence=f"every step sends values between {found} and {expected} to update it",
        fix="create it under `with tf.device(variable.device):`, or under "
        "`with tf.compat.v1.colocate_with(variable):`",
    )
