"""Files and folders that are set aside, noted in a journal, and put back.

Every rename is written to the journal before it is made, so that it can be undone by whoever has
the journal, also when the process that made it was killed. The renames are undone from the last to
the first: what stood at a path right after a rename stands there again when that rename is undone,
beside what the program made anew since, which is thrown away.

Does not import TensorFlow.

Stands in for ``rm`` while a program is watched: ``rm JOURNAL REAL_RM [OPTION…] [FILE…]``.

What the program has not made itself is set aside, and the rest left to the real one. A process of
its own for each call, it does not import TensorFlow.

When a file was made.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import json
import os
import shlex
import shutil
import struct
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from placement_checks.core.errors import InputError

# statx(2) and linux/stat.h; Python's os.stat does not tell the time of birth on Linux.
_AT_FDCWD, _AT_SYMLINK_NOFOLLOW = -100, 0x100
_STATX_BTIME = 0x800
_SIZE, _MASK, _BTIME = 256, 0, 80  # bytes of struct statx, and where two of its fields are


def birth_time(path: Path) -> int | None:
    """When what is at a path, be it a link, was made, in ns since 1970; None where not known."""
    statx = _statx()
    if statx is None:
        return None
    answer = ctypes.create_string_buffer(_SIZE)
    if statx(_AT_FDCWD, os.fsencode(path), _AT_SYMLINK_NOFOLLOW, _STATX_BTIME, answer):
        return None
    (mask,) = struct.unpack_from("I", answer, _MASK)
    seconds, fraction = struct.unpack_from("qI", answer, _BTIME)
    return int(seconds) * 10**9 + int(fraction) if mask & _STATX_BTIME else None


@functools.cache
def _statx() -> Any:
    """The C library's function; None where it has none."""
    return getattr(ctypes.CDLL(None), "statx", None)


_MARK = ".kept-"
_rename = os.rename  # Python's own, while the program's are watched
_LONGEST = 255 - 60  # bytes of a name, to which the mark and numbers are added


class _Rename(NamedTuple):
    """A rename of what is not the program's own.

    Attributes:
        before: where it was.
        after: where it was put.
        device, inode: its numbers, as the program may put something else there.
    """

    before: str
    after: str
    device: int
    inode: int


class Journal:
    """What is set aside while a program runs.

    Args:
        path: of the journal's file.
        began: when the program began, in ns since 1970.
    """

    def __init__(self, path: Path, began: int) -> None:
        self._path = path.resolve()
        self._began = began
        self._mark = f"{_MARK}{began % 10**9}-"
        self._numbers = itertools.count()

    @staticmethod
    def begun(path: Path) -> Journal:
        """A new one, for a program that begins now; there must be no such file."""
        began = time.time_ns()
        with open(path, "x") as file:
            file.write(f"{began}\n")
        return Journal(path, began)

    @staticmethod
    def opened(path: Path) -> Journal:
        """One that another process has begun."""
        with open(path) as file:
            return Journal(path, int(file.readline()))

    def is_programs_own(self, path: Path) -> bool:
        """Whether the program has made a file, or a folder with all that is in it."""
        return all(_is_younger(each, self._began) for each in _all_within(path))

    def is_empty(self, folder: Path) -> bool:
        """Whether a folder holds nothing but what was set aside in it."""
        return all(self._mark in each.name for each in folder.iterdir())

    def set_aside(self, path: Path) -> Path:
        """Rename a file, a folder or a link, so that the program finds nothing there.

        Returns:
            Where it is now.

        Raises:
            InputError: it cannot be renamed.
        """
        short = os.fsdecode(os.fsencode(path.name)[:_LONGEST])
        aside = path.with_name(f".{short}{self._mark}{os.getpid()}-{next(self._numbers)}")
        self.note(path, aside)
        try:
            _rename(path, aside)
        except OSError as error:
            raise _cannot(path, error) from None
        return aside

    def bring_back(self, aside: Path, path: Path) -> None:
        """Undo a `set_aside` at once."""
        _rename(aside, path)

    def note(self, before: Path, after: Path) -> None:
        """Write down a rename that is about to be made."""
        status = before.lstat()
        line = json.dumps(_Rename(str(before), str(after), status.st_dev, status.st_ino)) + "\n"
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(file, line.encode())  # whole, also beside that of a forked process
        finally:
            os.close(file)


