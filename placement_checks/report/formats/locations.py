"""Ranks the root causes of all programs, and locates their lines in the repository.

Several formats show only the first findings, so `rank_root_causes` puts the most useful first.
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
class RankedGroup:
    """A group of findings that several programs may share."""

    rule: str  # the broken rule
    group: Group  # the findings in the first of the programs
    reports: list[Report] = field(default_factory=list)  # the reports of the programs

    @property
    def title(self) -> str:
        """The rule, with the number of findings if there are several."""
        number = len(self.group.findings)
        return self.rule if number == 1 else f"{self.rule} ({plural(number, 'finding')})"


def rank_root_causes(reports: Sequence[Report]) -> list[RankedGroup]:
    """Returns the groups of root causes in the order of their impact.

    Among groups of the same impact, the first groups of all rules come before the second groups of
    all rules, and so on. Among these, groups that more programs share come first.
    """
    turns: dict[tuple[Impact, int], list[RankedGroup]] = defaultdict(list)
    known: dict[Hashable, RankedGroup] = {}
    for report in reports:
        for section in Sections(report.verdicts).causes:
            for turn, group in enumerate(section.groups):
                key = (section.rule, group.where, group.first.message, group.first.fix)
                if key not in known:
                    known[key] = RankedGroup(section.rule, group)
                    turns[worst_impact(group.findings), turn].append(known[key])
                known[key].reports.append(report)
    return [
        each
        for turn in sorted(turns)
        for each in sorted(turns[turn], key=lambda ranked: -len(ranked.reports))
    ]


_WORKSPACE = "GITHUB_WORKSPACE"


class Location(NamedTuple):
    """A line of a file."""

    path: str  # the path relative to the repository, with `/`; absolute if the file is outside
    line: int | None  # the number of the line; None for the file as a whole


class Repository:
    """Locates files relative to the root of the repository.

    Attributes:
        root: the checkout of GitHub's runner if it contains the current directory, else the
            current directory.
    """

    def __init__(self) -> None:
        here, workspace = Path.cwd().resolve(), os.environ.get(_WORKSPACE)
        checkout = Path(workspace).resolve() if workspace else here
        self.root = checkout if here.is_relative_to(checkout) else here

    def location(self, line: str | None) -> Location | None:
        """Returns the location of a line such as ``train.py:12``; None if its file does not exist.

        Cells of notebooks have no file.
        """
        file, colon, number = (line or "").rpartition(":")
        path = self._path(file) if colon and number.isdecimal() and int(number) > 0 else None
        return Location(path, int(number)) if path else None

    def location_of(self, line: str | None, report: Report) -> Location | None:
        """Returns the location of a line, or else of the program's file, if there is one."""
        program = report.evidence.placement.program
        script, ending, _ = program.partition(".py")
        files = (self._path(name) for name in (f"{script}{ending}", program))
        file = next((path for path in files if path), None)
        return self.location(line) or (Location(file, None) if file else None)

    def _path(self, file: str) -> str | None:
        """The path of a file; None if it does not exist."""
        try:
            path = Path(file).resolve(strict=True)
        except (OSError, ValueError, RuntimeError):  # missing, an invalid name, a loop of links
            return None
        if not path.is_file():
            return None
        inside = path.is_relative_to(self.root)
        return (path.relative_to(self.root) if inside else path).as_posix()
