"""Writes a report as SARIF 2.1.0 for code scanning and editors: a result for each group."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any, TextIO
from urllib.parse import quote

from placement_checks.core.results import Finding, Report, Verdict
from placement_checks.core.versions import versions
from placement_checks.report.common.baseline import first_line, render_text
from placement_checks.report.common.findings import Group, Sections
from placement_checks.report.common.json import escape_controls
from placement_checks.report.formats.locations import Location, Repository
from placement_checks.report.formats.outcome import Outcome
from placement_checks.report.text.findings import finding_sentences, one_line
from placement_checks.report.text.writer import program_title

_SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
_ROOT = "%SRCROOT%"
_FINGERPRINT = "placementChecks/v1"
_BASELINE = "baseline"
_BASELINE_EXPLANATION = "Every op is on the device that the baseline of the program states."
_RELATED = 30  # related lines of one result
_Json = dict[str, Any]


def write(outcome: Outcome, stream: TextIO) -> None:
    """Writes the document: one run with rules, results, errors and rules that were not checked."""
    document = {"$schema": _SCHEMA, "version": "2.1.0", "runs": [_Run(outcome).document()]}
    stream.write(escape_controls(json.dumps(document, indent=2, ensure_ascii=False)) + "\n")


class _Run:
    """The single run of a document; results refer to files and rules by their index."""

    def __init__(self, outcome: Outcome) -> None:
        self._outcome = outcome
        self._repository = Repository()
        self._files: dict[str, int] = {}
        verdicts = [verdict for report in outcome.reports for verdict in report.verdicts]
        rules = dict.fromkeys(verdict.rule for verdict in verdicts)
        if any(report.baseline for report in outcome.reports):
            rules[_BASELINE] = None
        self._rules = {rule: number for number, rule in enumerate(rules)}
        self._seen: Counter[str] = Counter()

    def document(self) -> _Json:
        outcome = self._outcome
        results = [result for report in outcome.reports for result in self._results(report)]
        driver: _Json = {"name": "placement_checks"}
        if version := versions()["placement_checks"]:
            driver["version"] = version
        driver["rules"] = [
            _rule(name, _BASELINE_EXPLANATION if name == _BASELINE else outcome.explained(name))
            for name in self._rules
        ]
        notifications: list[_Json] = [
            {"level": "error", "message": _message([one_line(str(error))])}
            for error in outcome.errors
        ]
        # As results, rules that were not checked would become alerts of code scanning.
        notifications += [
            self._note(verdict, report)
            for report in outcome.reports
            for verdict in report.verdicts
            if verdict.state == "not-checked"
        ]
        invocation = {
            "executionSuccessful": not outcome.errors,
            "toolExecutionNotifications": notifications,
        }
        return {
            "tool": {"driver": driver},
            "invocations": [invocation],
            "originalUriBaseIds": {
                _ROOT: {"uri": f"{self._repository.root.as_uri().rstrip('/')}/"}
            },
            "columnKind": "unicodeCodePoints",
            "artifacts": [
                {"location": _artifact(path), "sourceLanguage": "python"}
                if path.endswith(".py")
                else {"location": _artifact(path)}
                for path in self._files
            ],
            "results": results,
        }

    def _results(self, report: Report) -> Iterator[_Json]:
        """Yields root causes as errors, and findings that follow from them as warnings."""
        if report.baseline:
            at = self._repository.location_of(first_line(report.baseline), report)
            lines = render_text(report.baseline).split("\n")
            fingerprint = _digest(_BASELINE, program_title(report))
            yield {
                **self._result(_BASELINE, "error", lines, report, fingerprint),
                "locations": [{"physicalLocation": self._physical(at)}] if at else [],
            }
        sections = Sections(report.verdicts)
        for level, of_level in (("error", sections.causes), ("warning", sections.consequences)):
            for section in of_level:
                for group in section.groups:
                    yield self._finding(report, section.rule, group, level)

    def _finding(self, report: Report, rule: str, group: Group, level: str) -> _Json:
        first: Finding = group.first
        at = self._repository.location_of(group.where, report)
        lines = [*finding_sentences(group, with_line=at is None or at.line is None)]
        place: _Json = {"logicalLocations": [{"fullyQualifiedName": one_line(first.object)}]}
        if at is not None:
            place["physicalLocation"] = self._physical(at)
        # Without line numbers, edits do not change the digest. Equal digests are numbered.
        file = at.path if at else ""
        digest = _digest(rule, program_title(report), file, first.object)
        self._seen[digest] += 1
        fingerprint = f"{digest}:{self._seen[digest]}"
        return {
            **self._result(rule, level, lines, report, fingerprint),
            "locations": [place],
            "relatedLocations": self._related(group),
        }

    def _result(
        self, rule: str, level: str, lines: Sequence[str], report: Report, fingerprint: str
    ) -> _Json:
        return {
            "ruleId": rule,
            "ruleIndex": self._rules[rule],
            "kind": "fail",
            "level": level,
            "message": _message([*lines, f"in {one_line(program_title(report))}"]),
            "partialFingerprints": {_FINGERPRINT: fingerprint},
        }

    def _physical(self, at: Location) -> _Json:
        number = self._files.setdefault(at.path, len(self._files))
        physical: _Json = {"artifactLocation": {**_artifact(at.path), "index": number}}
        if at.line is not None:
            physical["region"] = {"startLine": at.line}
        return physical

    def _related(self, group: Group) -> list[_Json]:
        """The callers, the line that requested the device, and the lines of other objects."""
        texts: dict[str, str] = {}
        for line, text in _other_lines(group):
            texts.setdefault(line, text)
        related = ((self._repository.location(line), text) for line, text in texts.items())
        in_files = islice(((at, text) for at, text in related if at), _RELATED)
        return [
            {"id": number, "physicalLocation": self._physical(at), "message": {"text": text}}
            for number, (at, text) in enumerate(in_files, 1)
        ]

    def _note(self, verdict: Verdict, report: Report) -> _Json:
        reason = one_line(verdict.reason or "")
        text = f"{verdict.rule} is not checked in {one_line(program_title(report))}: {reason}"
        return {
            "level": "warning" if self._outcome.must_be_checked(verdict) else "note",
            "message": _message([text]),
            "associatedRule": {"id": verdict.rule, "index": self._rules[verdict.rule]},
        }


def _rule(name: str, explanation: str) -> _Json:
    first, _, rest = explanation.partition("\n")
    paragraph = " ".join(rest.strip().partition("\n\n")[0].split())
    words = name.replace("-", " ")
    help_text = explanation or words
    return {
        "id": name,
        "name": words.title().replace(" ", ""),
        "shortDescription": {"text": first or words},
        "fullDescription": {"text": paragraph or first or words},
        "help": {"text": help_text, "markdown": f"```text\n{help_text}\n```"},
        "defaultConfiguration": {"level": "error"},
        "properties": {"tags": ["tensorflow", "device-placement"]},
    }


def _artifact(path: str) -> _Json:
    if path.startswith("/"):
        return {"uri": Path(path).as_uri()}
    return {"uri": quote(path), "uriBaseId": _ROOT}


def _message(lines: Sequence[str]) -> _Json:
    """A message without embedded links; braces need no escape in messages without arguments."""
    return {"text": "\n".join(lines).replace("](", "\\](")}


def _digest(*parts: str) -> str:
    return sha256("\0".join(parts).encode("utf-8", "backslashreplace")).hexdigest()[:32]


def _other_lines(group: Group) -> Iterator[tuple[str, str]]:
    """Yields lines other than `Group.where`, each with a description."""
    first: Finding = group.first
    lines: Sequence[tuple[str | None, str]] = (
        (first.device_line, "the device is requested here"),
        *((line, "called from here") for line in group.callers),
        (first.where, f"{one_line(first.object)} is created here"),
        *((line, f"likewise {one_line(name)}") for name, line in group.others),
    )
    yield from ((line, text) for line, text in lines if line and line != group.where)
