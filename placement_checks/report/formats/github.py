"""Writes a report as annotations of the user's lines on GitHub (workflow commands).

GitHub shows the first ten errors, ten warnings and ten notices of a step. Each root cause is an
error, and each doubt a notice, in the order of `ranked`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from placement_checks.report.formats import Format
from placement_checks.report.items import Item, items, ranked
from placement_checks.report.locations import Location, Repository
from placement_checks.report.outcome import Outcome
from placement_checks.report.text.findings import one_line

_SHOWN = 10  # errors of a step
_NAMED = 3  # programs with the same finding
_NAME = "placement_checks"


def write(outcome: Outcome, stream: TextIO) -> None:
    """Writes errors, findings, required rules that were not checked, and the counts."""
    files = Repository()
    found = [
        item for item in ranked(items(outcome)) if item.level != "note" or item.kind == "doubt"
    ]
    lines = [_annotation(item, files) for item in found]
    if outcome.reports or outcome.since is not None:
        counts, errors = [one_line(outcome.summary)], sum(each.level == "error" for each in found)
        if errors > _SHOWN:
            counts.append(f"GitHub shows {_SHOWN} errors of a step; its log has all {errors}.")
        lines.append(annotation("notice", counts, _NAME))
    stream.write("".join(f"{line}\n" for line in lines))


FORMAT = Format(
    write,
    "annotations of a GitHub runner, at your lines",
    "a notice",
    has_errors=True,
)


def _annotation(item: Item, files: Repository) -> str:
    """Returns a statement at its line, or else at the file of its first program."""
    if not item.reports:
        title = _NAME if item.kind == "error" else item.title
        return annotation(item.level, item.lines, title)
    at = None
    lines = list(item.lines)
    if item.kind != "unchecked":
        at = files.location_of(item.where, item.reports[0])
    if item.kind in ("cause", "doubt") and item.where and (at is None or at.line is None):
        lines[0] = one_line(f"{item.where}: {lines[0]}")
    kind = "notice" if item.level == "note" else item.level
    return annotation(kind, [*lines, f"in {item.programs(_NAMED)}"], item.title, at)


def annotation(kind: str, lines: Sequence[str], title: str, at: Location | None = None) -> str:
    """Returns a workflow command, with GitHub's special characters escaped."""
    properties = {"title": title}
    if at is not None:
        line = {} if at.line is None else {"line": str(at.line)}
        properties = {"file": at.path, **line, **properties}
    named = ",".join(
        f"{name}={_escape(value).replace(':', '%3A').replace(',', '%2C')}"
        for name, value in properties.items()
    )
    return f"::{kind} {named}::{_escape(chr(10).join(lines))}"


def _escape(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
