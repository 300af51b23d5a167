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

from placement_checks.core.results import Finding, Report
from placement_checks.core.versions import versions
from placement_checks.report.common.findings import Group
from placement_checks.report.common.json import escape_controls
from placement_checks.report.formats import Format
from placement_checks.report.items import Item, items
from placement_checks.report.locations import Location, Repository
from placement_checks.report.outcome import Outcome
from placement_checks.report.text.findings import finding_sentences, one_line
from placement_checks.report.text.writer import program_title

_SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
_ROOT = "%SRCROOT%"
_FINGERPRINT = "placementChecks/v1"
_EXPLANATIONS = {
    "baseline": "Every op is on the device that the baseline of the program states.",
    "moved": "Every op is on the device that it had at the git revision.",
    "training": "The training step is the step at the git revision, for every batch.",
    "numbers": "Training on the same rows has the same results as at the git revision.",
}
_RELATED = 30  # related lines of one result
_Json = dict[str, Any]


def write(outcome: Outcome, stream: TextIO) -> None:
    """Writes the document: one run with rules, results, errors and rules that were not checked."""
    document = {"$schema": _SCHEMA, "version": "2.1.0", "runs": [_Run(outcome).document()]}
    stream.write(escape_controls(json.dumps(document, indent=2, ensure_ascii=False)) + "\n")


FORMAT = Format(
    write,
    "code scanning, and editors that show SARIF",
    "a result with the level `note`",
    ".sarif",
    has_errors=True,
)


class _Run:
    """The single run of a document; results refer to files and rules by their index."""

    def __init__(self, outcome: Outcome) -> None:
        self._outcome = outcome
        self._items = list(items(outcome))
        self._repository = Repository()
        self._files: dict[str, int] = {}
        verdicts = [verdict for report in outcome.reports for verdict in report.verdicts]
        rules = dict.fromkeys(verdict.rule for verdict in verdicts)
        rules |= dict.fromkeys(rule for item in self._items for rule in item.rules)
        self._rules = {rule: number for number, rule in enumerate(rules)}
        self._seen: Counter[str] = Counter()

    def document(self) -> _Json:
        outcome = self._outcome
        results = [result for item in self._items for result in self._results(item)]
        driver: _Json = {"name": "placement_checks"}
        if version := versions()["placement_checks"]:
            driver["version"] = version
        driver["rules"] = [
            _rule(name, _EXPLANATIONS.get(name) or outcome.explained(name)) for name in self._rules
        ]
        invocation = {
            "executionSuccessful": not outcome.errors,
            # As results, rules that were not checked would become alerts of code scanning.
            "toolExecutionNotifications": [
                self._notification(item)
                for item in self._items
                if item.kind in ("error", "gone", "unchecked", "note")
            ],
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

    def _results(self, item: Item) -> Iterator[_Json]:
        """Yields root causes as errors, consequences as warnings, and doubts as notes."""
        for group in item.groups:
            yield self._finding(item.reports[0], item.rules[0], group, item.level)
        is_trained_otherwise = item.kind in ("training", "numbers") and item.level == "error"
        if item.kind == "difference" or is_trained_otherwise:
            (report,), (rule,) = item.reports, item.rules
            at = self._repository.location_of(item.where, report)
            fingerprint = _digest(rule, program_title(report))
            yield {
                **self._result(rule, item.level, item.lines, report, fingerprint),
                "locations": [{"physicalLocation": self._physical(at)}] if at else [],
            }

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

    def _notification(self, item: Item) -> _Json:
        (text,) = item.lines
        if item.kind != "unchecked":
            return {"level": item.level, "message": _message([text])}
        (report,), (rule,) = item.reports, item.rules
        text = f"{rule} is {item.title} in {one_line(program_title(report))}: {text}"
        return {
            "level": item.level,
            "message": _message([text]),
            "associatedRule": {"id": rule, "index": self._rules[rule]},
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
        (first.built_at, f"{one_line(first.object)} is created here"),
        *((line, f"likewise {one_line(name)}") for name, line in group.others),
    )
    yield from ((line, text) for line, text in lines if line and line != group.where)
