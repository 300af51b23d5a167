from __future__ import annotations

from dataclasses import dataclass, replace

from placement_checks.analysis.towers.analysis import analyze
from placement_checks.analysis.variables.mixed_losses import (
    MixedLoss,
    WaitingLoss,
    mixed_losses,
)
from placement_checks.core import mistakes
from placement_checks.core.evidence import Evidence
from placement_checks.core.facts import FactKind
from placement_checks.core.impact import Impact
from placement_checks.core.placement import Placement
from placement_checks.core.results import Finding, Verdict
from placement_checks.rules.base import Rule, first_of_each, unless_allowed
from placement_checks.rules.catalog import state_mistake
from placement_checks.rules.requirements import Need
from placement_checks.rules.source_lines import blame_wait


@dataclass(frozen=True)
class LossesApart(Rule):
    """No tower's loss depends on another tower.

    The usual cause is a collection of losses that every tower adds up without naming its own
    scope: the second tower's loss then contains the first tower's. The first tower's examples
    count twice, and each further tower counts regularization once more.

    The rule reads the losses as terms, like equal-to-one-gpu, but needs no program for one GPU.
    The loss of tower A contains the loss of tower B in three cases: a summand of A's loss is
    computed from B's rows alone; A's loss depends on B's computation, but B's loss does not depend
    on A's; or each tower builds the same weight penalty, and A adds both. B's computation counts
    if it combines B's rows with a variable that both towers read, or have copies of. A layer that
    one GPU computes for all towers is not a finding. A loss is not checked if it is computed in a
    loop, or by ops that the rule cannot read.

    A's loss must not wait for an update that only B computes, such as B's statistics of batch
    normalization. Then A waits for B in every step. Updates by gradients are left to one-update.

    If the ops on B's GPU serve no loss of B, nothing is mixed: a part of A's model was built on
    the wrong GPU, and the finding states this.

    Towers that depend on each other symmetrically do so on purpose: they share moments of batch
    normalization, or a loss over all examples. The note names the op that combines their values.
    The rule does not recognize two towers that take each other's values by mistake.

    `allow` lists losses, or patterns, that read other towers on purpose.
    """

    name = "losses-apart"
    kind = "requested"
    impact = Impact.TRAINING
    states = FactKind.MIXED_LOSS
    requires = frozenset({Need.TWO_TOWERS, Need.LOSSES})
    intended = "these losses contain values that other towers compute"
    threads = (
        "tensorflow/models#342: losses collected without a scope, from all towers",
        "keras-team/keras#7178: the more GPUs, the higher the loss: a penalty for each copy",
    )

    allow: tuple[str, ...] = ()

    def check(self, evidence: Evidence) -> Verdict:
        placement = evidence.placement
        analysis, losses = analyze(placement), mixed_losses(placement)
        found = first_of_each(
            (
                *(_finding(placement, mixed) for mixed in losses.all),
                *(_waiting(placement, waiting) for waiting in losses.waiting),
            )
        )
        findings = unless_allowed(found, self.allow)
        if not findings and (unread := losses.unread) is not None:
            return self.without(unread)
        note = f"{len(analysis.towers)} towers"
        if analysis.losses.joint:
            note = "one loss of all towers; its parts were checked"
        if shared := losses.shared_ops:
            first = min(shared)
            of_two = shared[first].bit_count() == 2
            note += (
                f"; {analysis.names_of(shared[first])} each depend on the "
                f"{'other' if of_two else 'others'}: the op {analysis.flow.names[first]} uses "
                f"results of {'both' if of_two else 'all of them'}"
            )
        return self.verdict(findings, note)


def _waiting(placement: Placement, waiting: WaitingLoss) -> Finding:
    analysis = analyze(placement)
    names = analysis.flow.names
    loss, update = names[waiting.path[0]], names[waiting.path[-1]]
    tower, other = analysis.towers[waiting.tower], analysis.towers[waiting.other]
    facts = {"tower": tower, "other": other, "loss": loss, "update": update}
    return state_mistake(
        placement,
        loss,
        mistakes.LOSS_WAITS,
        {**facts, "variable": waiting.variable},
        waiting.path,
        frames=blame_wait(placement, names[waiting.path[-2]]),
        devices=(*tower.devices, *other.devices),
    )


def _finding(placement: Placement, mixed: MixedLoss) -> Finding:
    analysis = analyze(placement)
    names = analysis.flow.names
    loss, contained = names[mixed.path[0]], names[mixed.path[-1]]
    tower, other = analysis.towers[mixed.tower], analysis.towers[mixed.other]
    # The last op of the path that depends on both towers adds the other tower's loss.
    has_own = (op for op in reversed(mixed.path) if analysis.towers_behind[op] >> mixed.tower & 1)
    mistake = mistakes.LOSS_OF_OTHER
    if not analysis.examples[mixed.path[-1]]:
        mistake = mistakes.PENALTY_OF_OTHER
    is_used = mixed.path[-1] in analysis.flow.reachable(analysis.losses.by_tower[mixed.other])
    if not is_used:
        mistake = mistakes.LOSS_ON_OTHER_GPU
    finding = state_mistake(
        placement,
        loss,
        mistake,
        {"tower": tower, "other": other, "loss": loss, "contained": contained},
        mixed.path,
        ops=(names[next(has_own, mixed.path[0])],),
        devices=(*tower.devices, *other.devices),
    )
    if is_used:
        return finding
    return replace(
        finding,
        ops=(contained,),
        placed=contained,
        is_of_scope=True,
        group_key=mixed.other,
        devices=other.devices,
    )
