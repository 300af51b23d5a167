"""The findings of all programs in the order of their worth, for readers who see only the first.

Lines and files of a report as paths of the repository that they are in.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from placement_checks.core.impact import Impact
from placement_checks.core.results import Report, worst_impact
from placement_checks.report.common.findings import Group, Sections
from placement_checks.util.text import plural


@dataclass(frozen=True)
class Ranked:
    """What is told once: a group of findings, of every program that has it.

    Attributes:
        rule: the broken one.
        group: of the first of the programs.
        reports: those of the programs.
    """

    rule: str
    group: Group
    reports: list[Report] = field(default_factory=list)

    @property
    def title(self) -> str:
        """The rule, and how many findings there are if they are several."""
        number = len(self.group.findings)
        return self.rule if number == 1 else f"{self.rule} ({plural(number, 'finding')})"


def rank_root_causes(reports: Sequence[Report]) -> list[Ranked]:
    """The root causes in the order of their impact.

    Of one impact the first group of each rule comes first, then the second ones, and so on; in
    each turn the groups of most programs come first.
    """
    turns: dict[tuple[Impact, int], list[Ranked]] = defaultdict(list)
    known: dict[Hashable, Ranked] = {}
    for report in reports:
        for section in Sections(report.verdicts).causes:
            for turn, group in enumerate(section.groups):
                says = (section.rule, group.where, group.first.message, group.first.fix)
                if says not in known:
                    known[says] = Ranked(section.rule, group)
                    turns[worst_impact(group.findings), turn].append(known[says])
                known[says].reports.append(report)
    return [
        each
        for turn in sorted(turns)
        for each in sorted(turns[turn], key=lambda told: -len(told.reports))
    ]


_WORKSPACE = "GITHUB_WORKSPACE"


class Location(NamedTuple):
    """A file, and a line of it.

    Attributes:
        path: relative to the repository, with ``/``; absolute where the file is not in it.
        line: its number; None for the file as a whole.
    """

    path: str
    line: int | None


class Repository:
    """The folder that paths are told relative to, and the files that lines have named.

    Attributes:
        root: the checkout of GitHub's runner where the current folder is in it, else this folder.
    """

    def __init__(self) -> None:
        here, workspace = Path.cwd().resolve(), os.environ.get(_WORKSPACE)
        checkout = Path(workspace).resolve() if workspace else here
        self.root = checkout if here.is_relative_to(checkout) else here
        self._paths: dict[str, str | None] = {}

    def location(self, line: str | None) -> Location | None:
        """Where a line such as ``train.py:12`` is; None for a notebook's cell, which has no file.

        Args:
            line: a file relative to the current folder, and a number.
        """
        file, colon, number = (line or "").rpartition(":")
        path = self._path(file) if colon and number.isdecimal() and int(number) > 0 else None
        return Location(path, int(number)) if path else None

    def location_of(self, line: str | None, report: Report) -> Location | None:
        """Where a line is; else the file of the program that a report is about, if it has one."""
        program = report.evidence.placement.program
        script, ending, _ = program.partition(".py")
        files = (self._path(name) for name in (f"{script}{ending}", program))
        file = next((path for path in files if path), None)
        return self.location(line) or (Location(file, None) if file else None)

    def _path(self, file: str) -> str | None:
        """The path of a file; None where there is none of that name."""
        if file not in self._paths:
            self._paths[file] = _within(file, self.root)
        return self._paths[file]


def _within(file: str, root: Path) -> str | None:
    try:
        path = Path(file).resolve(strict=True)
    except (OSError, ValueError, RuntimeError):  # not there, no name for a file, a loop of links
        return None
    if not path.is_file():
        return None
    return (path.relative_to(root) if path.is_relative_to(root) else path).as_posix()
