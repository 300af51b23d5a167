"""What loops took, for people and for programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from placement_checks.core.timing import Loop, Timing
from placement_checks.report.console import show
from placement_checks.report.json import versions, written
from placement_checks.util.text import plural

_SCHEMA = 1

_COMPARED = ("rows", "gpus", "devices", "kind", "tensorflow", "onednn", "measured_ratio",
             "replayed_ratio")  # fmt: skip
_UNMEASURED = "not measured"
_LEGEND = {
    "measured": "time of the towers over that of one GPU on the same rows: the median of {rounds} "
    "taken in turn, and its quartiles",
    "efficiency": "speed-up over the number of GPUs",
    "replayed": "the same ratio if every device did one op at a time, each as short as it ever "
    "was, without any delay; it stays the same on a busy machine, and a real step takes longer",
    "at once": "the share of time for which the towers computed together, at best",
}
_CONTROLS = {
    "simulated": {
        "control": "the towers on one thread over one GPU's program on one thread; no ratio is "
        "given outside 1 ± 0.1",
        "company": "as many of one GPU's program at once as there are towers, over one alone: 1 "
        "if each has a core to itself; no ratio is given above 1.25",
    },
    "real": {
        "control": "one GPU's program over itself; no ratio is given outside 1 ± 0.1",
    },
}


def write(timings: Sequence[Timing], console: Console) -> None:
    """Print the figures of one pair of programs, and what they mean."""
    write_table(timings, console)
    write_legend(timings[0], console)


def write_table(timings: Sequence[Timing], console: Console) -> None:
    """Print the figures of one pair of programs, a column for each size of batch."""
    at = timings[0].at
    towers = f", {plural(at.gpus, 'tower')}, beside "
    show(console, Text.assemble((at.program, "bold"), towers, (at.reference, "bold")))
    on = f"{at.kind}, {plural(at.cores, 'core')}, oneDNN {at.onednn}"
    show(console, Text(f"on {on}, TensorFlow {at.tensorflow}"))
    show(console, Text())
    columns = [["", *_CELLS]] + [
        [plural(each.rows, "row"), *(cell(each) for cell in _CELLS.values())] for each in timings
    ]
    widths = [max(map(len, column)) for column in columns]
    for name, *cells in zip(*columns, strict=True):
        padded = (f"{cell:<{width}}" for cell, width in zip(cells, widths[1:], strict=True))
        line = Text.assemble((f"{name:<{widths[0]}}", "bold"), "   ", "   ".join(padded))
        line.rstrip()
        show(console, line)
    show(console, Text())
    for each in timings:
        if each.unmeasured:
            said = f"{plural(each.rows, 'row')}: no ratio is measured, {each.unmeasured}"
            show(console, Text(said, "yellow"))
            show(console, Text())


def write_legend(timing: Timing, console: Console) -> None:
    """Print what the lines of the table mean."""
    rounds = plural(len(timing.single.wall), "round")
    for name, meaning in {**_CONTROLS[timing.at.devices], **_LEGEND}.items():
        line = Text.assemble((f"{name:<12}", "bold"), meaning.format(rounds=rounds), style="dim")
        show(console, line)


def _loop(timing: Timing, loop: Loop) -> str:
    return f"{_duration(loop.median)}, {timing.examples(loop):,.0f} examples/s"


_CELLS: Mapping[str, Callable[[Timing], str]] = {
    "one GPU": lambda timing: _loop(timing, timing.single),
    "towers": lambda timing: _loop(timing, timing.towers),
    "control": lambda timing: f"{timing.quiet.median:.2f}",
    "company": lambda timing: "-" if timing.crowded is None else f"{timing.crowded.median:.2f}",
    "measured": lambda timing: str(timing.ratio or _UNMEASURED),
    "efficiency": lambda timing: _share(timing.efficiency),
    "replayed": lambda timing: _ratio(timing.replayed and timing.replayed.ratio, "-"),
    "at once": lambda timing: _share(timing.at_once),
}


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _duration(seconds: float) -> str:
    return f"{1000 * seconds:,.1f} ms" if seconds < 10 else f"{seconds:,.1f} s"


def render(timings: Sequence[Timing]) -> str:
    """The JSON document; `placement-checks time --against` reads it again."""
    timed = [each.document() for each in timings]
    return written({"schema": _SCHEMA, "versions": versions(), "timings": timed})


def checked(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a saved timing is compared by.

    Raises:
        KeyError: it is none.
    """
    return {key: document[key] for key in _COMPARED}


def write_against(
    timings: Sequence[Timing], before: Sequence[Mapping[str, Any]], file: str, console: Console
) -> None:
    """Print what a saved run had for the same batches."""
    for each in timings:
        rows = plural(each.rows, "row")
        show(console, Text(f"{rows} against {file}: {_against(each.document(), before)}"))


def _against(now: Mapping[str, Any], before: Sequence[Mapping[str, Any]]) -> str:
    alike = ("rows", "gpus", "devices")
    then = next((each for each in before if all(each[key] == now[key] for key in alike)), None)
    if then is None:
        return f"it has no run of them with {plural(now['gpus'], 'tower')} on {now['kind']}"
    changed = [
        f"{name} {now[key]} instead of {then[key]}"
        for key, name in (("tensorflow", "TensorFlow"), ("onednn", "oneDNN"), ("kind", "on"))
        if now[key] != then[key]
    ]
    ratios = (
        f"{name} {_ratio(now[key], none)}, was {_ratio(then[key], none)}"
        for name, key, none in (
            ("measured", "measured_ratio", _UNMEASURED),
            ("replayed", "replayed_ratio", "-"),
        )
    )
    return "; ".join([*ratios, *changed])


def _ratio(value: float | None, none: str) -> str:
    return none if value is None else f"{value:.3f}"
