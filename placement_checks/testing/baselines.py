"""``placement_baseline``: the fixture, its options, and what is done at the end of a run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from placement_checks.testing.baseline_files import BaselineFiles
from placement_checks.testing.placement_baseline import PlacementBaseline, explained

FOLDER = "placements"  # beside the tests
_OUTPUT = "placement_baselines"


def add_options(group: pytest.OptionGroup) -> None:
    """Add --placement-update and --placement-prune."""
    what = "Write the baselines of the fixture placement_baseline, where they differ"
    group.addoption(
        "--placement-update",
        action="store_const",
        const="yes",
        default="",
        dest="placement_update",
        help=f"{what}; refused where CI is set.",
    )
    group.addoption(
        "--placement-update=force",
        action="store_const",
        const="force",
        dest="placement_update",
        help=f"{what}, also where CI is set.",
    )
    group.addoption(
        "--placement-prune",
        action="store_true",
        help="Remove the baselines that no test uses, after a run of all tests.",
    )


def check_options(config: pytest.Config) -> None:
    """Refuse to write baselines in continuous integration.

    Raises:
        pytest.UsageError: they were to be written.
    """
    if config.getoption("placement_update") != "yes":
        return
    from placement_checks.verification.baselines.files import is_ci

    if is_ci():
        raise pytest.UsageError(
            "--placement-update writes no baselines where CI is set, as nobody would review them; "
            "run it where you commit from, or say --placement-update=force"
        )


class Baselines:
    """Gathers what tests find, and writes and tells it at the end, under xdist once for all."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._update = bool(config.getoption("placement_update"))
        self._files = BaselineFiles()
        self._lines: list[str] = []

    @pytest.fixture
    def placement_baseline(self, request: pytest.FixtureRequest) -> PlacementBaseline:
        """The page that says where everything of a program sits, kept beside the test.

        ``assert place(build) == placement_baseline`` compares with ``placements/`` in the folder
        of the test, in a file named by program and machine; ``pytest --placement-update`` writes
        it. ``placement_baseline("name")`` is another file, and with ``exact=True`` ops more or
        fewer count as well.
        """
        return PlacementBaseline(
            _folder(request.node),
            request.node.nodeid,
            self._files,
            is_update=self._update,
            all_lines=self._config.get_verbosity() > 1,
        )

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        """Note the tests that have the fixture, also those that are then left out."""
        if "placement_baseline" in getattr(item, "fixturenames", ()):
            self._files.wanted[item.nodeid] = str(_folder(item))

    def pytest_assertrepr_compare(self, op: str, left: object, right: object) -> list[str] | None:
        """Tell what differs; the first line is how much."""
        return explained(op, left, right)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take what a worker of xdist found; one that has crashed leaves nothing."""
        packed = getattr(node, "workeroutput", {}).get(_OUTPUT)
        if packed is not None:
            self._files.take(packed)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write, or hand what is to be written to the controller."""
        output = getattr(self._config, "workeroutput", None)
        if output is not None:
            output[_OUTPUT] = self._files.packed()
            return
        if self._update and self._files.texts:
            self._lines, errors = self._files.write()
            for error in errors:
                self._lines += [*error.details.splitlines(), str(error)]
                session.exitstatus = pytest.ExitCode.TESTS_FAILED
        self._tell_unused()

    def _tell_unused(self) -> None:
        prune = self._config.getoption("placement_prune")
        if not _is_of_all(self._config) or not self._files.is_whole:
            if prune:
                self._lines.append("nothing is removed: not all tests that have baselines ran")
            return
        unused = self._files.unused()
        for file in unused:
            if prune:
                file.unlink()
            self._lines.append(f"{'removed, unused' if prune else 'unused'}: {_shown(file)}")
        if unused and not prune:
            self._lines.append("pytest --placement-prune removes what is unused")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Tell what was written, and what is unused."""
        if self._lines:
            terminalreporter.section("placement baselines")
            for line in self._lines:
                terminalreporter.line(line)


def _folder(item: pytest.Item) -> Path:
    return item.path.parent / FOLDER


def _shown(file: Path) -> str:
    return os.path.relpath(file)


def _is_of_all(config: pytest.Config) -> bool:
    """Whether no file, folder or test was named: then the run is of all that there are."""
    return config.args_source != pytest.Config.ArgsSource.ARGS
