from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from placement_checks.analysis.step.schedule import Overlap, observed_overlap, possible_overlap
from placement_checks.analysis.towers.analysis import TowerAnalysis, analyse
from placement_checks.analysis.towers.discovery import Tower
from placement_checks.core.errors import ConfigError
from placement_checks.core.evidence import Evidence
from placement_checks.core.placement import Placement, producer_of
from placement_checks.core.results import Finding, Verdict
from placement_checks.rules.base import Rule, path_lines
from placement_checks.rules.requirements import Need
from placement_checks.rules.source_lines import frames_up_to
from placement_checks.util.text import join_and, plural

if TYPE_CHECKING:
    from placement_checks.core.trace import Trace


@dataclass(frozen=True)
class TowersOverlap(Rule):
    """No tower waits for another: all of them compute at once.

    A control dependency, or a value, that makes one tower wait for another changes no number and
    no device, and takes away all that the second GPU brings.

    Some steps are run and traced. The time that each op took, and what it waits for in the graphs
    that ran, give a schedule in which every GPU does one op at a time and nothing else holds it
    up. Of the two towers that compute at once least, the share is given: 1 if one of them never
    computes without the other, 0 if they take turns. It does not depend on how busy the machine
    is, nor on how many cores it has. The share in the run itself is shown beside it; a few rows
    or a busy machine make that smaller, and where it is large enough, that will do.

    The rule is broken where the share of two towers is small and one waits for the other: a
    control dependency or a value leads from one to the next; and where all towers are on one GPU.
    Towers that only the host holds up, each with work of its own, do not break it.

    `least` is the smallest share that is no breach.
    """

    name = "towers-overlap"
    kind = "executed"
    requires = frozenset({Need.TRACE})

    least: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.least <= 1:
            raise ConfigError("least", f"{self.least} is not a share", "give one above 0, up to 1")

    def check(self, evidence: Evidence) -> Verdict:
        placement = evidence.placement
        trace = evidence.trace
        assert trace
        if on_one := self._on_one_gpu(placement, trace):
            return self.verdict([on_one])
        if (few := Need.TWO_TOWERS.missing(evidence)) is not None:
            return self.without(few)
        towers = analyse(placement).towers
        groups = [tower.devices for tower in towers]
        if len(set(groups)) < len(groups):
            return self.not_checked(f"towers share one device: {join_and(map(str, towers))}")
        if idle := next((tower for tower in towers if not _computes(trace, tower)), None):
            return self.not_checked(f"nothing of the tower on {idle} is computed in a step")
        possible = possible_overlap(trace, groups)
        observed = observed_overlap(trace, groups)
        note = _note(trace, len(towers), possible, observed)
        if observed is not None and observed >= self.least:
            return self.verdict([], note)
        if not possible:
            return self.not_checked("the ops of the step wait for each other in a circle", note)
        in_turn = [pair for pair in possible if pair.share < self.least]
        return self.verdict(list(self._findings(placement, trace, in_turn)), note)

    def _on_one_gpu(self, placement: Placement, trace: Trace) -> Finding | None:
        """The finding where several towers, by their inputs, compute on one GPU of several."""
        towers = len(placement.step.inputs)
        gpus = len(placement.machine.gpus) if placement.machine else 0
        step = trace.shortest
        busy = [device for device in step.lanes if device.is_gpu and step.busy([device])]
        found = {tower.devices for tower in analyse(placement).towers}
        if towers < 2 or gpus < 2 or len(found) > 1 or len(busy) != 1:
            return None
        gpu = busy[0].short
        losses = tuple(map(producer_of, placement.step.objectives or placement.step.losses))
        return Finding(
            object=gpu,
            op="",
            evidence=self.kind,
            expected=f"{towers} towers, each on a GPU of its own",
            found=f"all of them on {gpu}",
            ops=losses[:1],
            placed=losses[0] if losses else None,
            message=f"there are inputs for {towers} towers, and {gpu} computes all of them, one "
            "after the other",
            consequence="a step takes as long as all towers together",
            fix="build tower i under `with tf.device(f'/gpu:{i}'):`",
        )

    def _findings(
        self, placement: Placement, trace: Trace, pairs: Sequence[Overlap]
    ) -> Iterator[Finding]:
        """One for each tower that waits for others: with the one it waits for most directly."""
        paths: dict[int, tuple[int, float, list[int]]] = {}
        for pair in pairs:
            late, early = pair.other, pair.one
            path = _wait_path(placement, trace, late, early)
            if not path:
                late, early = early, late
                path = _wait_path(placement, trace, late, early)
            if path and (late not in paths or len(path) < len(paths[late][2])):
                paths[late] = early, pair.share, path
        for late, (early, share, path) in paths.items():
            yield self._finding(placement, late, early, share, path)

    def _finding(
        self, placement: Placement, late: int, early: int, share: float, path: Sequence[int]
    ) -> Finding:
        analysis = analyse(placement)
        names = analysis.flow.names
        waits, awaited, by_control = _first_wait(analysis, late, path)
        frames = frames_up_to(placement, names[waits], names[awaited])
        return Finding(
            object=analysis.towers[late].devices[0].short,
            op="",
            evidence=self.kind,
            expected=f"overlap for at least {self.least:.0%} of the time",
            found=f"{share:.0%}",
            ops=(names[path[0]],),
            frames=frames,
            alike=(frames, by_control),
            path=path_lines(placement, path),
            message=f"the tower on {analysis.towers[late]} computes at once with the one on "
            f"{analysis.towers[early]} for {share:.0%} of the time: "
            f"{names[path[0]]} waits for {names[path[-1]]}",
            consequence="for the rest of the time one of these GPUs stands idle",
            fix="build it outside of the `with tf.control_dependencies(...):` that makes it wait"
            if by_control
            else "let it read no value of the other tower",
        )


