"""Compare the lines that a report names with the marked lines of a program, the lines to edit."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

from support.reports import written

from placement_checks import Report
from placement_checks.report.common.findings import Sections
from placement_checks.report.common.source import source_text

MARK = "# <-"
# Lines that no report can name.
WITHOUT_LINE = {
    "swapped_labels": "the report names the line that uses the value instead of its assignment",
}


def names_the_edit(report: Report, file: Path) -> bool:
    """Whether the brief report, of at most 60 lines, shows a marked line of a file unchanged.

    Lines have at most 200 characters, except for the line with the path of a saved case.
    """
    marked = [
        str(source_text(f"{file}:{number}"))
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if f"{MARK} " in line
    ]
    assert marked
    lines = written(report).splitlines()
    assert len(lines) <= 60
    assert max(len(line) for line in lines if "--batch /" not in line) <= 200
    shown = " ".join(" ".join(lines).split())
    return any(" ".join(line[:90].split()) in shown for line in marked)


def stated_lines(report: Report, file: Path, builder: str) -> list[str]:
    """The lines that the root causes of a report name, each with its distance to a marked line.

    An entry is ``RULE: LINE, DISTANCE``. The distance is the number of lines from the nearest
    marked line to the named line, such as ``+1``, or ``unknown``, or ``in another file``. If no
    marked line is next to it, but the report names one as the caller, the distance is ``called
    from it``.
    """
    marks = list(_marks(file, builder))
    assert marks, f"no line of {builder} is marked"
    named = {
        (section.rule, group.where): group.callers
        for section in Sections(report.verdicts).causes
        for group in section.groups
    }
    return [
        f"{rule}: {_distance(where, callers, file, marks)}"
        for (rule, where), callers in named.items()
    ]


def _distance(where: str | None, callers: Sequence[str], file: Path, marks: Sequence[int]) -> str:
    if where is None:
        return "no line, unknown"
    path, _, number = where.rpartition(":")
    is_here = Path(path).name == file.name
    distance = min((int(number) - mark for mark in marks), key=abs)
    if not (is_here and abs(distance) <= 1) and any(
        Path(caller.rpartition(":")[0]).name == file.name
        and int(caller.rpartition(":")[2]) in marks
        for caller in callers
    ):
        return f"{Path(path).name}:{number}, called from it"
    if not is_here:
        return f"{Path(path).name}:{number}, in another file"
    return f"line {number}, {distance:+d}" if distance else f"line {number}, exact"


def _marks(file: Path, builder: str) -> Iterator[int]:
    """The marked lines of a builder, and of the functions of its file that it uses."""
    text = file.read_text(encoding="utf-8")
    functions = {
        each.name: each for each in ast.parse(text).body if isinstance(each, ast.FunctionDef)
    }
    names, used = [builder], set[str]()
    while names:
        if (name := names.pop()) in functions and name not in used:
            used.add(name)
            names += [each.id for each in ast.walk(functions[name]) if isinstance(each, ast.Name)]
    for number, line in enumerate(text.splitlines(), 1):
        if MARK in line and any(
            functions[name].lineno <= number <= int(functions[name].end_lineno or 0)
            for name in used
        ):
            yield number
