from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from placement_checks.analysis.schedule import Overlap, observed_overlap, possible_overlap
from placement_checks.analysis.tower_analysis import analyse
from placement_checks.analysis.towers import Tower
from placement_checks.core.errors import ConfigError
from placement_checks.core.evidence import Evidence
from placement_checks.core.placement import Placement, producer_of
from placement_checks.core.results import Finding, Verdict
from placement_checks.rules.base import Rule, steps
from placement_checks.rules.needs import Need
from placement_checks.util.text import plural

if TYPE_CHECKING:
    from placement_checks.core.trace import Trace


@dataclass(frozen=True)
class TowersOverlap(Rule):
    """No tower waits for another: all of them compute at once.

    Some steps are run and traced. The time that each op took, and what it waits for in the graphs
    that ran, give a schedule in which every GPU does one op at a time and nothing else holds it
    up. Of the two towers that compute at once least, the share is told: 1 if one of them never
    computes without the other, 0 if they take turns. It does not depend on how busy the machine
    is, nor on how many cores it has. The share in the run itself is shown beside it; a few rows
    or a busy machine make that smaller, and where it is large enough, that will do.

    Two towers are a breach where the share is small and one waits for the other: a control
    dependency or a value leads from one to the next. So are all towers on one GPU. Towers that
    only the host holds up, each with work of its own, are none. `least` is the smallest share
    that is no breach.
    """

    name = "towers-overlap"
    kind = "executed"
    requires = frozenset({Need.TRACE})

    least: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.least <= 1:
            raise ConfigError("least", f"{self.least} is no share", "give one above 0, up to 1")

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
        if idle := next((tower for tower in towers if not _computes(trace, tower)), None):
            return self.not_checked(f"nothing of the tower on {idle} is computed in a step")
        could, did = possible_overlap(trace, groups), observed_overlap(trace, groups)
        note = _note(trace, len(towers), could, did)
        if did is not None and did >= self.least:
            return self.verdict([], note)
        if not could:
            return self.not_checked("what the ops of a step wait for goes round in a circle", note)
        apart = [pair for pair in could if pair.share < self.least]
        return self.verdict(list(self._findings(placement, trace, apart)), note)

    def _on_one_gpu(self, placement: Placement, trace: Trace) -> Finding | None:
        """The finding where several towers, by their inputs, compute on one GPU of several."""
        towers = len(placement.step.inputs)
        gpus = len(placement.machine.gpus) if placement.machine else 0
        step = trace.shortest
        busy = [device for device in step.lanes if device.is_gpu and step.busy([device])]
        known = len(analyse(placement).towers)
        if towers < 2 or gpus < 2 or known > 1 or len(busy) != 1:
            return None
        gpu = busy[0].short
        return Finding(
            object=gpu,
            op="",
            evidence=self.kind,
            expected=f"{towers} towers, each on a GPU of its own",
            found=f"all of them on {gpu}",
            message=f"there are inputs for {towers} towers, and {gpu} computes all of them, one "
            "after the other",
            fix="build tower i under tf.device(f'/gpu:{i}')",
        )

    def _findings(
        self, placement: Placement, trace: Trace, pairs: Sequence[Overlap]
    ) -> Iterator[Finding]:
        """One for each tower that waits for others: with the one it waits for most directly."""
        ways: dict[int, tuple[int, float, list[int]]] = {}
        for pair in pairs:
            late, early = pair.other, pair.one
            way = _wait(placement, trace, late, early)
            if not way:
                late, early = early, late
                way = _wait(placement, trace, late, early)
            if way and (late not in ways or len(way) < len(ways[late][2])):
                ways[late] = early, pair.share, way
        for late, (early, share, way) in ways.items():
            yield self._finding(placement, late, early, share, way)

    def _finding(
        self, placement: Placement, late: int, early: int, share: float, way: Sequence[int]
    ) -> Finding:
        known = analyse(placement)
        names = known.flow.names
        return Finding(
            object=known.towers[late].devices[0].short,
            op="",
            evidence=self.kind,
            expected=f"company for at least {self.least:.0%} of the time",
            found=f"{share:.0%}",
            where=placement.where(names[way[0]]),
            path=steps(placement, way),
            message=f"the tower on {known.towers[late]} computes at once with the one on "
            f"{known.towers[early]} for {share:.0%} of the time: "
            f"{names[way[0]]} waits for {names[way[-1]]}",
            fix="take away what makes it wait: a control dependency, or a value of the other "
            "tower that it reads",
        )


def _wait(placement: Placement, trace: Trace, late: int, early: int) -> list[int]:
    """The way back from the first op of a tower that waits for another one to that one's op.

    What is fed waits for nothing.
    """
    known = analyse(placement)
    flow = known.flow
    fed = {flow.number[producer_of(name)] for each in placement.step.inputs for name in each}
    devices = known.towers[late].devices
    ran = {
        each.op
        for device, lane in trace.shortest.lanes.items()
        if any(device.matches(pattern) for pattern in devices)
        for each in lane
    }
    waits = bytearray(at == early for at in known.tower_of)
    again = True
    while again:  # a second time only where a loop leads backwards
        again = False
        for op in range(len(waits)):
            before = (*flow.inputs[op], *flow.control_inputs.get(op, ()))
            if not waits[op] and op not in fed and any(waits[each] for each in before):
                waits[op] = again = True
    first = next((op for op, name in enumerate(flow.names) if waits[op] and name in ran), None)
    if first is None:
        return []
    return flow.path(
        first,
        lambda each: known.tower_of[each] == early,
        lambda each: each not in fed,
        control_inputs=True,
    )


def _note(trace: Trace, towers: int, could: Sequence[Overlap], did: float | None) -> str:
    parts = [f"{towers} towers"]
    if could:
        least = min(pair.share for pair in could)
        parts.append(f"which can compute at once for {least:.0%} of the time")
    if did is not None:
        parts.append(f"in the run of {plural(trace.rows, 'row')} they did for up to {did:.0%}")
    return ", ".join(parts)


def _computes(trace: Trace, tower: Tower) -> bool:
    return bool(trace.shortest.busy(tower.devices))
