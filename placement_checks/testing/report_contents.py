"""What `--placement-report` writes: the reports of `verify`, with the test of each program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from io import StringIO
from typing import Any

from rich.console import Console

from placement_checks.core.results import Report
from placement_checks.report import json as json_report
from placement_checks.report.picture.page import page
from placement_checks.report.text import writing
from placement_checks.testing.carried import Judged

_EMPTY_PAGE = """<!DOCTYPE html>
<html lang="en"><meta charset="utf-8"><title>placement_checks</title>
<p>No test has judged a program.</p></html>
"""


def document(tests: Mapping[str, Judged]) -> dict[str, Any]:
    """The document that `verify` writes as JSON; each program also has ``test``, ``outcome``.

    Args:
        tests: by their names; they come in that order, whichever process was done first.
    """
    told = [
        ({"test": name, "outcome": test.outcome}, report)
        for name, test in sorted(tests.items())
        for report in test.reports
    ]
    whole = json_report.document([report for _, report in told], [])
    programs = zip(told, whole["programs"], strict=True)
    return {**whole, "programs": [test | program for (test, _), program in programs]}


def contents(tests: Mapping[str, Judged], suffix: str) -> str:
    """The text of the file, in the format that its suffix stands for."""
    if suffix == ".json":
        return f"{json_report.written(document(tests))}\n"
    if suffix == ".html":
        pages = [data for _, test in sorted(tests.items()) for data in test.pages]
        return page(pages) if pages else _EMPTY_PAGE
    reports = [
        _named(report, name) for name, test in sorted(tests.items()) for report in test.reports
    ]
    text = StringIO()
    writing.write(reports, Console(file=text))
    return text.getvalue()


def _named(report: Report, test: str) -> Report:
    """The report of a program, which is named with its test."""
    placement = report.evidence.placement
    named = replace(placement, program=f"{placement.program} in {test}")
    return replace(report, evidence=replace(report.evidence, placement=named))
