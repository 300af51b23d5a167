"""Writes the text report of `verify`.

For each program, the report has a heading, a table of the rules, and the findings. It ends with
the counts and the next step. If there are several programs, the report begins with a grid of
programs and rules.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from placement_checks.core.placement import Placement
from placement_checks.core.results import (
    STATES,
    NextStep,
    Report,
    Verdict,
    counts_text,
    worst_impact,
)
from placement_checks.report.common.findings import Sections, objective_lines
from placement_checks.report.text.findings import all_findings, brief_findings
from placement_checks.report.text.layout import current_width, print_line, shorten, wrap
from placement_checks.util.text import file_size, plural

if TYPE_CHECKING:
    from placement_checks.core.measurement import Measurement


_MIN_NAME_WIDTH = 20
_MARKS = {"kept": ".", "doubtful": "?", "not-checked": "-"}


def grid(reports: Sequence[Report]) -> Iterator[str]:
    """Yields a line for each program, with a column for each rule with findings or doubts."""
    verdicts = [verdict for report in reports for verdict in report.verdicts]
    broken = {verdict.rule for verdict in verdicts if verdict.state == "broken"}
    doubtful = {verdict.rule for verdict in verdicts if verdict.state == "doubtful"}
    in_order = dict.fromkeys(each.rule for each in verdicts)
    impact = {
        rule: min(worst_impact(each.findings) for each in verdicts if each.rule == rule)
        for rule in broken | doubtful
    }
    shown = (rule for rule in in_order if rule in impact)
    rules = sorted(shown, key=lambda rule: (rule not in broken, impact[rule]))
    titles = [*rules, "kept", "not checked"]
    rows = [_cells(report, rules) for report in reports]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for number, title in enumerate(titles):
        bars = ["│".rjust(width) for width in widths[:number]]
        yield " ".join([*bars, "┌".rjust(widths[number]), title])
    room = max(_MIN_NAME_WIDTH, current_width() - sum(widths) - len(widths) - 1)
    for report, cells in zip(reports, rows, strict=True):
        row = " ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
        yield f"{row}  {shorten(report.evidence.placement.program, room)}"
    marks = [
        f"{mark} {state.replace('-', ' ')}"
        for state, mark in _MARKS.items()
        if doubtful or state != "doubtful"
    ]
    yield f"findings of each rule; {', '.join(marks)}"


def _cells(report: Report, rules: Sequence[str]) -> list[str]:
    cells = dict.fromkeys(rules, "")
    for verdict in report.verdicts:
        if verdict.rule in cells:
            number = sum(not finding.is_doubt for finding in verdict.findings)
            found = str(number) if number < 1000 else f"{number // 1000}k"
            cells[verdict.rule] = _MARKS.get(verdict.state, found)
    return [*cells.values(), str(report.count("kept")), str(report.count("not-checked"))]


_LABELS = {
    "kept": ("KEPT", "green"),
    "broken": ("BROKEN", "bold red"),
    "doubtful": ("DOUBTFUL", "yellow"),
    "not-checked": ("NOT CHECKED", "yellow"),
}
_STATE_ORDER = ("broken", "doubtful", "kept", "not-checked")
_STATE_WIDTH = 15  # with the spaces around it
_HANGING = 2  # additional spaces at the start of each further line of a shared row


def rule_table(
    verdicts: Sequence[Verdict], causes: Mapping[str, str], *, everything: bool
) -> Iterator[Text]:
    """Yields the table of rules; rules that were not checked for the same reason share a row.

    ``causes`` maps the name of a rule to a text on the causes of its findings. Texts are shortened
    unless ``everything`` is set, but a fix is never cut.
    """
    width = 2 + max((len(verdict.rule) for verdict in verdicts), default=0)
    rows: dict[Hashable, list[Verdict]] = defaultdict(list)
    for verdict in verdicts:
        is_unchecked = verdict.state == "not-checked"
        rows[(verdict.reason, verdict.note) if is_unchecked else verdict.rule].append(verdict)
    for members in rows.values():
        first = members[0]
        details = "; ".join(filter(None, (first.reason, first.note, causes.get(first.rule))))
        most = 2
        if len(members) == 1:
            rule, hanging = f"{first.rule:<{width}}", width
        else:
            rule, hanging = f"{', '.join(verdict.rule for verdict in members)}: ", _HANGING
            most = 2 + len(rule) // (current_width() - _STATE_WIDTH - hanging)
        yield from _row(first, rule, hanging, details, None if everything else most)


def names_by_state(verdicts: Sequence[Verdict]) -> Iterator[Text]:
    """Yields a row for each state, with the names of the rules."""
    for state in _STATE_ORDER:
        members = [verdict for verdict in verdicts if verdict.state == state]
        if members:
            names = ", ".join(verdict.rule for verdict in members)
            more = " (--all shows why)" if state == "not-checked" else ""
            yield from _row(members[0], names, 0, more, None)


def _row(
    verdict: Verdict, rule: str, hanging: int, detail: str, most: int | None
) -> Iterator[Text]:
    label, style = _LABELS[verdict.state]
    line = f"{rule}{detail}".rstrip()
    hanging += _STATE_WIDTH
    first, *rest = wrap(line, indent=_STATE_WIDTH, hanging=hanging, most=most)
    before, fix, _ = detail.partition(verdict.fix) if verdict.fix else (detail, "", "")
    if fix and len(wrap(f"{rule}{before}{fix}", indent=_STATE_WIDTH, hanging=hanging)) > 1 + len(
        rest
    ):
        reason = f"{rule}{before}".rstrip("; ")
        first, *rest = wrap(reason, indent=_STATE_WIDTH, hanging=hanging, most=most)
        rest += wrap(fix, indent=hanging, hanging=hanging)
    text = Text.assemble("  ", (f"{label:<13}", style), first[_STATE_WIDTH:])
    text.stylize("dim", _STATE_WIDTH + len(rule))
    yield text
    yield from (Text(each, "dim") for each in rest)


def program_title(report: Report) -> str:
    """Returns the name of a program with its machine."""
    placement = report.evidence.placement
    return (
        f"{placement.program} on {placement.machine.title}"
        if placement.machine
        else placement.program
    )


def summary(reports: Sequence[Report]) -> str:
    """Returns the numbers of kept, broken and unchecked rules in all programs."""
    counts = {state: sum(report.count(state) for report in reports) for state in STATES}
    return f"{plural(len(reports), 'program')}, rules: {counts_text(counts)}."


_LINES = 60  # for a program
_LAST_LINES = 4  # for the counts and the next step
_TITLE_WIDTH = 160  # for the program, its machine and placer
_STEP_WIDTH = 200  # for the next step, which may contain a command to be copied
_NOTES = 6  # lines
_PLACERS = {
    "phantom": "TensorFlow's placer, devices that need not exist",
    "session": "TensorFlow's placer, the devices of a running cluster",
}


def write(
    reports: Sequence[Report],
    console: Console,
    *,
    everything: bool = False,
    next_step: NextStep | None = None,
    counts: Sequence[Report] | None = None,
) -> None:
    """Prints the verdicts and findings of every program, the counts and the next step.

    Args:
        reports: the reports of the programs; several are preceded by a grid.
        console: the console to print to.
        everything: whether to print all findings; otherwise a program takes at most 60 lines.
        next_step: the last line, with lines to copy; None if there is no next step.
        counts: the reports that the counts include; by default the printed reports.
    """
    if len(reports) > 1:
        for row in grid(reports):
            print_line(console, Text(row))
        print_line(console, Text())
    for report in reports:
        for line in _program(report, everything):
            print_line(console, line)
    counted = reports if counts is None else counts
    is_broken = any(report.count("broken") for report in counted)
    print_line(console, Text(summary(counted), "bold red" if is_broken else "bold"))
    if next_step is not None:
        for part in (*wrap(next_step, hanging=6, width=_STEP_WIDTH), *next_step.to_paste):
            print_line(console, Text(part))


def _program(report: Report, everything: bool) -> Iterator[Text]:
    sections = Sections(report.verdicts)
    head = list(_head(report, None if everything else _NOTES))
    measurement = report.evidence.measurement
    below = []
    if measurement and measurement.saved:
        size = file_size(measurement.saved_bytes)
        below = [
            Text(f"To run this again with the same rows ({size}):"),
            Text(f"  --batch {measurement.saved}"),
            Text(),
        ]
    room = _LINES - len(head) - len(below) - _LAST_LINES - 2  # two empty lines
    if everything or not report.count("broken"):
        table = list(rule_table(report.verdicts, sections.cause_texts, everything=everything))
    else:
        table = list(names_by_state(report.verdicts))
    yield from (*head, Text(), *table, Text())
    if everything:
        yield from all_findings(sections)
        yield from _objective(report)
    else:
        yield from brief_findings(sections, room - len(table))
    yield from below


def _objective(report: Report) -> Iterator[Text]:
    """Yields the objective of each variable, if a rule has read it from the graph."""
    lines = [line for verdict in report.verdicts for line in objective_lines(verdict)]
    if lines:
        yield Text("loss terms that the updates minimize", "bold")
        for line in lines:
            yield from map(Text, wrap(line, indent=2, hanging=6))
        yield Text()


def _head(report: Report, most: int | None) -> Iterator[Text]:
    """Yields the program with its conditions and notes, which precede the verdicts."""
    placement, measurement = report.evidence.placement, report.evidence.measurement
    title = f"{placement.program}{conditions(placement)}"
    first, *rest = wrap(title, hanging=4, width=_TITLE_WIDTH)
    name = Text(first)
    name.stylize("bold", 0, len(placement.program))
    yield name
    yield from map(Text, rest)
    notes = [line for note in report.evidence.notes for line in wrap(note, hanging=4)]
    yield from map(Text, notes[:most])
    if notes[len(notes) if most is None else most :]:
        yield Text("… (--all shows all notes)")
    if not placement.complete:
        for line in wrap(placement.complete.reason, hanging=4, most=most):
            yield Text(line, "yellow")
    if measurement:
        yield from map(Text, wrap(run_conditions(measurement, placement.program), hanging=4))


def conditions(placement: Placement) -> str:
    """Returns the machine and the placer of a program, to be appended to its name."""
    if placement.machine is None:
        return ""
    if placement.placer is None:
        return f" on {placement.machine.title}, not placed"
    if placement.placer == "log":
        return f" on {placement.machine.title} (a placement log)"
    strictness = "soft" if placement.soft else "strict"
    return f" on {placement.machine.title} ({_PLACERS[placement.placer]}, {strictness})"


def run_conditions(measurement: Measurement, program: str) -> str:
    """Returns the reference of a program, the devices of the run, and the rows, if unusual."""
    itself = measurement.reference == program
    reference = "the same program for one GPU" if itself else measurement.reference
    simulated = measurement.devices == "simulated"
    on = "CPU devices in place of GPUs" if simulated else "the GPUs of this machine"
    rows = f"; on each tower's rows alone, {measurement.own_rows}" if measurement.own_rows else ""
    return f"compared with {reference}, on {on}{rows}"
