"""Sets the user's files aside, and restores them from a journal.

A file is set aside as a link in a hidden directory at the top of its file system, and a directory
is moved there. Before, an entry of the journal is written to the disk. `put_back` undoes the
entries in reverse order, and can be called again after an interruption: an entry is undone once.

The journal is a file of lines that are only appended. Each line has a checksum.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import json
import os
import shutil
import stat
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from placement_checks.core.errors import InputError

_LONGEST = 120  # characters of a name that are preserved in the name of the link
_CLONE = 0x40049409  # FICLONE of ioctl(2): copies without reading, on Btrfs and XFS
_BLOCK = 1 << 30
_COPY = ".copy"  # after the name of a file that is set aside
# The file system has no links, such as FAT, or not for files of other users, or too many.
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
_CONTENT_KINDS = ("file", "status", "moved")  # entries that `put_back` undoes


class _Entry(NamedTuple):
    """A line of the journal. The values depend on the kind:

    * ``run``: the start of the program in ns since 1970, and its temporary directory
    * ``holding``: a directory for files that are set aside
    * ``file``: the path of a file or directory, and its path while it is set aside
    * ``status``: the path of a file or directory, its type and mode, owner, group, and two times
      in ns
    * ``moved``: both paths, device and inode of something that the program moves
    * ``created``: a path that the program creates
    * ``linked``: the path of a link that the program makes to a file of the user
    * ``users``: device and inode of a file that belongs to the user wherever it is moved
    * ``asked``: the program has asked for the number of GPUs
    * ``undone``: the position of an entry that is undone, and whether that changed a file
    """

    position: int
    kind: str
    values: Sequence[Any]


class Contents(NamedTuple):
    """The entries of a journal, and the number of lines that cannot be read."""

    entries: Sequence[_Entry]
    damaged: int

    @property
    def has_files(self) -> bool:
        """Whether the program changes files of the user."""
        return any(each.kind in _CONTENT_KINDS for each in self.entries)

    @property
    def has_asked(self) -> bool:
        """Whether the program has asked for the number of GPUs."""
        return any(each.kind == "asked" for each in self.entries)

    @property
    def temporary(self) -> Path | None:
        """The temporary directory of the program."""
        return next((Path(each.values[1]) for each in self.entries if each.kind == "run"), None)


def create_journal(path: Path, temporary: Path) -> int:
    """Create the journal of a program that starts now; return a descriptor.

    Through the descriptor, the journal can be read even if its path is deleted.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o600)
    _append(descriptor, "run", time.time_ns(), str(temporary))
    return descriptor


def read(journal: int) -> Contents:
    """Read a journal. A last line without an end does not count: its file was not yet moved."""
    size = os.fstat(journal).st_size
    return _parse(os.pread(journal, size, 0), 0)


def _parse(text: bytes, start: int) -> Contents:
    entries, damaged = [], 0
    for line in text[: text.rfind(b"\n") + 1].splitlines(keepends=True):
        checksum, _, body = line.rstrip(b"\n").partition(b" ")
        try:
            if int(checksum, 16) != zlib.crc32(body):
                raise ValueError
            kind, *values = json.loads(body)
            entries.append(_Entry(start, kind, values))
        except ValueError:
            damaged += 1
        start += len(line)
    return Contents(entries, damaged)


def _append(journal: int, kind: str, *values: Any, durable: bool = True) -> int:
    """Append an entry as a whole, or raise an OSError; return its position."""
    body = json.dumps([kind, *values]).encode()
    line = b"%08x %s\n" % (zlib.crc32(body), body)
    position = os.fstat(journal).st_size
    try:
        written = os.write(journal, line)
        if written < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if durable:
            os.fsync(journal)
    except OSError:
        with contextlib.suppress(OSError):
            os.ftruncate(journal, position)
        raise
    return position


