"""Timings and steps written by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from placement_checks import Device
from placement_checks.core.devices import LOCALHOST, RunDevices
from placement_checks.core.timing import Circumstances, Loop, Timing
from placement_checks.core.trace import OpSpan, Timeline, Trace


def loop(*wall: float, cpu: Sequence[float] = ()) -> Loop:
    return Loop(wall, cpu or wall)


def timeline(lanes: Mapping[str, Sequence[tuple[str, float, float]]]) -> Timeline:
    """A timeline from the slices of each device, as (op, start, end)."""
    return Timeline(
        {
            Device.parse(device).over(LOCALHOST): [OpSpan(*span) for span in lane]
            for device, lane in lanes.items()
        }
    )


STEP = timeline(
    {
        "/cpu:0": [("read", 0.0, 0.001), ("update", 0.009, 0.01)],
        "/gpu:0": [("tower_0/conv", 0.001, 0.008)],
        "/gpu:1": [("tower_1/conv", 0.001, 0.009)],
    }
)


def timing(
    baseline: Loop | float = 1.0,
    *,
    single: Loop | None = None,
    towers: Loop | None = None,
    contention: Loop | None = None,
    rows: int = 128,
    devices: RunDevices = "simulated",
    gpus: int = 2,
    cores: int = 2,
    **more: Any,
) -> Timing:
    """A timing: one GPU takes a second for each step, and towers half a second.

    A baseline may be given as a ratio.
    """
    at = Circumstances(
        "towers", "single", gpus, devices, "CPU devices of one core each", cores, "2.21.0", "1"
    )
    return Timing(
        at,
        rows,
        single=single or loop(1.0),
        towers=towers or loop(0.5),
        baseline=baseline if isinstance(baseline, Loop) else loop(baseline, cpu=[1.0]),
        contention=contention,
        trace=Trace(rows, [STEP], []),
        **more,
    )
