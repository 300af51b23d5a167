"""Processes that are forked from one that has loaded already what all of them need: the server.

It has one thread, and runs nothing of what it has loaded: a fork of it is as good as a new process
that has loaded the same. `multiprocessing.forkserver` would load the main module of its user once
more in each, leave it the folder and the standard streams of the server, and be one for all that
use it in a process.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, cast

from placement_checks.util.fork_worker import WORD, Request, serve
from placement_checks.util.streams import flush, unnamed_file

_HOME = str(Path(__file__).resolve().parents[2])
_START_LIMIT = 180.0  # seconds in which a server has loaded what it is to load


class ForkedProcess:
    """A process that a server has forked, with what is used here of `subprocess.Popen`.

    Attributes:
        pid: the process.
        stdin: its standard input.
        stdout: its standard output.
        returncode: as `subprocess` has it; None as long as it is not known.
    """

    def __init__(self, pid: int, stdin: BinaryIO, stdout: BinaryIO, told: BinaryIO) -> None:
        self.pid = pid
        self.stdin = stdin
        self.stdout = stdout
        self.returncode: int | None = None
        self._told = told
        self._waits = threading.Lock()

    def wait(self, timeout: float | None = None) -> int:
        """Its return code, once it has ended.

        Raises:
            subprocess.TimeoutExpired: it has not, after so many seconds.
        """
        if not self._waits.acquire(timeout=-1 if timeout is None else timeout):
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
        try:
            if self.returncode is None:
                if not select.select([self._told], [], [], timeout)[0]:
                    raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
                code = _word(self._told)
                # Where its server is ended, it ends as well.
                self.returncode = -signal.SIGKILL if code is None else code
                self._told.close()
            return self.returncode
        finally:
            self._waits.release()

    def kill(self) -> None:
        """End it."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


class ForkServer:
    """A server, which ends when this process does."""

    def __init__(self, pid: int, control: socket.socket) -> None:
        self._owner = os.getpid()
        self._pid = pid
        self._control = control

    @staticmethod
    def of_module(module: str, environment: Mapping[str, str]) -> ForkServer:
        """A new process, in which a module loads what is needed and then calls `serve`.

        Args:
            module: its arguments are those of `serve`.
            environment: all variables of the process.
        """
        ours, its = socket.socketpair()
        with its:
            # What stands in its way is shown where a process of its own loads the same instead.
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, str(its.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[its.fileno()],
                process_group=0,
                env=dict(environment),
            )
        process.returncode = 0  # `end` waits for it
        return ForkServer(process.pid, ours)

    @staticmethod
    def of_this_process(let_go: Callable[[], object]) -> ForkServer | None:
        """A fork of this process as it is now; None where that has threads that are not Python's.

        Those of Python wait, and hold no lock of C's, while the one that forks runs.

        Args:
            let_go: what the fork does first, to close what is this process's alone.
        """
        for stream in (sys.__stdout__, sys.__stderr__):
            if stream is not None:
                stream.flush()
        flush()
        ours, its = socket.socketpair()
        owner, pid = os.getpid(), os.fork()
        if pid == 0:
            try:
                os.setpgid(0, 0)
                ours.close()
                let_go()
                _leave_users_path()
                serve(its.detach(), owner)
            finally:
                os._exit(1)
        its.close()
        server = ForkServer(pid, ours)
        if len(os.listdir("/proc/self/task")) > threading.active_count():
            server.end()
            return None
        return server

    @property
    def is_own(self) -> bool:
        """Whether it works for this process, and not for the one that this was forked from."""
        return self._owner == os.getpid()

    def start(
        self, module: str, arguments: Sequence[str], environment: Mapping[str, str], errors: int
    ) -> ForkedProcess:
        """Fork a process, in a process group of its own.

        Args:
            module: whose ``main()`` it runs.
            arguments: for it; the id of its parent process, the server, follows them.
            environment: all its variables.
            errors: the descriptor to which its standard error leads.

        Raises:
            OSError: the server has ended, or was ended as it was not ready in time.
        """
        request = Request(module, arguments, dict(environment), str(Path.cwd()))
        with contextlib.ExitStack() as its, contextlib.ExitStack() as ours:
            asked = its.enter_context(unnamed_file())
            pickle.dump(request, asked)
            asked.flush()
            stdin, stdout, told = (os.pipe() for _ in range(3))
            for descriptor in (stdin[0], stdout[1], told[1]):
                its.callback(os.close, descriptor)
            ends = [
                ours.enter_context(cast(BinaryIO, os.fdopen(descriptor, mode, buffered)))
                for descriptor, mode, buffered in (
                    (stdin[1], "wb", -1),
                    (stdout[0], "rb", -1),
                    (told[0], "rb", 0),
                )
            ]
            given = [asked.fileno(), told[1], stdin[0], stdout[1], errors]
            socket.send_fds(self._control, [b"."], given)
            its.close()
            if not select.select([told[0]], [], [], _START_LIMIT)[0]:
                self.end()
            pid = _word(ends[-1])
            if pid is None:
                raise ConnectionResetError(f"the server {self._pid} has ended")
            ours.pop_all()
        return ForkedProcess(pid, *ends)

    def end(self) -> None:
        """End it, where it is this process's."""
        with contextlib.suppress(OSError):  # the program has closed it
            self._control.close()
        if self.is_own:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):  # the program has waited for all
                os.waitpid(self._pid, 0)


def _word(told: BinaryIO) -> int | None:
    """What is said next of a process; None where nobody is left to say it."""
    word = told.read(WORD.size)
    return int(WORD.unpack(word)[0]) if word else None


def _leave_users_path() -> None:
    """Find modules where ``python -P`` finds them, and this package first."""
    if not sys.flags.safe_path:
        del sys.path[0]
    sys.path[:] = [_HOME, *(folder for folder in sys.path if folder != _HOME)]
