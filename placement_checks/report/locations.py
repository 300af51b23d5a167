"""Locates lines of findings in the repository."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from placement_checks.core.results import Report

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
