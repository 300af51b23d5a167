"""``--placement-since``: compares all programs of the tests with a git revision."""

from __future__ import annotations

import os
import pickle
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from placement_checks.util.text import listed

if TYPE_CHECKING:
    from placement_checks.core.evidence import Evidence
    from placement_checks.core.program import CapturedProgram
    from placement_checks.core.target import Script, Target
    from placement_checks.verification.since import Job

_OUTPUT: Final = "placement_programs"  # key in the output of an xdist worker
_UNFINISHED: Final = (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.INTERNAL_ERROR)


def add_options(group: pytest.OptionGroup) -> None:
    """Add --placement-since and --placement-link."""
    group.addoption(
        "--placement-since",
        metavar="REV",
        help="At the end of the run, compare all programs that the tests placed with this git "
        "revision.",
    )
    group.addoption(
        "--placement-link",
        action="append",
        default=[],
        metavar="PATH",
        help="Uncommitted data that the programs at REV also read; may be repeated.",
    )


@dataclass
class PlacedPrograms:
    """The programs that tests have placed, in a form that xdist can send.

    Attributes:
        jobs: by target and settings, the text of the target and its settings.
        unnamed: the names of programs that another process cannot import.
        path: the directories in which the tests find modules.
    """

    jobs: dict[str, tuple[str, dict[str, Any]]] = field(default_factory=dict)
    unnamed: list[str] = field(default_factory=list)
    path: list[str] = field(default_factory=list)

    def add(self, evidence: Evidence) -> None:
        """Add the program of the evidence once, unless it is a log or an unknown graph."""
        program = evidence.program
        if not program:
            return
        found = _script_of(program)
        if found is None:
            self.unnamed.append(program.name)
            return
        target = _absolute_text(found.target)
        settings = {
            "args": found.args,
            "v1": found.v1,
            "let": dict(found.let),
            "limit": found.limit,
            **_machine_of(evidence, program),
        }
        if found.ranks:
            settings |= {"horovod": found.ranks, "machine": None, "gpus": None}
        key = repr((target, settings))
        self.jobs.setdefault(key, (target, {**settings, "policy": evidence.policy}))

    def merge(self, other: PlacedPrograms) -> None:
        """Add the programs of an xdist worker."""
        self.jobs |= other.jobs
        self.unnamed += other.unnamed
        self.path += [path for path in other.path if path not in self.path]


def _script_of(program: CapturedProgram) -> Script | None:
    """The program in a form that another process can run; None if there is no such form."""
    from placement_checks.core.program import Program
    from placement_checks.core.target import Script
    from placement_checks.targets.importing import importable_target

    source = program.program
    if isinstance(source, Script):
        return source
    if not isinstance(source, Program):
        return None
    target = source.target or importable_target(source.build)
    return None if target is None else Script(target, tuple(source.argv))


def _absolute_text(target: Target) -> str:
    """The text of a target with an absolute path, since tests may change the directory."""
    if not target.path.endswith(".py"):
        return target.name
    return f"{Path(target.path).resolve()}{target.name.removeprefix(target.path)}"


def _machine_of(evidence: Evidence, program: CapturedProgram) -> dict[str, Any]:
    """The settings for the machine of some evidence.

    A cluster with as many towers as the program was built for may be the user's choice, and is
    returned. Any other machine is derived again from the requested devices.
    """
    machine, soft = evidence.machine, evidence.placement.soft
    cluster = machine if machine is not None and not machine.is_local else None
    return {
        "machine": str(cluster) if cluster and cluster.towers == program.gpus else None,
        "gpus": None if cluster else program.gpus,
        "soft": None if soft == program.soft else soft,
    }


class RevisionComparison:
    """The plugin that collects the programs of all tests, and compares them at the end."""

    name: Final = "placement-since"

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._programs = PlacedPrograms()
        self._lines: list[str] = []

    def note(self, evidence: Evidence) -> None:
        """Add a program that a test has placed."""
        self._programs.add(evidence)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Add the programs of an xdist worker; a crashed worker sends no programs."""
        programs = getattr(node, "workeroutput", {}).get(_OUTPUT)
        if programs is not None:
            self._programs.merge(PlacedPrograms(**pickle.loads(programs)))

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Compare the programs; an xdist worker sends them to the controller instead."""
        root = str(self._config.rootpath)
        self._programs.path = [path for path in sys.path if path.startswith(root)]
        output = getattr(self._config, "workeroutput", None)
        if output is not None:
            output[_OUTPUT] = pickle.dumps(vars(self._programs))
        elif exitstatus in _UNFINISHED:
            self._lines = ["not compared, because the run was not finished"]
        elif not self._compare():
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _compare(self) -> bool:
        """Compare all programs; returns whether all are the same."""
        from placement_checks.core.errors import PlacementError
        from placement_checks.targets.revisions import checked_out

        if self._programs.unnamed:
            names = list(dict.fromkeys(self._programs.unnamed))
            self._lines.append(
                f"not compared: {listed(names)}, which no other process can import; name "
                f"{'it' if len(names) == 1 else 'them'} by a target, such as 'train.py:build'"
            )
        if not self._programs.jobs:
            self._lines.append("no program to compare")
            return True
        revision: str = self._config.getoption("--placement-since")
        links: list[str] = self._config.getoption("--placement-link")
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(self._config.invocation_params.dir)
            # The programs import modules as the tests do.
            own = self._programs.path
            patch.setattr(sys, "path", [*own, *sys.path])
            given = os.environ.get("PYTHONPATH")
            patch.setenv("PYTHONPATH", os.pathsep.join([*own, *([given] if given else [])]))
            try:
                with checked_out(revision, links) as tree:
                    return self._compare_jobs(tree)
            except PlacementError as error:
                self._lines.append(str(error))
                return False

    def _compare_jobs(self, tree: Any) -> bool:
        from placement_checks.report.commands.since import render_text
        from placement_checks.verification import configuration
        from placement_checks.verification.since import Job, compare_jobs

        shared = configuration.load(self._config.rootpath).settings
        jobs: list[Job] = []
        outside: list[str] = []
        here = Path.cwd()
        for target, settings in self._programs.jobs.values():
            path, _, rest = target.partition(".py")
            if target.startswith("/") and not Path(path).is_relative_to(tree.repository):
                outside.append(target)
                continue
            if target.startswith("/"):
                target = f"{os.path.relpath(path, here)}.py{rest}"
            own = configuration.Settings(**settings, rules=shared.rules, without=shared.without)
            jobs.append(Job(target, own, target))
        if outside:
            self._lines.append(f"not compared, outside of the repository: {listed(outside)}")
        since = compare_jobs(jobs, tree)
        self._lines += render_text(since).split("\n")
        self._lines += [str(error) for error in since.errors]
        return since.status == 0

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._lines:
            revision = self._config.getoption("--placement-since")
            terminalreporter.section(f"placement since {revision}")
            for line in self._lines:
                terminalreporter.line(line)
