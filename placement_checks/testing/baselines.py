"""The fixture ``placement_baseline``: compares placements with files, and updates the files."""

from __future__ import annotations

import shlex
from collections.abc import Generator
from dataclasses import dataclass, field, replace
from os.path import relpath
from pathlib import Path
from typing import Any

import pytest

from placement_checks.core.errors import PlacementError
from placement_checks.testing import locations
from placement_checks.util.text import join_and, plural

FOLDER = "placements"  # in the directory of the test file
_OUTPUT = "placement_baselines"  # key in the output of an xdist worker
_MAX_LINES = 10  # of each kind of change


def add_options(group: pytest.OptionGroup) -> None:
    update_help = "Write the baselines of the fixture placement_baseline that differ"
    group.addoption(
        "--placement-update",
        action="store_const",
        const="yes",
        default="",
        dest="placement_update",
        help=f"{update_help}; refused if CI is set.",
    )
    group.addoption(
        "--placement-update=force",
        action="store_const",
        const="force",
        dest="placement_update",
        help=f"{update_help}, even if CI is set.",
    )
    group.addoption(
        "--placement-prune",
        action="store_true",
        help="Remove the baselines that no test uses, after a run of all tests.",
    )


def check_options(config: pytest.Config) -> None:
    """Refuse to write baselines in continuous integration.

    Raises:
        pytest.UsageError: --placement-update is given, and CI is set.
    """
    if config.getoption("placement_update") != "yes":
        return
    from placement_checks.baseline.files import is_ci

    if is_ci():
        raise pytest.UsageError(
            "--placement-update writes no baselines if CI is set, because nobody would review "
            "them; run it where you commit from, or use --placement-update=force"
        )


@dataclass(eq=False)
class PlacementBaseline:
    """The baseline of a test. Its file depends on the placement that it is compared with.

    Attributes:
        folder: the directory of its file.
        test: the node id of the test.
        argument: the test as an argument of pytest.
        files: the record of all baselines of the run.
        is_update: whether to write the file instead of comparing with it.
        all_lines: whether to show every change.
        name: the name of the file; by default the name of the program.
        exact: whether a different number of ops is a change.
        why: the explanation of the last comparison that was false.
    """

    folder: Path
    test: str
    argument: str
    files: BaselineFiles
    is_update: bool = False
    all_lines: bool = False
    name: str = ""
    exact: bool = False
    why: list[str] = field(default_factory=list, repr=False)

    def __call__(self, name: str = "", *, exact: bool = False) -> PlacementBaseline:
        """The baseline with another name, or with exact numbers of ops."""
        return replace(self, name=name or self.name, exact=exact or self.exact, why=[])

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"PlacementBaseline({self.name or 'of the program'} in {relpath(self.folder)})"

    def __eq__(self, other: object) -> bool:
        """Whether every op and variable of a placement is on the device of the baseline.

        Raises:
            UsageError: ``other`` is not a placement.
            InputError: the baseline is invalid, or its machine differs.
        """
        __tracebackhide__ = True
        from placement_checks.baseline.build import baseline_from_placement
        from placement_checks.baseline.compare import compare
        from placement_checks.baseline.files import file_name, read
        from placement_checks.baseline.text import render
        from placement_checks.core.evidence import Evidence
        from placement_checks.report.common.baseline import render_text
        from placement_checks.testing.checking import is_placer_unavailable
        from placement_checks.testing.program_names import program_name
        from placement_checks.verification.baseline_rules import change_rules, with_rules
        from placement_checks.verification.judging import verify

        evidence = Evidence.wrap(other)  # type: ignore[arg-type]
        program = program_name(evidence)
        if is_placer_unavailable(evidence.placement):
            pytest.skip(f"{program} has no assigned devices: {evidence.placement.assigned}")
        file = self.folder / file_name(self.name or program, str(evidence.machine))
        self.files.used.add(str(file))
        self.files.compared.add(self.test)
        if self.is_update:
            text = render(baseline_from_placement(evidence.placement))
            self.files.add(str(file), text, self.test)
            return True
        path = relpath(file)
        old = read(file)
        command = f"pytest --placement-update {shlex.quote(self.argument)}"
        if old is None:
            self.why = [
                f"{path} does not exist: {program} has no baseline; --placement-update writes it",
                f"write it: {command}",
            ]
            return False
        difference = compare(old, evidence.placement, path, exact=self.exact)
        if difference:
            difference = with_rules(difference, verify(evidence, only=change_rules()).verdicts)
            lines = render_text(difference, 1_000_000 if self.all_lines else _MAX_LINES)
            head, *changes = lines.split("\n")
            # pytest cuts off long texts after some lines, and may show the first line only.
            self.why = [
                f"{head}; --placement-update accepts it",
                f"if this is intended: {command}",
                *_other_program(old.program, evidence.placement.program),
                *changes,
            ]
        return not difference


def _other_program(old: str, new: str) -> list[str]:
    """A line if a baseline belongs to another program than the one that is compared with it.

    Names of the same program differ if it is given as a function and as a target, or from another
    directory.
    """
    old_file, _, old_function = old.rpartition(":")
    new_file, _, new_function = new.rpartition(":")
    is_same_file = not (old_file and new_file) or Path(old_file).name == Path(new_file).name
    if old_function == new_function and is_same_file:
        return []
    return [f"the baseline is of another program, {old}; placement_baseline('name') names one"]


