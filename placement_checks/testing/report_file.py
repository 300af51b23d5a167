"""``--placement-report``: what all tests have judged, in one file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from placement_checks.core.evidence import Evidence
    from placement_checks.core.results import Verdict
    from placement_checks.testing.report_contents import TestJudgement

_KEY: Final = "placement_reports"  # of the report of a test
_UNFINISHED: Final = (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.INTERNAL_ERROR)
_JUDGED: Final = pytest.StashKey[list[tuple["Evidence", "Verdict"]]]()


def add_option(group: pytest.OptionGroup) -> None:
    """Add the option."""
    group.addoption(
        "--placement-report",
        metavar="PATH",
        help="Write what all tests have judged to this file when they are done: JSON if it ends "
        "in .json, a page if in .html, else text.",
    )


def path_of(config: pytest.Config) -> Path | None:
    """The file, seen from where pytest was started.

    Raises:
        pytest.UsageError: it could not be written.
    """
    given: str | None = config.getoption("--placement-report")
    if given is None:
        return None
    from placement_checks.util.files import check_replaceable

    path = Path(os.path.realpath(config.invocation_params.dir / given))
    if path.exists() and not path.is_file():
        raise pytest.UsageError(f"--placement-report={given}: is not a file")
    try:
        check_replaceable(path)
    except OSError as reason:
        raise pytest.UsageError(f"--placement-report={given}: {reason.strerror}") from None
    return path


def is_wanted(config: pytest.Config) -> bool:
    """Whether somebody wants to know more of the verdicts than how many there are."""
    hook = config.hook.pytest_placement_report
    return bool(config.getoption("--placement-report") or hook.get_hookimpls())


def note(item: pytest.Item, evidence: Evidence, verdict: Verdict) -> None:
    """Keep a verdict until the test is reported."""
    item.stash.setdefault(_JUDGED, []).append((evidence, verdict))


def attach(item: pytest.Item, report: pytest.TestReport) -> None:
    """Put what a test has judged into its report, which xdist sends to where it is written."""
    judged = item.stash.get(_JUDGED, None)
    if report.when == "call" and judged:
        from placement_checks.testing.report_contents import pack, reports

        path: str = item.config.getoption("--placement-report") or ""
        vars(report)[_KEY] = pack(
            item.nodeid,
            report.outcome,
            reports(judged),
            is_page=path.lower().endswith(".html"),
        )
        del item.stash[_JUDGED]


class ReportFile:
    """Collects what the tests have judged, and hands it on at the end of the run."""

    def __init__(self, config: pytest.Config, path: Path | None) -> None:
        self._config = config
        self._path = path
        self._tests: dict[str, TestJudgement] = {}
        self._said = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if text := vars(report).get(_KEY):
            from placement_checks.testing.report_contents import unpack

            self._tests[report.nodeid] = unpack(text)

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if not is_wanted(self._config):
            return
        if exitstatus in _UNFINISHED:
            self._said = "not written, since the run was not finished"
            return
        from placement_checks.testing.report_contents import contents, document
        from placement_checks.util.files import replace_file

        if self._path is not None:
            try:
                replace_file(self._path, contents(self._tests, self._path.suffix.lower()))
                self._said = f"written to {self._path}"
            except OSError as reason:
                self._said = f"not written to {self._path}: {reason.strerror}"
                session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
        told = document(self._tests)
        self._config.hook.pytest_placement_report(report=told, config=self._config)

    @pytest.hookimpl(trylast=True)  # below the section of what was checked
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._path is not None and self._said:
            terminalreporter.line(f"placement report: {self._said}")
