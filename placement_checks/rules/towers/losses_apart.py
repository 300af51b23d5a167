from __future__ import annotations

from dataclasses import dataclass

from placement_checks.analysis.tower_analysis import MixedLoss, analyse
from placement_checks.core.evidence import Evidence
from placement_checks.core.placement import Placement
from placement_checks.core.results import Finding, Verdict
from placement_checks.rules.base import Rule, built_at, is_among, steps
from placement_checks.rules.needs import Need


@dataclass(frozen=True)
class LossesApart(Rule):
    """No tower's loss depends on another tower.

    The usual cause is a collection of losses that is added up in every tower without its scope:
    the second tower's loss then contains the first one's, whose examples count twice, and
    regularisation counts once more with every tower.

    A loss depends on another tower if it contains what that tower computes with a variable that
    its own tower reads as well. Layers that one GPU computes for all towers are no breach.

    `allow` lists losses, or patterns, that read other towers on purpose, such as by moments of
    batch normalisation that all towers share.
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
            for finding in (_finding(placement, mixed) for mixed in analysis.mixed_losses)
            if not is_among(finding.object, self.allow)
        ]
        joint = "one loss of all towers; its parts were checked" if analysis.losses.joint else None
        return self.verdict(findings, joint or f"{len(analysis.towers)} towers")


def _finding(placement: Placement, mixed: MixedLoss) -> Finding:
    analysis = analyse(placement)
    loss, *_, contained = (analysis.flow.names[op] for op in mixed.path)
    tower = analysis.towers[mixed.tower]
    other = analysis.towers[analysis.tower_of[mixed.path[-1]]]
    return Finding(
        object=loss,
        op=placement.ops[loss].type,
        evidence="requested",
        expected=f"only ops of the tower on {tower}",
        found=f"{contained} of the tower on {other}",
        where=placement.where(loss),
        path=steps(placement, mixed.path),
        message=f"the loss of the tower on {tower}, {loss}, contains what the tower on {other} "
        f"computes, such as {contained}{built_at(placement, loss)}",
        fix="add up the losses of this tower only: get_collection(key, scope) with the tower's "
        "name scope, or a list of its own",
    )
