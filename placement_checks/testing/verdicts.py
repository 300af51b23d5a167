"""Counts the verdicts of all tests on the terminal, and writes them to ``--placement-report``."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from placement_checks.testing.program_names import program_name

if TYPE_CHECKING:
    from placement_checks.core.evidence import Evidence
    from placement_checks.core.results import Verdict
    from placement_checks.testing.report_contents import JudgedTest


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
    """The plugin that counts the verdicts of all tests; with xdist, of all workers."""

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


_KEY: Final = "placement_reports"  # attribute of a test report
_UNFINISHED: Final = (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.INTERNAL_ERROR)
_VERDICTS: Final = pytest.StashKey[list[tuple["Evidence", "Verdict"]]]()


def add_option(group: pytest.OptionGroup) -> None:
    """Add --placement-report."""
    group.addoption(
        "--placement-report",
        metavar="PATH",
        help="Write the verdicts of all tests to this file at the end of the run: JSON if its "
        "suffix is .json, a page if it is .html, else text.",
    )


def _path_of(config: pytest.Config) -> Path | None:
    """The file; a relative path starts at the directory where pytest was started.

    Raises:
        pytest.UsageError: the file cannot be written.
    """
    given: str | None = config.getoption("--placement-report")
    if given is None:
        return None
    from placement_checks.util.files import check_replaceable

    path = Path(os.path.realpath(config.invocation_params.dir / given))
    if path.exists() and not path.is_file():
        raise pytest.UsageError(f"--placement-report={given}: it is not a file")
    try:
        check_replaceable(path)
    except OSError as error:
        raise pytest.UsageError(f"--placement-report={given}: {error.strerror}") from None
    return path


def is_needed(config: pytest.Config) -> bool:
    """Whether the run needs full reports: for the option, or for an implementation of the hook."""
    hook = config.hook.pytest_placement_report
    return bool(config.getoption("--placement-report") or hook.get_hookimpls())


def add_verdict(item: pytest.Item, evidence: Evidence, verdict: Verdict) -> None:
    """Store a verdict until the report of the test is made."""
    item.stash.setdefault(_VERDICTS, []).append((evidence, verdict))


def attach(item: pytest.Item, report: pytest.TestReport) -> None:
    """Attach the verdicts of a test to its report, which xdist sends to the controller."""
    verdicts = item.stash.get(_VERDICTS, None)
    if report.when == "call" and verdicts:
        from placement_checks.testing.report_contents import pack, reports

        path: str = item.config.getoption("--placement-report") or ""
        vars(report)[_KEY] = pack(
            item.nodeid,
            report.outcome,
            reports(verdicts),
            is_page=path.lower().endswith(".html"),
        )
        del item.stash[_VERDICTS]


class ReportFile:
    """The plugin that collects the verdicts of all tests, and writes them at the end."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._path = _path_of(config)
        self._tests: dict[str, JudgedTest] = {}
        self._status = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if text := vars(report).get(_KEY):
            from placement_checks.testing.report_contents import unpack

            self._tests[report.nodeid] = unpack(text)

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if not is_needed(self._config):
            return
        if exitstatus in _UNFINISHED:
            self._status = "not written, because the run was not finished"
            return
        from placement_checks.testing.report_contents import contents, document
        from placement_checks.util.files import replace_file

        if self._path is not None:
            try:
                replace_file(self._path, contents(self._tests, self._path.suffix.lower()))
                self._status = f"written to {self._path}"
            except OSError as error:
                self._status = f"not written to {self._path}: {error.strerror}"
                session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
        report = document(self._tests)
        self._config.hook.pytest_placement_report(report=report, config=self._config)

    @pytest.hookimpl(trylast=True)  # below the section of the summary
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._path is not None and self._status:
            terminalreporter.line(f"placement report: {self._status}")
