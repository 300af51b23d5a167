"""The JSON document of `verify`, with version 2 of its schema, and JSON for terminals."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from placement_checks.core.baseline import Change, Copies, Difference
from placement_checks.core.versions import versions
from placement_checks.util.text import printable

if TYPE_CHECKING:
    from placement_checks.core.errors import PlacementError
    from placement_checks.core.results import Finding, Report, Verdict


SCHEMA = 2


def render(reports: Sequence[Report], errors: Sequence[PlacementError]) -> str:
    """Returns the document as text."""
    return to_json(document(reports, errors))


def document(reports: Sequence[Report], errors: Sequence[PlacementError]) -> dict[str, Any]:
    """Returns the judged programs and the errors; ``error`` is the first error."""
    document: dict[str, Any] = {"schema": SCHEMA}
    if reports or not errors:
        document["versions"] = versions()
        document["programs"] = [_program(report) for report in reports]
    if errors:
        document["error"] = error_document(errors[0])
    if len(errors) > 1:
        document["errors"] = [error_document(error) for error in errors]
    return document


def versioned_json(document: Mapping[str, Any], *, schema: int) -> str:
    """Returns a document as text, with its schema version and the installed versions."""
    return to_json({"schema": schema, "versions": versions(), **document})


def to_json(document: Mapping[str, Any], indent: int | None = 2) -> str:
    """Returns a document as text, with control characters escaped for terminals."""
    return escape_controls(json.dumps(document, indent=indent, ensure_ascii=False))


def escape_controls(text: str) -> str:
    """Returns JSON text with control characters escaped for terminals."""
    return "\n".join(printable(line, _escape) for line in text.split("\n"))


def _escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def error_document(error: PlacementError) -> dict[str, str]:
    """Returns an error as a JSON object."""
    return {
        "kind": error.kind,
        "object": error.object,
        "message": error.message,
        "fix": error.fix,
    }


def _program(report: Report) -> dict[str, Any]:
    placement, measurement = report.evidence.placement, report.evidence.measurement
    program: dict[str, Any] = {
        "program": placement.program,
        "machine": str(placement.machine) if placement.machine else None,
        "placer": placement.placer,
        "devices": measurement.devices if measurement else None,
        "notes": list(report.evidence.notes),
        "rules": [_rule(verdict) for verdict in report.verdicts],
    }
    if report.baseline is not None:
        program["baseline"] = difference_document(report.baseline)
    return program


def _rule(verdict: Verdict) -> dict[str, Any]:
    document: dict[str, Any] = {
        "rule": verdict.rule,
        "state": verdict.state,
        "evidence": verdict.evidence,
        "reason": verdict.reason,
        "note": verdict.note,
        "findings": [_finding(finding) for finding in verdict.findings],
    }
    if verdict.figures:
        document["figures"] = list(verdict.figures)
    return document


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "object": finding.object,
        "op": finding.op,
        "evidence": finding.evidence,
        "where": finding.where,
        "path": list(finding.path),
        "message": finding.message,
        "consequence": finding.consequence,
        "fix": finding.fix,
        "frames": list(finding.frames),
        "device_line": finding.device_line,
        "follows": finding.follows,
        "known": finding.known or None,
        "others": list(finding.others),
    }


def difference_document(difference: Difference) -> dict[str, Any]:
    """Returns the difference between a baseline and a placement as a JSON object."""
    return {
        "baseline": difference.old,
        "program": difference.new,
        "same": difference.same,
        "moved": list(map(_change, difference.moved)),
        "new": list(map(_change, difference.new_there)),
        "gone": list(map(_change, difference.gone)),
        "crosses": [
            {
                "source": each.source,
                "to": each.to,
                "old": _copies(each.old),
                "new": _copies(each.new),
            }
            for each in difference.crosses
        ],
        "notes": list(difference.notes),
    }


def _change(change: Change) -> dict[str, Any]:
    return {
        "kind": change.kind,
        "what": change.what,
        "old": change.old or None,
        "new": change.new or None,
        "names": list(change.ops),
        "note": change.note or None,
        "where": change.where,
        "rules": list(change.rules),
    }


def _copies(copies: Copies) -> dict[str, int]:
    return {"copies": copies.copies, "bytes": copies.bytes, "unknown": copies.unknown}
