from __future__ import annotations

from dataclasses import dataclass, replace

from placement_checks.analysis.towers.analysis import TowerAnalysis, analyse
from placement_checks.analysis.variables.mixed_losses import MixedLoss, mixed_losses, shared_ops
from placement_checks.core.evidence import Evidence
from placement_checks.core.placement import Placement
from placement_checks.core.results import Finding, Verdict
from placement_checks.rules.base import Rule, matches_any, path_lines
from placement_checks.rules.requirements import Need


@dataclass(frozen=True)
class LossesApart(Rule):
    """No tower's loss depends on another tower.

    The usual cause is a collection of losses that is added up in every tower without its scope:
    the second tower's loss then contains the first one's, whose examples count twice, and
    regularisation counts once more with every tower.

    A loss contains another tower's if a part that is added to it, or averaged, is the other's and
    not its own; if it depends on what the other computes, and the other does not depend on its
    tower; or if it has a penalty on the weights twice that each tower makes, its own and the
    other's. It counts what the other computes of examples with a variable that both read, or have
    copies of: a layer that one GPU computes for all towers is no breach.

    Where what it contains serves no loss of the other tower, nothing is mixed: a part of its own
    model was built on the other's GPU, and the finding says so.

    Towers that depend on each other alike are meant to, by moments of batch normalisation that all
    share or a loss over the examples of all: the note names the op at which they meet. Two towers
    of which each takes the other's values by mistake look the same.

    `allow` lists losses, or patterns, that read other towers on purpose.
    """

    name = "losses-apart"
    kind = "requested"
    requires = frozenset({Need.TWO_TOWERS, Need.LOSSES})

    allow: tuple[str, ...] = ()

    def check(self, evidence: Evidence) -> Verdict:
        placement = evidence.placement
        analysis = analyse(placement)
        findings = [
            finding
            for finding in (_finding(placement, mixed) for mixed in mixed_losses(placement))
            if not matches_any(finding.object, self.allow)
        ]
        joint = "one loss of all towers; its parts were checked" if analysis.losses.joint else None
        note = joint or f"{len(analysis.towers)} towers"
        return self.verdict(findings, note + _where_they_meet(placement))


def _where_they_meet(placement: Placement) -> str:
    """For the note: the op at which towers meet that depend on each other alike."""
    analysis = analyse(placement)
    meeting = min(shared_ops(placement), default=None)
    if meeting is None:
        return ""
    towers = analysis.names_of(shared_ops(placement)[meeting])
    return f"; {towers} depend on each other alike: they meet at {analysis.flow.names[meeting]}"


def _finding(placement: Placement, mixed: MixedLoss) -> Finding:
    analysis = analyse(placement)
    loss, *_, contained = (analysis.flow.names[op] for op in mixed.path)
    tower = analysis.towers[mixed.tower]
    other = analysis.towers[mixed.other]
    finding = Finding(
        object=loss,
        op=placement.ops[loss].type,
        evidence="requested",
        expected=f"only ops of the tower on {tower}",
        found=f"{contained} of the tower on {other}",
        ops=(analysis.flow.names[_mixing(analysis, mixed)],),
        path=path_lines(placement, mixed.path),
        message=f"the loss of the tower on {tower}, {loss}, contains what the tower on {other} "
        f"computes, such as {contained}",
        consequence=_TWICE if analysis.examples[mixed.path[-1]] else _DECAYS,
        fix="add up this tower's losses only: tf.compat.v1.get_collection(key, scope), of "
        "`with tf.name_scope(f'tower_{i}') as scope:`",
        alike="mixed",
    )
    return finding if _is_for_other(analysis, mixed) else _misplaced(finding, contained, mixed)


def _misplaced(finding: Finding, contained: str, mixed: MixedLoss) -> Finding:
    """Nothing is mixed: a part of the tower's own model asks for the GPU of the other tower."""
    return replace(
        finding,
        found=f"{contained}, which asks for the GPU of another tower",
        ops=(contained,),
        placed=contained,
        message=f"a part of what leads to {finding.object} is built on the GPU of another tower: "
        f"{contained}, which serves no loss of that tower",
        consequence="the tower computes on both GPUs, one waits for the other, and values cross "
        "between them in every step",
        fix="build all of tower i under `with tf.device(f'/gpu:{i}'):`, and pin nothing of it to "
        "one GPU by its number",
        alike=("misplaced", mixed.other),
    )


_TWICE = "the other tower's examples count in both losses, and so more than once"
_DECAYS = (
    "the penalty counts once more with every tower: weights decay more, the more GPUs there are"
)


def _is_for_other(analysis: TowerAnalysis, mixed: MixedLoss) -> bool:
    """Whether what a loss contains of another tower reaches a loss of that one."""
    reaching = analysis.flow.reachable(analysis.losses.by_tower[mixed.other])
    return mixed.path[-1] in reaching


def _mixing(analysis: TowerAnalysis, mixed: MixedLoss) -> int:
    """The op in which the other tower's loss is added to the tower's own: the last that has it."""
    own = 1 << mixed.tower
    of_both = (op for op in reversed(mixed.path) if analysis.towers_behind[op] & own)
    return next(of_both, mixed.path[0])
