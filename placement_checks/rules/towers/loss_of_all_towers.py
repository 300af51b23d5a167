from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace

from placement_checks.analysis.towers.analysis import TowerAnalysis, analyse
from placement_checks.core.evidence import Evidence
from placement_checks.core.op_types import (
    MERGE_SUMMARY,
    SCALAR_SUMMARIES,
    SUMMARIES,
    SUMMARY_WRITES,
    VARIABLES,
)
from placement_checks.core.placement import Placement, producer_of
from placement_checks.core.results import Finding, Verdict
from placement_checks.rules.base import Rule, matches_any, path_lines
from placement_checks.rules.requirements import Need
from placement_checks.rules.source_lines import LoopLines


@dataclass(frozen=True)
class LossOfAllTowers(Rule):
    """The loss a program reports reads every tower, and summaries are not written once per tower.

    The variable that the loop over towers leaves behind is the last tower's: its loss is what
    gets printed, and it looks right, with the noise of a smaller batch. What is looked at: the
    `loss` of the Step (a list counts as one), and scalar summaries of losses.

    Summaries of examples that one line of the program builds in every tower are N curves of one
    quantity. Summaries of shared variables are equal in all towers, and no finding. Under a
    strategy only the first replica writes summaries.

    `allow` lists summaries, or patterns such as tower_3/*, that show one tower on purpose.
    """

    name = "loss-of-all-towers"
    kind = "requested"
    requires = frozenset({Need.TWO_TOWERS})

    allow: tuple[str, ...] = ()

    def check(self, evidence: Evidence) -> Verdict:
        placement = evidence.placement
        analysis = analyse(placement)
        summaries = _written(analysis)
        reported = [producer_of(name) for name in placement.step.losses]
        of_losses = list(_of_losses(analysis, summaries))
        findings = [*_repeated(placement, analysis, summaries)]
        if not reported and not of_losses and not findings:
            return self.not_checked(_NOT_RETURNED if placement.step.traced else _NOT_KNOWN)
        findings += _partial(placement, analysis, [analysis.flow.number[n] for n in reported])
        named = {finding.object for finding in findings}
        repeated = {op: finding for finding in findings for op in finding.ops}
        for op in of_losses:
            name = analysis.flow.names[op]
            if name in named:
                continue
            for finding in _partial(placement, analysis, [op]):
                findings.append(_like(finding, repeated.get(name)))
        return self.verdict(
            [finding for finding in findings if not matches_any(finding.object, self.allow)],
            f"{len(reported)} reported as loss, {len(of_losses)} in summaries",
        )


def _written(analysis: TowerAnalysis) -> list[int]:
    """The summaries; where the program merges some, only those are written.

    Of the replicas of a strategy only the first writes: TensorFlow sees to that.
    """
    types = analysis.flow.types
    summaries = analysis.flow.having(SUMMARIES.__contains__)
    if analysis.placement.strategy is not None:
        summaries = [op for op in summaries if _tower(analysis, op) <= 0]
    merged = {
        op
        for op in summaries
        if any(types[consumer] == MERGE_SUMMARY for consumer in analysis.flow.consumers[op])
    }
    return [op for op in summaries if not merged or op in merged or types[op] in SUMMARY_WRITES]


def _of_losses(analysis: TowerAnalysis, summaries: list[int]) -> Iterator[int]:
    """The scalar summaries that show a loss, or what is made of losses."""
    losses = [0] * len(analysis.flow.names)
    for of_tower in analysis.losses.by_tower:
        for loss in of_tower:
            losses[loss] = 1
    if not any(losses):
        return
    reached = analysis.flow.propagate(losses)
    for op in summaries:
        if analysis.flow.types[op] in SCALAR_SUMMARIES and reached[op]:
            yield op


