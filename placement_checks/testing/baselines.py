"""``placement_baseline``: the fixture, its options, and what is done at the end of a run.

What tests found of their baselines: gathered in each process, written and told by one.

What the fixture ``placement_baseline`` gives: a placement is equal to it, or is not.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from os.path import relpath
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from placement_checks.core.errors import PlacementError
from placement_checks.util.text import plural

if TYPE_CHECKING:
    from placement_checks.core.baseline import Difference
    from placement_checks.core.evidence import Evidence


@dataclass
class BaselineFiles:
    """The baselines of a run of pytest; under xdist those of one worker, then those of all.

    Attributes:
        texts: what is to be written, by file, each with the test that gave it.
        used: the files that tests asked for.
        wanted: the tests that have the fixture, each with its folder of baselines.
        done: the tests that have compared something.
        torn: the files of which tests gave different texts.
    """

    texts: dict[str, tuple[str, str]] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    wanted: dict[str, str] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)
    torn: dict[str, list[str]] = field(default_factory=dict)

    def give(self, file: str, text: str, test: str) -> None:
        """Take the text of a file from a test; another text than before is not written."""
        before, other = self.texts.setdefault(file, (text, test))
        if before != text:
            self.torn.setdefault(file, [other]).append(test)

    def packed(self) -> dict[str, Any]:
        """For the way from a worker of xdist to the controller."""
        return {
            "texts": {file: list(given) for file, given in self.texts.items()},
            "used": sorted(self.used),
            "wanted": self.wanted,
            "done": sorted(self.done),
            "torn": self.torn,
        }

    def take(self, packed: Mapping[str, Any]) -> None:
        """Add what a worker has `packed`."""
        for file, (text, test) in packed["texts"].items():
            self.give(file, text, test)
        for file, tests in packed["torn"].items():
            self.torn.setdefault(file, []).extend(tests)
        self.used.update(packed["used"])
        self.wanted.update(packed["wanted"])
        self.done.update(packed["done"])

    def write(self) -> tuple[list[str], list[PlacementError]]:
        """Write the files; what was done, in lines, and what could not be written."""
        from placement_checks.baseline import files
        from placement_checks.baseline.parse import parse
        from placement_checks.core.errors import UsageError

        lines: list[str] = []
        errors: list[PlacementError] = []
        same = 0
        for file, (text, _) in sorted(self.texts.items()):
            if file in self.torn:
                tests = " and ".join(dict.fromkeys(self.torn[file]))
                fix = 'name one of them: placement_baseline("name")'
                message = f"is not written, as {tests} give different ones"
                errors.append(UsageError(relpath(file), message, fix))
                continue
            try:
                if files.write(Path(file), parse(text, file)):
                    lines.append(f"wrote {relpath(file)}")
                else:
                    same += 1
            except PlacementError as error:
                errors.append(error)
        if same:
            lines.append(f"{plural(same, 'baseline')} up to date")
        return lines, errors

    def unused(self) -> list[Path]:
        """The baselines beside the tests that no test asked for; none after a part of a run."""
        if not self.is_whole:
            return []
        folders = {Path(folder) for folder in self.wanted.values()}
        return [file for file in _baselines(folders) if str(file) not in self.used]

    @property
    def is_whole(self) -> bool:
        """Whether every test that was found and has the fixture has compared something."""
        return self.wanted.keys() <= self.done


def _baselines(folders: Iterable[Path]) -> Iterator[Path]:
    from placement_checks.baseline.files import SUFFIX
    from placement_checks.baseline.parse import is_baseline

    for folder in sorted(folders):
        for file in sorted(folder.glob(f"*{SUFFIX}")):
            if is_baseline(file.read_text(encoding="utf-8", errors="replace")):
                yield file


_MOST = 10  # lines of each kind


@dataclass(eq=False)
class PlacementBaseline:
    """The baseline of a test; which file it is, is known when it is compared.

    Attributes:
        folder: of its file.
        test: the test that asks for it.
        files: which take what is found.
        is_update: whether the file is to be written, instead of compared with.
        all_lines: whether all that differs is told.
        name: of the file; by default the program's.
        exact: whether ops more or fewer count as well.
        why: why the last comparison was false.
    """

    folder: Path
    test: str
    files: BaselineFiles
    is_update: bool = False
    all_lines: bool = False
    name: str = ""
    exact: bool = False
    why: list[str] = field(default_factory=list, repr=False)

    def __call__(self, name: str = "", *, exact: bool = False) -> PlacementBaseline:
        """The baseline of a name of its own, or one that is to be kept exactly."""
        return replace(self, name=name or self.name, exact=exact or self.exact, why=[])

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return (
            f"PlacementBaseline({self.name or 'of the program'} in {os.path.relpath(self.folder)})"
        )

    def __eq__(self, other: object) -> bool:
        """Whether everything of a placement is where its baseline says.

        Raises:
            UsageError: it is compared with something else.
            InputError: the baseline cannot be read, or is of another machine.
        """
        __tracebackhide__ = True
        from placement_checks.baseline.files import file_name, read
        from placement_checks.core.evidence import Evidence
        from placement_checks.testing.checking import is_placer_unavailable
        from placement_checks.testing.program_names import program_name

        evidence = Evidence.of(other)  # type: ignore[arg-type]
        program = program_name(evidence)
        if is_placer_unavailable(evidence.placement):
            pytest.skip(f"{program} has no places to compare: {evidence.placement.assigned}")
        file = self.folder / file_name(self.name or program, str(evidence.machine))
        self.files.used.add(str(file))
        self.files.done.add(self.test)
        if self.is_update:
            self._give(file, evidence)
            return True
        shown = os.path.relpath(file)
        old = read(file)
        if old is None:
            self.why = [
                f"{shown} does not exist: {program} has no baseline",
                f"write it: {self._command}",
            ]
            return False
        from placement_checks.baseline.compare import compare
        from placement_checks.verification.baseline_rules import with_rules

        difference = compare(old, evidence.placement, shown, exact=self.exact)
        if difference:
            difference = with_rules(difference, evidence, [evidence.policy])
            self.why = self._lines(difference)
        return not difference

    def _give(self, file: Path, evidence: Evidence) -> None:
        from placement_checks.baseline.compare import written
        from placement_checks.baseline.text import render

        self.files.give(str(file), render(written(evidence.placement)), self.test)

    def _lines(self, difference: Difference) -> list[str]:
        from placement_checks.report.common.baseline import render_text

        text = render_text(difference, 1_000_000 if self.all_lines else _MOST)
        return [*text.split("\n"), f"if this is meant: {self._command}"]

    @property
    def _command(self) -> str:
        return f"pytest --placement-update {shlex.quote(self.test)}"


def explained(op: str, left: object, right: object) -> list[str] | None:
    """Why ``left == right`` is false, where one of them is a baseline."""
    for side in (right, left):
        if op == "==" and isinstance(side, PlacementBaseline) and side.why:
            return side.why
    return None


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
    from placement_checks.baseline.files import is_ci

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