@dataclass
class BaselineFiles:
    """The baselines of a pytest run. The controller of xdist merges the records of its workers.

    Attributes:
        texts: the new text of each file, and the first test that has this text.
        used: the files that tests compared with.
        requested: the tests that have the fixture, and the directories of their baselines.
        compared: the tests that compared a placement.
        uncollected: files of tests that were ignored, or could not be collected.
        conflicts: the tests that gave a file different texts.
    """

    texts: dict[str, tuple[str, str]] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    requested: dict[str, str] = field(default_factory=dict)
    compared: set[str] = field(default_factory=set)
    uncollected: set[str] = field(default_factory=set)
    conflicts: dict[str, list[str]] = field(default_factory=dict)

    def add(self, file: str, text: str, test: str) -> None:
        first_text, first_test = self.texts.setdefault(file, (text, test))
        if first_text != text:
            self.conflicts.setdefault(file, [first_test]).append(test)

    def merge(self, other: BaselineFiles) -> None:
        for file, (text, test) in other.texts.items():
            self.add(file, text, test)
        for file, tests in other.conflicts.items():
            self.conflicts.setdefault(file, []).extend(tests)
        self.used |= other.used
        self.requested |= other.requested
        self.compared |= other.compared
        self.uncollected |= other.uncollected

    def write(self) -> tuple[list[str], list[PlacementError]]:
        """Write the files, and return lines that report the changes, and errors."""
        from placement_checks.baseline import files
        from placement_checks.baseline.text import parse
        from placement_checks.core.errors import UsageError

        lines: list[str] = []
        errors: list[PlacementError] = []
        unchanged = 0
        for file, (text, _) in sorted(self.texts.items()):
            if file in self.conflicts:
                tests = join_and(dict.fromkeys(self.conflicts[file]))
                fix = 'name one of the baselines: placement_baseline("name")'
                message = f"is not written, because {tests} have different placements"
                errors.append(UsageError(relpath(file), message, fix, is_predicate=True))
                continue
            try:
                if files.write(Path(file), parse(text, file)):
                    lines.append(f"wrote {relpath(file)}")
                else:
                    unchanged += 1
            except PlacementError as error:
                errors.append(error)
        if unchanged:
            lines.append(f"{plural(unchanged, 'baseline')} up to date")
        return lines, errors

    def unused(self) -> list[Path]:
        """The baseline files, in the directories of the tests, that no test has used."""
        from placement_checks.baseline.files import is_baseline_file

        return [
            file
            for folder in sorted(set(self.requested.values()))
            for file in sorted(Path(folder).glob("*"))
            if str(file) not in self.used and is_baseline_file(file)
        ]


class Baselines:
    """The plugin that records comparisons, and writes baselines at the end of the run."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._update = bool(config.getoption("placement_update"))
        self._files = BaselineFiles()
        self._lines: list[str] = []

    @pytest.fixture
    def placement_baseline(self, request: pytest.FixtureRequest) -> PlacementBaseline:
        """The recorded devices of every op and variable, in a file next to the test.

        ``assert place(build) == placement_baseline`` compares with a file in ``placements/``, in
        the directory of the test; the file name contains the program and the machine.
        ``pytest --placement-update`` writes the file. ``placement_baseline("name")`` uses another
        file; with ``exact=True``, a different number of ops is a change.
        """
        return PlacementBaseline(
            request.node.path.parent / FOLDER,
            request.node.nodeid,
            locations.argument_for(request.node),
            self._files,
            is_update=self._update,
            all_lines=self._config.get_verbosity() > 1,
        )

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        """Record each test with the fixture, even if it is deselected."""
        if "placement_baseline" in getattr(item, "fixturenames", ()):
            self._files.requested[item.nodeid] = str(item.path.parent / FOLDER)

    @pytest.hookimpl(wrapper=True)
    def pytest_ignore_collect(
        self, collection_path: Path
    ) -> Generator[None, bool | None, bool | None]:
        """Record the ignored files next to baselines."""
        is_ignored = yield
        folder = collection_path.parent / FOLDER
        if is_ignored and collection_path.suffix == ".py" and folder.is_dir():
            self._files.uncollected.add(str(collection_path))
        return is_ignored

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._files.uncollected.add(report.nodeid)

    def pytest_assertrepr_compare(self, op: str, left: object, right: object) -> list[str] | None:
        for side in (right, left):
            if op == "==" and isinstance(side, PlacementBaseline) and side.why:
                return side.why
        return None

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Merge the record of an xdist worker; a crashed worker sends no record."""
        record = getattr(node, "workeroutput", {}).get(_OUTPUT)
        if record is not None:
            self._files.merge(BaselineFiles(**record))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the baselines; an xdist worker sends its record to the controller instead."""
        output = getattr(self._config, "workeroutput", None)
        if output is not None:
            output[_OUTPUT] = vars(self._files)
            return
        if self._update and self._files.texts:
            self._lines, errors = self._files.write()
            for error in errors:
                self._lines += [*error.details.splitlines(), str(error)]
                session.exitstatus = pytest.ExitCode.TESTS_FAILED
        self._prune_unused()

    def _prune_unused(self) -> None:
        prune = self._config.getoption("placement_prune")
        is_part = (
            self._config.args_source == pytest.Config.ArgsSource.ARGS
            or self._config.getoption("lf", False)  # --lf skips whole files
            or self._files.uncollected
        )
        if is_part or not self._files.requested.keys() <= self._files.compared:
            if prune:
                self._lines.append("no baselines removed: not all tests with baselines ran")
            return
        unused = self._files.unused()
        for file in unused:
            if prune:
                file.unlink()
            self._lines.append(f"{'removed, unused' if prune else 'unused'}: {relpath(file)}")
        if unused and not prune:
            self._lines.append("pytest --placement-prune removes unused baselines")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._lines:
            terminalreporter.section("placement baselines")
            for line in self._lines:
                terminalreporter.line(line)
