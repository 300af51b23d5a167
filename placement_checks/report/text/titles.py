"""Programs and counts in a line each."""

from __future__ import annotations

from collections.abc import Sequence

from placement_checks.core.results import Report
from placement_checks.report.text.rule_table import STATES
from placement_checks.util.text import plural


def title(report: Report) -> str:
    """A program and the machine that it was placed on."""
    placement = report.evidence.placement
    return (
        f"{placement.program} on {placement.machine}" if placement.machine else placement.program
    )


def summary(reports: Sequence[Report]) -> str:
    """How many rules are kept, broken and not checked, in all programs."""
    counts = {state: sum(report.count(state) for report in reports) for state in STATES}
    states = ", ".join(f"{count} {state.replace('-', ' ')}" for state, count in counts.items())
    return f"{plural(len(reports), 'program')}, rules: {states}."
