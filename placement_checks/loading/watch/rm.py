"""Stands in for ``rm`` while a program is watched: ``rm JOURNAL REAL_RM [OPTION…] [FILE…]``.

What the program has not made itself is set aside, and the rest left to the real one. A process of
its own for each call, it does not import TensorFlow.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from placement_checks.core.errors import InputError
from placement_checks.loading.watch.set_aside import Journal, is_folder, place_of

_PACKAGES = Path(__file__).parents[3]
_START = f"import sys; sys.path.insert(0, {str(_PACKAGES)!r}); from {__name__} import main; main()"
_OF_FOLDERS = ("--recursive", "--dir", "r", "R", "d")  # options


def script(journal: Path) -> str:
    """What is run for ``rm``; ``""`` where there is no such command."""
    real = shutil.which("rm")
    if real is None:
        return ""
    # Neither the program's environment nor its packages.
    command = [sys.executable, "-I", "-S", "-c", _START, str(journal.resolve()), real]
    return f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n'


def main() -> None:
    """Set aside, delete, and end with the status of ``rm``."""
    journal, real, *arguments = sys.argv[1:]
    options, files = _parted(arguments)
    status, left = 0, files
    if Path(journal).exists():  # else it was put back already
        status, left = _set_aside(Journal.opened(Path(journal)), options, files)
    if left or not files:
        status |= os.spawnv(os.P_WAIT, real, ["rm", *options, "--", *left])
    sys.exit(status)


def _parted(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Options, and files."""
    options, files, is_option = [], [], True
    for argument in arguments:
        if is_option and argument == "--":
            is_option = False
        elif is_option and argument.startswith("-") and argument != "-":
            options.append(argument)
        else:
            files.append(argument)
    return options, files


def _set_aside(
    journal: Journal, options: Sequence[str], files: Sequence[str]
) -> tuple[int, list[str]]:
    """Gives 1 if something could not be set aside, and what is left to delete."""
    status, left = 0, []
    for file in files:
        place = place_of(file)
        if not os.path.lexists(place) or journal.is_programs_own(place):
            left.append(file)
        elif is_folder(place) and not _takes_folders(options):
            left.append(file)  # which is refused
        else:
            try:
                journal.set_aside(place)
            except InputError as error:
                print(f"rm: {error}", file=sys.stderr)
                status = 1
    return status, left


def _takes_folders(options: Sequence[str]) -> bool:
    return any(
        option in _OF_FOLDERS if option.startswith("--") else set(option) & set(_OF_FOLDERS)
        for option in options
    )
