"""Sets files and directories aside, and restores them from a journal.

A file is set aside by renaming it. Each rename is written to the journal before it happens, so
that another process can undo the rename if this process is killed. Renames are undone in reverse
order. Files that the program has created in the meantime are deleted.

The module is also the command that replaces ``rm`` while a program runs: `rm_script` starts it as
``main JOURNAL REAL_RM [OPTION…] [FILE…]``. The command sets aside the user's files and passes all
other files to the real ``rm``. The module does not import TensorFlow, because each call of ``rm``
would import it again.
"""

from __future__ import annotations

import contextlib
import ctypes
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

_MARK = ".kept-"
# The original functions, which the file guard patches.
original_rename, _original_unlink, _original_rmdir = os.rename, os.unlink, os.rmdir
_LONGEST = 255 - 60  # bytes of a name, before the mark and numbers are added


class _Rename(NamedTuple):
    """A rename of a file or directory that the program did not create.

    Attributes:
        before: the original path.
        after: the new path.
        device, inode: identify the file, because the program may create another file at ``after``.
    """

    before: str
    after: str
    device: int
    inode: int


class Journal:
    """The renames since the start of a program at the time ``began``, in ns since 1970."""

    def __init__(self, path: Path, began: int) -> None:
        self._path = path.resolve()
        self._began = began
        self._mark = f"{_MARK}{began % 10**9}-"
        self._numbers = itertools.count()

    @staticmethod
    def create(path: Path) -> Journal:
        """Create the journal of a program that starts now. The file must not exist."""
        began = time.time_ns()
        with open(path, "x") as file:
            file.write(f"{began}\n")
        return Journal(path, began)

    @staticmethod
    def open(path: Path) -> Journal:
        """Open a journal that another process has created."""
        with open(path) as file:
            return Journal(path, int(file.readline()))

    def is_programs_own(self, path: Path) -> bool:
        """Whether the program created a file, or a directory and everything in it."""
        return all(_is_younger(each, self._began) for each in _walk(path))

    def is_empty(self, directory: Path) -> bool:
        """Whether a directory contains nothing except files that were set aside."""
        return all(self._mark in each.name for each in directory.iterdir())

    def set_aside(self, path: Path) -> Path:
        """Rename a file, directory or link, so that it no longer exists for the program.

        Returns:
            The new path.

        Raises:
            InputError: the path cannot be renamed.
        """
        short = os.fsdecode(os.fsencode(path.name)[:_LONGEST])
        aside = path.with_name(f".{short}{self._mark}{os.getpid()}-{next(self._numbers)}")
        self.note(path, aside)
        try:
            original_rename(path, aside)
        except OSError as error:
            raise InputError(
                str(path),
                "the program deletes or replaces it, but it cannot be moved to a backup: "
                f"{error.strerror}",
                "let the program use another directory, or move this file away",
            ) from None
        return aside

    def note(self, before: Path, after: Path) -> None:
        """Add a rename to the journal, before it happens."""
        status = before.lstat()
        line = json.dumps(_Rename(str(before), str(after), status.st_dev, status.st_ino)) + "\n"
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(file, line.encode())  # atomic, because forks write to the same journal
        finally:
            os.close(file)


def has_renames(journal: Path) -> bool:
    """Whether a program has set files aside; False if the journal does not exist."""
    try:
        return len(_read(journal)[1]) > 0
    except (OSError, ValueError, IndexError):  # the journal is incomplete or deleted
        return False


def put_back(journal: Path) -> Sequence[Path]:
    """Undo all renames of a journal, and delete the journal.

    Files that the program has created at the original paths are deleted. Does nothing if the
    journal does not exist. After an interrupted call, another call restores the rest.

    Returns:
        The restored paths, in the order of the renames.

    Raises:
        InputError: a file cannot be restored. All other files are restored before.
    """
    if not journal.exists():
        return []
    began, renames = _read(journal)
    created: list[Path] = []
    restored: list[Path] = []
    failed: list[tuple[_Rename, OSError]] = []
    for position, rename in reversed(renames):
        try:
            if _is_pending(rename):
                created += _clear_path(Path(rename.before), began)
                Path(rename.after).rename(rename.before)
                restored.insert(0, Path(rename.before))
        except OSError as error:
            failed.append((rename, error))
        os.truncate(journal, position)
    for directory in reversed(created):
        with contextlib.suppress(OSError):  # it is not empty
            directory.rmdir()
    journal.unlink()
    if failed:
        (first, reason), *_ = failed
        raise InputError(
            first.before,
            f"could not be restored: {reason.strerror}",
            f"it is preserved as {first.after}: rename it yourself",
            details="\n".join(
                f"{each.before} is preserved as {each.after}: {why}" for each, why in failed
            ),
            is_predicate=True,
        )
    return list(dict.fromkeys(restored))


def delete_directory(path: Path) -> None:
    """Delete a directory while the file guard is active. Errors are ignored."""
    for parent, directories, files in os.walk(path, topdown=False):
        for name in directories + files:
            place = Path(parent, name)
            with contextlib.suppress(OSError):
                (_original_rmdir if is_directory(place) else _original_unlink)(place)
    with contextlib.suppress(OSError):
        _original_rmdir(path)


