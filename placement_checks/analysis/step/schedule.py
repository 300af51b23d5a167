"""Schedules: a simulated schedule of measured ops, and the overlap of towers.

In the simulated schedule each device runs one op at a time, without delay. It stays the same on a
loaded machine. A real step takes longer, because the schedule leaves out the time between ops.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from heapq import heappop, heappush
from itertools import combinations
from typing import NamedTuple

from placement_checks.core.devices import Device
from placement_checks.core.trace import OpSpan, Spans, TimedOp, Timeline, Trace, span_length

_MIN_BUSY = 0.005  # seconds that a group must compute for its overlap to count


class Overlap(NamedTuple):
    """The overlap of two groups of devices.

    Attributes:
        one, other: the indices of the groups.
        share: the time in which both compute at once, divided by the computing time of the less
            busy group: 1 if this group never computes alone, 0 if the groups take turns.
    """

    one: int
    other: int
    share: float


def simulate(ops: Sequence[TimedOp]) -> Timeline | None:
    """Simulate a schedule: each device runs its ops one by one, as they become ready.

    Returns:
        The schedule; None if ops wait for each other and could never run.
    """
    followers: dict[int, list[int]] = defaultdict(list)
    waiting = [len(op.needs) for op in ops]
    ready: list[tuple[float, int]] = []
    for number, op in enumerate(ops):
        for need in op.needs:
            followers[need].append(number)
        if not op.needs:
            heappush(ready, (0.0, number))
    lanes: dict[Device, list[OpSpan]] = defaultdict(list)
    free: dict[Device, float] = defaultdict(float)
    earliest = [0.0] * len(ops)
    scheduled = 0
    while ready:
        since, number = heappop(ready)
        op = ops[number]
        # An op that takes no time does not queue for its device: copies arrive when they are sent.
        start = max(since, free[op.device]) if op.seconds else since
        end = start + op.seconds
        if op.seconds:
            free[op.device] = end
            lanes[op.device].append(OpSpan(op.op, start, end))
        scheduled += 1
        for follower in followers[number]:
            earliest[follower] = max(earliest[follower], end)
            waiting[follower] -= 1
            if not waiting[follower]:
                heappush(ready, (earliest[follower], follower))
    return Timeline(dict(sorted(lanes.items()))) if scheduled == len(ops) else None


def possible_overlap(trace: Trace, groups: Sequence[Collection[Device]]) -> list[Overlap]:
    """Simulate a schedule, and return how long each pair of groups can compute at once.

    In the schedule a GPU waits only for the inputs of its ops. Ops on the host take no time, since
    hosts have many cores.
    """
    ops = [op if op.device.is_gpu else op._replace(seconds=0.0) for op in trace.ops]
    timeline = simulate(ops)
    return [] if timeline is None else overlaps(timeline, groups)


def observed_overlap(trace: Trace, groups: Sequence[Collection[Device]]) -> float | None:
    """Return the smallest overlap of two groups, in the measured step where it is largest.

    Returns:
        The share of time; None for fewer than two groups, or if in each step a group computes for
        less than 5 ms: such an overlap shows only how fast threads wake up.
    """
    shares = [
        min(overlap.share for overlap in overlaps(step, groups))
        for step in trace.steps
        if len(groups) > 1 and all(step.computes(group) >= _MIN_BUSY for group in groups)
    ]
    return max(shares, default=None)


def overlaps(timeline: Timeline, groups: Sequence[Collection[Device]]) -> list[Overlap]:
    """Return the overlap of each pair of groups that compute in a step."""
    busy = [timeline.busy(group) for group in groups]
    return [
        Overlap(one, other, _share(busy[one], busy[other]))
        for one, other in combinations(range(len(groups)), 2)
        if busy[one] and busy[other]
    ]


def _share(one: Spans, other: Spans) -> float:
    both = 0.0
    first = second = 0
    while first < len(one) and second < len(other):
        start = max(one[first][0], other[second][0])
        end = min(one[first][1], other[second][1])
        both += max(0.0, end - start)
        if one[first][1] < other[second][1]:
            first += 1
        else:
            second += 1
    return both / min(span_length(one), span_length(other))
