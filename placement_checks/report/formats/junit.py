"""Writes a report as JUnit XML: a test suite for each program, a test case for each rule."""

from __future__ import annotations

from typing import TextIO
from xml.etree import ElementTree as ET

from placement_checks.core.results import Report, Verdict, by_impact
from placement_checks.report.common.baseline import headline, render_text
from placement_checks.report.common.findings import group_findings
from placement_checks.report.formats.locations import Repository
from placement_checks.report.formats.outcome import Outcome
from placement_checks.report.text.findings import finding_lines, one_line
from placement_checks.report.text.writer import program_title
from placement_checks.util.text import plural, printable

_RESULT_KINDS = {"failures": "failure", "errors": "error", "skipped": "skipped"}


def write(outcome: Outcome, stream: TextIO) -> None:
    """Writes the document; errors that prevented judging a program form a suite of their own."""
    suites, files = ET.Element("testsuites", name="placement_checks"), Repository()
    for report in outcome.reports:
        suites.append(_set_counts(_suite(report, outcome, files)))
    rule_errors = {str(error) for report in outcome.reports for error in report.errors}
    if others := [error for error in outcome.errors if str(error) not in rule_errors]:
        suite = ET.SubElement(suites, "testsuite", name="errors")
        for error in others:
            name = printable(error.object) or error.kind
            case = ET.SubElement(suite, "testcase", classname="placement_checks", name=name)
            _add_result(case, "error", error.message, error.kind, str(error))
        _set_counts(suite)
    _set_counts(suites)
    ET.indent(suites)
    text = ET.tostring(suites, encoding="unicode")
    stream.write(f"<?xml version='1.0' encoding='utf-8'?>\n{text}\n")


def _suite(report: Report, outcome: Outcome, files: Repository) -> ET.Element:
    evidence = report.evidence
    suite = ET.Element("testsuite", name=printable(program_title(report)))
    properties = ET.SubElement(suite, "properties")
    placement, measurement = evidence.placement, evidence.measurement
    facts = {
        "program": placement.program,
        "machine": placement.machine,
        "placer": placement.placer,
        "devices": measurement.devices if measurement else None,
    }
    for name, value in facts.items():
        if value is not None:
            ET.SubElement(properties, "property", name=name, value=printable(str(value)))
    for verdict in by_impact(report.verdicts):
        suite.append(_case(verdict, report, outcome, files))
    if report.baseline is not None:
        case = ET.SubElement(suite, "testcase", classname=suite.get("name", ""), name="baseline")
        if report.baseline:
            text = render_text(report.baseline)
            _add_result(case, "failure", headline(report.baseline), "moved", text)
    return suite


def _case(verdict: Verdict, report: Report, outcome: Outcome, files: Repository) -> ET.Element:
    case = ET.Element("testcase", classname=printable(program_title(report)), name=verdict.rule)
    groups = group_findings(verdict.findings)
    if groups and (at := files.location_of(groups[0].where, report)):
        case.set("file", at.path)
        if at.line is not None:
            case.set("line", str(at.line))
    if verdict.error is not None:
        _add_result(case, "error", verdict.error.message, verdict.error.kind, str(verdict.error))
    elif verdict.state == "broken":
        more = len(verdict.findings) - 1
        message = groups[0].first.message if groups else "broken"
        lines = finding_lines(groups, everything=True)
        also = f", and {plural(more, 'finding')} more" if more > 0 else ""
        text = "\n".join(printable(line.text) for line in lines)
        _add_result(case, "failure", f"{one_line(message)}{also}", "broken", text)
    elif outcome.must_be_checked(verdict):
        _add_result(case, "failure", f"not checked: {verdict.reason}", "not-checked")
    elif verdict.state == "not-checked":
        _add_result(case, "skipped", verdict.reason or "not checked", "not-checked")
    if verdict.note:
        ET.SubElement(case, "system-out").text = printable(verdict.note)
    return case


def _add_result(case: ET.Element, kind: str, message: str, type: str, text: str = "") -> None:
    result = ET.SubElement(case, kind, message=printable(message), type=type)
    result.text = text or None


def _set_counts(element: ET.Element) -> ET.Element:
    """Sets the numbers of test cases and results of one suite, or of all suites."""
    element.set("tests", str(len(list(element.iter("testcase")))))
    for attribute, kind in _RESULT_KINDS.items():
        element.set(attribute, str(len(list(element.iter(kind)))))
    return element
