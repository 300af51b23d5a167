from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from placement_checks.analysis.towers.analysis import analyse
from placement_checks.analysis.variables.gradient_flow import gradient_flow
from placement_checks.core.evidence import Evidence
from placement_checks.core.missing import NotApplicable
from placement_checks.core.placement import Placement
from placement_checks.core.results import Finding, Verdict
from placement_checks.core.strategies import Strategy
from placement_checks.rules.base import Rule, matches_any
from placement_checks.rules.requirements import Need
from placement_checks.util.text import plural

_REPLICA = re.compile(r"(^|/)replica_[1-9]\d*/")  # where strategies build replicas after the first


class OutsideScope(NamedTuple):
    """A variable that was made outside of the scope of a strategy with several replicas.

    Attributes:
        variable: its name.
        role: whether it is trained, or an optimiser keeps gradients in it.
        updates: how many updates of it one step makes.
    """

    variable: str
    role: Literal["trained", "slot"]
    updates: int


def created_outside_scope(placement: Placement) -> Iterator[OutsideScope]:
    """The trained variables and slots that were made outside of the scope of the strategy.

    Those of which it is plain that replicas share them by mistake: each replica updates the one
    variable for itself; or it is on a GPU, beside others that were made in the scope. One that is
    kept on the host and updated once is central, as may be meant; so is all that towers take
    which are placed by hand, whatever strategy there is. Several workers share no variable: each
    has one of its own, which none may train.
    """
    strategy = placement.strategy
    if strategy is None:
        return
    analysis = analyse(placement)
    outside = [name for name in strategy.outside if name in analysis.updates.by_variable]
    trained = [name for name in outside if name in gradient_flow(placement).trained]
    slots = _slots(placement, [name for name in outside if name not in trained])
    for name in outside:
        if name not in trained and name not in slots:
            continue
        updates = analysis.updates.at_once(analysis.updates.by_variable[name])
        by_replicas = any(_REPLICA.search(analysis.flow.names[each.op]) for each in updates)
        on_gpu = placement.ops[name].requested.is_gpu
        of_each = strategy.is_of_workers
        if of_each or (len(updates) > 1 and by_replicas) or (on_gpu and strategy.copies):
            yield OutsideScope(name, "trained" if name in trained else "slot", len(updates))


def _slots(placement: Placement, variables: list[str]) -> set[str]:
    """Those that gradients are written to, and that updates of other variables take.

    A single number is none: it scales a loss, or counts.
    """
    analysis = analyse(placement)
    flow, by_variable = analysis.flow, analysis.updates.by_variable
    shapes = {variable.name: variable.shape for variable in placement.variables}
    masks = flow.propagate(flow.marks([flow.number[name]] for name in variables))
    taken = 0
    for name in gradient_flow(placement).trained:
        for update in by_variable[name]:
            for value in update.values:
                taken |= masks[value]
    return {
        name
        for bit, name in enumerate(variables)
        if taken >> bit & 1
        and shapes[name] != ()
        and any(
            analysis.towers_behind[value] & analysis.gradient_bit
            for update in by_variable[name]
            for value in update.values
        )
    }


@dataclass(frozen=True)
class CreatedInScope(Rule):
    """What a strategy with several replicas trains is made under its scope, as are the slots.

    A variable that is made before `with strategy.scope():` is none of the strategy's: there is
    one, on one device, and all replicas read it. Each replica then updates it for itself, so that
    the updates race and one step moves it several times. Optimisers of Keras refuse such a
    variable, by an error that does not name it.

    Not a finding: a variable that the host keeps and one op updates, counters and rates of
    optimisers, and towers that are placed by hand.

    `allow` lists variables, or patterns, that all replicas share on purpose.
    """

    name = "created-in-scope"
    kind = "requested"
    requires = frozenset({Need.REQUESTED, Need.VARIABLES})

    allow: tuple[str, ...] = ()

    def check(self, evidence: Evidence) -> Verdict:
        placement = evidence.placement
        strategy = placement.strategy
        if strategy is None:
            return self.not_checked("the program makes no strategy, so there is no scope")
        if len(strategy.replicas) == 1:
            return self.without(
                NotApplicable(f"there is one replica, on {strategy.replicas[0].short}")
            )
        findings = [
            _finding(placement, strategy, each)
            for each in created_outside_scope(placement)
            if not matches_any(each.variable, self.allow)
        ]
        made = len(placement.variables) - len(strategy.outside)
        return self.verdict(findings, f"{plural(made, 'variable')} of {strategy.name}")


def _finding(placement: Placement, strategy: Strategy, outside: OutsideScope) -> Finding:
    op = placement.ops[outside.variable]
    count = len(strategy.replicas)
    is_trained = outside.role == "trained"
    keeps = (
        f"is trained by {count} replicas"
        if is_trained
        else (f"holds gradients for the optimiser of {count} replicas")
    )
    on = f", on {op.requested.short}" if op.requested else ""
    several = outside.updates > 1
    there_is = f"there is only one{on}"
    consequence = (
        f"each replica updates it: {outside.updates} updates race in place of one"
        if several
        else "all others read it from there in each step"
    )
    if strategy.is_of_workers:
        there_is = "each worker has one of its own"
        consequence = "the workers train models of their own, and that of the first is saved"
    return Finding(
        object=outside.variable,
        op=op.type,
        evidence="requested",
        expected=f"made under the scope of {strategy.name}",
        found="made outside of it",
        message=f"{outside.variable} {keeps}, and was made outside of strategy.scope(): "
        f"{there_is}",
        consequence=consequence,
        fix=f"make the {'model' if is_trained else 'optimizer'} under `with strategy.scope():`",
        alike=(outside.role, outside.updates, op.requested),
    )
