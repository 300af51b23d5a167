from __future__ import annotations

from dataclasses import dataclass

from placement_checks.analysis.scopes import Outside, outside_scope
from placement_checks.core.evidence import Evidence
from placement_checks.core.missing import OneTower
from placement_checks.core.placement import Placement
from placement_checks.core.results import Finding, Verdict
from placement_checks.core.strategies import Strategy
from placement_checks.rules.base import Rule, is_among
from placement_checks.rules.needs import Need
from placement_checks.util.text import plural


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
            return self.without(OneTower(f"there is one replica, on {strategy.replicas[0].short}"))
        findings = [
            _finding(placement, strategy, each)
            for each in outside_scope(placement)
            if not is_among(each.variable, self.allow)
        ]
        made = len(placement.variables) - len(strategy.outside)
        return self.verdict(findings, f"{plural(made, 'variable')} of {strategy.name}")


def _finding(placement: Placement, strategy: Strategy, outside: Outside) -> Finding:
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
