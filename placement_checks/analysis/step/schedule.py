"""A simulated schedule: when each op would run if every device did one at a time, without delay.

Such a schedule of measured ops stays the same on a loaded machine. What it leaves out is all that
happens between ops, so that a real step takes longer. Beside it, the overlap of a real step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from heapq import heappop, heappush
from itertools import combinations
from typing import NamedTuple

from placement_checks.core.devices import Device
from placement_checks.core.trace import OpSpan, Spans, TimedOp, Timeline, Trace, span_length

_MIN_BUSY = 0.005  # seconds that a group must compute for its overlap to count


class Overlap(NamedTuple):
    """Two groups of devices, by their numbers, and the share of time both compute at once.

    The share is that of the time in which the one that computes less could overlap with the
    other: 1 if it never computes without the other, 0 if they take turns.
    """

    one: int
    other: int
    share: float


def simulate(ops: Sequence[TimedOp]) -> Timeline | None:
    """The schedule of some ops: each device takes them one by one, as they become ready.

    None if some wait for each other, so that they could never run.
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
        # What takes no time does not queue for its device: a copy is there when it was sent.
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
    return _timeline(lanes) if scheduled == len(ops) else None


def _timeline(lanes: Mapping[Device, Sequence[OpSpan]]) -> Timeline:
    return Timeline(dict(sorted(lanes.items())))


def possible_overlap(trace: Trace, groups: Sequence[Collection[Device]]) -> list[Overlap]:
    """For what share of time every two groups of devices can compute at once.

    So says a schedule in which nothing but what ops wait for holds up a GPU; what the host does
    takes no time in it, since hosts have many cores.
    """
    ops = [op if op.device.is_gpu else op._replace(seconds=0.0) for op in trace.ops]
    timeline = simulate(ops)
    return [] if timeline is None else overlaps(timeline, groups)


def observed_overlap(trace: Trace, groups: Sequence[Collection[Device]]) -> float | None:
    """The share of time for which every two groups did, in the step where it was largest.

    None where they compute for less than 5 ms each: then it shows how soon the threads of this
    machine woke up, and nothing about the program.
    """
    shares = [
        min(overlap.share for overlap in overlaps(step, groups))
        for step in trace.steps
        if len(groups) > 1 and all(step.computes(group) >= _MIN_BUSY for group in groups)
    ]
    return max(shares, default=None)


def overlaps(timeline: Timeline, groups: Sequence[Collection[Device]]) -> list[Overlap]:
    """Every two groups of devices that compute in a step, and for how long they do at once."""
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
