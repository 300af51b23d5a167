"""Check whether a report names the marked line of a program, the line to edit."""

from __future__ import annotations

from pathlib import Path

from support.reports import written

from placement_checks import Report

MARK = "# <- "
# Lines that no report can name.
WITHOUT_LINE = {
    "memory_all": "a ConfigProto is not an op, so its line is unknown",
    "average_moved_per_tower": "the report names the loop in the helper instead of its call",
    # No op is built by a plain assignment of Python.
    **dict.fromkeys(
        [
            *("first_weight_only", "last_weight_only", "pairs_shifted", "perplexity_of_last"),
            *("same_slice:build_split", "swapped_labels"),
        ],
        "the report names the line that uses the value instead of its assignment",
    ),
    "one_variable_dropped": "no op is built in the branch, so it may not have run",
}


def names_the_edit(report: Report, file: Path) -> bool:
    """Whether the brief report, of at most 60 lines, shows a marked line of a file unchanged.

    Lines have at most 200 characters, except for the line with the path of a saved case.
    """
    marked = [line.strip() for line in file.read_text().splitlines() if MARK in line]
    assert marked
    lines = written(report).splitlines()
    assert len(lines) <= 60
    assert max(len(line) for line in lines if "--batch /" not in line) <= 200
    shown = " ".join(" ".join(lines).split())
    return any(" ".join(line[:90].split()) in shown for line in marked)
