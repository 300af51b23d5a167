"""Workers forked from a server process that has imported the modules they need.

`multiprocessing.forkserver` cannot be used: its workers import the main module of the user
again, have the working directory and standard streams of the server, and share one server with the
user's own code.
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
_START_LIMIT = 180.0  # seconds for the imports of a server


class ForkedProcess:
    """A worker that a server has forked, with a subset of the interface of `subprocess.Popen`."""

    def __init__(self, pid: int, stdin: BinaryIO, stdout: BinaryIO, messages: BinaryIO) -> None:
        self.pid = pid  # the process ID
        self.stdin = stdin  # the standard input of the worker
        self.stdout = stdout  # the standard output of the worker
        self.returncode: int | None = None  # as defined by `subprocess`; None until it is known
        self._messages = messages
        self._lock = threading.Lock()

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the worker to end; return its code.

        Raises:
            subprocess.TimeoutExpired: the worker has not ended within ``timeout`` seconds.
        """
        if not self._lock.acquire(timeout=-1 if timeout is None else timeout):
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
        try:
            if self.returncode is None:
                if not select.select([self._messages], [], [], timeout)[0]:
                    raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
                code = _read_word(self._messages)
                # None means that the server has been killed, which ends its workers, too.
                self.returncode = -signal.SIGKILL if code is None else code
                self._messages.close()
            return self.returncode
        finally:
            self._lock.release()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


class ForkServer:
    """A server process, which ends when this process ends."""

    def __init__(self, pid: int, control: socket.socket) -> None:
        self._owner = os.getpid()
        self._pid = pid
        self._control = control
        self._workers: list[ForkedProcess] = []

    @staticmethod
    def from_module(module: str, environment: Mapping[str, str]) -> ForkServer:
        """Start a server in a new process.

        Args:
            module: imports the modules that workers need, and calls `serve` with its arguments.
            environment: all environment variables.
        """
        control, remote = socket.socketpair()
        with remote:
            # Errors are not shown: a child that starts without the server shows the same errors.
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, str(remote.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[remote.fileno()],
                process_group=0,
                env=dict(environment),
            )
        process.returncode = 0  # so that `subprocess` does not wait for it; `end` does
        return ForkServer(process.pid, control)

    @staticmethod
    def from_this_process(release: Callable[[], object]) -> ForkServer | None:
        """Fork this process to make a server; return None if it has threads of C or C++.

        Python threads are no problem: while this thread forks, the other threads wait for Python's
        lock, and hold no lock of C code.

        Args:
            release: called in the fork first, to close resources of this process.
        """
        for stream in (sys.__stdout__, sys.__stderr__):
            if stream is not None:
                stream.flush()
        flush()
        control, remote = socket.socketpair()
        owner, pid = os.getpid(), os.fork()
        if pid == 0:
            try:
                os.setpgid(0, 0)
                control.close()
                release()
                _remove_users_path()
                serve(remote.detach(), owner, ends_orphans=True)
            finally:
                os._exit(1)
        remote.close()
        server = ForkServer(pid, control)
        if len(os.listdir("/proc/self/task")) > threading.active_count():
            server.end()
            return None
        return server

    @property
    def is_own(self) -> bool:
        """Whether this process started the server, rather than a process that forked this one."""
        return self._owner == os.getpid()

    @property
    def is_idle(self) -> bool:
        """Whether all workers have ended, and were waited for."""
        self._workers = [each for each in self._workers if each.returncode is None]
        return not self._workers

    def start(
        self,
        module: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        errors: int,
        directory: str | None = None,
    ) -> ForkedProcess:
        """Start a worker in a process group of its own.

        Args:
            module: the module with the ``main()`` that the worker calls.
            arguments: ``sys.argv[1:]``; the ID of its parent, the server, is appended.
            environment: all environment variables.
            errors: the descriptor for its standard error.
            directory: its working directory; None for the directory of this process.

        Raises:
            OSError: the server has ended, or was killed because it was not ready in time.
        """
        request = Request(module, arguments, dict(environment), directory or str(Path.cwd()))
        with contextlib.ExitStack() as remote, contextlib.ExitStack() as local:
            request_file = remote.enter_context(unnamed_file())
            pickle.dump(request, request_file)
            request_file.flush()
            stdin, stdout, messages = (os.pipe() for _ in range(3))
            for descriptor in (stdin[0], stdout[1], messages[1]):
                remote.callback(os.close, descriptor)
            ends = [
                local.enter_context(cast(BinaryIO, os.fdopen(descriptor, mode, buffered)))
                for descriptor, mode, buffered in (
                    (stdin[1], "wb", -1),
                    (stdout[0], "rb", -1),
                    (messages[0], "rb", 0),
                )
            ]
            descriptors = [request_file.fileno(), messages[1], stdin[0], stdout[1], errors]
            socket.send_fds(self._control, [b"."], descriptors)
            remote.close()
            if not select.select([messages[0]], [], [], _START_LIMIT)[0]:
                self.end()
            pid = _read_word(ends[-1])
            if pid is None:
                raise ConnectionResetError(f"the server {self._pid} has ended")
            local.pop_all()
        worker = ForkedProcess(pid, *ends)
        self._workers.append(worker)
        return worker

    def end(self) -> None:
        """Close the connection, and kill the server if this process started it."""
        with contextlib.suppress(OSError):  # the user's program has closed it
            self._control.close()
        if self.is_own:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):  # the user's program has waited for it
                os.waitpid(self._pid, 0)


def _read_word(messages: BinaryIO) -> int | None:
    """The next message about a worker; None if the server is gone."""
    word = messages.read(WORD.size)
    return int(WORD.unpack(word)[0]) if word else None


def _remove_users_path() -> None:
    """Give ``sys.path`` the contents that ``python -P`` has, with this package first."""
    if not sys.flags.safe_path:
        del sys.path[0]
    sys.path[:] = [_HOME, *(folder for folder in sys.path if folder != _HOME)]
