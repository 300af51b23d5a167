"""Findings written by hand, and their lines in the text report."""

from __future__ import annotations

from collections.abc import Sequence
from io import StringIO
from typing import Any

from rich.console import Console
from support.graphs import placement

from placement_checks import Finding, Verdict
from placement_checks.core.evidence import Evidence
from placement_checks.core.results import Report
from placement_checks.report.text.findings import DetailLevel
from placement_checks.report.text.writer import write


def finding(object: str, **more: Any) -> Finding:
    values = {
        "op": "VarHandleOp",
        "evidence": "assigned",
        "expected": "CPU",
        "found": "GPU",
        "message": f"{object} is [on a GPU]",
        "fix": "pin it",
        "frames": ("a.py:1",),
    }
    return Finding(object, **{**values, **more})


def broken(rule: str, *findings: Finding, **more: Any) -> Verdict:
    return Verdict(rule, "broken", "assigned", None, findings, **more)


def report(*verdicts: Verdict, program: str = "p") -> Report:
    return Report(Evidence(placement(program=program)), verdicts)


def written(*reports: Report, extent: DetailLevel = DetailLevel.BRIEF, width: int = 40) -> str:
    """The text report, for a terminal that is narrower than its lines: they must not be broken
    again."""
    file = StringIO()
    write(reports, Console(file=file, width=width), extent)
    return file.getvalue()


def below_the_table(text: str) -> Sequence[str]:
    """The lines with findings in a report of one program."""
    _, _, rest = text.split("\n\n", 2)
    return rest.rstrip("\n").split("\n")[:-1]
