"""Reports for programs: one JSON document, its form fixed by ``"schema": 1``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from placement_checks.errors import PlacementError
    from placement_checks.judging import Report
    from placement_checks.rules import Verdict

SCHEMA = 1


def render(reports: Sequence[Report], errors: Sequence[PlacementError]) -> str:
    """The document: the programs that were judged, and the errors; ``error`` is the first."""
    document: dict[str, Any] = {"schema": SCHEMA}
    if reports or not errors:
        document["programs"] = [_program(report) for report in reports]
    if errors:
        document["error"] = _error(errors[0])
    if len(errors) > 1:
        document["errors"] = [_error(error) for error in errors]
    return json.dumps(document, indent=2, ensure_ascii=False)


def _error(error: PlacementError) -> dict[str, str]:
    return {
        "kind": error.kind,
        "object": error.object,
        "message": error.message,
        "cure": error.cure,
    }


def _program(report: Report) -> dict[str, Any]:
    placement = report.placement
    return {
        "program": placement.program,
        "machine": str(placement.machine) if placement.machine else None,
        "placer": placement.placer,
        "devices": placement.numbers.devices if placement.numbers else None,
        "rules": [_rule(verdict) for verdict in report.verdicts],
    }


def _rule(verdict: Verdict) -> dict[str, Any]:
    document: dict[str, Any] = {
        "rule": verdict.rule,
        "state": verdict.state,
        "evidence": verdict.evidence,
        "reason": verdict.reason,
        "note": verdict.note,
        "findings": [asdict(finding) for finding in verdict.findings],
    }
    if verdict.figures:
        document["figures"] = list(verdict.figures)
    return document
