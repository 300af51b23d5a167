"""Writes the comparison of programs with a git revision in each format."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TextIO

from placement_checks.core.results import Report
from placement_checks.core.revisions import Since
from placement_checks.report.commands.since import (
    EFFECTS,
    at_commit,
    headline,
    render_json,
    render_text,
    summary,
    unchecked_lines,
)
from placement_checks.report.formats import github, markdown
from placement_checks.report.formats.locations import Repository, rank_root_causes
from placement_checks.report.text.findings import one_line

_PROGRAMS = 8  # rows of the table
_DIFFERENCE = "moved"  # the title of what moved in a program


def _text(since: Since, stream: TextIO) -> None:
    stream.write(render_text(since) + "\n")


def _json(since: Since, stream: TextIO) -> None:
    stream.write(render_json(since) + "\n")


def _html(since: Since, stream: TextIO) -> None:
    from placement_checks.report.page.data import revision_data
    from placement_checks.report.page.write import render_page

    pages = (revision_data(program, headline(program, since)) for program in since.programs)
    if drawn := [page for page in pages if page is not None]:
        stream.write(render_page(drawn, summary(since)))


def _github(since: Since, stream: TextIO) -> None:
    """Writes an annotation for each newly broken rule and each program with changes."""
    files, reports = Repository(), _changed_reports(since)
    errors = github.error_annotations(since.errors)
    errors += [github.group_annotation(each, files) for each in rank_root_causes(reports)]
    errors += github.difference_annotations(reports, files, _DIFFERENCE)
    errors += [
        github.annotation(
            "error", [one_line(f"{each.name}: {headline(each, since)}")], "not checked"
        )
        for each in since.programs
        if each.state == "gone"
    ]
    faults = [
        (EFFECTS["unchecked"], line, program.name)
        for program in since.programs
        for line in unchecked_lines(program, since)
    ]
    faults += [
        ("different numbers", program.numbers.text, program.name)
        for program in since.programs
        if program.numbers and program.numbers.state == "different"
    ]
    errors += [
        github.annotation("error", [one_line(text), one_line(f"in {name}")], title)
        for title, text, name in faults
    ]
    lines = [*errors, github.count_notice(one_line(summary(since)), len(errors))]
    stream.write("".join(f"{line}\n" for line in lines))


def _markdown(since: Since, stream: TextIO) -> None:
    """Writes a comment for a pull request: a table of the programs, then folds with details."""
    stream.write("".join(f"{line}\n" for line in _markdown_lines(since)))


def _markdown_lines(since: Since) -> Iterator[str]:
    state = {0: "nothing has changed", 1: "changed"}.get(since.status, "failed")
    text = markdown.inline(markdown.html_text(summary(since)))
    yield f"**placement_checks: {state}.** {text}"
    yield from _table(since)
    reports = _changed_reports(since)
    errors = [f"<p><b>error</b>: {markdown.html_text(str(error))}</p>" for error in since.errors]
    differences = [
        markdown.difference_fold(report.baseline, report.evidence.placement.program, _DIFFERENCE)
        for report in reports
        if report.baseline
    ]
    unchecked = [
        f"<p><b>{EFFECTS['unchecked']}</b> in {markdown.code(program.name)}: "
        f"{markdown.html_text(line)}</p>"
        for program in since.programs
        for line in unchecked_lines(program, since)
    ]
    numbers = [
        f"<p><b>numbers, {program.numbers.state.replace('-', ' ')}</b> in "
        f"{markdown.code(program.name)}: {markdown.html_text(program.numbers.text)}</p>"
        for program in since.programs
        if program.numbers
    ]
    lines = [
        *markdown.first_lines(errors, "error"),
        *markdown.group_folds(rank_root_causes(reports)),
        *markdown.first_lines(differences, "program"),
        *markdown.first_lines(unchecked, "reason"),
        *markdown.first_lines(numbers, "program"),
        *(f"<p>{markdown.html_text(note)}</p>" for note in since.notes),
    ]
    if lines:
        yield ""
        yield from lines


def _table(since: Since) -> Iterator[str]:
    """Yields a row for each program; of too many programs, programs that differ come first."""
    if not since.programs:
        return
    shown = sorted(since.programs, key=lambda program: not program.differs)[:_PROGRAMS]
    yield ""
    yield f"| program | since {markdown.inline(markdown.code(at_commit(since)))} |"
    yield "|---|---|"
    for program in shown:
        name, changes = markdown.code(program.name), markdown.html_text(headline(program, since))
        yield f"| {markdown.inline(name)} | {markdown.inline(changes)} |"
    if left := len(since.programs) - len(shown):
        yield f"| and {left} more | |"


def _changed_reports(since: Since) -> Sequence[Report]:
    """The reports of the working tree, each with its newly broken rules and its changes."""
    return [
        replace(
            program.new,
            verdicts=[change.new for change in program.with_effect("broken")],
            baseline=program.difference,
        )
        for program in since.programs
        if program.new is not None
    ]


Writer = Callable[[Since, TextIO], None]
FORMATS: Mapping[str, Writer] = {
    "text": _text,
    "json": _json,
    "html": _html,
    "markdown": _markdown,
    "github": _github,
}
