"""Holds back the side effects of an early capture until its result is needed.

An early capture runs at the same time as other captures (`early`). Two captures of one program may
conflict: both delete the same directory, number their runs or open the same port. So an early
capture waits for its turn before its first change that another process can see. Changes in its
temporary directory and in ``__pycache__`` do not wait.

An early capture gives up if it reads a file that is younger than the capture, because another
capture may not have finished writing this file. It also gives up if it looked for a missing file,
and another capture has created this file before the turn of the early capture.

An audit hook detects changes and reads, also those that `file_guard` announces for TensorFlow. It
detects neither changes by C libraries nor listings of directories.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import signal
import stat
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from placement_checks.capture.child_process.file_guard import (
    COMPILED,
    SYSTEM_DIRECTORIES,
    is_own_event,
)
from placement_checks.tf.patches import Patch
from placement_checks.tf.patching import all_patched

_INTERVAL = 0.02  # seconds between checks for the turn
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# The number of leading arguments that are paths, by audit event.
_CHANGES = {
    "os.rename": 2,
    "os.link": 2,
    "os.symlink": 2,
    "os.remove": 1,
    "os.rmdir": 1,
    "shutil.rmtree": 1,
    "os.truncate": 1,
    "os.chmod": 1,
    "os.chown": 1,
    "os.utime": 1,
    "sqlite3.connect": 1,
}
_LOOKUPS = (
    *(Patch.EXISTS, Patch.IS_FILE, Patch.PATH_EXISTS, Patch.PATH_IS_FILE),
    Patch.C_EXISTS,
)
# Effects outside of the file system: ports, locks and other programs.
_EFFECTS = frozenset(
    {
        *("socket.bind", "fcntl.flock", "fcntl.lockf"),
        *("os.system", "os.posix_spawn", "os.spawn", "os.exec"),
    }
)
_EVENTS = frozenset({"open", "os.mkdir", "subprocess.Popen"}) | _CHANGES.keys() | _EFFECTS
# Programs that Python's libraries start, and that only print.
_HARMLESS = frozenset({"gcc", "ld", "ldconfig", "nvidia-smi", "objdump", "uname"})


class HeldEffects:
    """Holds back the side effects of this process while the file ``marker`` exists.

    ``own`` is the temporary directory of this process. Changes in this directory do not wait.
    """

    def __init__(self, marker: Path, own: Path) -> None:
        self._marker = marker
        self._own = f"{os.path.realpath(own)}{os.sep}"
        self._process = os.getpid()
        self._began = time.time_ns()
        self._held_since: float | None = None
        self._seconds = 0.0
        self._is_turn = False
        self._absent: set[str] = set()  # files that the program looked for and did not find

    @property
    def seconds(self) -> float:
        """The time that this process has waited so far."""
        since = self._held_since
        return self._seconds + (0.0 if since is None else time.monotonic() - since)

    def wait(self) -> None:
        """Wait until it is the turn of this process."""
        while not self._is_turn:
            if not self._marker.exists():
                if self._held_since is not None:
                    self._seconds, self._held_since = self.seconds, None
                self._is_turn = True
                if any(map(_is_file, list(self._absent))):
                    self._give_up()
                return
            if self._held_since is None:
                self._held_since = time.monotonic()
            time.sleep(_INTERVAL)

    def before_change(self, *paths: Any) -> None:
        """Wait before a change of files, unless only this process can see them."""
        if not self._is_turn and not all(map(self._is_private, paths)):
            self.wait()

    def audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Wait before an effect of Python code; the hook for `sys.addaudithook`."""
        if self._is_turn or event not in _EVENTS or is_own_event(inspect.currentframe()):
            return
        if event == "open":
            path, _, flags = arguments
            if isinstance(flags, int) and flags & _WRITING:
                self.before_change(path)
            else:
                self._before_reading(path)
        elif event == "os.mkdir":
            if not _is_directory(arguments[0]):  # otherwise nothing changes
                self.before_change(arguments[0])
        elif event in _CHANGES:
            self.before_change(*arguments[: _CHANGES[event]])
        elif event != "subprocess.Popen" or not _is_harmless(arguments):
            self.wait()

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Hold back changes of files and other effects until it is the turn of this process.

        The audit hook cannot be removed; after the turn has come, it does nothing. Hooks are
        called in the order in which they were added, and the hook of `file_guard` comes later. Its
        patches announce what TensorFlow's functions do.
        """
        sys.addaudithook(self.audit)
        with all_patched(dict.fromkeys(_LOOKUPS, self._note_absences)):
            yield

    def _note_absences(self, original: Callable[..., Any]) -> Any:
        """Patch a function that returns False or raises an error if a file is missing."""

        @functools.wraps(original)
        def look(path: Any, *args: Any, **kwargs: Any) -> Any:
            found = False
            try:
                found = original(path, *args, **kwargs)
                return found
            finally:
                if found is False:
                    self._note_absence(path)

        return look

    def _note_absence(self, path: Any) -> None:
        if not self._is_turn and not self._is_private(path):
            with contextlib.suppress(OSError, TypeError, ValueError):
                self._absent.add(str(Path(os.fsdecode(path)).absolute()))

    def _before_reading(self, path: Any) -> None:
        if self._is_private(path):
            return
        try:
            status = Path(os.fsdecode(path)).stat()
        except FileNotFoundError:
            self._note_absence(path)
            return
        except (OSError, TypeError, ValueError):
            return
        if stat.S_ISREG(status.st_mode) and status.st_mtime_ns > self._began:
            self._give_up()

    def _give_up(self) -> None:
        """End this process; its program is captured again when the answer is needed."""
        os.kill(self._process, signal.SIGKILL)

    def _is_private(self, path: Any) -> bool:
        """Whether no other process uses a path. An integer is the descriptor of an open file."""
        if isinstance(path, int):
            return True
        try:
            text = f"{os.path.realpath(os.fsdecode(path))}{os.sep}"
        except (TypeError, ValueError):
            return False
        return text.startswith((self._own, *SYSTEM_DIRECTORIES)) or COMPILED in text


def _is_harmless(arguments: tuple[Any, ...]) -> bool:
    """Whether ``subprocess.Popen`` starts a program that changes nothing."""
    executable, *_ = arguments
    try:
        return Path(os.fsdecode(executable)).name in _HARMLESS
    except (TypeError, ValueError):
        return False


def _is_file(path: str) -> bool:
    """Whether a path is a regular file; `Path.is_file` may be patched."""
    try:
        return stat.S_ISREG(Path(path).stat().st_mode)
    except (OSError, ValueError):
        return False


def _is_directory(path: Any) -> bool:
    try:
        return Path(os.fsdecode(path)).is_dir()
    except (TypeError, ValueError):
        return False
