"""Lines and files of a report as paths of the repository that they are in."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from placement_checks.core.results import Report

_WORKSPACE = "GITHUB_WORKSPACE"


class Location(NamedTuple):
    """A file, and a line of it.

    Attributes:
        path: relative to the repository, with ``/``; absolute where the file is not in it.
        line: its number; None for the file as a whole.
    """

    path: str
    line: int | None


def repository() -> Path:
    """What paths are told relative to: the checkout of GitHub's runner, else this folder."""
    here, workspace = Path.cwd(), os.environ.get(_WORKSPACE)
    if workspace and here.resolve().is_relative_to(Path(workspace).resolve()):
        return Path(workspace).resolve()
    return here.resolve()


def location(line: str | None, root: Path) -> Location | None:
    """Where a line such as ``train.py:12`` is; None for a notebook's cell and others in no file.

    Args:
        line: a file relative to the current folder, and a number.
        root: the folder of the repository.
    """
    file, colon, number = (line or "").rpartition(":")
    path = _path(file, root) if colon and number.isdecimal() and int(number) > 0 else None
    return Location(path, int(number)) if path else None


def location_of(line: str | None, report: Report, root: Path) -> Location | None:
    """Where a line is; else the file of the program that a report is about, if it has one."""
    program = report.evidence.placement.program
    script, ending, _ = program.partition(".py")
    files = (_path(name, root) for name in (f"{script}{ending}", program))
    file = next((path for path in files if path), None)
    return location(line, root) or (Location(file, None) if file else None)


def _path(file: str, root: Path) -> str | None:
    """The path of a file; None where there is none of that name."""
    try:
        path = Path(file).resolve(strict=True)
    except (OSError, ValueError, RuntimeError):  # not there, no name for a file, a loop of links
        return None
    if not path.is_file():
        return None
    return (path.relative_to(root) if path.is_relative_to(root) else path).as_posix()