def _partial(placement: Placement, analysis: TowerAnalysis, ops: list[int]) -> Iterator[Finding]:
    """The finding on a loss, in one tensor or several, that does not read every tower."""
    read = 0
    for op in ops:
        read |= analysis.towers_behind[op]
    read &= analysis.all_towers
    if not read or read == analysis.all_towers:
        return
    name = analysis.flow.names[ops[-1]]
    without = analysis.names_of(analysis.all_towers ^ read)
    towers = analysis.names_of(read)
    path = analysis.flow.path(ops[-1], lambda op: bool(analysis.own_towers[op]))
    yield Finding(
        object=name,
        op=analysis.flow.types[ops[-1]],
        evidence="requested",
        expected="a loss of all towers",
        found=f"the loss of {towers}",
        path=path_lines(placement, path),
        message=f"{name} ({analysis.flow.types[ops[-1]]}) reports only the loss of {towers}; it "
        f"does not depend on {without}",
        consequence="what is printed looks like the loss of the batch, and is that of a part "
        "of it",
        fix=_OF_TOWERS if placement.strategy is None else _OF_REPLICAS,
        alike=read,
        at=placement.cached(LoopLines).line(name),
    )


def _like(finding: Finding, cause: Finding | None) -> Finding:
    """The finding on a summary, told with that on the others that its line builds."""
    if cause is None:
        return finding
    return replace(
        finding, consequence=cause.consequence, fix=cause.fix, alike=cause.alike, at=cause.at
    )


def _tower(analysis: TowerAnalysis, summary: int) -> int:
    """The tower that a summary is of; -1 where it is of several, or of none."""
    mask = analysis.towers_behind[summary] & analysis.all_towers
    return mask.bit_length() - 1 if mask.bit_count() == 1 else analysis.tower_of[summary]


def _repeated(
    placement: Placement, analysis: TowerAnalysis, summaries: list[int]
) -> Iterator[Finding]:
    """Findings on summaries that one line has built in several towers."""
    built: dict[tuple[object, ...], dict[int, int]] = defaultdict(dict)
    for op in summaries:
        tower = _tower(analysis, op)
        frames = tuple(placement.details.frames(analysis.flow.names[op]))
        if tower >= 0 and frames:
            built[analysis.flow.types[op], frames].setdefault(tower, op)
    for by_tower in built.values():
        first, *others = sorted(by_tower)
        for tower in others:
            if _show_one_variable(analysis, by_tower[first], by_tower[tower]):
                continue
            name = analysis.flow.names[by_tower[tower]]
            original = analysis.flow.names[by_tower[first]]
            yield Finding(
                object=name,
                op=analysis.flow.types[by_tower[tower]],
                ops=(name, original),
                evidence="requested",
                expected="one summary for all towers",
                found=f"one for the tower on {analysis.towers[tower]}",
                path=path_lines(placement, [by_tower[first], by_tower[tower]]),
                message=f"each tower writes a summary of its own: {name} is built by the line "
                f"that builds {original} for the tower on {analysis.towers[first]}",
                consequence="there is a curve for each tower, of its part of each batch, and none "
                "of the whole",
                fix="write it after the loop, of the mean: tf.add_n(values) / num_gpus; or of "
                "one tower, and allow that: --set loss-of-all-towers.allow=PATTERN",
                alike="repeated",
            )


def _show_one_variable(analysis: TowerAnalysis, summary: int, other: int) -> bool:
    """Whether two summaries show the same variable, and nothing that depends on examples."""
    flow = analysis.flow
    if analysis.examples[summary] or analysis.examples[other]:
        return False
    shown = [
        {each for each in flow.reachable([op]) if flow.types[each] in VARIABLES}
        for op in (summary, other)
    ]
    return shown[0] == shown[1]


_OF_TOWERS = "in the loop losses.append(loss), and after it report tf.add_n(losses) / num_gpus"
_OF_REPLICAS = (
    "report that of all replicas: strategy.reduce('SUM', loss, axis=None), or 'MEAN' where each "
    "is the mean of its replica's rows"
)
_NOT_KNOWN = (
    "no reported loss is known: the step fetches none; the function that builds the graph may "
    "return it: {'loss': loss}"
)
_NOT_RETURNED = "no number that the step returns is computed from the loss that it trains with"
