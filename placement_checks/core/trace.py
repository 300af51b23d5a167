"""Traces of training steps, from step statistics: which op ran when, on which device."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, final

from placement_checks.core.devices import Device

Spans = Sequence[tuple[float, float]]


class OpSpan(NamedTuple):
    """The execution of an op, from ``start`` to ``end``, in seconds since the step began."""

    op: str
    start: float
    end: float


class TimedOp(NamedTuple):
    """An op with its device, its duration in seconds, and the numbers of the ops it waits for."""

    op: str
    device: Device
    seconds: float
    needs: Sequence[int] = ()


@dataclass(frozen=True)
class Timeline:
    """The executions of ops on each device in one step."""

    lanes: Mapping[Device, Sequence[OpSpan]]

    @property
    def seconds(self) -> float:
        """The duration of the step in seconds, until the end of its last op."""
        return max((span.end for lane in self.lanes.values() for span in lane), default=0.0)

    def busy(self, devices: Collection[Device]) -> Spans:
        """The spans when at least one of ``devices`` computed; partial names match several."""
        return merge_spans(
            (span.start, span.end)
            for device, lane in self.lanes.items()
            if any(device.matches(pattern) for pattern in devices)
            for span in lane
        )

    def computes(self, devices: Collection[Device]) -> float:
        """The time in seconds when at least one of ``devices`` computed."""
        return span_length(self.busy(devices))


@final
@dataclass(frozen=True)
class Trace:
    """Traced steps of one program."""

    rows: int  # the number of rows in the global batch
    steps: Sequence[Timeline] = field(repr=False)  # the timeline of each step
    # The ops of one step, each with its shortest duration in any step.
    ops: Sequence[TimedOp] = field(repr=False)

    @property
    def shortest(self) -> Timeline:
        return min(self.steps, key=lambda step: step.seconds)


def merge_spans(spans: Iterable[tuple[float, float]]) -> Spans:
    """Sort spans of time and merge spans that overlap or touch."""
    found: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        elif end > start:
            found.append((start, end))
    return found


def span_length(spans: Spans) -> float:
    """The total length in seconds of spans that do not overlap."""
    return sum(end - start for start, end in spans)
