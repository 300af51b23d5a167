"""Writes a report as a comment on a pull request, in at most 40 lines of Markdown.

Text from a program is written as HTML, so that Markdown does not interpret its characters.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html import escape
from typing import TextIO

from placement_checks.core.baseline import Difference
from placement_checks.core.results import Report, by_impact
from placement_checks.report.common.baseline import render_text
from placement_checks.report.common.findings import Sections
from placement_checks.report.common.source import source_text
from placement_checks.report.formats.locations import RankedGroup, rank_root_causes
from placement_checks.report.formats.outcome import Outcome
from placement_checks.report.text.findings import finding_sentences, one_line
from placement_checks.report.text.writer import program_title, summary
from placement_checks.util.text import join_and, plural

_PROGRAMS = 8  # rows of the table
_GROUPS = 10
_OTHERS = 3  # lines of each other kind
_LONGEST = 300  # characters of a sentence; a comment has at most 65,536
_LONGEST_CHANGE = 120  # characters of a change from the baseline
# GitHub turns these texts into links, formulas or :smile:, in HTML too, unless an invisible
# character follows the first character.
_SPECIAL = re.compile(r"[@#$]|:(?=//|[\w+-]+:)|w(?=ww\.)|G(?=H-)")
_INVISIBLE = "\u200b"
_MARKS = frozenset("|`*_\\[]~!")


def write(outcome: Outcome, stream: TextIO) -> None:
    """Writes the counts, a table of the programs, the findings in folds, and the next step."""
    stream.write("".join(f"{line}\n" for line in _lines(outcome)))


def _lines(outcome: Outcome) -> Iterator[str]:
    reports = outcome.reports
    fails = bool(outcome.errors) or any(map(outcome.fails, reports))
    yield f"**placement_checks: {'failed' if fails else 'passed'}.** {summary(reports)}"
    yield from _table(reports)
    yield from _folds(outcome)
    if outcome.next_step is not None:
        yield ""
        yield inline(html_text(outcome.next_step))


def _table(reports: Sequence[Report]) -> Iterator[str]:
    """Yields a row for each program, at most for the 8 programs with most broken rules."""
    if not reports:
        return
    first = sorted(reports, key=lambda report: -report.count("broken"))[:_PROGRAMS]
    rows = [each for each in reports if any(each is report for report in first)]
    yield ""
    yield "| program | broken | kept | not checked |"
    yield "|---|---|---|---|"
    for report in rows:
        verdicts = by_impact(report.verdicts)
        broken = [verdict.rule for verdict in verdicts if verdict.state == "broken"]
        counts = f"{report.count('kept')} | {report.count('not-checked')}"
        names = inline(html_text(", ".join(broken)) or "none")
        yield f"| {inline(code(program_title(report)))} | {names} | {counts} |"
    if left := len(reports) - len(rows):
        yield f"| and {plural(left, 'program')} more | | | |"


def _folds(outcome: Outcome) -> Iterator[str]:
    """Yields one line for each fold; without empty lines between them, they are one HTML block."""
    groups = rank_root_causes(outcome.reports)
    errors = [f"<p><b>error</b>: {html_text(str(error))}</p>" for error in outcome.errors]
    lines = [*first_lines(errors, "error"), *group_folds(groups)]
    lines += first_lines(
        [
            difference_fold(report.baseline, program_title(report), "baseline")
            for report in outcome.reports
            if report.baseline
        ],
        "baseline",
    )
    following = [
        f"<p>{html_text(section.title)}</p>"
        for report in outcome.reports
        for section in Sections(report.verdicts).consequences
    ]
    lines += first_lines(following, "rule")
    verdicts = [verdict for report in outcome.reports for verdict in report.verdicts]
    unchecked = dict.fromkeys(each.rule for each in verdicts if outcome.must_be_checked(each))
    if unchecked:
        lines.append(f"<p>not checked, although required: {html_text(join_and(unchecked))}</p>")
    if lines:
        yield ""
        yield from lines


def first_lines(lines: Sequence[str], noun: str) -> list[str]:
    """Returns the first lines, and the number of omitted lines."""
    left = len(lines) - _OTHERS
    return [*lines[:_OTHERS], *([f"<p>and {plural(left, noun)} more</p>"] if left > 0 else [])]


def group_folds(groups: Sequence[RankedGroup]) -> list[str]:
    """Returns a fold for each of the first groups, and the number of omitted findings."""
    lines = [_fold(each, is_open=not number) for number, each in enumerate(groups[:_GROUPS])]
    if left := sum(len(each.group.findings) for each in groups[_GROUPS:]):
        lines.append(f"<p>and {plural(left, 'finding')} more</p>")
    return lines


def _fold(each: RankedGroup, *, is_open: bool) -> str:
    """A group of findings: its rule, line and message, with the details folded."""
    message, *others = finding_sentences(each.group)
    where = each.group.where
    at = f" {code(where)}" if where else ""
    source = source_text(where) if where else None
    details = [code(source)] if source else []
    details += map(html_text, others)
    if len(each.reports) > 1:
        details.append(f"in {plural(len(each.reports), 'program')}")
    mark = "<details open>" if is_open else "<details>"
    return (
        f"{mark}<summary><b>{html_text(each.title)}</b>{at}: {html_text(message)}</summary>"
        f"{'<br>'.join(details)}</details>"
    )


def difference_fold(difference: Difference, program: str, title: str) -> str:
    """Returns everything that moved in a program, below the number of changes."""
    first, *others = render_text(difference, _OTHERS).split("\n")
    lines = (one_line(line, _LONGEST_CHANGE) for line in (*others, f"in {program}"))
    details = "<br>".join(map(html_text, lines))
    return f"<details><summary><b>{title}</b>: {html_text(first)}</summary>{details}</details>"


def code(text: str) -> str:
    """Returns a text as code, without links."""
    return f"<code>{escape(one_line(text, _LONGEST), quote=False)}</code>"


def html_text(text: str) -> str:
    """Returns a text as HTML, without mentions and links."""
    shown = _SPECIAL.sub(rf"\g<0>{_INVISIBLE}", one_line(text, _LONGEST))
    return escape(shown, quote=False)


def inline(html: str) -> str:
    """Returns HTML for a line of Markdown or a table cell, with special characters escaped."""
    return "".join(f"&#{ord(each)};" if each in _MARKS else each for each in html)
