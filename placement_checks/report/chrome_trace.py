"""A step as trace events, for chrome://tracing and ui.perfetto.dev."""

from __future__ import annotations

from placement_checks.core.trace import Timeline
from placement_checks.report.json import written


def chrome_trace(timeline: Timeline, title: str) -> str:
    """The JSON of the Trace Event Format: a process for each device, times in microseconds.

    Args:
        timeline: what each device did.
        title: what the step is of, such as the name of the program.
    """
    events: list[dict[str, object]] = []
    for number, (device, lane) in enumerate(timeline.lanes.items()):
        named = {"name": f"{title} {device.short}"}
        events.append({"ph": "M", "pid": number, "name": "process_name", "args": named})
        events += [
            {
                "ph": "X",
                "pid": number,
                "tid": 0,
                "name": span.op,
                "ts": 1e6 * span.start,
                "dur": 1e6 * (span.end - span.start),
            }
            for span in lane
        ]
    return written({"traceEvents": events, "displayTimeUnit": "ms"}, indent=None)
