"""Child processes of this package, each with a TensorFlow of its own.

The parent creates a `Child`. The module that runs in the child process calls `end_with_parent` and
`reserve_stdout`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from placement_checks.util.fork_server import ForkServer
from placement_checks.util.processes import is_running
from placement_checks.util.streams import unnamed_file

_PATIENCE = 15.0  # seconds for a supervisor to end processes
_MAX_OUTPUT = 4000  # bytes of a process's output


@dataclass(eq=False)
class Ended(Exception):
    """A process ended before its answer was complete."""

    code: int  # the return code of the process, as defined by `subprocess`
    how: str  # the reason in words: the return code, a signal or the time limit
    output: str  # the end of the output of the process


class Child(contextlib.AbstractContextManager["Child"]):
    """A module of this package in a process of its own, which ends when this process ends.

    The process has its own process group, so that Ctrl-C in a terminal reaches the parent only.
    A ``with`` statement kills the process at the end of its block.
    """

    def __init__(
        self,
        module: str,
        *arguments: str,
        environment: Mapping[str, str],
        is_shown: bool = False,
        directory: str | None = None,
        forks: Callable[[Mapping[str, str]], ForkServer | None] = lambda _: None,
        is_supervised: bool = False,
    ) -> None:
        """Start the process.

        Args:
            module: the module's name, such as ``placement_checks.placer.worker.main``.
            arguments: the module's arguments; the ID of the parent process is appended.
            environment: additions to the environment of this process.
            is_shown: whether the output of the process appears on standard error. Otherwise it is
                stored.
            directory: the working directory; None for the directory of this process.
            forks: returns the server that forks the process, given the whole environment; None to
                start a new interpreter.
            is_supervised: whether the module, when it receives SIGTERM, kills the processes that
                it has started and ends.
        """
        self._is_supervised = is_supervised
        self._owner = os.getpid()
        self._errors = unnamed_file()
        errors = 2 if is_shown else self._errors.fileno()
        environment = child_environment(environment)
        forked = None
        if server := forks(environment):
            with contextlib.suppress(OSError):  # the server cannot fork
                forked = server.start(module, arguments, environment, errors, directory)
        self._process = forked or subprocess.Popen(
            [*_command(module), *arguments, str(self._owner)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            process_group=0,
            env=environment,
            cwd=directory,
        )
        self.pid = self._process.pid  # the process ID
        self.requests = cast(BinaryIO, self._process.stdin)  # the standard input of the process
        self.replies = cast(BinaryIO, self._process.stdout)  # the standard output of the process

    @property
    def is_own(self) -> bool:
        """Whether this process started the child, rather than a process that forked this one."""
        return self._owner == os.getpid()

    @contextlib.contextmanager
    def time_limit(self, limit: float) -> Iterator[None]:
        """Exchange messages with the child in this block; kill it after ``limit`` seconds.

        Raises:
            Ended: the child ended, or took too long.
        """
        timed_out = threading.Event()

        def kill() -> None:
            timed_out.set()
            self.kill()

        watch = threading.Timer(limit, kill)
        watch.daemon = True
        watch.start()
        try:
            yield
            self._errors.seek(0)  # discards the output so far, which takes memory
            self._errors.truncate()
        except (OSError, EOFError):
            code = self.wait()
            how = describe_exit(code)
            if timed_out.is_set():
                how = f"gave no answer within {limit:.0f} s and was ended"
            elif code == -signal.SIGKILL:
                how += ", possibly because memory ran out"
            raise Ended(code, how, self.last_output()) from None
        finally:
            watch.cancel()

    def wait(self) -> int:
        """Wait for the child to end by itself; return its code, as defined by `subprocess`."""
        return self._process.wait()

    def last_output(self) -> str:
        return self.output()[-_MAX_OUTPUT:].decode(errors="replace").strip()

    def output(self) -> bytes:
        """The stored output of the child, which has ended."""
        self._errors.seek(0)
        return self._errors.read()

    def stop(self, patience: float) -> None:
        """Close the child's input, so that it ends; kill it after ``patience`` seconds."""
        with contextlib.suppress(OSError):
            self.requests.close()
        if self.is_own:
            with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
                self._process.wait(patience)
        self.end()

    def kill(self) -> None:
        """Kill the child and its own children."""
        if self._is_supervised:
            end = time.monotonic() + _PATIENCE
            with contextlib.suppress(ProcessLookupError):
                for number in (signal.SIGTERM, signal.SIGCONT):
                    os.kill(self.pid, number)
            while is_running(self.pid) and time.monotonic() < end:
                time.sleep(0.01)
        end_group(self.pid)

    def end(self) -> None:
        """Kill the child and its own children; in a fork of its owner, only close the pipes."""
        if self.is_own:
            self.kill()
            self._process.wait()
        else:
            self._process.returncode = 0  # the owner waits for it
        for stream in (self.requests, self.replies, self._errors):
            with contextlib.suppress(OSError):
                stream.close()

    def __exit__(self, *_: object) -> None:
        self.end()


def child_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a child process: the environment of this process, with additions."""
    home = str(Path(__file__).resolve().parents[2])
    # Python would read an empty part as the working directory.
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    path = os.pathsep.join([home, *filter(None, given)])
    return {**os.environ, "PYTHONPATH": path, **environment}


def describe_exit(code: int) -> str:
    """Describe a return code of `subprocess` in words."""
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"ended with status {code}"


def end_group(leader: int) -> None:
    """Kill a process group, if it still exists."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


def end_with_parent() -> None:
    """Kill this process and its children when its parent is gone.

    The input of this process may stay open after the end of the parent, because forks of the
    parent may have it open, too.
    """
    parent = int(sys.argv[-1])

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        end_group(os.getpgrp())

    threading.Thread(target=watch, daemon=True).start()


def reserve_stdout() -> BinaryIO:
    """Return standard output, for answers only; redirect everything else to standard error."""
    stream = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return stream


def _command(module: str) -> list[str]:
    # -P: the working directory may contain a numpy.py. `child_environment` adds the directory of
    # this package.
    return [sys.executable, "-P", "-m", module]
