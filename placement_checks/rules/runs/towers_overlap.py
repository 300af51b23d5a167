from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from placement_checks.analysis.step.schedule import Overlap, observed_overlap, possible_overlap
from placement_checks.analysis.towers.analysis import analyze
from placement_checks.core.errors import ConfigError
from placement_checks.core.evidence import Evidence
from placement_checks.core.ids import OpId
from placement_checks.core.placement import Placement, producer_of
from placement_checks.core.results import Finding, Verdict
from placement_checks.rules.base import Rule, about, path_lines
from placement_checks.rules.requirements import Need
from placement_checks.rules.source_lines import blame
from placement_checks.util.text import join_and, plural

if TYPE_CHECKING:
    from placement_checks.core.trace import Trace


@dataclass(frozen=True)
class TowersOverlap(Rule):
    """No tower waits for another: all of them compute at once.

    If a control dependency or a value makes one tower wait for another, all numbers and devices
    stay the same, but the second GPU saves no time.

    The rule runs and traces some steps. It computes a schedule from the durations of the ops, and
    from their inputs in the executed graphs: every GPU runs one op at a time, and waits only for
    inputs. The overlap of two towers is the share of time in which both compute: 1 if one of them
    never computes without the other, 0 if they take turns. The smallest overlap of two towers
    counts. It depends neither on other load of the machine nor on its number of cores. The note
    also states the measured overlap. Few rows or a busy machine make the measured overlap smaller;
    if it is large enough, the rule is kept.

    The rule is broken if the overlap of two towers is small and a control dependency or a value
    leads from one to the other, or if all towers are on one GPU. Towers with separate work that
    only the host slows down do not break the rule.

    `least` is the smallest overlap that does not break the rule.
    """

    name = "towers-overlap"
    kind = "executed"
    requires = frozenset({Need.TRACE})

    least: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.least <= 1:
            raise ConfigError(
                "least", f"{self.least} is not a share", "give a share above 0, up to 1"
            )

    def check(self, evidence: Evidence) -> Verdict:
        placement, trace = evidence.placement, evidence.trace
        assert trace
        if (finding := _all_on_one_gpu(placement, trace)) is not None:
            return self.verdict([finding])
        if (missing := Need.TWO_TOWERS.missing(evidence)) is not None:
            return self.without(missing)
        if placement.strategy is not None and placement.strategy.is_of_workers:
            return self.not_checked(
                "the workers ran together on one host, so their overlap says nothing"
            )
        towers = analyze(placement).towers
        groups = [tower.devices for tower in towers]
        if len(set(groups)) < len(groups):
            return self.not_checked(f"towers share one device: {join_and(map(str, towers))}")
        for tower in towers:
            if not trace.shortest.busy(tower.devices):
                return self.not_checked(f"the step computes nothing of the tower on {tower}")
        possible = possible_overlap(trace, groups)
        observed = observed_overlap(trace, groups)
        shares = []
        if possible:
            least = min(pair.share for pair in possible)
            shares.append(f"{least:.0%} of the time in a simulated schedule")
        if observed is not None:
            shares.append(
                f"{observed:.0%} of the time in the best measured step, with "
                f"{plural(trace.rows, 'row')}"
            )
        note = f"{len(towers)} towers"
        if shares:
            note += f"; smallest overlap of two towers: {'; '.join(shares)}"
        if observed is not None and observed >= self.least:
            return self.verdict([], note)
        if not possible:
            return self.not_checked("the ops of the step wait for each other in a cycle", note)
        return self.verdict(list(self._wait_findings(placement, trace, possible)), note)

    def _wait_findings(
        self, placement: Placement, trace: Trace, possible: Sequence[Overlap]
    ) -> Iterator[Finding]:
        found: dict[int, tuple[int, float, list[OpId]]] = {}
        for pair in possible:
            if pair.share >= self.least:
                continue
            for late, early in ((pair.other, pair.one), (pair.one, pair.other)):
                if path := _path_to_awaited(placement, trace, late, early):
                    if late not in found or len(path) < len(found[late][2]):
                        found[late] = early, pair.share, path
                    break
        for late, (early, share, path) in found.items():
            yield self._wait_finding(placement, late, early, share, path)

    def _wait_finding(
        self, placement: Placement, late: int, early: int, share: float, path: Sequence[OpId]
    ) -> Finding:
        analysis = analyze(placement)
        names = analysis.flow.names
        # The tower starts to wait at the first control dependency of the path, or else at the edge
        # that leaves the tower.
        edges = list(pairwise(path))
        control_inputs = analysis.flow.control_inputs
        by_control = [edge for edge in edges if edge[1] in control_inputs.get(edge[0], ())]
        leaving = (edge for edge in edges if analysis.tower_of[edge[1]] != late)
        waiting, awaited = by_control[0] if by_control else next(leaving)
        frames = blame(placement, [names[waiting]], [names[awaited]])
        return Finding(
            **about(analysis.towers[late].devices[0].short, "executed"),
            ops=(names[path[0]],),
            frames=frames,
            group_key=frames,
            path=path_lines(placement, path),
            devices=(*analysis.towers[late].devices, *analysis.towers[early].devices),
            message=f"the tower on {analysis.towers[late]} overlaps with the tower on "
            f"{analysis.towers[early]} for {share:.0%} of the time: "
            f"{names[path[0]]} waits for {names[path[-1]]}",
            consequence="for the rest of the time only one of the two towers computes",
            fix="build the waiting op outside of the `with tf.control_dependencies(...):` that "
            "makes it wait"
            if by_control
            else "let the tower read no value of the other tower",
        )


def _all_on_one_gpu(placement: Placement, trace: Trace) -> Finding | None:
    """Return a finding if the program feeds several towers, but only one GPU computes."""
    towers = len(placement.step.inputs)
    gpus = placement.machine.gpus if placement.machine else ()
    step = trace.shortest
    busy = [device for device in step.lanes if device.is_gpu and step.busy([device])]
    used = {tower.devices for tower in analyze(placement).towers}
    if towers < 2 or len(gpus) < 2 or len(used) > 1 or len(busy) != 1:
        return None
    gpu = busy[0].short
    losses = tuple(map(producer_of, placement.step.objectives or placement.step.losses))
    return Finding(
        **about(gpu, "executed"),
        ops=losses[:1],
        placed=losses[0] if losses else None,
        message=f"there are inputs for {towers} towers, and {gpu} computes all of them, one "
        "after the other",
        consequence="a step takes as long as all towers together",
        fix="build tower i under `with tf.device(f'/gpu:{i}'):`",
    )


def _path_to_awaited(placement: Placement, trace: Trace, late: int, early: int) -> list[OpId]:
    """Return the shortest path from the first waiting op of tower ``late`` back to ``early``.

    Fed tensors wait for nothing.
    """
    analysis = analyze(placement)
    flow = analysis.flow
    fed = {flow.op_of(name) for names in placement.step.inputs for name in names}

    def waits_for(op: OpId) -> Iterator[OpId]:
        return (source for source in flow.all_inputs[op] if source not in fed)

    devices = analysis.towers[late].devices
    ran = {
        span.op
        for device, lane in trace.shortest.lanes.items()
        if any(device.matches(pattern) for pattern in devices)
        for span in lane
    }
    waits = flow.propagate(
        [int(analysis.tower_of[op] == early and op not in fed) for op in flow.ops],
        along=flow.all_inputs,
        keep=[op in fed for op in flow.ops],
    )
    first = next((op for op in flow.ops if waits[op] and flow.names[op] in ran), None)
    if first is None:
        return []
    return flow.path(first, lambda op: analysis.tower_of[op] == early, along=waits_for)
