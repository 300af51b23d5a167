"""Groups of findings as lines of text, for the terminal, for pages and for assertion messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Literal, NamedTuple

from placement_checks.core.placement import Placement
from placement_checks.report.groups import Group
from placement_checks.report.text.source_text import source_text
from placement_checks.report.text.source_values import lines_of_values
from placement_checks.report.text.wrapping import wrapped
from placement_checks.util.text import plural

Kind = Literal["headline", "detail", "consequence", "fix"]

_EXAMPLES = 3
_CALLERS = 4
_STEPS = 4  # of a path, where only a run shows them
_LINES = {"headline": 6, "detail": 2, "consequence": 3, "fix": 4}  # of one sentence
_INDENT = {"headline": 2, "detail": 6, "consequence": 4, "fix": 4}


class Line(NamedTuple):
    """A line of a report, and what it is part of."""

    text: str
    kind: Kind


def finding_lines(
    groups: Sequence[Group], placement: Placement | None = None, *, everything: bool = False
) -> Iterator[Line]:
    """Each group once: its source line, what shows it, others alike, what it means, and the fix.

    Args:
        groups: those of one rule; where the same is to be done about some in a row, that stands
            below the last of them.
        placement: the program that they are about, whose ops show which of its lines ran.
        everything: all names and steps, not the first alone.
    """
    for _, alike in groupby(groups, key=_cure):
        members = list(alike)
        for group in members:
            for kind, text in _group(group, placement, everything):
                yield from _sentence(kind, text, everything)
        first = members[0].first
        if first.consequence:
            yield from _sentence("consequence", first.consequence, everything)
        yield from _sentence("fix", first.advice, everything)


def first_lines(
    groups: Sequence[Group], shown: int, hint: str, placement: Placement | None = None
) -> Iterator[Line]:
    """The first of some groups, and how many findings are left out."""
    yield from finding_lines(groups[:shown], placement)
    if left := sum(len(group.findings) for group in groups[shown:]):
        yield Line(f"  and {plural(left, 'finding')} more ({hint})", "detail")


def costs(groups: Sequence[Group], placement: Placement | None = None) -> Iterator[int]:
    """How many lines each group takes, if it stands alone."""
    return (sum(1 for _ in finding_lines([group], placement)) for group in groups)


def _cure(group: Group) -> tuple[str, str]:
    return group.first.consequence, group.first.fix


def _sentence(kind: Kind, text: str, everything: bool) -> Iterator[Line]:
    indent = _INDENT[kind]
    most = None if everything else _LINES[kind]
    for line in wrapped(text, indent=indent, hanging=indent + 4, most=most):
        yield Line(line, kind)


def _group(
    group: Group, placement: Placement | None, everything: bool
) -> Iterator[tuple[Kind, str]]:
    first, where = group.first, group.where
    yield "headline", f"{where}: {first.message}" if where else first.message
    if where and (text := source_text(where)):
        yield "detail", f"| {text}"
    before, callers = where or "", group.callers
    if callers and group.lines > 1:
        text = source_text(callers[0])
        through = f"{_after(callers[0], before)}{f': {text}' if text else ''}"
        yield "detail", f"all {len(group.findings)} are built through {through}"
        before, *callers = callers
    if callers:
        told = callers if everything else callers[:_CALLERS]
        lines = ", ".join(map(_after, told, (before, *told)))
        yield "detail", f"called from {lines}{'' if len(told) == len(callers) else ', …'}"
    if where and first.evidence in ("requested", "executed"):
        for line in lines_of_values(where, placement):
            yield "detail", f"given by {_after(line, where)}: {source_text(line)}"
    if first.op and first.where and first.where != where:
        yield "detail", f"{first.object} is made at {_with_text(first.where)}"
    if first.device_line and first.device_line != where:
        yield "detail", f"device requested at {_with_text(first.device_line)}"
    steps = len(first.path) if everything else _STEPS if first.evidence == "executed" else 0
    yield from (("detail", step) for step in first.path[:steps])
    if len(group.findings) > 1:
        yield "detail", likewise(group, everything=everything)


def _after(line: str, before: str) -> str:
    """A line as it is told after another one: of the same file, its number will do."""
    file, _, number = line.rpartition(":")
    return f"line {number}" if file == before.rpartition(":")[0] else line


def _with_text(line: str) -> str:
    text = source_text(line)
    return f"{line}: {text}" if text else line


def likewise(group: Group, *, everything: bool = False) -> str:
    """How many more findings a group has, and of which objects: some of them, or all."""
    others = group.others if everything else group.others[:_EXAMPLES]
    names, before = [], group.where or ""
    for name, line in others:
        names.append(f"{name} ({_after(line, before)})" if line else name)
        before = line or before
    number = f"likewise {len(group.findings) - 1} more"
    if not names:
        return number
    return f"{number}{': ' if len(names) == len(group.others) else ', such as '}{', '.join(names)}"
