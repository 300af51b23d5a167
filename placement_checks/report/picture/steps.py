"""One step as it ran, for the page to draw."""

from __future__ import annotations

from typing import Any

from placement_checks.core.missing import Missing
from placement_checks.core.trace import Trace
from placement_checks.report.picture.places import Places
from placement_checks.report.timeline_svg import caption_of, visible

_NARROWEST = 1 / 1200  # of the step; what is shorter is drawn with its neighbours


def step_data(trace: Trace | Missing, program: str, places: Places) -> dict[str, Any] | None:
    """The fastest step that was traced: for each device its ops, first, number, start, length."""
    if not trace:
        return None
    step = trace.shortest
    return {
        "caption": caption_of(trace, program),
        "seconds": step.seconds,
        "lanes": [
            {
                "label": places.label(device),
                "gpu": device.is_gpu,
                "spans": [
                    [ops[0].op, len(ops), round(start, 7), round(end - start, 7)]
                    for ops, start, end in visible(lane, step.seconds * _NARROWEST)
                ],
            }
            for device, lane in step.lanes.items()
        ],
    }
