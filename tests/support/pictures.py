"""The data of the HTML page for programs written by hand."""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from placement_checks import Placement, Verdict, verify
from placement_checks.core.evidence import Evidence
from placement_checks.core.results import Report
from placement_checks.report.page.data import program_data
from placement_checks.verification.judging import in_order


def data_of(
    graph: Evidence | Placement, *verdicts: Verdict, judged: bool = False
) -> dict[str, Any]:
    """The data of a program: judged by the rules, or with verdicts written by hand.

    Without no-fallback, as reads of variables follow them without a reason that a placer gives.
    """
    report = (
        verify(graph, without=["no-fallback"])
        if judged
        else Report(Evidence.wrap(graph), in_order(verdicts))
    )
    return program_data(report)


def row_of(data: dict[str, Any], op: str) -> str:
    """The row of an op in the picture, such as ``fc1/MatMul``."""
    row = column(data, op, "row")
    path: list[str] = []
    while row > 0:
        path.insert(0, data["rows"]["names"][row])
        row = data["rows"]["parents"][row]
    return "/".join(path)


def column(data: dict[str, Any], op: str, name: str) -> int:
    """The value of an op in a column."""
    value: int = data["ops"][name][data["ops"]["names"].index(op)]
    return value


def embedded(html: str, element: str = 'class="program"') -> Sequence[Any]:
    """The data in a page, decompressed as the page's script does."""
    pattern = rf'<script type="text/plain" {element}>(.*?)</script>'
    texts = re.findall(pattern, html, re.DOTALL)
    return [json.loads(gzip.decompress(base64.b64decode(text))) for text in texts]


def with_data(report: str) -> str:
    """A report, followed by the texts in its data if it is a page; HTML shows no line breaks."""
    texts = (text.replace("\n", " ") for text in _texts(embedded(report)))
    return "\n".join([report, *texts])


def _texts(data: Any) -> Iterator[str]:
    if isinstance(data, str):
        yield data
    elif isinstance(data, dict | list):
        for each in data.values() if isinstance(data, dict) else data:
            yield from _texts(each)
