"""Temporary directories that are removed even if this process is killed.

Each directory has a lock. If the lock is free, its owner has ended, and the next call with the
same prefix removes the directory.

`temporary_directory` is for large directories: a shell waits for the end of this process and of
its forks, and then removes the directory. The shell has a session of its own, so that Ctrl-C and
the end of a terminal do not reach it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_LOCK = "lock"  # a file in the directory
# The input of the shell is a pipe, which ends when all processes with its other end have ended.
# Child processes of this package notice within a second that their parent has ended. Until then,
# they may still write files, so the shell removes the directory twice.
_REMOVE_AT_END = 'trap "" HUP INT TERM; read _; rm -rf -- "$1"; sleep 3; rm -rf -- "$1"'


class GuardedDirectory(NamedTuple):
    """A directory that is removed at the end.

    Attributes:
        path: its absolute path, without symbolic links.
        guard: a descriptor; the directory is not removed while a process has it open. A program
            that writes to the directory should inherit the descriptor.
    """

    path: Path
    guard: int


@contextlib.contextmanager
def temporary_directory(prefix: str) -> Iterator[GuardedDirectory]:
    """Yield an empty directory, and remove it at the end of the block or of the process.

    Directories with the same prefix that killed processes left are removed first.

    Args:
        prefix: the first part of the name, which no other program uses.

    Raises:
        OSError: the directory cannot be created.
    """
    parent = Path(os.path.realpath(tempfile.gettempdir()))
    path = parent / f"{prefix}{secrets.token_hex(8)}"
    end, guard = os.pipe()
    try:
        # The shell is started first, to remove a directory that is created just before a kill.
        remover = subprocess.Popen(
            ["/bin/sh", "-c", _REMOVE_AT_END, "sh", str(path)],
            stdin=end,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )
    except BaseException:
        os.close(guard)
        raise
    finally:
        os.close(end)
    try:
        with locked_directory(prefix, path):
            yield GuardedDirectory(path, guard)
    finally:
        os.killpg(remover.pid, signal.SIGKILL)  # the group also has its `sleep`
        remover.wait()
        os.close(guard)


@contextlib.contextmanager
def locked_directory(prefix: str, path: Path | None = None) -> Iterator[Path]:
    """Yield an empty directory, and remove it at the end of the block.

    Directories with the same prefix that killed processes left are removed first. Forks of this
    process do not remove the directory.

    Args:
        prefix: the first part of the name, which no other program uses.
        path: the path of the directory, which begins with the prefix.
    """
    parent = Path(os.path.realpath(tempfile.gettempdir()))
    for abandoned, _ in abandoned_directories(parent, prefix):
        shutil.rmtree(abandoned, ignore_errors=True)
    path = path or parent / f"{prefix}{secrets.token_hex(8)}"
    owner = os.getpid()
    path.mkdir(mode=0o700)
    try:
        lock = lock_directory(path)
        try:
            yield path
        finally:
            # The user's code may have closed the descriptor, and opened a file with the same one.
            with contextlib.suppress(OSError):
                if os.path.samestat(os.fstat(lock), (path / _LOCK).stat()):
                    os.close(lock)
    finally:
        if os.getpid() == owner:
            shutil.rmtree(path, ignore_errors=True)


def lock_directory(path: Path) -> int:
    """Lock a directory, together with other processes; return a descriptor that holds the lock."""
    name = path / _LOCK
    # A directory with a free lock is abandoned. So the lock gets its name when it is held.
    new = name if name.exists() else path / f"{_LOCK}.new"
    lock = os.open(new, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_SH)
    new.rename(name)
    return lock


def abandoned_directories(parent: Path, prefix: str) -> Iterator[tuple[Path, int]]:
    """Yield this user's directories that no process has locked, and descriptors of their locks."""
    for path in parent.glob(f"{prefix}*"):
        with contextlib.suppress(OSError):  # another process removes it, or it is not ours
            if path.is_symlink() or path.lstat().st_uid != os.getuid():
                continue
            with open(path / _LOCK) as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                yield path, lock.fileno()
