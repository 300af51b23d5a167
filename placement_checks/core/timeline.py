"""When each device computed in one step, and for how long several did at once."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

from placement_checks.core.devices import Device

Spans = Sequence[tuple[float, float]]


class Slice(NamedTuple):
    """One op at work, from ``start`` to ``end``, in seconds since the step began."""

    op: str
    start: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """What each device did in one step."""

    lanes: Mapping[Device, Sequence[Slice]]

    @property
    def seconds(self) -> float:
        """How long the step took, by the end of its last op."""
        return max((each.end for lane in self.lanes.values() for each in lane), default=0.0)

    def busy(self, devices: Collection[Device]) -> Spans:
        """When at least one of some devices computed; a partial name is any that matches."""
        return merged(
            (each.start, each.end)
            for device, lane in self.lanes.items()
            if any(device.matches(pattern) for pattern in devices)
            for each in lane
        )

    def computes(self, devices: Collection[Device]) -> float:
        """For how long at least one of some devices computed, in seconds."""
        return _length(self.busy(devices))


class Pair(NamedTuple):
    """Two groups of devices, by their numbers, and the share of time both compute at once.

    The share is that of the time in which the one that computes less could have company: 1 if it
    never computes without the other, 0 if they take turns.
    """

    one: int
    other: int
    share: float


def at_once(timeline: Timeline, groups: Sequence[Collection[Device]]) -> list[Pair]:
    """Every two groups of devices that compute in a step, and for how long they do at once."""
    busy = [timeline.busy(group) for group in groups]
    return [
        Pair(one, other, _at_once(busy[one], busy[other]))
        for one, other in combinations(range(len(groups)), 2)
        if busy[one] and busy[other]
    ]


def merged(spans: Iterable[tuple[float, float]]) -> Spans:
    """Spans of time without overlap, in order; those that touch become one."""
    found: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        elif end > start:
            found.append((start, end))
    return found


def _at_once(one: Spans, other: Spans) -> float:
    both = 0.0
    here = there = 0
    while here < len(one) and there < len(other):
        start = max(one[here][0], other[there][0])
        end = min(one[here][1], other[there][1])
        both += max(0.0, end - start)
        if one[here][1] < other[there][1]:
            here += 1
        else:
            there += 1
    return both / min(_length(one), _length(other))


def _length(spans: Spans) -> float:
    return sum(end - start for start, end in spans)
