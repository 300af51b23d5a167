"""Writes a report as JUnit XML: a test suite for each program, a test case for each rule."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TextIO
from xml.etree import ElementTree as ET

from placement_checks.core.results import Report, Verdict
from placement_checks.report.formats import Format
from placement_checks.report.items import Item, items
from placement_checks.report.locations import Repository
from placement_checks.report.outcome import Outcome
from placement_checks.report.text.findings import finding_lines, one_line
from placement_checks.report.text.writer import program_title
from placement_checks.util.text import plural, printable

_RESULT_KINDS = {"failures": "failure", "errors": "error", "skipped": "skipped"}


def write(outcome: Outcome, stream: TextIO) -> None:
    """Writes the document; errors that prevented judging a program form a suite of their own."""
    suites, files = ET.Element("testsuites", name="placement_checks"), Repository()
    found: dict[int, list[Item]] = defaultdict(list)
    gone: list[Item] = []
    for item in items(outcome):
        for report in item.reports:
            found[id(report)].append(item)
        gone += [item] if item.kind == "gone" else []
    for report in outcome.reports:
        suites.append(_set_counts(_suite(report, found[id(report)], outcome, files)))
    rule_errors = {str(error) for report in outcome.reports for error in report.errors}
    others: list[tuple[str, str, str, str]] = [
        (printable(error.object) or error.kind, error.message, error.kind, str(error))
        for error in outcome.errors
        if str(error) not in rule_errors
    ]
    others += [(item.title, item.lines[0], item.kind, "") for item in gone]
    if others:
        suite = ET.SubElement(suites, "testsuite", name="errors")
        for name, message, kind, text in others:
            case = ET.SubElement(suite, "testcase", classname="placement_checks", name=name)
            _add_result(case, "error", message, kind, text)
        _set_counts(suite)
    _set_counts(suites)
    ET.indent(suites)
    text = ET.tostring(suites, encoding="unicode")
    stream.write(f"<?xml version='1.0' encoding='utf-8'?>\n{text}\n")


FORMAT = Format(
    write,
    "viewers of test results: one suite for each program, one case for each rule",
    "a test that passes, with an output",
    ".xml",
    has_errors=True,
)


def _suite(
    report: Report, found: Sequence[Item], outcome: Outcome, files: Repository
) -> ET.Element:
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
    verdicts = {verdict.rule: verdict for verdict in report.verdicts}
    others = [] if report.baseline is None else [outcome.difference_name]
    others += [rule for item in found for rule in item.rules]
    for rule in dict.fromkeys((*verdicts, *others)):
        own = [item for item in found if rule in item.rules]
        suite.append(_case(rule, verdicts.get(rule), own, report, files))
    return suite


def _case(
    rule: str, verdict: Verdict | None, found: Sequence[Item], report: Report, files: Repository
) -> ET.Element:
    case = ET.Element("testcase", classname=printable(program_title(report)), name=rule)
    doubts = [item for item in found if item.kind == "doubt"]
    groups = [group for item in found if item.kind != "doubt" for group in item.groups]
    if not groups:
        groups = [group for item in doubts for group in item.groups]
    if groups and (at := files.location_of(groups[0].where, report)):
        case.set("file", at.path)
        if at.line is not None:
            case.set("line", str(at.line))
    if verdict is not None and verdict.error is not None:
        error = verdict.error
        _add_result(case, "error", error.message, error.kind, str(error))
    elif verdict is not None and verdict.state == "broken":
        more = sum(not each.is_doubt for each in verdict.findings) - 1
        message = groups[0].first.message if groups else "broken"
        lines = finding_lines(groups, everything=True)
        also = f", and {plural(more, 'finding')} more" if more > 0 else ""
        text = "\n".join(printable(line.text) for line in lines)
        _add_result(case, "failure", f"{one_line(message)}{also}", "broken", text)
    else:
        for item in found:
            if item.kind != "doubt":
                _add_other(case, item)
    output = ["\n".join((item.title, *item.lines)) for item in doubts]
    if verdict is not None and verdict.note:
        output.append(verdict.note)
    if output:
        shown = "\n".join(output).split("\n")
        ET.SubElement(case, "system-out").text = "\n".join(map(printable, shown))
    return case


def _add_other(case: ET.Element, item: Item) -> None:
    """Adds a statement that is no finding."""
    first = item.lines[0]
    if item.kind == "difference":
        _add_result(case, "failure", first, "moved", "\n".join(item.lines))
    elif item.kind == "unchecked" and item.level == "note":
        _add_result(case, "skipped", first or "not checked", "not-checked")
    elif item.kind == "unchecked":
        _add_result(case, "failure", f"{item.title}: {first}", "not-checked")
    elif item.level == "error":
        _add_result(case, "failure", first, item.kind)
    else:
        ET.SubElement(case, "system-out").text = f"{item.title}: {first}"


def _add_result(case: ET.Element, kind: str, message: str, type: str, text: str = "") -> None:
    result = ET.SubElement(case, kind, message=printable(message), type=type)
    result.text = text or None


def _set_counts(element: ET.Element) -> ET.Element:
    """Sets the numbers of test cases and results of one suite, or of all suites."""
    element.set("tests", str(len(list(element.iter("testcase")))))
    for attribute, kind in _RESULT_KINDS.items():
        element.set(attribute, str(len(list(element.iter(kind)))))
    return element
