"""The data of the HTML page for programs written by hand, unpacked as the page's script does."""

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
    """Run-length coded numbers, decoded as in `page/data.js`."""
    found: list[int] = []
    for run in filter(None, text.split(",")):
        value, _, times = run.partition("*")
        found += [int(value)] * int(times or 1)
    return found


def names(text: str) -> list[str]:
    """Decoded names; names are front-coded in the page."""
    found = [""]
    for line in text.split("\n"):
        found.append(found[-1][: int(line[:2], 36)] + line[2:])
    return found[1:]


def row_of(data: dict[str, Any], op: str) -> str:
    """The row of an op in the picture, such as ``fc1/MatMul``."""
    row = numbers(data["ops"]["row"])[names(data["ops"]["names"]).index(op)]
    path: list[str] = []
    while row > 0:
        path.insert(0, data["rows"]["names"][row])
        row = data["rows"]["parents"][row]
    return "/".join(path)


def column(data: dict[str, Any], op: str, name: str) -> int:
    """The value of an op in a column."""
    return numbers(data["ops"][name])[names(data["ops"]["names"]).index(op)]


def embedded(html: str) -> Sequence[Any]:
    """The programs in the data of a page."""
    pattern = r'<script type="application/json" class="program">(.*?)</script>'
    return [json.loads(text) for text in re.findall(pattern, html, re.DOTALL)]
