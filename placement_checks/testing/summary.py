"""Counts the verdicts of all tests, and prints the counts at the end of a pytest run."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from placement_checks.testing.program_names import program_name

if TYPE_CHECKING:
    from placement_checks.core.evidence import Evidence
    from placement_checks.core.results import Verdict


_PROPERTY = "placement"  # of a test report, which xdist sends to the controller


def to_property(evidence: Evidence, verdict: Verdict) -> tuple[str, str]:
    """A verdict as a user property of the test report."""
    if verdict.evidence == "executed" and evidence.measurement:
        machine = f"gpu*{evidence.measurement.towers} ({evidence.measurement.devices})"
    else:
        machine = f"{evidence.machine or 'no machine'} ({evidence.placer or 'not placed'})"
    facts = {
        "program": program_name(evidence),
        "on": machine,
        "rule": verdict.rule,
        "state": verdict.state,
    }
    return _PROPERTY, json.dumps(facts)


class Summary:
    """The plugin that counts the verdicts of all tests, under xdist of all workers."""

    def __init__(self) -> None:
        self._states: Counter[str] = Counter()
        self._machines: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call":
            return
        for name, value in report.user_properties:
            if name == _PROPERTY:
                facts = json.loads(str(value))
                self._states[facts["state"]] += 1
                self._machines[facts["on"]] += 1

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._states:
            return
        states = ", ".join(
            f"{self._states[state]} {state.replace('-', ' ')}"
            for state in ("kept", "broken", "not-checked")
        )
        terminalreporter.section("placement checks")
        terminalreporter.line(f"rules: {states}, on {', '.join(sorted(self._machines))}")
