"""What the step statistics of one program tell: which op ran when, on which device."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, final

from placement_checks.core.devices import Device

Spans = Sequence[tuple[float, float]]


class OpSpan(NamedTuple):
    """One op at work, from ``start`` to ``end``, in seconds since the step began."""

    op: str
    start: float
    end: float


class TimedOp(NamedTuple):
    """One op on its device: how long it takes, in seconds, and the ops whose end it waits for.

    ``needs`` are the numbers of those ops.
    """

    op: str
    device: Device
    seconds: float
    needs: Sequence[int] = ()


@dataclass(frozen=True)
class Timeline:
    """What each device did in one step."""

    lanes: Mapping[Device, Sequence[OpSpan]]

    @property
    def seconds(self) -> float:
        """How long the step took, by the end of its last op."""
        return max((span.end for lane in self.lanes.values() for span in lane), default=0.0)

    def busy(self, devices: Collection[Device]) -> Spans:
        """When at least one of some devices computed; a partial name is any that matches."""
        return merge_spans(
            (span.start, span.end)
            for device, lane in self.lanes.items()
            if any(device.matches(pattern) for pattern in devices)
            for span in lane
        )

    def computes(self, devices: Collection[Device]) -> float:
        """For how long at least one of some devices computed, in seconds."""
        return span_length(self.busy(devices))


@final
@dataclass(frozen=True)
class Trace:
    """Some traced steps of one program.

    Attributes:
        rows: of the global batch.
        steps: each as it ran.
        ops: those of one step, each as short as it ever was.
    """

    rows: int
    steps: Sequence[Timeline] = field(repr=False)
    ops: Sequence[TimedOp] = field(repr=False)

    @property
    def shortest(self) -> Timeline:
        """The step that took the least time."""
        return min(self.steps, key=lambda step: step.seconds)


def merge_spans(spans: Iterable[tuple[float, float]]) -> Spans:
    """Spans of time without overlap, in order; those that touch become one."""
    found: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        elif end > start:
            found.append((start, end))
    return found


def span_length(spans: Spans) -> float:
    """The length of spans that do not overlap, in seconds."""
    return sum(end - start for start, end in spans)
