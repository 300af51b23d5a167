"""The contents of ``--placement-report``: the reports of `verify`, with the test of each program.

Under pytest-xdist, a worker sends the reports of a test as text to the controller, which writes
the file.
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from io import StringIO
from typing import Any, Final, NamedTuple

import msgspec
from rich.console import Console

from placement_checks.core.errors import PlacementError
from placement_checks.core.evidence import Evidence
from placement_checks.core.missing import Missing
from placement_checks.core.placement import Details, Placement, StepOps
from placement_checks.core.program import CapturedProgram
from placement_checks.core.results import Report, Verdict
from placement_checks.core.variables import Variables
from placement_checks.report.common.json import to_json
from placement_checks.report.formats import json
from placement_checks.report.outcome import Outcome, PytestOutcome, PytestResult
from placement_checks.report.page.write import render_page
from placement_checks.report.text import writer
from placement_checks.testing.program_names import program_name
from placement_checks.verification.judging import in_order

_NOT_SENT: Final = Missing("it is in the process of the test")
_WORST_FIRST: Final = ("broken", "not-checked", "doubtful", "kept")


class JudgedTest(NamedTuple):
    """The reports of a test, and its outcome."""

    outcome: PytestOutcome
    reports: Sequence[Report]  # a report for each program, without its ops and graph
    # The data of each program for an HTML page; empty for other formats.
    pages: Sequence[Mapping[str, Any]] = ()


def reports(judged: Iterable[tuple[Evidence, Verdict]]) -> list[Report]:
    """A report for each program of a test; a rule that was judged twice has its worst verdict."""
    evidence_of: dict[int, Evidence] = {}
    verdicts_of: dict[int, dict[str, Verdict]] = {}
    for evidence, verdict in judged:
        key = id(evidence.placement)
        evidence_of[key] = evidence  # the last evidence is the most complete
        verdicts = verdicts_of.setdefault(key, {})
        known = verdicts.get(verdict.rule, verdict)
        verdicts[verdict.rule] = min(
            known, verdict, key=lambda each: _WORST_FIRST.index(each.state)
        )
    return [
        Report(evidence, in_order(verdicts_of[key].values()))
        for key, evidence in evidence_of.items()
    ]


def pack(test: str, outcome: PytestOutcome, judged: Sequence[Report], *, is_page: bool) -> str:
    """Encode the reports of a test as text.

    Args:
        test: the name of the test.
        outcome: ``passed``, ``failed`` or ``skipped``.
        judged: a report for each program.
        is_page: whether to add the data for an HTML page.
    """
    small = [Report(_reported_part(report.evidence), report.verdicts) for report in judged]
    pages = []
    if is_page:
        from placement_checks.report.page.data import program_data  # not for other formats

        pages = [program_data(_with_test(report, test)) for report in judged]
    return base64.b64encode(pickle.dumps(JudgedTest(outcome, small, pages))).decode()


def unpack(text: str) -> JudgedTest:
    """Decode the text of `pack`."""
    found: JudgedTest = pickle.loads(base64.b64decode(text))
    return found


def _reported_part(evidence: Evidence) -> Evidence:
    """The small part of the evidence that reports contain, and that can be pickled."""
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
        measurement = replace(measurement, trials=(), trajectory=_NOT_SENT)
    if program:
        program = CapturedProgram(
            name=program.name,
            program=_NOT_SENT,
            gpus=program.gpus,
            source=_SentGraph(placement),
            notes=program.notes,
        )
    return Evidence(placement, program, measurement=measurement)


class _SentGraph(NamedTuple):
    """Replaces the graph of a program, which is not sent with the reports."""

    placement: Placement
    graph_def: None = None
    live: None = None

    def read_placement(self, *_: object, **__: object) -> Placement:
        """The placement as far as it was sent."""
        return self.placement


_EMPTY_PAGE = """<!DOCTYPE html>
<html lang="en"><meta charset="utf-8"><title>placement_checks</title>
<p>No test verified a program.</p></html>
"""


Tests = Sequence[tuple[str, JudgedTest]]  # with their names; with several workers, also twice


def document(tests: Tests, errors: Sequence[PlacementError] = ()) -> dict[str, Any]:
    """The JSON document of `verify`; each program also has the keys ``test`` and ``outcome``.

    Args:
        tests: the tests, in the order of the document.
        errors: the reasons why programs may be missing.
    """
    judged = [
        (report, PytestResult(name, test.outcome))
        for name, test in tests
        for report in test.reports
    ]
    outcome = Outcome([report for report, _ in judged], tests=[test for _, test in judged])
    found: dict[str, Any] = msgspec.to_builtins(json.document(outcome))
    if errors:
        found |= msgspec.to_builtins(json.document(Outcome([], errors)))
    return found


def contents(tests: Tests, errors: Sequence[PlacementError], suffix: str) -> str:
    """The text of the file, in the format of its suffix; only JSON contains the errors."""
    if suffix == ".json":
        return f"{to_json(document(tests, errors))}\n"
    if suffix == ".html":
        pages = [data for _, test in tests for data in test.pages]
        return render_page(pages) if pages else _EMPTY_PAGE
    reports = [_with_test(report, name) for name, test in tests for report in test.reports]
    text = StringIO()
    writer.write(reports, Console(file=text))
    return text.getvalue()


def _with_test(report: Report, test: str) -> Report:
    """The report with the test in the name of its program."""
    evidence = report.evidence
    named = replace(evidence.placement, program=f"{program_name(evidence)} in {test}")
    return replace(report, evidence=replace(evidence, placement=named))
