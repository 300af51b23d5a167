"""Outcomes of `verify`, written by hand, in each report format."""

from __future__ import annotations

from io import StringIO
from typing import Any

from placement_checks.core.baseline import Change, Difference
from placement_checks.core.results import NextStep, Report
from placement_checks.core.revisions import Since
from placement_checks.report.formats import FORMATS
from placement_checks.report.outcome import Outcome

HOSTILE = "w|`</b>\x1b[2J\n::error::@you #1 https://x.y &amp; [a](1) \u202e\x00"

MOVED = Difference(
    "w.txt", "p", 9, [Change("variable", "variable w|@you", "/cpu:0", "/gpu:0", where="a.py:7")]
)
SAME = Difference("w.txt", "p", 10)


def written_as(format: str, *reports: Report, next_step: str | None = None, **more: Any) -> str:
    file, step = StringIO(), None if next_step is None else NextStep(next_step)
    FORMATS[format].write(Outcome(reports, next_step=step, **more), file)
    return file.getvalue()


def since_as(format: str, since: Since) -> str:
    return written_as(format, *since.reports, errors=since.errors, since=since)
