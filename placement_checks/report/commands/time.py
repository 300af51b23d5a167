"""Renders the times of `time` as text and as JSON.

A step can also be written as trace events, for chrome://tracing and ui.perfetto.dev.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from operator import attrgetter
from typing import Annotated, Any, Final, Literal, Self

import msgspec
from msgspec import Meta
from rich.console import Console
from rich.text import Text

from placement_checks.core.devices import RunDevices
from placement_checks.core.timing import Loop, Spread, Timing
from placement_checks.core.trace import Timeline
from placement_checks.report.common.json import (
    VERSION,
    JsonObject,
    Positive,
    Versions,
    to_json,
)
from placement_checks.report.text.layout import print_line
from placement_checks.util.text import plural

SCHEMA: Final = 2
_QUARTILES = Meta(description="The quartiles.")
_FIGURES = (
    *("simulated_ratio", "measured_ratio", "not_measured", "baseline_ratio", "contention_ratio"),
    *("work_ratio", "efficiency", "overlap", "rows", "gpus", "devices", "kind", "tensorflow"),
    "onednn",
)
_UNMEASURED = "not measured"
_LEGEND = {
    "measured": "time of the towers divided by the time of one GPU on the same rows: the median "
    "of {rounds}, in which both programs alternate, and its quartiles",
    "efficiency": "speed-up divided by the number of GPUs",
    "simulated": "the same ratio if every device ran one op at a time, each in its shortest "
    "time, without any delay; other load on the machine does not change it, and a real step "
    "takes longer",
    "overlap": "the highest share of time in which the towers computed at the same time",
}
_QUIET_CHECKS = {
    "simulated": {
        "baseline": "time of the towers divided by the time of one GPU's program, both on one "
        "thread; outside 1 ± 0.1 no ratio is reported",
        "contention": "time of one GPU's program if as many run at once as there are towers, "
        "divided by its time alone: 1 if each has its own core; above 1.25 no ratio is reported",
    },
    "real": {
        "baseline": "time of one GPU's program divided by its own time; outside 1 ± 0.1 no "
        "ratio is reported",
    },
}


def write(timings: Sequence[Timing], console: Console) -> None:
    """Prints the figures of one pair of programs, and their meaning."""
    write_table(timings, console)
    write_legend(timings[0], console)


def write_table(timings: Sequence[Timing], console: Console) -> None:
    """Prints the figures of one pair of programs, with a column for each batch size."""
    at = timings[0].at
    towers = f", {plural(at.gpus, 'tower')}, compared with "
    print_line(console, Text.assemble((at.program, "bold"), towers, (at.reference, "bold")))
    on = f"{at.kind}, {plural(at.cores, 'core')}, oneDNN {at.onednn}"
    print_line(console, Text(f"on {on}, TensorFlow {at.tensorflow}"))
    print_line(console, Text())
    columns = [["", *_CELLS]] + [
        [plural(timing.rows, "row"), *(cell(timing) for cell in _CELLS.values())]
        for timing in timings
    ]
    widths = [max(map(len, column)) for column in columns]
    for name, *cells in zip(*columns, strict=True):
        padded = (f"{cell:<{width}}" for cell, width in zip(cells, widths[1:], strict=True))
        line = Text.assemble((f"{name:<{widths[0]}}", "bold"), "   ", "   ".join(padded))
        line.rstrip()
        print_line(console, line)
    print_line(console, Text())
    for timing in timings:
        if timing.unmeasured:
            reason = f"{plural(timing.rows, 'row')}: no ratio is measured, {timing.unmeasured}"
            print_line(console, Text(reason, "yellow"))
            print_line(console, Text())


def write_legend(timing: Timing, console: Console) -> None:
    """Prints the meaning of the lines of the table."""
    rounds = plural(len(timing.single.wall), "round")
    for name, meaning in {**_QUIET_CHECKS[timing.at.devices], **_LEGEND}.items():
        line = Text.assemble((f"{name:<12}", "bold"), meaning.format(rounds=rounds), style="dim")
        print_line(console, line)


def _loop(timing: Timing, loop: Loop) -> str:
    seconds = loop.median
    duration = f"{1000 * seconds:,.1f} ms" if seconds < 10 else f"{seconds:,.1f} s"
    return f"{duration}, {timing.examples(loop):,.0f} examples/s"


_CELLS: Mapping[str, Callable[[Timing], str]] = {
    "one GPU": lambda timing: _loop(timing, timing.single),
    "towers": lambda timing: _loop(timing, timing.towers),
    "baseline": lambda timing: f"{timing.baseline_ratio.median:.2f}",
    "contention": lambda timing: (
        "-" if timing.contention_ratio is None else f"{timing.contention_ratio.median:.2f}"
    ),
    "measured": lambda timing: str(timing.ratio or _UNMEASURED),
    "efficiency": lambda timing: _share(timing.efficiency),
    "simulated": lambda timing: _ratio(timing.simulated and timing.simulated.ratio, "-"),
    "overlap": lambda timing: _share(timing.overlap),
}


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


class LoopObject(JsonObject):
    seconds: Annotated[float, Meta(description="The median time of a step.")]
    spread: Annotated[tuple[float, float], _QUARTILES]
    examples_per_second: float
    wall: Annotated[list[float], Meta(description="The time of each step in seconds.")]
    cpu: Annotated[list[float], Meta(description="The processor time of each step in seconds.")]

    @classmethod
    def from_loop(cls, timing: Timing, loop: Loop) -> Self:
        return cls(
            seconds=loop.median,
            spread=Spread.from_values(loop.wall)[1:],
            examples_per_second=timing.examples(loop),
            wall=list(loop.wall),
            cpu=list(loop.cpu),
        )


class SimulatedObject(JsonObject):
    single: float
    towers: float


class TimingObject(JsonObject):
    """The figures of a timing."""

    program: str
    reference: str
    gpus: Positive
    devices: RunDevices
    kind: Annotated[str, Meta(description="A description of the devices.")]
    cores: Positive
    tensorflow: Annotated[str, Meta(description="The version of TensorFlow.")]
    onednn: str
    rows: Annotated[int, Meta(ge=0, description="The number of rows of the global batch.")]
    single: LoopObject
    towers: LoopObject
    baseline_ratio: Annotated[float, Meta(description="About 1 on a quiet machine.")]
    contention_ratio: Annotated[
        float | None, Meta(description="About 1 if each tower had a core to itself.")
    ]
    work_ratio: Annotated[
        float,
        Meta(description="The ratio of the processor times of towers and of one GPU."),
    ]
    measured_ratio: Annotated[
        float | None,
        Meta(description="The time of the towers divided by the time of one GPU."),
    ]
    measured_spread: Annotated[tuple[float, float] | None, _QUARTILES]
    not_measured: Annotated[str | None, Meta(description="The reason why there is no ratio.")]
    efficiency: Annotated[
        float | None, Meta(description="The speed-up divided by the number of GPUs.")
    ]
    simulated_ratio: float | None
    simulated_seconds: SimulatedObject | None
    overlap: Annotated[
        float | None,
        Meta(
            description="The highest share of time in which the towers computed at the same time."
        ),
    ]

    @classmethod
    def from_timing(cls, timing: Timing) -> Self:
        ratio, simulated = timing.ratio, timing.simulated
        return cls(
            **asdict(timing.at),
            rows=timing.rows,
            single=LoopObject.from_loop(timing, timing.single),
            towers=LoopObject.from_loop(timing, timing.towers),
            baseline_ratio=timing.baseline_ratio.median,
            contention_ratio=timing.contention_ratio and timing.contention_ratio.median,
            work_ratio=timing.work,
            measured_ratio=ratio and ratio.median,
            measured_spread=ratio and ratio[1:],
            not_measured=timing.unmeasured or None,
            efficiency=timing.efficiency,
            simulated_ratio=simulated and simulated.ratio,
            simulated_seconds=simulated and SimulatedObject(**simulated._asdict()),
            overlap=timing.overlap,
        )


class TimeDocument(JsonObject):
    schema: Annotated[Literal[2], VERSION]
    versions: Versions
    timings: Annotated[
        list[TimingObject],
        Meta(min_length=1, description="The timings, one for each batch size."),
    ]


def render_json(timings: Sequence[Timing]) -> str:
    """Returns the JSON document, which `placement-checks time --against` reads."""
    return to_json(
        TimeDocument(
            schema=SCHEMA,
            versions=Versions.installed(),
            timings=list(map(TimingObject.from_timing, timings)),
        )
    )


class _AnyVersion(msgspec.Struct):
    schema: int


def read_json(text: bytes) -> Sequence[TimingObject] | int:
    """Returns the timings of a saved document, or the version of its schema if it is another one.

    Raises:
        ValueError: the text is no such document.
    """
    version = msgspec.json.decode(text, type=_AnyVersion).schema
    if version != SCHEMA:
        return version
    return msgspec.json.decode(text, type=TimeDocument).timings


def figures(timing: Timing) -> dict[str, Any]:
    """Returns the figures that pytest-benchmark stores as extra information."""
    found = msgspec.to_builtins(TimingObject.from_timing(timing))
    return {name: found[name] for name in _FIGURES if found[name] is not None}


def write_comparison(
    timings: Sequence[Timing], before: Sequence[TimingObject], file: str, console: Console
) -> None:
    """Prints each timing's ratios, compared with a saved run with the same number of rows."""
    for timing in timings:
        rows = plural(timing.rows, "row")
        comparison = _compare_saved(TimingObject.from_timing(timing), before)
        print_line(console, Text(f"{rows} against {file}: {comparison}"))


