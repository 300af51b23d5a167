"""What the page shows of one program, as plain data: `page/data.js` reads it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from placement_checks.analysis.tower_analysis import analyse
from placement_checks.core.placement import Placement
from placement_checks.core.results import Report
from placement_checks.report.picture.crossings import crossings
from placement_checks.report.picture.drawn import Drawn, drawn
from placement_checks.report.picture.headline import headline
from placement_checks.report.picture.packing import front_coded, runs, table
from placement_checks.report.picture.places import Places
from placement_checks.report.picture.steps import step_data
from placement_checks.report.picture.told import findings_told, rules_told
from placement_checks.report.picture.variables import variables_data
from placement_checks.report.text.writing import conditions, run_conditions
from placement_checks.util.printable import printable


def program_data(report: Report, before: Placement | None = None) -> dict[str, Any]:
    """All that the page shows of one program; without verdicts, of one that was only placed.

    Args:
        report: of the program.
        before: an earlier placement of it, to show where its ops were.
    """
    evidence = report.evidence
    placement = evidence.placement
    places = Places(evidence, before)
    knows_flow = bool(placement.requested)
    number = {name: at for at, name in enumerate(placement.ops)}
    at = drawn(placement)
    findings = findings_told(report, places, number)
    state, sentence, facts = headline(report, places)
    return {
        "schema": 1,
        "program": placement.program,
        "conditions": conditions(placement),
        "state": state,
        "headline": sentence,
        "facts": list(facts),
        "notes": list(_notes(report)),
        "knows_flow": knows_flow,
        "knows_step": knows_flow and not analyse(placement).updates.unknown,
        "rows": {**at.tree, "roles": at.roles},
        "ops": _ops(placement, places, at),
        "copies": crossings(placement, places, at.parts),
        "variables": list(variables_data(placement, number)),
        "rules": rules_told(report),
        "findings": findings,
        "uncounted": sorted(
            {
                device
                for finding in findings
                if finding["rule"] == "every-tower-counts"
                for device in finding["devices"]
            }
        ),
        "timeline": step_data(evidence.trace, placement.program, places),
        "towers": places.towers,
        "views": list(places.views),
        "devices": places.data(),  # the last, as others add to them
    }


def _notes(report: Report) -> Iterator[str]:
    evidence = report.evidence
    yield from evidence.notes
    if not evidence.placement.complete:
        yield evidence.placement.complete.reason
    if evidence.measurement:
        yield run_conditions(evidence.measurement, evidence.placement.program)


def _ops(placement: Placement, places: Places, at: Drawn) -> dict[str, Any]:
    ops = placement.by_number
    types = table(op.type for op in ops)
    lines = table(placement.where(op.name) or "" for op in ops)
    asked = {kind.requested: kind.requested.short for kind in placement.kinds}
    requests = table(asked[op.requested] for op in ops)
    steps = analyse(placement).updates.steps if placement.requested else [1] * len(ops)
    return {
        "names": front_coded(printable(op.name) for op in ops),
        "types": types.texts,
        "type": runs(types.numbers),
        "lines": lines.texts,
        "line": runs(lines.numbers),
        "requests": requests.texts,
        "request": runs(requests.numbers),
        "row": runs(at.rows),
        "phase": runs(map(int, at.phases)),
        "tower": runs(at.towers),
        "step": runs(steps),
        **{view: runs(devices) for view, devices in places.views.items()},
    }
