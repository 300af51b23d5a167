"""Watches over the process that runs a program, and cleans up when it or its parent ends.

The process that the parent has started becomes the supervisor, and forks the process that runs the
program. The supervisor adopts all processes that the program starts, also daemons, and kills them
when the program ends. Then it restores the user's files. If the parent is killed, it does the same
and removes the temporary directories. If the supervisor is killed, the kernel kills the program's
process, and the parent restores the files.

The supervisor holds the only descriptors of the journal and of the pipe for the answer. The
program's process opens both through ``/proc``, when it needs them. So the program cannot close
them, and nothing is written to a file of the program that has got the same descriptor.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
from pathlib import Path
from typing import NamedTuple, NoReturn

from placement_checks.capture.child_process.capture_files import CaptureFiles
from placement_checks.util.processes import adopt_orphans, die_with_parent, end_descendants
from placement_checks.util.temporary import lock_directory

_CHECK = 1.0  # seconds between checks for the parent
_HANDLED = {signal.SIGCHLD, signal.SIGTERM}
_IGNORED = {signal.SIGINT, signal.SIGHUP, signal.SIGQUIT}


class Channels(NamedTuple):
    """The paths that the program's process opens: the journal and the pipe for the answer.

    ``pipe`` is the device and inode of the pipe.
    """

    journal: str
    answers: str
    pipe: tuple[int, int]


def supervise(control: Path) -> Channels:
    """Fork this process, and return in the fork. This process becomes the supervisor.

    Args:
        control: the directory with the journal (`CaptureFiles`).
    """
    files = CaptureFiles.open(control, lock_directory(control))
    answers = os.dup(1)
    os.dup2(2, 1)
    status = os.fstat(answers)
    me = f"/proc/{os.getpid()}/fd"
    channels = Channels(f"{me}/{files.journal}", f"{me}/{answers}", (status.st_dev, status.st_ino))
    adopt_orphans()
    unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED | _IGNORED)
    supervisor, program = os.getpid(), os.fork()
    if program == 0:
        die_with_parent(supervisor)
        signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
        os.close(answers)
        files.close()
        return channels
    _watch(program, files)


def _watch(program: int, files: CaptureFiles) -> NoReturn:
    """Wait until the program's process or the parent ends, or the parent sends SIGTERM."""
    code = -signal.SIGTERM
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        parent = int(sys.argv[-1])
        received = 0
        while received != signal.SIGTERM and os.getppid() == parent:
            ended = _reap(program)
            if ended is not None:
                code = ended
                break
            info = signal.sigtimedwait(_HANDLED, _CHECK)
            received = info.si_signo if info else 0
        end_descendants()
        with contextlib.suppress(Exception):  # the parent tries again, and reports the error
            files.put_back()
        if os.getppid() != parent:
            files.delete()
    finally:
        _exit(code)


def _reap(program: int) -> int | None:
    """Wait for ended processes; return the code of the program's process if it is one of them."""
    while True:
        process, status = os.waitpid(-1, os.WNOHANG)
        if process == program:
            return os.waitstatus_to_exitcode(status)
        if process == 0:
            return None


def _exit(code: int) -> NoReturn:
    """Exit with a code of `subprocess`: a status, or the negative number of a signal."""
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [-code])
        os.kill(os.getpid(), -code)
    os._exit(code)
