"""Check whether a report names the marked line of a program, the line to edit."""

from __future__ import annotations

from pathlib import Path

from support.reports import written

from placement_checks import Report

MARK = "# <- "
# Lines that no report can name.
WITHOUT_LINE = {
    "memory_all": "a ConfigProto is no op: where it was made is not known",
    "average_moved_per_tower": "named is the loop of the helper, which is told how often it runs",
    "one_variable_dropped": "no op is built in the branch, so whether it ran is not known",
}


def names_the_edit(report: Report, file: Path) -> bool:
    """Whether the brief report, of 60 lines at most, shows a marked line of a file as it is.

    Its lines have 200 letters at most, but for that of a saved case: a path is as long as it is.
    """
    marked = [line.strip() for line in file.read_text().splitlines() if MARK in line]
    assert marked
    lines = written(report).splitlines()
    assert len(lines) <= 60
    assert max(len(line) for line in lines if "--batch /" not in line) <= 200
    shown = " ".join(" ".join(lines).split())
    return any(" ".join(line[:90].split()) in shown for line in marked)
