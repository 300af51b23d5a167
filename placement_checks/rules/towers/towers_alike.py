from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from placement_checks.analysis.graph.value_numbering import Difference, differences
from placement_checks.analysis.towers.analysis import TowerAnalysis, analyse
from placement_checks.core.evidence import Evidence
from placement_checks.core.op_types import CONST, IDENTITIES, SCALES
from placement_checks.core.placement import Placement
from placement_checks.core.results import Finding, Verdict
from placement_checks.rules.base import Rule, matches_any, path_lines
from placement_checks.rules.requirements import Need


@dataclass(frozen=True)
class TowersAlike(Rule):
    """The towers are the same computation, devices apart.

    Towers that differ train different models by one set of weights, and the mean of their
    gradients is the gradient of none of them. Nothing fails, as their shapes agree.

    The loss of each tower is followed back beside that of the first, op by op, and each place
    where they differ is a finding: another op, another attribute, another constant. The usual
    cause is an `if` on the number of the tower, or an argument that only one of them gets.

    Not findings: the sizes with which towers cut their slices, seeds, a factor of a whole loss
    (towers of unequal size), a regularisation that one tower adds for all, before or after such a
    factor, and what a tower computes beside its loss, such as an accuracy.

    `allow` lists ops, or patterns such as tower_0/aux/*, in which towers differ on purpose.
    """

    name = "towers-alike"
    kind = "requested"
    requires = frozenset({Need.TWO_TOWERS, Need.LOSSES, Need.LOSSES_APART})

    allow: tuple[str, ...] = ()

    def check(self, evidence: Evidence) -> Verdict:
        placement = evidence.placement
        analysis = analyse(placement)
        losses = analysis.losses
        findings: dict[str, Finding] = {}
        for number in range(1, len(analysis.towers)):
            first, other = losses.by_tower[0], losses.by_tower[number]
            if len(first) != len(other):
                return self.not_checked(
                    f"the towers on {analysis.towers[0]} and {analysis.towers[number]} have "
                    f"{len(first)} and {len(other)} losses: they cannot be compared"
                )
            first, other = zip(*_without_penalties(analysis, first, other), strict=True)
            shared = analysis.towers[0].reads.keys() & analysis.towers[number].reads.keys()
            for difference in differences(
                placement, analysis.flow, analysis.examples, first, other, shared
            ):
                finding = self._finding(placement, number, difference)
                if not matches_any(finding.object, self.allow):
                    findings.setdefault(finding.object, finding)
        return self.verdict(list(findings.values()), f"{len(analysis.towers)} towers")

    def _finding(self, placement: Placement, number: int, difference: Difference) -> Finding:
        analysis = analyse(placement)
        name, original = analysis.flow.names[difference.other], analysis.flow.names[difference.op]
        where = placement.where(original)
        at = f", {where}" if where and where != placement.where(name) else ""
        return Finding(
            object=name,
            op=analysis.flow.types[difference.other],
            evidence="requested",
            expected=difference.expected,
            found=difference.found,
            path=path_lines(placement, difference.path),
            message=f"the tower on {analysis.towers[number]} computes {name} ({difference.found}) "
            f"where the tower on {analysis.towers[0]} computes {original} "
            f"({difference.expected}{at})",
            consequence="gradients of different models are averaged: what is trained is none of "
            "them",
            alike=(difference.expected, difference.found),
            fix="build all towers by one function with the same arguments; what only one tower "
            "needs must not be part of its loss",
        )


def _without_penalties(
    analysis: TowerAnalysis, losses: Sequence[int], others: Sequence[int]
) -> Iterator[tuple[int, int]]:
    """What is to be alike in two towers: their losses, without what does not depend on examples.

    Where that is added before the whole is scaled, the loss within, and what scales it.
    """
    for loss, other in zip(losses, others, strict=True):
        pair = analysis.without_regularization(loss), analysis.without_regularization(other)
        inner, factors = _within(analysis, *pair)
        penalised = inner != tuple(map(analysis.without_regularization, inner))
        if penalised:
            yield from factors
            yield from _without_penalties(analysis, inner[:1], inner[1:])
        else:
            yield pair


def _within(
    analysis: TowerAnalysis, loss: int, other: int
) -> tuple[tuple[int, int], list[tuple[int, int]]]:
    """What two losses scale alike, and by what, constants left out."""
    flow = analysis.flow
    factors: list[tuple[int, int]] = []
    while (kind := flow.types[loss]) == flow.types[other] and kind in IDENTITIES | SCALES:
        pairs = list(zip(flow.inputs[loss], flow.inputs[other], strict=False))
        scaled = [pair for pair in pairs if all(analysis.examples[op] for op in pair)]
        if len(scaled) != 1:
            break
        factors += [
            pair
            for pair in pairs
            if pair not in scaled and not all(flow.types[op] == CONST for op in pair)
        ]
        loss, other = scaled[0]
    return (loss, other), factors
