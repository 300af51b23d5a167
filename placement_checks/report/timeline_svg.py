"""A step as a picture: a lane for each device, as SVG."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from placement_checks.core.trace import OpSpan, Timeline, Trace
from placement_checks.report.html import Picture, shown
from placement_checks.util.text import plural

_WIDTH, _LABEL, _RIGHT = 960, 120, 20
_LANE, _GAP, _TOP, _BOTTOM = 34, 10, 8, 34
_COLOURS = {True: "#2a7f9e", False: "#b07d2b"}  # of GPUs and of CPUs
_THINNEST = 0.6  # pixels; what is thinner is drawn with its neighbours
_TICKS = 8


def picture(trace: Trace, program: str) -> Picture:
    """The fastest of the steps that were traced."""
    caption = caption_of(trace, program)
    return Picture(lanes_svg(trace.shortest, caption), caption)


def caption_of(trace: Trace, program: str) -> str:
    """Which step is drawn."""
    steps, rows = plural(len(trace.steps), "traced step"), plural(trace.rows, "row")
    return f"The fastest of {steps} of {program}, {rows}"


def lanes_svg(timeline: Timeline, title: str) -> str:
    """The picture of one step; each op tells its name and time when it is pointed at."""
    height = _TOP + len(timeline.lanes) * (_LANE + _GAP) + _BOTTOM
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {_WIDTH} {height}" '
        f'font-family="system-ui, sans-serif" font-size="13">',
        f"<title>{shown(title)}</title>",
        *_axis(timeline.seconds, height),
    ]
    scale = (_WIDTH - _LABEL - _RIGHT) / (timeline.seconds or 1)
    for number, (device, lane) in enumerate(timeline.lanes.items()):
        top = _TOP + number * (_LANE + _GAP)
        label = f'<text x="0" y="{top + _LANE / 2 + 4}" fill="currentColor">'
        lines.append(f"{label}{shown(device.short.removeprefix('/device:'))}</text>")
        lines += _lane(lane, top, scale, _COLOURS[device.is_gpu])
    return "\n".join([*lines, "</svg>"])


def _lane(lane: Sequence[OpSpan], top: float, scale: float, colour: str) -> Iterator[str]:
    for ops, start, end in visible(lane, _THINNEST / scale):
        x, width = _LABEL + start * scale, max(_THINNEST, (end - start) * scale)
        text = ops[0].op if len(ops) == 1 else f"{len(ops)} ops, {ops[0].op} the first"
        yield (
            f'<rect x="{x:.2f}" y="{top}" width="{width:.2f}" height="{_LANE}" fill="{colour}" '
            f'stroke="white" stroke-width="{0.4 if width > 3 else 0}">'
            f"<title>{shown(text)}: {_milliseconds(end - start)}</title></rect>"
        )


def visible(
    lane: Sequence[OpSpan], thinnest: float
) -> Iterator[tuple[list[OpSpan], float, float]]:
    """The ops of a lane; those too short to be seen together with their like beside them."""
    group: list[OpSpan] = []
    end = 0.0
    for span in lane:
        short = span.end - span.start < thinnest
        if group and not (short and span.start - end < thinnest):
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
    scale = (_WIDTH - _LABEL - _RIGHT) / (seconds or 1)
    bottom = height - _BOTTOM + 4
    for number in range(math.floor(seconds / step) + 1 if step else 0):
        x = _LABEL + number * step * scale
        yield (
            f'<line x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{bottom}" stroke="currentColor" '
            f'stroke-opacity="0.15"/><text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle" '
            f'fill="currentColor" fill-opacity="0.7">{_milliseconds(number * step)}</text>'
        )


def _round_step(seconds: float) -> float:
    """1, 2 or 5 times a power of ten, not below ``seconds``; 0 for no time at all."""
    if seconds <= 0:
        return 0.0
    power = 10.0 ** math.floor(math.log10(seconds))
    return next(times * power for times in (1, 2, 5, 10) if times * power >= seconds)


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.4g} ms"
