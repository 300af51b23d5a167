"""The contents of ``--placement-report``: the reports of `verify`, with the test of each program.

Under pytest-xdist, a test's reports are sent as text from the process of the test to the one that
writes the file.
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from io import StringIO
from typing import Any, Final, NamedTuple

from rich.console import Console

from placement_checks.core.evidence import Evidence
from placement_checks.core.missing import Missing
from placement_checks.core.placement import Details, StepOps
from placement_checks.core.program import BuiltProgram, InitialState, Step
from placement_checks.core.results import Report, Verdict
from placement_checks.core.variables import Variables
from placement_checks.report.common import json as json_report
from placement_checks.report.page.write import render_page
from placement_checks.report.text import writer
from placement_checks.testing.program_names import program_name

_LEFT: Final = Missing("it is in the process of the test")
_WORST: Final = ("broken", "not-checked", "kept")


class TestJudgement(NamedTuple):
    """What a test has judged, and whether it passed.

    Attributes:
        outcome: ``passed``, ``failed`` or ``skipped``.
        reports: one for each program, without what is as large as the program.
        pages: what a page shows of each of them, where one is written.
    """

    outcome: str
    reports: Sequence[Report]
    pages: Sequence[Mapping[str, Any]] = ()


def reports(judged: Iterable[tuple[Evidence, Verdict]]) -> list[Report]:
    """One for each program that a test has judged; of a rule that it judged twice the worst."""
    evidence_of: dict[int, Evidence] = {}
    verdicts_of: dict[int, dict[str, Verdict]] = {}
    for evidence, verdict in judged:
        key = id(evidence.placement)
        evidence_of[key] = evidence  # the last one knows most
        verdicts = verdicts_of.setdefault(key, {})
        known = verdicts.get(verdict.rule, verdict)
        verdicts[verdict.rule] = min(known, verdict, key=lambda each: _WORST.index(each.state))
    return [
        Report(evidence, list(verdicts_of[key].values())) for key, evidence in evidence_of.items()
    ]


def pack(test: str, outcome: str, judged: Sequence[Report], *, is_page: bool) -> str:
    """What a test has judged as text, without what cannot leave the process.

    Args:
        test: its name.
        outcome: whether it passed.
        judged: one report for each program.
        is_page: whether they are drawn.
    """
    slim = [Report(_told(report.evidence), report.verdicts) for report in judged]
    pages = [_page_data(report, test) for report in judged] if is_page else []
    return base64.b64encode(pickle.dumps(TestJudgement(outcome, slim, pages))).decode()


def unpack(text: str) -> TestJudgement:
    """What a test has judged."""
    found: TestJudgement = pickle.loads(base64.b64decode(text))
    return found


def _page_data(report: Report, test: str) -> Mapping[str, Any]:
    """What a page shows of a program, which is named with its test."""
    from placement_checks.report.page.data import program_data  # not for other formats

    evidence = report.evidence
    program = f"{program_name(evidence)} in {test}"
    named = replace(evidence, placement=replace(evidence.placement, program=program))
    return program_data(replace(report, evidence=named))


def _told(evidence: Evidence) -> Evidence:
    """The evidence, as far as reports tell it."""
    placement = replace(
        evidence.placement,
        program=program_name(evidence),
        ops={},
        variables=Variables(),
        collections={},
        refusals=(),
        step=StepOps(),
        details=Details(),
    )
    measurement, program = evidence.measurement, evidence.program
    if measurement:
        measurement = replace(
            measurement,
            dtypes={},
            precisions={},
            trials=(),
            trajectory=_LEFT,
            unread={},
            missing={},
            races={},
            updates={},
        )
    if program:
        program = replace(
            program,
            program=_LEFT,
            requested=placement,
            step=Step(),
            graph_def=None,
            graph=None,
            initial=InitialState(),
            applied=(),
            for_gpus=_not_here,
            fed={},
        )
    return Evidence(placement, program, measurement=measurement)


def _not_here(_gpus: int) -> BuiltProgram | Missing:
    return _LEFT


_EMPTY_PAGE = """<!DOCTYPE html>
<html lang="en"><meta charset="utf-8"><title>placement_checks</title>
<p>No test has judged a program.</p></html>
"""


def document(tests: Mapping[str, TestJudgement]) -> dict[str, Any]:
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


def contents(tests: Mapping[str, TestJudgement], suffix: str) -> str:
    """The text of the file, in the format that its suffix stands for."""
    if suffix == ".json":
        return f"{json_report.to_json(document(tests))}\n"
    if suffix == ".html":
        pages = [data for _, test in sorted(tests.items()) for data in test.pages]
        return render_page(pages) if pages else _EMPTY_PAGE
    reports = [
        _named(report, name) for name, test in sorted(tests.items()) for report in test.reports
    ]
    text = StringIO()
    writer.write(reports, Console(file=text))
    return text.getvalue()


def _named(report: Report, test: str) -> Report:
    """The report of a program, which is named with its test."""
    placement = report.evidence.placement
    named = replace(placement, program=f"{placement.program} in {test}")
    return replace(report, evidence=replace(report.evidence, placement=named))
