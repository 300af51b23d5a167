"""What loops took, for people and for programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from placement_checks.core.timing import Loop, Timing
from placement_checks.report.json import versions, written
from placement_checks.report.text.console import show
from placement_checks.util.text import plural

SCHEMA = 2

_COMPARED = ("rows", "gpus", "devices", "kind", "tensorflow", "onednn", "measured_ratio",
             "simulated_ratio")  # fmt: skip
_UNMEASURED = "not measured"
_LEGEND = {
    "measured": "time of the towers over that of one GPU on the same rows: the median of {rounds} "
    "taken in turn, and its quartiles",
    "efficiency": "speed-up over the number of GPUs",
    "simulated": "the same ratio if every device did one op at a time, each as short as it ever "
    "was, without any delay; it stays the same on a busy machine, and a real step takes longer",
    "overlap": "the share of time for which the towers computed together, at best",
}
_QUIET_CHECKS = {
    "simulated": {
        "baseline": "the towers on one thread over one GPU's program on one thread; no ratio is "
        "given outside 1 ± 0.1",
        "contention": "as many of one GPU's program at once as there are towers, over one alone: "
        "1 if each has a core to itself; no ratio is given above 1.25",
    },
    "real": {
        "baseline": "one GPU's program over itself; no ratio is given outside 1 ± 0.1",
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
        [plural(timing.rows, "row"), *(cell(timing) for cell in _CELLS.values())]
        for timing in timings
    ]
    widths = [max(map(len, column)) for column in columns]
    for name, *cells in zip(*columns, strict=True):
        padded = (f"{cell:<{width}}" for cell, width in zip(cells, widths[1:], strict=True))
        line = Text.assemble((f"{name:<{widths[0]}}", "bold"), "   ", "   ".join(padded))
        line.rstrip()
        show(console, line)
    show(console, Text())
    for timing in timings:
        if timing.unmeasured:
            reason = f"{plural(timing.rows, 'row')}: no ratio is measured, {timing.unmeasured}"
            show(console, Text(reason, "yellow"))
            show(console, Text())


def write_legend(timing: Timing, console: Console) -> None:
    """Print what the lines of the table mean."""
    rounds = plural(len(timing.single.wall), "round")
    for name, meaning in {**_QUIET_CHECKS[timing.at.devices], **_LEGEND}.items():
        line = Text.assemble((f"{name:<12}", "bold"), meaning.format(rounds=rounds), style="dim")
        show(console, line)


def _loop(timing: Timing, loop: Loop) -> str:
    return f"{_duration(loop.median)}, {timing.examples(loop):,.0f} examples/s"


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


def _duration(seconds: float) -> str:
    return f"{1000 * seconds:,.1f} ms" if seconds < 10 else f"{seconds:,.1f} s"


def render(timings: Sequence[Timing]) -> str:
    """The JSON document; `placement-checks time --against` reads it again."""
    documents = [timing.document() for timing in timings]
    return written({"schema": SCHEMA, "versions": versions(), "timings": documents})


def checked(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a saved timing is compared by.

    Raises:
        KeyError: it is not a timing.
    """
    return {key: document[key] for key in _COMPARED}


def write_against(
    timings: Sequence[Timing], before: Sequence[Mapping[str, Any]], file: str, console: Console
) -> None:
    """Print what a saved run had for the same batches."""
    for timing in timings:
        rows = plural(timing.rows, "row")
        show(console, Text(f"{rows} against {file}: {_against(timing.document(), before)}"))


def _against(now: Mapping[str, Any], before: Sequence[Mapping[str, Any]]) -> str:
    alike = ("rows", "gpus", "devices")
    then = next((old for old in before if all(old[key] == now[key] for key in alike)), None)
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
            ("simulated", "simulated_ratio", "-"),
        )
    )
    return "; ".join([*ratios, *changed])


def _ratio(value: float | None, none: str) -> str:
    return none if value is None else f"{value:.3f}"
