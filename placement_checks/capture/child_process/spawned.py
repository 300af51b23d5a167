"""Explains programs that train in processes started by ``multiprocessing``.

Forked processes report their training step themselves. With the start methods ``spawn`` and
``forkserver``, a process is a new Python interpreter that is not captured. It knows nothing of
``--v1`` or of the simulated GPUs, so its training often fails, and the program waits for it.
"""

from __future__ import annotations

import multiprocessing.process
import os
import sys
import time
import traceback
from itertools import takewhile
from pathlib import Path
from typing import Any

from placement_checks.core.errors import InputError
from placement_checks.core.user_code import is_user_file, users_line

# `multiprocessing` imports one of these modules when it starts a process in this way.
_STARTERS = ("multiprocessing.popen_spawn_posix", "multiprocessing.popen_forkserver")
_WAITING = frozenset(("multiprocessing", "concurrent"))  # packages that wait for processes
_INTERVAL = 0.5  # seconds between checks
_CHECKS = 6  # successive checks that find the program waiting at the same line


def has_started_processes() -> bool:
    """Whether this process has started new interpreters with ``multiprocessing``."""
    return any(module in sys.modules for module in _STARTERS)


def advice(target: str) -> str:
    """Return the fix for a program that trains in such a process."""
    path = target.partition(":")[0]
    return f"name the function that the processes of multiprocessing call: {path}:FUNCTION"


def wait_for_failure(main_thread: int) -> str:
    """Wait until the program waits for processes that have ended, at least one with an error.

    Args:
        main_thread: the thread of the program.

    Returns:
        A predicate for an error message.
    """
    line, checks = "", 0
    while checks < _CHECKS:
        time.sleep(_INTERVAL)
        status = _failed_status()
        now = _waits_at(main_thread) if status else ""
        checks = checks + 1 if now and now == line else 0
        line = now
    return (
        f"waits at {line} for processes that multiprocessing started, but they have ended, one "
        f"with exit status {status}"
    )


def ended_error(target: str) -> InputError:
    """Return the error for a program that ended, and has started such processes."""
    return InputError(
        target,
        "took no training step itself, but started processes with multiprocessing, which are not "
        "captured",
        advice(target),
        is_predicate=True,
    )


def _failed_status() -> int:
    """The exit status of a failed process, if all started processes have ended; else 0.

    A process that the program terminated by a signal has not failed.
    """
    if not has_started_processes():
        return 0
    children: set[Any] = getattr(multiprocessing.process, "_children", set())
    statuses = list(map(_exit_status, list(children)))
    return 0 if None in statuses else max(filter(None, statuses), default=0)


def _exit_status(child: Any) -> int | None:
    """The exit status of a process; 0 if a signal ended it, None if it runs."""
    try:  # without reaping: the program reads the status too
        ended = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except (OSError, ValueError, TypeError):  # the program has reaped it, or does not start it
        return max(0, getattr(getattr(child, "_popen", None), "returncode", None) or 0)
    if ended is None:
        return None
    return ended.si_status if ended.si_code == os.CLD_EXITED else 0


def _waits_at(thread: int) -> str:
    """The user's line at which a thread waits for processes; ``""`` if it does something else."""
    frame = sys._current_frames().get(thread)
    stack = traceback.extract_stack(frame) if frame is not None else []
    own = takewhile(lambda each: not is_user_file(each.filename, None), reversed(stack))
    waits = any(not _WAITING.isdisjoint(Path(each.filename).parts) for each in own)
    return users_line(stack) if waits else ""
