"""A temporary directory that is removed even if this process is killed.

A shell waits for the end of this process and of its forks, and then removes the directory. The
shell has a session of its own, so that Ctrl-C and the end of a terminal do not reach it. If the
shell is killed too, the lock of the directory is free, and the next call of `temporary_directory`
with the same prefix removes the directory.
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
    _remove_abandoned(parent, prefix)
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
        path.mkdir(mode=0o700)
        with open(path / _LOCK, "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield GuardedDirectory(path, guard)
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.killpg(remover.pid, signal.SIGKILL)  # the group also has its `sleep`
        remover.wait()
        os.close(guard)


def _remove_abandoned(parent: Path, prefix: str) -> None:
    """Remove this user's directories that no process has locked."""
    for path in parent.glob(f"{prefix}*"):
        with contextlib.suppress(OSError):  # another process removes it, or it is not ours
            if path.is_symlink() or path.lstat().st_uid != os.getuid():
                continue
            with open(path / _LOCK) as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
