"""Records the verdicts of all tests: counts on the terminal, and the file ``--placement-report``.

A test may have several attempts (pytest-rerunfailures), and several reports for each attempt
(subtests), possibly from another process (xdist, pytest-forked). The verdicts of an attempt are
attached to the report of its teardown, which each attempt has once. The last attempt counts.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from placement_checks.testing import running_test
from placement_checks.testing.program_names import program_name
from placement_checks.util.text import printable

if TYPE_CHECKING:
    from placement_checks.core.errors import InputError
    from placement_checks.core.evidence import Evidence
    from placement_checks.core.results import Verdict
    from placement_checks.report.outcome import PytestOutcome
    from placement_checks.testing.report_contents import JudgedTest


_PROPERTY: Final = "placement"  # of a test report, which xdist sends to the controller
_KEY: Final = "placement_reports"  # attribute of a test report


@dataclass
class _Attempt:
    """An attempt to run a test.

    Attributes:
        outcome: ``passed``, ``failed`` or ``skipped``; failed if any phase or subtest failed.
        verdicts: the verdicts with their evidence, if the run needs full reports.
    """

    outcome: PytestOutcome = "passed"
    verdicts: list[tuple[Evidence, Verdict]] = field(default_factory=list)

    def add_report(self, report: pytest.TestReport) -> None:
        """Take the outcome of a phase or subtest into account."""
        if report.failed or (report.when != "teardown" and self.outcome != "failed"):
            self.outcome = report.outcome


_ATTEMPT: Final = pytest.StashKey[_Attempt]()


class Recorder:
    """The plugin that records the verdicts of each attempt, in the process that runs the test."""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, object, object]:
        """Start an attempt: forget the verdicts of earlier attempts."""
        item.stash[_ATTEMPT] = _Attempt()
        item.user_properties[:] = [each for each in item.user_properties if each[0] != _PROPERTY]
        with _recording(item):
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        with _recording(item):
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, object, object]:
        with _recording(item):
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Attach the verdicts of an attempt to the report of its teardown."""
        report = yield
        attempt = item.stash.get(_ATTEMPT, None)
        if attempt is None:
            return report
        attempt.add_report(report)
        if report.when == "teardown" and attempt.verdicts:
            from placement_checks.testing.report_contents import pack, reports

            path: str = item.config.getoption("--placement-report") or ""
            vars(report)[_KEY] = pack(
                item.nodeid,
                attempt.outcome,
                reports(attempt.verdicts),
                is_page=path.lower().endswith(".html"),
            )
            attempt.verdicts.clear()  # the evidence is large
        return report


@contextmanager
def _recording(item: pytest.Item) -> Iterator[None]:
    """Record the verdicts of a test during this block."""

    def record(evidence: Evidence, verdict: Verdict) -> None:
        item.user_properties.append(_to_property(evidence, verdict))
        if _is_needed(item.config):
            item.stash[_ATTEMPT].verdicts.append((evidence, verdict))

    with running_test.run_as(replace(running_test.current(), record=record)):
        yield


def _to_property(evidence: Evidence, verdict: Verdict) -> tuple[str, str]:
    """A verdict as a user property of the test report."""
    if verdict.evidence == "executed" and evidence.measurement:
        machine = f"gpu*{evidence.measurement.towers} ({evidence.measurement.devices})"
    else:
        machine = f"{evidence.machine or 'no machine'} ({evidence.placer or 'not placed'})"
    facts: dict[str, Any] = {
        "program": program_name(evidence),
        "on": machine,
        "rule": verdict.rule,
        "state": verdict.state,
    }
    if doubts := [each for each in verdict.findings if each.is_doubt]:
        first = doubts[0]
        where = f"{first.where}: " if first.where else ""
        more = f" (and {len(doubts) - 1} more)" if len(doubts) > 1 else ""
        facts["doubt"] = printable(f"{where}{first.message}{more}")
    return _PROPERTY, json.dumps(facts)