def _first_wait(analysis: TowerAnalysis, late: int, path: Sequence[int]) -> tuple[int, int, bool]:
    """An op that waits, and for which, and whether by a control dependency.

    Of a path without one, where it leaves the tower.
    """
    by_control = analysis.flow.control_inputs
    for waits, awaited in pairwise(path):
        if awaited in by_control.get(waits, ()):
            return waits, awaited, True
    waits, awaited = next(pair for pair in pairwise(path) if analysis.tower_of[pair[1]] != late)
    return waits, awaited, False


def _wait_path(placement: Placement, trace: Trace, late: int, early: int) -> list[int]:
    """The path back from the first op of a tower that waits for another one to that one's op.

    What is fed waits for nothing.
    """
    analysis = analyse(placement)
    flow = analysis.flow
    fed = {flow.number[producer_of(name)] for names in placement.step.inputs for name in names}
    devices = analysis.towers[late].devices
    ran = {
        span.op
        for device, lane in trace.shortest.lanes.items()
        if any(device.matches(pattern) for pattern in devices)
        for span in lane
    }
    waits = bytearray(at == early for at in analysis.tower_of)
    changed = True
    while changed:  # a second time only where a loop leads backwards
        changed = False
        for op in range(len(waits)):
            before = (*flow.inputs[op], *flow.control_inputs.get(op, ()))
            if not waits[op] and op not in fed and any(waits[needed] for needed in before):
                waits[op] = changed = True
    first = next((op for op, name in enumerate(flow.names) if waits[op] and name in ran), None)
    if first is None:
        return []
    return flow.path(
        first,
        lambda op: analysis.tower_of[op] == early,
        lambda op: op not in fed,
        control_inputs=True,
    )


def _note(trace: Trace, towers: int, possible: Sequence[Overlap], observed: float | None) -> str:
    parts = [f"{towers} towers"]
    if possible:
        least = min(pair.share for pair in possible)
        parts.append(f"which can compute at once for {least:.0%} of the time")
    if observed is not None:
        parts.append(
            f"in the run of {plural(trace.rows, 'row')} they did for up to {observed:.0%}"
        )
    return ", ".join(parts)


def _computes(trace: Trace, tower: Tower) -> bool:
    return bool(trace.shortest.busy(tower.devices))
