"""Renders the times of `time` as text, as JSON and as an HTML page with a picture of a step.

A step can also be written as trace events, for chrome://tracing and ui.perfetto.dev.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from html import escape
from operator import attrgetter
from typing import Annotated, Any, Final, Literal, NamedTuple, Self

import msgspec
from msgspec import Meta
from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from placement_checks.core.devices import RunDevices
from placement_checks.core.timing import Loop, Spread, Timing
from placement_checks.core.trace import OpSpan, Timeline, Trace
from placement_checks.report.common.json import (
    VERSION,
    JsonObject,
    Positive,
    Versions,
    to_json,
)
from placement_checks.report.text.layout import print_line
from placement_checks.util.text import plural, printable

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


_COLUMNS = 110
# The colors of the page: foreground, background, and the eight colors of a terminal.
_THEME = TerminalTheme(
    (255, 255, 255),
    (32, 36, 41),
    [
        (32, 36, 41), (178, 34, 34), (36, 120, 60), (150, 100, 0),
        (30, 90, 160), (130, 60, 140), (20, 115, 130), (110, 116, 122),
    ],
)  # fmt: skip
# rich blends dim text with the background, at a contrast of 3:1; `_READABLE` has 6:1.
_DIM, _READABLE = "#8f9194", "#5b6168"
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>@title@</title>
<style>
{stylesheet}
body {{ margin: 2rem auto; max-width: 70rem; padding: 0 1rem; color: {foreground};
  background: {background}; font-family: system-ui, sans-serif; }}
pre {{ white-space: pre-wrap; overflow-wrap: anywhere; line-height: 1.45; font-size: 0.85rem; }}
figure {{ margin: 2.5rem 0; overflow-x: auto; }}
figcaption {{ margin-bottom: 0.75rem; overflow-wrap: anywhere; }}
svg {{ width: 100%; min-width: 36rem; height: auto; }}
</style>
</head>
<body>
<pre>{code}</pre>
@pictures@
</body>
</html>
"""


class Picture(NamedTuple):
    """An SVG with its caption."""

    svg: str
    caption: str


def page(title: str, write: Callable[[Console], None], pictures: Sequence[Picture]) -> str:
    """Returns the HTML page of a report that `write` prints, with pictures below it."""
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        console = Console(record=True, file=nowhere, width=_COLUMNS, force_terminal=True)
        write(console)
        html = console.export_html(theme=_THEME, code_format=_PAGE)
    head, end, body = html.partition("</style>")
    html = head.replace(_DIM, _READABLE) + end + body
    figures = "\n".join(
        f"<figure><figcaption>{html_text(picture.caption)}</figcaption>\n{picture.svg}\n</figure>"
        for picture in pictures
    )
    # The first and the last mark are from the template; others may be text of the report.
    above, _, below = html.replace("@title@", html_text(title), 1).rpartition("@pictures@")
    return above + figures + below


def html_text(text: str) -> str:
    """Returns a text escaped for HTML, with visible control characters."""
    return escape(printable(text))


_PIXELS, _LABEL, _RIGHT = 960, 120, 20
_LANE, _GAP, _TOP, _BOTTOM = 34, 10, 8, 34
_COLORS = {True: "#2a7f9e", False: "#b07d2b"}  # of GPUs and of CPUs
_MIN_WIDTH = 0.6  # pixels; narrower ops are drawn together with their neighbors
_TICKS = 8


def step_picture(trace: Trace, program: str) -> Picture:
    """Returns a picture of the fastest traced step."""
    caption = step_caption(trace, program)
    return Picture(lanes_svg(trace.shortest, caption), caption)


def step_caption(trace: Trace, program: str) -> str:
    """Returns a caption that names the traced step."""
    steps, rows = plural(len(trace.steps), "traced step"), plural(trace.rows, "row")
    return f"The fastest of {steps} of {program}, {rows}"


def lanes_svg(timeline: Timeline, title: str) -> str:
    """Returns an SVG of one step; a tooltip shows the name and time of each op."""
    height = _TOP + len(timeline.lanes) * (_LANE + _GAP) + _BOTTOM
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {_PIXELS} {height}" '
        f'font-family="system-ui, sans-serif" font-size="13">',
        f"<title>{html_text(title)}</title>",
        *_axis(timeline.seconds, height),
    ]
    scale = (_PIXELS - _LABEL - _RIGHT) / (timeline.seconds or 1)
    for number, (device, lane) in enumerate(timeline.lanes.items()):
        top = _TOP + number * (_LANE + _GAP)
        label = f'<text x="0" y="{top + _LANE / 2 + 4}" fill="currentColor">'
        lines.append(f"{label}{html_text(device.short.removeprefix('/device:'))}</text>")
        lines += _lane(lane, top, scale, _COLORS[device.is_gpu])
    return "\n".join([*lines, "</svg>"])


def _lane(lane: Sequence[OpSpan], top: float, scale: float, color: str) -> Iterator[str]:
    for ops, start, end in merge_short_spans(lane, _MIN_WIDTH / scale):
        x, width = _LABEL + start * scale, max(_MIN_WIDTH, (end - start) * scale)
        text = ops[0].op if len(ops) == 1 else f"{len(ops)} ops, {ops[0].op} the first"
        yield (
            f'<rect x="{x:.2f}" y="{top}" width="{width:.2f}" height="{_LANE}" fill="{color}" '
            f'stroke="white" stroke-width="{0.4 if width > 3 else 0}">'
            f"<title>{html_text(text)}: {_milliseconds(end - start)}</title></rect>"
        )


def merge_short_spans(
    lane: Sequence[OpSpan], shortest: float
) -> Iterator[tuple[list[OpSpan], float, float]]:
    """Yields the ops of a lane with start and end; ops too short to be seen are merged.

    Args:
        lane: the ops of one device in their order.
        shortest: the shortest visible time, in seconds.
    """
    group: list[OpSpan] = []
    end = 0.0
    for span in lane:
        short = span.end - span.start < shortest
        if group and not (short and span.start - end < shortest):
            yield group, group[0].start, end
            group = []
        if short:
            group.append(span)
            end = span.end
        else:
            yield [span], span.start, span.end
    if group:
        yield group, group[0].start, end


def _axis(seconds: float, height: int) -> Iterator[str]:
    step = _round_step(seconds / _TICKS)
    scale = (_PIXELS - _LABEL - _RIGHT) / (seconds or 1)
    bottom = height - _BOTTOM + 4
    for number in range(math.floor(seconds / step) + 1 if step else 0):
        x = _LABEL + number * step * scale
        yield (
            f'<line x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{bottom}" stroke="currentColor" '
            f'stroke-opacity="0.15"/><text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle" '
            f'fill="currentColor" fill-opacity="0.7">{_milliseconds(number * step)}</text>'
        )


def _round_step(seconds: float) -> float:
    """The smallest of 1, 2 and 5 times a power of ten that is not below ``seconds``; or 0."""
    if seconds <= 0:
        return 0.0
    power = 10.0 ** math.floor(math.log10(seconds))
    return next(times * power for times in (1, 2, 5, 10) if times * power >= seconds)


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.4g} ms"