def _test_of(report: pytest.TestReport) -> tuple[str, str]:
    """The test of a report, and the xdist worker that ran it: with ``--dist=each``, all do."""
    return report.nodeid, getattr(report, "worker_id", "")


class Summary:
    """The plugin that counts the verdicts of all tests; with xdist, of all workers."""

    def __init__(self) -> None:
        self._verdicts: dict[tuple[str, str], list[dict[str, Any]]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":
            self._verdicts[_test_of(report)] = [
                json.loads(str(value))
                for name, value in report.user_properties
                if name == _PROPERTY
            ]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        verdicts = [each for test in self._verdicts.values() for each in test]
        if not verdicts:
            return
        from placement_checks.core.results import counts_text

        counts = Counter[Any](verdict["state"] for verdict in verdicts)
        machines = sorted({verdict["on"] for verdict in verdicts})
        terminalreporter.section("placement checks")
        terminalreporter.line(f"rules: {counts_text(counts)}, on {', '.join(machines)}")
        doubts = [f"{each['rule']}, {each['doubt']}" for each in verdicts if "doubt" in each]
        for doubt in dict.fromkeys(doubts):
            terminalreporter.line(f"doubt: {doubt}")


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


def _is_needed(config: pytest.Config) -> bool:
    """Whether the run needs full reports: for the option, or for an implementation of the hook."""
    hook = config.hook.pytest_placement_report
    return bool(config.getoption("--placement-report") or hook.get_hookimpls())


class ReportFile:
    """The plugin that collects the verdicts of all tests, and writes them at the end."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._path = _path_of(config)
        self._tests: dict[tuple[str, str], JudgedTest] = {}
        # The reasons why modules and tests are missing.
        self._missing: dict[str, str] = {}
        self._stopped = ""  # the limit of failures that stopped the run
        self._is_interrupted = False
        self._status = ""

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._missing[report.nodeid] = "could not be collected"

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":
            self._tests.pop(_test_of(report), None)
            self._missing.pop(report.nodeid, None)
            if text := vars(report).get(_KEY):
                from placement_checks.testing.report_contents import unpack

                self._tests[_test_of(report)] = unpack(text)
        elif report.when not in ("setup", "call"):  # xdist and pytest-forked make such a report
            self._missing[report.nodeid] = "ended its process"

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Distinguish an interrupted run from a run that xdist stops after some failures."""
        reason = str(excinfo.value)
        if reason.startswith("stopping after"):
            self._stopped = reason
        else:
            self._is_interrupted = True

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if not _is_needed(self._config):
            return
        if self._is_interrupted or exitstatus == pytest.ExitCode.INTERNAL_ERROR:
            self._status = "not written, because the run was not finished"
            return
        from placement_checks.testing.report_contents import contents, document
        from placement_checks.util.files import replace_file

        tests = [(test, judged) for (test, _), judged in sorted(self._tests.items())]
        errors = self._errors(self._stopped or str(session.shouldfail or ""))
        if self._path is not None:
            suffix = self._path.suffix.lower()
            try:
                replace_file(self._path, contents(tests, errors, suffix))
                self._status = f"written to {self._path}"
            except OSError as error:
                self._status = f"not written to {self._path}: {error.strerror}"
                session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
            else:
                self._status += "".join(f"; {error}" for error in errors)
        report = document(tests, errors)
        self._config.hook.pytest_placement_report(report=report, config=self._config)

    def _errors(self, stopped: str) -> Sequence[InputError]:
        """The reasons why the report may lack programs."""
        from placement_checks.core.errors import InputError

        errors = [
            InputError(test, reason, is_predicate=True) for test, reason in self._missing.items()
        ]
        if stopped:
            errors.append(
                InputError("pytest", f"did not run all tests: {stopped}", is_predicate=True)
            )
        return errors

    @pytest.hookimpl(trylast=True)  # below the section of the summary
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._path is not None and self._status:
            terminalreporter.line(f"placement report: {self._status}")