def put_back(journal: Path) -> Sequence[Path]:
    """Undo all renames of a journal, and remove it.

    What the program has made in the place of what was there before is thrown away. Where there is
    no journal, or it was put back already, nothing is done; where it was put back in part, the
    rest is.

    Returns:
        What was put back, in the order in which the program deleted, overwrote or moved it.

    Raises:
        InputError: something cannot be put back; the rest is.
    """
    if not journal.exists():
        return []
    began, renames = _read(journal)
    made: list[Path] = []
    back: list[Path] = []
    failed: list[tuple[_Rename, OSError]] = []
    for position, rename in reversed(renames):
        try:
            if _is_there(rename):
                made += _undone(rename, began)
                back.insert(0, Path(rename.before))
        except OSError as error:
            failed.append((rename, error))
        os.truncate(journal, position)
    for folder in reversed(made):
        with contextlib.suppress(OSError):  # it holds something
            folder.rmdir()
    journal.unlink()
    if failed:
        raise _stays(failed)
    return list(dict.fromkeys(back))


def place_of(path: Any, dir_fd: int | None = None) -> Path:
    """The path of a file, folder or link itself, without links on the way to it."""
    whole = Path(os.fsdecode(path))
    if dir_fd is not None:
        whole = Path(os.readlink(f"/proc/self/fd/{dir_fd}"), whole)
    if whole.name in ("", ".."):
        return Path(os.path.realpath(whole))
    return Path(os.path.realpath(whole.parent), whole.name)


def _read(journal: Path) -> tuple[int, list[tuple[int, _Rename]]]:
    """When the program began, and each rename with its position in the file."""
    lines = journal.read_bytes().splitlines(keepends=True)
    positions = itertools.accumulate(map(len, lines))
    return json.loads(lines[0]), [
        (position, _Rename(*json.loads(line)))
        for position, line in zip(positions, lines[1:], strict=False)
    ]


def _undone(rename: _Rename, began: int) -> list[Path]:
    """Undo one; gives the folders that were made for it."""
    before = Path(rename.before)
    made = _made_way(before, began)
    Path(rename.after).rename(before)
    return made


def _is_there(rename: _Rename) -> bool:
    """Whether it was made and not undone."""
    try:
        status = Path(rename.after).lstat()
    except OSError:
        return False
    return (status.st_dev, status.st_ino) == (rename.device, rename.inode)


def _made_way(path: Path, began: int) -> list[Path]:
    """Make it possible to put something at a path; gives the folders that were made for it."""
    made = []
    for folder in reversed(path.parents):
        if not folder.is_dir():
            _throw_away(folder, began)
            folder.mkdir()
            made.append(folder)
    _throw_away(path, began)
    return made


def _throw_away(path: Path, began: int) -> None:
    """Remove what the program has made; what is older, and was put there unseen, is kept."""
    if not os.path.lexists(path):
        return
    if not all(_is_younger(each, began, unknown=True) for each in _all_within(path)):
        path.rename(f"{path}.while-watched-{began % 10**9}")
    elif is_folder(path):
        shutil.rmtree(path)
    else:
        path.unlink()


def is_folder(path: Path) -> bool:
    """Whether it is a folder itself, and no link to one."""
    return path.is_dir() and not path.is_symlink()


def _all_within(path: Path) -> Iterator[Path]:
    """A path and, of a folder, all that is in it, no links followed."""
    yield path
    if is_folder(path):
        for folder, folders, files in os.walk(path):
            for name in folders + files:
                yield Path(folder, name)


def _is_younger(path: Path, began: int, *, unknown: bool = False) -> bool:
    """Whether it was made after a time; ``unknown`` on a file system that does not tell."""
    born = birth_time(path)
    return unknown if born is None else born > began


def _cannot(path: Path, error: OSError) -> InputError:
    return InputError(
        str(path),
        f"the program deletes or replaces it, and it cannot be set aside: {error.strerror}",
        "give the program a folder that may be lost, or move this away",
    )


def _stays(failed: Sequence[tuple[_Rename, OSError]]) -> InputError:
    lines = [f"{rename.before} is {rename.after}: {error}" for rename, error in failed]
    (first, error), *_ = failed
    return InputError(
        first.before,
        f"could not be put back: {error.strerror}",
        f"it is kept as {first.after}: rename it yourself",
        details="\n".join(lines),
    )


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
