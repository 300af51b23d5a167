from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from placement_checks.analysis.tower_analysis import TowerAnalysis, analyse
from placement_checks.core.evidence import Evidence
from placement_checks.core.op_types import (
    MERGE_SUMMARY,
    SCALAR_SUMMARIES,
    SUMMARIES,
    SUMMARY_WRITES,
)
from placement_checks.core.placement import Placement, producer_of
from placement_checks.core.results import Finding, Verdict
from placement_checks.rules.base import Rule, built_at, is_among, steps
from placement_checks.rules.needs import Need
from placement_checks.util.text import joined


@dataclass(frozen=True)
class LossOfAllTowers(Rule):
    """The loss a program reports reads every tower, and summaries are not written once a tower.

    The variable that the loop over towers leaves behind is the last tower's: its loss is what
    gets printed, and it looks right, with the noise of a smaller batch. What is looked at: the
    `loss` of the Step (a list counts as one), and scalar summaries of losses.

    Summaries that one line of the program builds in every tower are N curves of one quantity.

    `allow` lists summaries, or patterns such as tower_3/*, that show one tower on purpose.
    """

    name = "loss-of-all-towers"
    kind = "requested"
    requires = frozenset({Need.TWO_TOWERS})

    allow: tuple[str, ...] = ()

    def check(self, evidence: Evidence) -> Verdict:
        placement = evidence.placement
        known = analyse(placement)
        summaries = _written(known)
        reported = [producer_of(name) for name in placement.step.losses]
        of_losses = list(_of_losses(known, summaries))
        findings = [*_repeated(placement, known, summaries)]
        if not reported and not of_losses and not findings:
            return self.not_checked(
                "no reported loss is known; return it from the function that builds the graph: "
                "{'loss': loss}"
            )
        findings += _partial(placement, known, [known.flow.number[n] for n in reported])
        named = {finding.object for finding in findings}
        for op in of_losses:
            if known.flow.names[op] not in named:
                findings += _partial(placement, known, [op])
        return self.verdict(
            [each for each in findings if not self._is_declared(each.object)],
            f"{len(reported)} reported, {len(of_losses)} summaries of losses",
        )

    def _is_declared(self, name: str) -> bool:
        return is_among(name, self.allow)


def _written(known: TowerAnalysis) -> list[int]:
    """The summaries; where the program merges some, only those are written."""
    types = known.flow.types
    found = [op for op, kind in enumerate(types) if kind in SUMMARIES]
    merged = {op for op in found if MERGE_SUMMARY in {types[e] for e in known.flow.consumers[op]}}
    return [op for op in found if not merged or op in merged or types[op] in SUMMARY_WRITES]


def _of_losses(known: TowerAnalysis, summaries: list[int]) -> Iterator[int]:
    """The scalar summaries that show a loss, or what is made of losses."""
    losses = [0] * len(known.ops)
    for of_tower in known.losses.of:
        for loss in of_tower:
            losses[loss] = 1
    if not any(losses):
        return
    reached = known.flow.masks(losses)
    for op in summaries:
        if known.flow.types[op] in SCALAR_SUMMARIES and reached[op]:
            yield op


def _partial(placement: Placement, known: TowerAnalysis, ops: list[int]) -> Iterator[Finding]:
    """The finding on a loss, in one tensor or several, that does not read every tower."""
    read = 0
    for op in ops:
        read |= known.towers_behind[op]
    read &= known.all_towers
    if not read or read == known.all_towers:
        return
    name = known.flow.names[ops[-1]]
    without = joined(known.towers[each] for each in known.towers_in(known.all_towers ^ read))
    towers = joined(known.towers[each] for each in known.towers_in(read))
    path = known.flow.path(ops[-1], lambda op: bool(known.own_towers[op]))
    yield Finding(
        object=name,
        op=known.flow.types[ops[-1]],
        evidence="requested",
        expected="a loss of all towers",
        found=f"the loss of the tower on {towers}",
        where=placement.where(name),
        path=steps(placement, path),
        message=f"{name} ({known.flow.types[ops[-1]]}) reports the loss of the tower on {towers} "
        f"alone; it does not read {without}{built_at(placement, name)}",
        fix="report the mean of the towers' losses: tf.add_n(losses) / num_gpus, under /cpu:0",
    )


def _repeated(
    placement: Placement, known: TowerAnalysis, summaries: list[int]
) -> Iterator[Finding]:
    """Findings on summaries that one line has built in several towers."""
    built: dict[tuple[object, ...], dict[int, int]] = defaultdict(dict)
    for op in summaries:
        mask = known.towers_behind[op] & known.all_towers
        tower = mask.bit_length() - 1 if mask.bit_count() == 1 else known.tower_of[op]
        frames = tuple(placement.details.frames(known.flow.names[op]))
        if tower >= 0 and frames:
            built[known.flow.types[op], frames].setdefault(tower, op)
    for by_tower in built.values():
        first, *others = sorted(by_tower)
        for tower in others:
            name = known.flow.names[by_tower[tower]]
            original = known.flow.names[by_tower[first]]
            yield Finding(
                object=name,
                op=known.flow.types[by_tower[tower]],
                evidence="requested",
                expected="one summary for all towers",
                found=f"one for the tower on {known.towers[tower]}",
                where=placement.where(name),
                path=steps(placement, [by_tower[first], by_tower[tower]]),
                message=f"the summary {name} is written once a tower: the same line builds "
                f"{original} for the tower on {known.towers[first]}{built_at(placement, name)}",
                fix="summarise the mean over the towers, or one tower and declare it: "
                "--set loss-of-all-towers.allow=PATTERN",
            )
