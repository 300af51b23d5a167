"""What the page shows of programs written by hand, as its script would unpack it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from placement_checks import Placement, Verdict, verify
from placement_checks.core.evidence import Evidence
from placement_checks.core.results import Report
from placement_checks.report.page.data import program_data


def data_of(
    graph: Evidence | Placement, *verdicts: Verdict, judged: bool = False
) -> dict[str, Any]:
    """The data of a program: judged by the rules, or with verdicts written by hand.

    Without no-fallback, as reads of variables follow them without a reason that a placer gives.
    """
    report = (
        verify(graph, without=["no-fallback"])
        if judged
        else Report(Evidence.wrap(graph), verdicts)
    )
    return program_data(report)


def numbers(text: str) -> list[int]:
    """Runs as numbers, as `page/data.js` reads them."""
    found: list[int] = []
    for run in filter(None, text.split(",")):
        value, _, times = run.partition("*")
        found += [int(value)] * int(times or 1)
    return found


def names(text: str) -> list[str]:
    """Front-coded names in full."""
    found = [""]
    for line in text.split("\n"):
        found.append(found[-1][: int(line[:2], 36)] + line[2:])
    return found[1:]


def row_of(data: dict[str, Any], op: str) -> str:
    """The row that an op is drawn in, as ``fc1/MatMul``."""
    row = numbers(data["ops"]["row"])[names(data["ops"]["names"]).index(op)]
    path: list[str] = []
    while row > 0:
        path.insert(0, data["rows"]["names"][row])
        row = data["rows"]["parents"][row]
    return "/".join(path)


def column(data: dict[str, Any], op: str, name: str) -> int:
    """What a column of ops has for one."""
    return numbers(data["ops"][name])[names(data["ops"]["names"]).index(op)]


def embedded(html: str) -> Sequence[Any]:
    """The programs of a page."""
    pattern = r'<script type="application/json" class="program">(.*?)</script>'
    return [json.loads(text) for text in re.findall(pattern, html, re.DOTALL)]