class Journal:
    """A journal that the program and its forks write. ``path`` reopens the file for each use.

    Args:
        path: the file.
        hidden: the name of the directories for files that are set aside.
        temporary: the temporary directory of the program.
    """

    def __init__(self, path: str, hidden: str, temporary: Path) -> None:
        self._path = path
        self._hidden = hidden
        self._read = 0
        self._holdings: list[str] = []
        self._created = {os.path.realpath(temporary)}
        self._users: set[tuple[int, int]] = set()
        self._noted: set[str] = set()
        self._files: dict[tuple[int, int], int] = {}  # descriptors, by process and thread
        self._file = -1  # the descriptor that holds the lock
        self._numbers = itertools.count()

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Exclude other threads and processes, and read their entries."""
        me = os.getpid(), threading.get_ident()
        file = self._files.get(me)
        is_nested = file is not None  # a signal handler has interrupted this method or its caller
        if file is None:
            try:
                file = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
            except OSError as error:
                problem = f"files that the program changes cannot be set aside: {error.strerror}"
                raise InputError("", problem) from None
            self._files[me] = file
        try:
            fcntl.flock(file, fcntl.LOCK_EX)  # of the same descriptor: nested calls do not wait
            self._file = file
            self._catch_up()
            yield
        finally:
            if not is_nested:
                fcntl.flock(file, fcntl.LOCK_UN)  # a fork may have inherited the descriptor
                del self._files[me]
                os.close(file)

    def is_users(self, path: str) -> bool:
        """Whether neither a path nor its directory was created by the program."""
        while True:
            if self._users and _identity(path) in self._users:
                return True
            if path in self._created:
                return False
            parent = os.path.dirname(path)
            if parent == path:
                return True
            path = parent

    def is_hidden(self, path: str) -> bool:
        """Whether a path lies in a directory with files that are set aside."""
        return any(path == each or path.startswith(f"{each}/") for each in self._holdings)

    def note_created(self, path: str) -> None:
        """Note that the program creates a path."""
        self._write("created", path, durable=False)

    def note_asked(self) -> None:
        """Note that the program has asked for the number of GPUs."""
        with self.locked():
            self._write("asked", durable=False)

    def note_users(self, path: str) -> None:
        """Note that a file belongs to the user wherever the program moves or links it."""
        identity = _identity(path)
        if identity is not None and identity not in self._users:
            self._write("users", *identity, durable=False)

    def note_link(self, path: str, link: str) -> None:
        """Note that the program makes a link to a file of the user."""
        self.note_users(path)
        self._write("linked", link, durable=False)

    def note_status(self, path: str) -> None:
        """Note mode, owner and times of a file or directory that the program changes or deletes.

        `put_back` creates the directory again.
        """
        if path in self._noted:
            return
        status = os.lstat(path)
        owner, times = (status.st_uid, status.st_gid), (status.st_atime_ns, status.st_mtime_ns)
        self._write("status", path, status.st_mode, *owner, *times)
        self._noted.add(path)

    def note_move(self, before: str, after: str) -> None:
        """Note that the program moves a file or directory of the user."""
        identity = _identity(before)
        assert identity is not None
        self.note_users(before)
        self._write("moved", before, after, *identity)

    def set_aside(self, path: str) -> None:
        """Make a second link to a file, so that the program can delete or replace the first one.

        Raises:
            InputError: the file system refuses.
        """
        if not self._link_aside(path)[1]:
            self.note_users(path)

    def set_aside_for_writing(self, path: str, *, truncates: bool) -> None:
        """Replace a file by a copy, which the program may change.

        Args:
            path: the file.
            truncates: whether the program empties the file at once, so that the copy may be empty.

        Raises:
            InputError: the file system refuses, or is full.
        """
        aside, is_moved = self._link_aside(path)
        copy = f"{aside}{_COPY}"
        try:
            _copy(aside, copy, is_empty=truncates)
            os.rename(copy, path)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(copy)
            if is_moved:
                os.rename(aside, path)
            raise _refusal(path, error) from None
        self.note_created(path)

    def set_aside_tree(self, path: str) -> None:
        """Move a directory aside, and leave an empty one. Does nothing if it cannot be moved."""
        status = os.lstat(path)
        for top in _tops(path):
            aside = self._note_aside(path, top)
            with contextlib.suppress(OSError):
                os.rename(path, aside)
                os.mkdir(path)
                os.chmod(path, stat.S_IMODE(status.st_mode))
                self.note_created(path)
                return

    def _link_aside(self, path: str) -> tuple[str, bool]:
        """Set a file aside; returns its new path, and whether it was moved instead of linked.

        If it was moved, an empty file is at its old path.
        """
        reason: OSError | None = None
        for top in _tops(path):
            aside = self._note_aside(path, top)
            try:
                os.link(path, aside, follow_symlinks=False)
                return aside, False
            except OSError as error:
                reason = error
            if reason.errno not in _NO_LINKS:  # such as EXDEV: a bind mount lies between the two
                continue
            with contextlib.suppress(OSError):
                os.rename(path, aside)
                try:
                    _copy(aside, path, is_empty=True)
                except OSError as error:
                    os.rename(aside, path)
                    reason = error
                    break
                self.note_created(path)
                return aside, True
        raise _refusal(path, reason or OSError(errno.EACCES, os.strerror(errno.EACCES)))

    def _note_aside(self, path: str, top: str) -> str:
        """Write the entry of a file, and return the path for its link or the file itself."""
        name = os.path.basename(path)[:_LONGEST]
        try:
            holding = os.path.join(top, self._hidden)
            if holding not in self._holdings:
                self._write("holding", holding)
                os.mkdir(holding, 0o700)
            number = f"{os.fstat(self._file).st_size}-{next(self._numbers)}"  # also in forks
            aside = f"{holding}/{number}-{name}"
            self._write("file", path, aside)
        except OSError as error:
            raise _refusal(path, error) from None
        return aside

    def _write(self, kind: str, *values: Any, durable: bool = True) -> None:
        _append(self._file, kind, *values, durable=durable)
        self._catch_up()

    def _catch_up(self) -> None:
        size = os.fstat(self._file).st_size
        if size <= self._read:
            return
        for entry in _parse(os.pread(self._file, size - self._read, self._read), 0).entries:
            if entry.kind == "created":
                self._created.add(entry.values[0])
            elif entry.kind == "users":
                self._users.add((entry.values[0], entry.values[1]))
            elif entry.kind == "holding":
                self._holdings.append(entry.values[0])
        self._read = size


def _refusal(path: str, error: OSError) -> InputError:
    return InputError(
        path,
        f"the program changes or deletes it, but it cannot be set aside: {error.strerror}",
        "let the program use another directory, or move this file away",
    )


def _tops(path: str) -> Iterator[str]:
    """Yield the directories above a path that can take it, the highest one first.

    A program that deletes its own directories does not reach the highest one.
    """
    device = os.stat(os.path.dirname(path)).st_dev
    parents = [str(each) for each in reversed(Path(path).parents)]
    for parent in parents[1:] or parents:
        if os.stat(parent).st_dev == device and os.access(parent, os.W_OK | os.X_OK):
            yield parent


def _identity(path: str) -> tuple[int, int] | None:
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _copy(source: str, target: str, *, is_empty: bool) -> None:
    """Copy a file or link with its mode, owner, times and attributes."""
    status = os.lstat(source)
    if stat.S_ISLNK(status.st_mode):
        os.symlink(os.readlink(source), target)
        return
    new = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        if not is_empty and stat.S_ISREG(status.st_mode):
            old = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
            try:
                _copy_content(old, new)
            finally:
                os.close(old)
        with contextlib.suppress(OSError):
            os.fchown(new, status.st_uid, status.st_gid)
        os.fchmod(new, stat.S_IMODE(status.st_mode))
        with contextlib.suppress(OSError):
            for name in os.listxattr(source):
                os.setxattr(new, name, os.getxattr(source, name))
        os.utime(new, ns=(status.st_atime_ns, status.st_mtime_ns))
    finally:
        os.close(new)


def _copy_content(old: int, new: int) -> None:
    try:
        fcntl.ioctl(new, _CLONE, old)
    except OSError:
        while os.sendfile(new, old, None, _BLOCK):
            pass


def put_back(journal: int, hidden: str, near: Sequence[Path] = ()) -> Sequence[Path]:
    """Undo all entries of a journal. The program and its forks must have ended.

    Files that the program has created at the paths of restored files are deleted.

    Args:
        journal: a descriptor of the journal.
        hidden: the name of the directories for files that are set aside.
        near: if the journal is damaged, such directories are also searched above these paths.

    Returns:
        The restored paths, in the order of the changes, also from an earlier call.

    Raises:
        InputError: the journal is damaged, or a file cannot be restored. All other files are
            restored before. After the cause is removed, another call restores the rest.
    """
    contents = read(journal)
    entries = contents.entries
    undone = {each.values[0]: bool(each.values[1]) for each in entries if each.kind == "undone"}
    restoration = _Restoration(entries)
    failed: list[tuple[_Entry, str]] = []
    for entry in reversed(entries):
        if entry.kind in _CONTENT_KINDS and entry.position not in undone:
            try:
                changes = restoration.undo(entry)
            except OSError as error:
                failed.append((entry, str(error.strerror)))
                continue
            undone[entry.position] = changes
            with contextlib.suppress(OSError):  # the disk is full
                _append(journal, "undone", entry.position, changes, durable=False)
    restoration.finish()
    is_damaged = contents.damaged or not entries
    left = restoration.left_over(_holdings_above(near, hidden) if is_damaged else ())
    if failed or left or contents.damaged:
        raise _failure(failed, left, contents.damaged)
    paths = [Path(each.values[0]) for each in entries if undone.get(each.position)]
    return list(dict.fromkeys(paths))


def _failure(
    failed: Sequence[tuple[_Entry, str]], left: Sequence[str], damaged: int
) -> InputError:
    """Return an error that names each file that is still set aside, and how to get it back."""
    faults = {}  # by the path where the file is now
    for entry, reason in failed:
        before, after, *_ = entry.values
        is_status = entry.kind == "status"
        place = (
            f"its mode was {stat.S_IMODE(after):o}" if is_status else f"it is preserved as {after}"
        )
        faults[before if is_status else after] = before, f"could not be restored: {reason}", place
    unknown = "is set aside, but the record is damaged", "its name ends with its former name"
    for after in left:
        faults.setdefault(after, (after, *unknown))
    if not faults:
        problem = f"the record of changed files has {damaged} damaged lines, but none is set aside"
        return InputError("", problem, "check the files that the program changes")
    (path, problem, place), *_ = faults.values()
    details = "\n".join(f"{name}: {why}; {where}" for name, why, where in faults.values())
    fix = f"{place}: rename it yourself"
    return InputError(path, problem, fix, details=details, is_predicate=True)


class _Restoration:
    """Undoes entries of a journal."""

    def __init__(self, entries: Sequence[_Entry]) -> None:
        self._entries = entries
        self._began = next((each.values[0] for each in entries if each.kind == "run"), 0)
        self._created = {each.values[0] for each in entries if each.kind == "created"}
        moved = {each.values[1] for each in entries if each.kind == "moved"}
        self._links = {each.values[0] for each in entries if each.kind == "linked"} - moved
        self._made: list[str] = []  # directories, to restore something in them

    def undo(self, entry: _Entry) -> bool:
        """Undo an entry; returns whether a file changed.

        Raises:
            OSError: the system refuses.
        """
        path, *values = entry.values
        if entry.kind == "status":
            return _undo_status(path, *values, clear=self._clear)
        other, *identity = values
        if entry.kind == "moved":
            is_moved = _identity(other) == tuple(identity) or not os.path.lexists(path)
            if not is_moved or not os.path.lexists(other):
                return False
        else:
            with contextlib.suppress(FileNotFoundError):  # the program was killed as it copied
                os.unlink(f"{other}{_COPY}")
            if not os.path.lexists(other):
                return False
            is_spare = path in self._links and os.lstat(other).st_nlink > 1
            if is_spare or _identity(other) == _identity(path):  # the program did not delete it
                os.unlink(other)
                return False
        self._clear(path)
        os.rename(other, path)
        return True

    def _clear(self, path: str) -> None:
        """Make room for a file: create its directory, and delete the program's own files."""
        for directory in reversed(Path(path).parents):
            if not directory.is_dir():
                self._discard(str(directory))
                directory.mkdir()
                self._made.append(str(directory))
        self._discard(path)

    def _discard(self, path: str) -> None:
        """Delete a path that the program created.

        Something that is older than the program was moved there by another command. It is
        preserved under another name.
        """
        if not os.path.lexists(path):
            return
        if not all(map(self._is_programs, _walk(path))):
            os.rename(path, f"{path}.before-restoration-{self._began % 10**9}")
        elif os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)

    def _is_programs(self, path: str) -> bool:
        parents = map(str, (path, *Path(path).parents))
        return not self._created.isdisjoint(parents) or os.lstat(path).st_mtime_ns >= self._began

    def finish(self) -> None:
        """Restore times, and remove directories that are no longer needed."""
        for entry in reversed(self._entries):  # after all files are in their directories
            if entry.kind == "status":
                path, *_, accessed, modified = entry.values
                with contextlib.suppress(OSError):
                    os.utime(path, ns=(accessed, modified), follow_symlinks=False)
        for directory in (*reversed(self._made), *self._holdings()):
            with contextlib.suppress(OSError):  # it is not empty, or gone
                os.rmdir(directory)

    def left_over(self, more: Iterable[str]) -> Sequence[str]:
        """The files that are still set aside, in known directories and in ``more``."""
        left = []
        for holding in dict.fromkeys([*self._holdings(), *more]):
            with contextlib.suppress(OSError):
                left += [f"{holding}/{name}" for name in sorted(os.listdir(holding))]
        return left

    def _holdings(self) -> Sequence[str]:
        named = [each.values[0] for each in self._entries if each.kind == "holding"]
        named += [os.path.dirname(each.values[1]) for each in self._entries if each.kind == "file"]
        return list(dict.fromkeys(named))


