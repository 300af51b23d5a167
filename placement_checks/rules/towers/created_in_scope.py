from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from placement_checks.analysis.towers.analysis import analyze
from placement_checks.analysis.variables.gradient_flow import gradient_flow
from placement_checks.analysis.variables.slots import find_slots
from placement_checks.core.evidence import Evidence
from placement_checks.core.impact import Impact
from placement_checks.core.placement import Placement
from placement_checks.core.results import Finding, Verdict
from placement_checks.core.strategies import Strategy
from placement_checks.rules.base import Rule, about, unless_allowed
from placement_checks.rules.requirements import Need
from placement_checks.rules.source_lines import blame_creation
from placement_checks.util.text import plural


@dataclass(frozen=True)
class CreatedInScope(Rule):
    """Trained variables and optimizer slots are created in the scope of their strategy.

    A variable that is created before `with strategy.scope():` does not belong to the strategy:
    there is only one such variable, on one device, and all replicas read it. Each replica then
    updates it separately, so the updates race, and one step changes it several times. Optimizers
    of Keras refuse such a variable with an error that does not name the variable.

    Not findings: a variable on the host that one op updates, counters and learning rates of
    optimizers, and towers that are placed by hand. A strategy with one replica is not checked.

    `allow` lists variables, or patterns, that all replicas share on purpose.
    """

    name = "created-in-scope"
    kind = "requested"
    impact = Impact.TRAINING
    requires = frozenset({Need.REQUESTED, Need.VARIABLES, Need.REPLICAS})
    intended = "these variables are created once, and all replicas share them"
    threads = (
        "huggingface/transformers#8448: slots under another scope than their variables",
        "dmonterom/face_recognition_TF2#4: a layer's weights created outside of the scope",
    )

    allow: tuple[str, ...] = ()

    def check(self, evidence: Evidence) -> Verdict:
        placement = evidence.placement
        strategy = placement.strategy
        assert strategy
        if strategy.ranks:
            return self.not_checked("the ranks of Horovod share no variable, so there is no scope")
        findings = unless_allowed(_created_outside_scope(placement, strategy), self.allow)
        count = len(placement.variables) - len(strategy.outside)
        return self.verdict(findings, f"{plural(count, 'variable')} of {strategy.name}")


_LATER_REPLICA = re.compile(r"(^|/)replica_[1-9]\d*/")  # ops of all replicas but the first


def _created_outside_scope(placement: Placement, strategy: Strategy) -> Iterator[Finding]:
    """Yield findings on trained variables and slots that replicas share by mistake.

    Replicas share a variable by mistake if each of them updates it, or if it is on a GPU and the
    strategy has copies of other variables. A variable on the host that is updated once may be
    central on purpose, and so may the variables of towers that are placed by hand. Workers cannot
    share a variable: each worker has a separate variable, so any trained variable is a mistake.
    """
    analysis = analyze(placement)
    outside = [name for name in strategy.outside if name in analysis.updates.by_variable]
    trained = gradient_flow(placement).trained
    found = find_slots(placement)
    forms = {variable.name: variable[1:] for variable in placement.variables}
    for name in outside:
        owners = (*found.held.get(name, ()), *found.computed.get(name, ()))
        is_slot = any(owner in trained and forms[owner] == forms[name] for owner in owners)
        if name not in trained and not is_slot:
            continue
        updates = analysis.updates.select_for_one_step(analysis.updates.by_variable[name])
        by_each_replica = len(updates) > 1 and any(
            _LATER_REPLICA.search(analysis.flow.names[each.op]) for each in updates
        )
        on_gpu = placement.ops[name].requested.is_gpu
        if strategy.is_of_workers or by_each_replica or (on_gpu and strategy.copies):
            yield _finding(
                placement, strategy, name, is_trained=name in trained, updates=len(updates)
            )


def _finding(
    placement: Placement, strategy: Strategy, variable: str, *, is_trained: bool, updates: int
) -> Finding:
    op = placement.ops[variable]
    replicas = plural(len(strategy.replicas), "replica")
    use = f"is trained by {replicas}"
    if not is_trained:
        use = f"is an optimizer slot that {replicas} use"
    if strategy.is_of_workers:
        state = "each worker has its own"
        consequence = (
            "each worker trains its own model, and only the model of the first worker is saved"
        )
    else:
        where = f" on {op.requested.short}" if op.requested else ""
        state = f"the replicas have no copies of {variable}, only this variable{where}"
        consequence = (
            f"each replica updates it: {updates} unordered updates instead of one"
            if updates > 1
            else "all other replicas read it from there in each step"
        )
    return Finding(
        **about(op),
        message=f"{variable} {use}, but was created outside of strategy.scope(): {state}",
        consequence=consequence,
        fix=f"create the {'model' if is_trained else 'optimizer'} under `with strategy.scope():`",
        group_key=(is_trained, updates, op.requested),
        devices=(op.requested,),
        frames=blame_creation(placement, variable),
    )
