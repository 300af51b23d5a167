"""Reports for people.

Several programs at a glance: which rules each breaks, drawn as `git show-branch` does.

The states of all rules: a line each, or their names alone.

Programs and counts in a line each.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from placement_checks.core.placement import Placement
from placement_checks.core.results import Report, Verdict, by_impact, worst_impact
from placement_checks.report.common.findings import Sections
from placement_checks.report.text.findings import DetailLevel, findings_lines
from placement_checks.report.text.layout import current_width, shortened, show, wrapped
from placement_checks.util.text import file_size, plural

if TYPE_CHECKING:
    from placement_checks.core.measurement import Measurement
    from placement_checks.core.missing import Missing


_SHORTEST_NAME = 20
_LEGEND = "findings of each rule; . kept, - not checked"


def grid(reports: Sequence[Report]) -> Iterator[str]:
    """A line for each program, a column for each rule that one of them breaks."""
    verdicts = [verdict for report in reports for verdict in report.verdicts]
    broken = {verdict.rule for verdict in verdicts if verdict.state == "broken"}
    in_order = dict.fromkeys(each.rule for each in verdicts)
    impact = {
        rule: min(worst_impact(each.findings) for each in verdicts if each.rule == rule)
        for rule in broken
    }
    rules = sorted((rule for rule in in_order if rule in broken), key=impact.__getitem__)
    titles = [*rules, "kept", "not checked"]
    rows = [_cells(report, rules) for report in reports]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for number, title in enumerate(titles):
        bars = " ".join("│".rjust(width) for width in widths[:number])
        yield (
            f"{bars} {'┌'.rjust(widths[number])} {title}"
            if bars
            else (f"{'┌'.rjust(widths[0])} {title}")
        )
    room = max(_SHORTEST_NAME, current_width() - sum(widths) - len(widths) - 1)
    for report, cells in zip(reports, rows, strict=True):
        row = " ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
        yield f"{row}  {shortened(report.evidence.placement.program, room)}"
    yield _LEGEND


def _cells(report: Report, rules: Sequence[str]) -> list[str]:
    verdicts = {verdict.rule: verdict for verdict in report.verdicts}
    return [
        *(_cell(verdicts.get(rule)) for rule in rules),
        str(report.count("kept")),
        str(report.count("not-checked")),
    ]


def _cell(verdict: Verdict | None) -> str:
    if verdict is None:
        return ""
    if verdict.state == "broken":
        return _short(len(verdict.findings))
    return "." if verdict.state == "kept" else "-"


def _short(number: int) -> str:
    """Three letters at most below 100,000."""
    return str(number) if number < 1000 else f"{number // 1000}k"


STATES = {
    "kept": ("KEPT", "green"),
    "broken": ("BROKEN", "bold red"),
    "not-checked": ("NOT CHECKED", "yellow"),
}
_FIRST_TO_LAST = ("broken", "kept", "not-checked")
_STATE_WIDTH = 15  # with what stands before and after it
_SHARED = 2  # more spaces before the lines that continue a shared row


def rule_table(
    verdicts: Sequence[Verdict], causes: Mapping[str, str], *, is_brief: bool
) -> Iterator[Text]:
    """The table; rules that are not checked for the same reason share a line.

    Args:
        verdicts: of all rules.
        causes: what the findings of a rule follow from, by its name.
        is_brief: whether each is told in two lines at most.
    """
    width = 2 + max((len(verdict.rule) for verdict in verdicts), default=0)
    for alike in _rows(verdicts):
        first = alike[0]
        details = "; ".join(filter(None, (first.reason, first.note, causes.get(first.rule))))
        most = 2
        if len(alike) == 1:
            rule, hanging = f"{first.rule:<{width}}", width
        else:
            rule, hanging = f"{', '.join(verdict.rule for verdict in alike)}: ", _SHARED
            most = 2 + len(rule) // (current_width() - _STATE_WIDTH - hanging)
        yield from _row(first, rule, hanging, details, most if is_brief else None)


def names_by_state(verdicts: Sequence[Verdict]) -> Iterator[Text]:
    """A row for each state, with the names of its rules."""
    for state in _FIRST_TO_LAST:
        alike = by_impact(verdict for verdict in verdicts if verdict.state == state)
        if alike:
            names = ", ".join(verdict.rule for verdict in alike)
            more = " (--all says why)" if state == "not-checked" else ""
            yield from _row(alike[0], names, 0, more, None)


def _rows(verdicts: Sequence[Verdict]) -> Iterable[Sequence[Verdict]]:
    """The verdicts that share a row, in the order of the first of each."""
    rows: dict[Hashable, list[Verdict]] = defaultdict(list)
    for verdict in verdicts:
        is_open = verdict.state == "not-checked"
        rows[(verdict.reason, verdict.note) if is_open else verdict.rule].append(verdict)
    return rows.values()


def _row(
    verdict: Verdict, rule: str, hanging: int, detail: str, most: int | None
) -> Iterator[Text]:
    label, style = STATES[verdict.state]
    line = f"{rule}{detail}".rstrip()
    first, *rest = wrapped(line, indent=_STATE_WIDTH, hanging=_STATE_WIDTH + hanging, most=most)
    text = Text.assemble("  ", (f"{label:<13}", style), first[_STATE_WIDTH:])
    text.stylize("dim", _STATE_WIDTH + len(rule))
    yield text
    yield from (Text(each, "dim") for each in rest)


def title(report: Report) -> str:
    """A program and the machine that it was placed on."""
    placement = report.evidence.placement
    return (
        f"{placement.program} on {placement.machine}" if placement.machine else placement.program
    )


def summary(reports: Sequence[Report]) -> str:
    """How many rules are kept, broken and not checked, in all programs."""
    counts = {state: sum(report.count(state) for report in reports) for state in STATES}
    states = ", ".join(f"{count} {state.replace('-', ' ')}" for state, count in counts.items())
    return f"{plural(len(reports), 'program')}, rules: {states}."


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
    extent: DetailLevel = DetailLevel.BRIEF,
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


def _program(report: Report, extent: DetailLevel) -> Iterator[Text]:
    sections = Sections(report.verdicts)
    is_brief = extent is DetailLevel.BRIEF
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
