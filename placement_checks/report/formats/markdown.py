"""Writes a report as a comment on a pull request, in at most 40 lines of Markdown.

Text from a program is written as HTML, so that Markdown does not interpret its characters.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from itertools import groupby
from typing import TextIO, get_args

from placement_checks.core.results import NextStep, Report
from placement_checks.core.revisions import Since
from placement_checks.report.commands.since import at_commit, headline
from placement_checks.report.common.baseline import render_text
from placement_checks.report.common.source import source_text
from placement_checks.report.formats import Format
from placement_checks.report.items import Item, Kind, items, ranked
from placement_checks.report.outcome import Outcome
from placement_checks.report.text.findings import one_line
from placement_checks.report.text.writer import program_title
from placement_checks.util.text import join_and, plural, printable

_MOST = 40  # lines
_PROGRAMS = 8  # rows of the table
_CAUSES = 10
_REASONS = 10
_OTHERS = 3  # lines of each other kind
_NOUNS: Mapping[Kind, str] = {
    "error": "error",
    "difference": "program",
    "training": "program",
    "numbers": "program",
    "consequence": "rule",
    "doubt": "doubt",
    "note": "remark",
}
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


FORMAT = Format(
    write,
    "comment on a pull request: at most 40 lines, for any report",
    "a line below the findings",
    ".md",
)


def _lines(outcome: Outcome) -> Iterator[str]:
    counts = inline(html_text(outcome.summary)) if outcome.since else outcome.summary
    yield f"**placement_checks: {_state(outcome)}.** {counts}"
    table = list(_changes(outcome.since) if outcome.since else _table(outcome.reports))
    yield from table
    ending = [] if outcome.next_step is None else ["", *_next_step(outcome.next_step)]
    if folds := _folds(outcome, _MOST - len(table) - len(ending) - 2):
        yield ""
        yield from folds
    yield from ending


def _next_step(step: NextStep) -> Iterator[str]:
    """Yields the next step, and the lines to be copied unchanged."""
    yield inline(html_text(step))
    if step.to_paste:
        yield "<pre>"
        yield from (escape(printable(line), quote=False) for line in step.to_paste)
        yield "</pre>"


def _state(outcome: Outcome) -> str:
    if outcome.since is not None:
        states = {0: "nothing has changed", 1: "changed"}
        return states.get(outcome.since.status, "failed")
    fails = bool(outcome.errors) or any(map(outcome.fails, outcome.reports))
    return "failed" if fails else "passed"


def _changes(since: Since) -> Iterator[str]:
    """Yields a row for each program; of too many programs, programs that differ come first."""
    if not since.programs:
        return
    shown = sorted(since.programs, key=lambda program: not program.differs)[:_PROGRAMS]
    yield ""
    yield f"| program | since {inline(code(at_commit(since)))} |"
    yield "|---|---|"
    for program in shown:
        yield f"| {inline(code(program.name))} | {inline(html_text(headline(program, since)))} |"
    if left := len(since.programs) - len(shown):
        yield f"| and {left} more | |"


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
        broken = [verdict.rule for verdict in report.verdicts if verdict.state == "broken"]
        counts = f"{report.count('kept')} | {report.count('not-checked')}"
        names = inline(html_text(", ".join(broken)) or "none")
        yield f"| {inline(code(program_title(report)))} | {names} | {counts} |"
    if left := len(reports) - len(rows):
        yield f"| and {plural(left, 'program')} more | | | |"


def _folds(outcome: Outcome, room: int) -> list[str]:
    """One line for each statement; without empty lines between them, they are one HTML block.

    Args:
        outcome: the report.
        room: the number of lines; the root causes get those that other statements do not need.
    """
    by_kind: dict[Kind, list[str]] = {}
    causes: list[Item] = []
    for kind, members in groupby(ranked(items(outcome)), key=lambda item: item.kind):
        if kind == "cause":
            causes = list(members)
            by_kind[kind] = []
        elif kind == "unchecked":
            by_kind[kind] = [*_unchecked(each for each in members if each.level != "note")]
        elif kind != "gone":  # in the table
            by_kind[kind] = _first([_fold(each) for each in members], _NOUNS[kind])
    room -= sum(map(len, by_kind.values()))
    by_kind["cause"] = _cause_folds(causes, min(_CAUSES, room - 1))
    return [line for kind in get_args(Kind) for line in by_kind.get(kind, ())]


def _first(lines: Sequence[str], noun: str) -> list[str]:
    """Returns the first lines, and the number of omitted lines."""
    left = len(lines) - _OTHERS
    return [*lines[:_OTHERS], *([f"<p>and {plural(left, noun)} more</p>"] if left > 0 else [])]


def _cause_folds(causes: Sequence[Item], most: int) -> list[str]:
    """Returns a fold for each of the first root causes, and the number of omitted findings."""
    lines = [_cause(each, is_open=not number) for number, each in enumerate(causes[:most])]
    omitted = (group for each in causes[most:] for group in each.groups)
    if left := sum(len(group.findings) for group in omitted):
        lines.append(f"<p>and {plural(left, 'finding')} more</p>")
    return lines


def _cause(item: Item, *, is_open: bool) -> str:
    """A root cause: its rule, line and message, with the details folded."""
    message, *others = item.lines
    at = f" {code(item.where)}" if item.where else ""
    source = source_text(item.where) if item.where else None
    details = [code(source)] if source else []
    details += map(html_text, others)
    if len(item.reports) > 1:
        details.append(f"in {plural(len(item.reports), 'program')}")
    mark = "<details open>" if is_open else "<details>"
    return (
        f"{mark}<summary><b>{html_text(item.title)}</b>{at}: {html_text(message)}</summary>"
        f"{'<br>'.join(details)}</details>"
    )


def _unchecked(found: Iterable[Item]) -> Iterator[str]:
    """Yields the rules that are not checked although they must be, with the reasons folded."""
    for title, members in groupby(found, key=lambda item: item.title):
        each = list(members)
        names = join_and(dict.fromkeys(rule for item in each for rule in item.rules))
        reasons = [f"{item.lines[0]}, in {item.programs(_OTHERS)}" for item in each[:_REASONS]]
        if left := len(each) - len(reasons):
            reasons.append(f"and {plural(left, 'reason')} more")
        details = "<br>".join(map(html_text, reasons))
        yield f"<details><summary><b>{title}</b>: {html_text(names)}</summary>{details}</details>"


def _fold(item: Item) -> str:
    """A statement that is no root cause; changes are folded below their number."""
    title, text = f"<b>{html_text(item.title)}</b>", html_text(item.lines[0])
    if item.kind == "difference":
        (report,) = item.reports
        assert report.baseline is not None
        first, *others = render_text(report.baseline, _OTHERS).split("\n")
        lines = (*others, f"in {program_title(report)}")
        details = "<br>".join(html_text(one_line(line, _LONGEST_CHANGE)) for line in lines)
        return f"<details><summary>{title}: {html_text(first)}</summary>{details}</details>"
    if item.kind in ("consequence", "note"):
        return f"<p>{text}</p>"
    programs = f" in {code(item.programs(_OTHERS))}" if item.reports else ""
    return f"<p>{title}{programs}: {text}</p>"


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
