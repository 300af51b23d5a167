"""Reports for people."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from placement_checks.core.placement import Placement
from placement_checks.core.results import Report
from placement_checks.report.sections import Sections
from placement_checks.report.text.console import show
from placement_checks.report.text.findings import Extent, findings_lines
from placement_checks.report.text.grid import grid
from placement_checks.report.text.rule_table import names_by_state, rule_table
from placement_checks.report.text.titles import summary
from placement_checks.report.text.wrapping import wrapped
from placement_checks.util.text import file_size

if TYPE_CHECKING:
    from placement_checks.core.measurement import Measurement
    from placement_checks.core.missing import Missing

_LINES = 60  # of a program
_LAST_LINES = 4  # that follow the findings: the counts, and what to do next
_TITLE_WIDTH = 160  # of the program, its machine and placer
_WIDEST = 200  # of what to do next, which may hold a command to be copied
_NOTES = 6  # lines of them
_PLACERS = {
    "phantom": "TensorFlow's placer, devices that need not exist",
    "session": "TensorFlow's placer, the devices of this machine",
}


def write(
    reports: Sequence[Report],
    console: Console,
    extent: Extent = Extent.BRIEF,
    next_step: str | None = None,
    *,
    only: Callable[[Report], bool] | None = None,
) -> None:
    """Print the verdicts of every program, its findings, the count, and what to do next.

    Args:
        reports: one a program; of several there is a grid before them.
        console: where to.
        extent: how much is told of them; in brief, a program has at most 60 lines.
        next_step: the last line; None for none.
        only: the programs that are told of; None for all.
    """
    shown = list(filter(only, reports)) if only else reports
    if len(shown) > 1:
        for row in grid(shown):
            show(console, Text(row))
        show(console, Text())
    for report in shown:
        for line in _program(report, extent):
            show(console, line)
    is_broken = any(report.count("broken") for report in reports)
    show(console, Text(summary(reports), "bold red" if is_broken else "bold"))
    if next_step is not None:
        for part in wrapped(next_step, hanging=6, width=_WIDEST):
            show(console, Text(part))


def _program(report: Report, extent: Extent) -> Iterator[Text]:
    sections = Sections(report.verdicts)
    is_brief = extent is Extent.BRIEF
    head = list(_head(report, _NOTES if is_brief else None))
    below = list(_saved(report.evidence.measurement))
    room = _LINES - len(head) - len(below) - _LAST_LINES - 2  # and two empty ones
    if is_brief and report.count("broken"):
        table = list(names_by_state(report.verdicts))
    else:
        table = list(rule_table(report.verdicts, sections.said_of, is_brief=is_brief))
    yield from (*head, Text(), *table, Text())
    yield from findings_lines(sections, extent, room - len(table), report.evidence.placement)
    yield from below


def _head(report: Report, most: int | None) -> Iterator[Text]:
    """The program, and what a reader should know before its verdicts."""
    placement, measurement = report.evidence.placement, report.evidence.measurement
    title = f"{placement.program}{conditions(placement)}"
    first, *rest = wrapped(title, hanging=4, width=_TITLE_WIDTH)
    name = Text(first)
    name.stylize("bold", 0, len(placement.program))
    yield name
    yield from map(Text, rest)
    notes = [line for note in report.evidence.notes for line in wrapped(note, hanging=4)]
    yield from map(Text, notes[:most])
    if notes[len(notes) if most is None else most :]:
        yield Text("and more (--all shows it)")
    if not placement.complete:
        for line in wrapped(placement.complete.reason, hanging=4, most=most):
            yield Text(line, "yellow")
    if measurement:
        yield from map(Text, wrapped(run_conditions(measurement, placement.program), hanging=4))


def _saved(measurement: Measurement | Missing) -> Iterator[Text]:
    if measurement and measurement.saved:
        size = file_size(measurement.saved_bytes)
        yield Text(f"To run it again with the same rows ({size}):")
        yield Text(f"  --batch {measurement.saved}")
        yield Text()


def conditions(placement: Placement) -> str:
    """Where a program was placed, and by whom, as it follows its name."""
    if placement.machine is None:
        return ""
    if placement.placer is None:
        return f" on {placement.machine}, not placed"
    if placement.placer == "log":
        return f" on {placement.machine} (a placement log)"
    strictness = "soft" if placement.soft else "strict"
    return f" on {placement.machine} ({_PLACERS[placement.placer]}, {strictness})"


def run_conditions(measurement: Measurement, program: str) -> str:
    """Beside what the program of this name was run, and where."""
    itself = measurement.reference == program
    reference = "the same program for one GPU" if itself else measurement.reference
    simulated = measurement.devices == "simulated"
    on = "CPU devices in place of GPUs" if simulated else "the GPUs of this machine"
    return f"run beside {reference}, on {on}"
