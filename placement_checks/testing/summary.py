"""Counts the verdicts of all tests, and prints them at the end of a run of pytest.

Which frames a failing test shows where what it gave is at fault, and not this package.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from types import TracebackType
from typing import TYPE_CHECKING

import pytest

from placement_checks.core.errors import DEBUG, PlacementError
from placement_checks.testing.program_names import program_name

if TYPE_CHECKING:
    from placement_checks.core.evidence import Evidence
    from placement_checks.core.results import Verdict


_PROPERTY = "placement"


def recorded(evidence: Evidence, verdict: Verdict) -> tuple[str, str]:
    """A verdict as a property of a test, which xdist carries from its workers."""
    facts = {
        "program": program_name(evidence),
        "on": _conditions(evidence, verdict),
        "rule": verdict.rule,
        "state": verdict.state,
    }
    return _PROPERTY, json.dumps(facts)


class Summary:
    """Counts the verdicts of all tests; under xdist, those of all workers."""

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


def _conditions(evidence: Evidence, verdict: Verdict) -> str:
    """What a verdict rests on: the machine and its placer, or the devices of a run."""
    if verdict.evidence == "executed" and evidence.measurement:
        return f"gpu*{evidence.measurement.towers} ({evidence.measurement.devices})"
    return f"{evidence.machine or 'no machine'} ({evidence.placer or 'not placed'})"


_PACKAGE = __name__.partition(".")[0]
_AROUND_TESTS = f"{__package__}.pytest_plugin"


def hide_internal_frames(error: BaseException) -> None:
    """End the traceback where the test calls us: the message says what is at fault, and of what.

    All of it stays with a fault of ours, and for who asks for tracebacks.
    """
    if isinstance(error, PlacementError) and error.kind != PlacementError.kind:
        theirs, following = None, error.__traceback__
        while following is not None and not _is_ours(following):
            theirs, following = following, following.tb_next
        if theirs is not None and DEBUG not in os.environ:
            theirs.tb_next = None


def _is_ours(entry: TracebackType) -> bool:
    name = str(entry.tb_frame.f_globals.get("__name__"))
    return name.partition(".")[0] == _PACKAGE and name != _AROUND_TESTS