def _undo_status(
    path: str,
    mode: int,
    owner: int,
    group: int,
    _accessed: int,
    modified: int,
    *,
    clear: Callable[[str], None],
) -> bool:
    is_other = stat.S_ISDIR(mode) and (os.path.islink(path) or not os.path.isdir(path))
    is_missing = is_other or not os.path.lexists(path)
    mode = stat.S_IMODE(mode)
    if is_missing:
        clear(path)
        os.mkdir(path)
    status = os.lstat(path)
    if (status.st_uid, status.st_gid) != (owner, group):
        os.chown(path, owner, group, follow_symlinks=False)
    if not stat.S_ISLNK(status.st_mode) and stat.S_IMODE(status.st_mode) != mode:
        os.chmod(path, mode)
    return is_missing or (stat.S_IMODE(status.st_mode), status.st_mtime_ns) != (mode, modified)


def _holdings_above(places: Sequence[Path], hidden: str) -> Iterator[str]:
    for place in places:
        for parent in (place, *place.parents):
            yield str(parent / hidden)


def _walk(path: str) -> Iterator[str]:
    """Yield a path and, for a directory, everything in it. Links are not followed."""
    yield path
    if os.path.isdir(path) and not os.path.islink(path):
        for parent, directories, files in os.walk(path):
            for name in directories + files:
                yield f"{parent}/{name}"