def _compare_saved(now: TimingObject, before: Sequence[TimingObject]) -> str:
    key = attrgetter("rows", "gpus", "devices")
    then = next((old for old in before if key(old) == key(now)), None)
    if then is None:
        return f"the file has no run with {plural(now.gpus, 'tower')} on {now.kind}"
    changed = [
        f"{name} {here} instead of {there}"
        for name, here, there in (
            ("TensorFlow", now.tensorflow, then.tensorflow),
            ("oneDNN", now.onednn, then.onednn),
            ("on", now.kind, then.kind),
        )
        if here != there
    ]
    measured = _ratio(now.measured_ratio, _UNMEASURED), _ratio(then.measured_ratio, _UNMEASURED)
    simulated = _ratio(now.simulated_ratio, "-"), _ratio(then.simulated_ratio, "-")
    ratios = [
        f"measured {measured[0]}, was {measured[1]}",
        f"simulated {simulated[0]}, was {simulated[1]}",
    ]
    return "; ".join([*ratios, *changed])


def _ratio(value: float | None, none: str) -> str:
    return none if value is None else f"{value:.3f}"


def chrome_trace(timeline: Timeline, title: str) -> str:
    """Returns JSON in the Trace Event Format: a process for each device, times in microseconds."""
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
    return to_json({"traceEvents": events, "displayTimeUnit": "ms"}, indent=None)
