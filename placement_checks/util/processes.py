"""Descendants of a process, also those in other process groups and sessions (Linux)."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Container, Sequence
from pathlib import Path

_SET_SIGNAL_OF_PARENT, _SET_SUBREAPER = 1, 36  # options of prctl(2)
_PATIENCE = 10.0  # seconds; a process in an uninterruptible system call does not end earlier


def adopt_orphans() -> None:
    """Make this process the parent of all descendants that lose their parents."""
    ctypes.CDLL(None).prctl(_SET_SUBREAPER, 1)


def die_with_parent(parent: int) -> None:
    """Let the kernel kill this process when its parent is killed."""
    ctypes.CDLL(None).prctl(_SET_SIGNAL_OF_PARENT, int(signal.SIGKILL))
    if os.getppid() != parent:  # it has ended already
        os._exit(1)


def children(parent: int) -> Sequence[int]:
    """The IDs of the child processes of a process."""
    processes = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [each for each in processes if _status(each)[1] == str(parent)]


def is_running(process: int) -> bool:
    """Whether a process exists and has not ended."""
    return _status(process)[0] not in "ZX"


def _status(process: int) -> tuple[str, str]:
    """The state of a process, and the ID of its parent; the state X if it does not exist."""
    try:
        text = Path("/proc", str(process), "stat").read_text(errors="replace")
    except OSError:
        return "X", ""
    state, parent, *_ = text.rpartition(")")[2].split()  # the name of the program may have blanks
    return state, parent


def end_descendants(spared: Container[int] = ()) -> None:
    """Kill all descendants of this process, which has called `adopt_orphans`.

    ``spared`` are child processes that stay, with their descendants.
    """
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end:
        found = [child for child in children(os.getpid()) if child not in spared]
        if not found:
            return
        for child in found:
            with contextlib.suppress(OSError):  # it has other privileges, such as sudo
                os.kill(child, signal.SIGKILL)
            os.waitpid(child, os.WNOHANG)
        time.sleep(0.002)