def resolve_parent(path: Any, dir_fd: int | None = None) -> Path:
    """Resolve the links in the directory of a path, but not the path itself."""
    whole = Path(os.fsdecode(path))
    if dir_fd is not None:
        whole = Path(os.readlink(f"/proc/self/fd/{dir_fd}"), whole)
    if whole.name in ("", ".."):
        return Path(os.path.realpath(whole))
    return Path(os.path.realpath(whole.parent), whole.name)


def _read(journal: Path) -> tuple[int, list[tuple[int, _Rename]]]:
    """Read the start time of the program, and each rename with the position of its line."""
    lines = journal.read_bytes().splitlines(keepends=True)
    positions = itertools.accumulate(map(len, lines))
    return json.loads(lines[0]), [
        (position, _Rename(*json.loads(line)))
        for position, line in zip(positions, lines[1:], strict=False)
    ]


def _is_pending(rename: _Rename) -> bool:
    """Whether a rename of the journal was executed and is not yet undone."""
    try:
        status = Path(rename.after).lstat()
    except OSError:
        return False
    return (status.st_dev, status.st_ino) == (rename.device, rename.inode)


def _clear_path(path: Path, began: int) -> list[Path]:
    """Prepare a path, so that a file can be moved there; returns the created directories."""
    created = []
    for directory in reversed(path.parents):
        if not directory.is_dir():
            _discard(directory, began)
            directory.mkdir()
            created.append(directory)
    _discard(path, began)
    return created


def _discard(path: Path, began: int) -> None:
    """Delete a path that the program created. Rename an older file that was moved there."""
    if not os.path.lexists(path):
        return
    if not all(_is_younger(each, began, unknown=True) for each in _walk(path)):
        path.rename(f"{path}.while-watched-{began % 10**9}")
    elif is_directory(path):
        shutil.rmtree(path)
    else:
        path.unlink()


def is_directory(path: Path) -> bool:
    """Whether a path is a directory, and not a link to one."""
    return path.is_dir() and not path.is_symlink()


def _walk(path: Path) -> Iterator[Path]:
    """Yield a path and, for a directory, everything in it. Links are not followed."""
    yield path
    if is_directory(path):
        for parent, directories, files in os.walk(path):
            for name in directories + files:
                yield Path(parent, name)


def _is_younger(path: Path, began: int, *, unknown: bool = False) -> bool:
    """Whether a file was created after a time; ``unknown`` if its birth time is unknown."""
    born = birth_time(path)
    return unknown if born is None else born > began


# statx(2) and linux/stat.h; Python's os.stat has no birth time on Linux.
_AT_FDCWD, _AT_SYMLINK_NOFOLLOW = -100, 0x100
_STATX_BTIME = 0x800
_statx = getattr(ctypes.CDLL(None), "statx", None)
_SIZE, _MASK, _BTIME = 256, 0, 80  # bytes of struct statx, and offsets of two fields


def birth_time(path: Path) -> int | None:
    """Return when a file, directory or link was created, in ns since 1970; None if unknown."""
    if _statx is None:
        return None
    answer = ctypes.create_string_buffer(_SIZE)
    if _statx(_AT_FDCWD, os.fsencode(path), _AT_SYMLINK_NOFOLLOW, _STATX_BTIME, answer):
        return None
    (mask,) = struct.unpack_from("I", answer, _MASK)
    seconds, fraction = struct.unpack_from("qI", answer, _BTIME)
    return int(seconds) * 10**9 + int(fraction) if mask & _STATX_BTIME else None


_PACKAGES = Path(__file__).parents[3]
_START = f"import sys; sys.path.insert(0, {str(_PACKAGES)!r}); from {__name__} import main; main()"
_DIRECTORY_OPTIONS = ("--recursive", "--dir", "r", "R", "d")  # of rm, to delete directories


def rm_script(journal: Path) -> str:
    """Return the shell script that replaces ``rm``; ``""`` if there is no such command."""
    real = shutil.which("rm")
    if real is None:
        return ""
    # -I and -S isolate the command from the environment and packages of the program.
    command = [sys.executable, "-I", "-S", "-c", _START, str(journal.resolve()), real]
    return f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n'


def main() -> None:
    """Set aside the user's files, delete all other files, and exit with the status of ``rm``."""
    journal, real, *arguments = sys.argv[1:]
    options, files = _split_command(arguments)
    status, left = 0, files
    if Path(journal).exists():  # otherwise the files are restored already
        status, left = _set_aside(Journal.open(Path(journal)), options, files)
    if left or not files:
        status |= os.spawnv(os.P_WAIT, real, ["rm", *options, "--", *left])
    sys.exit(status)


def _split_command(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
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
    """Set the user's files aside; returns the exit status, and the files left to delete."""
    removes_directories = any(
        option in _DIRECTORY_OPTIONS
        if option.startswith("--")
        else set(option) & set(_DIRECTORY_OPTIONS)
        for option in options
    )
    status, left = 0, []
    for file in files:
        place = resolve_parent(file)
        if not os.path.lexists(place) or journal.is_programs_own(place):
            left.append(file)
        elif is_directory(place) and not removes_directories:
            left.append(file)  # the real command refuses
        else:
            try:
                journal.set_aside(place)
            except InputError as error:
                print(f"rm: {error}", file=sys.stderr)
                status = 1
    return status, left
