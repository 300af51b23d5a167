"""Files and folders that are set aside, noted in a journal, and put back.

Every rename is written to the journal before it is made, so that it can be undone by whoever has
the journal, also when the process that made it was killed. The renames are undone from the last to
the first: what stood at a path right after a rename stands there again when that rename is undone,
beside what the program made anew since, which is thrown away.

Does not import TensorFlow.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from placement_checks.core.errors import InputError
from placement_checks.util.birth import birth_time

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
