"""Child processes of this package, in which TensorFlow is loaded apart from the user's.

The parent has a `Child`. The module that runs in it calls `end_with_parent` and `answer_stream`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from placement_checks.util.fork_server import ForkedProcess, ForkServer
from placement_checks.util.streams import unnamed_file

_MAX_OUTPUT = 4000  # bytes of what a process printed


@dataclass(eq=False)
class Ended(Exception):
    """A process ended before its answer was whole.

    Attributes:
        code: its return code, as `subprocess` has it.
        how: the same in words, or that it took too long.
        output: the end of what it printed.
    """

    code: int
    how: str
    output: str


class Child(contextlib.AbstractContextManager["Child"]):
    """A module of this package in a process of its own, which ends when this process does.

    It is in a process group of its own: Ctrl-C in a terminal is for the parent, which decides.
    As a context it is ended with the block, however that ends.

    Attributes:
        pid: the process.
        requests: its standard input.
        replies: its standard output.
    """

    def __init__(
        self,
        module: str,
        *arguments: str,
        environment: Mapping[str, str],
        is_shown: bool = False,
        forks: Callable[[Mapping[str, str]], ForkServer | None] = lambda _: None,
    ) -> None:
        """Start it.

        Args:
            module: its name, such as ``placement_checks.placer.worker.main``.
            arguments: for it; the id of the parent process follows them.
            environment: variables beside those of this process.
            is_shown: whether what it prints is shown on standard error, and not kept.
            forks: the server of which it is forked, given all its variables; None for a new
                interpreter.
        """
        self._owner = os.getpid()
        self._errors = unnamed_file()
        errors = None if is_shown else self._errors
        environment = child_environment(environment)
        forked = _forked(forks(environment), module, arguments, environment, errors)
        self._process = forked or subprocess.Popen(
            [*_command(module), *arguments, str(self._owner)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            process_group=0,
            env=environment,
        )
        self.pid = self._process.pid
        self.requests = cast(BinaryIO, self._process.stdin)
        self.replies = cast(BinaryIO, self._process.stdout)

    @property
    def is_own(self) -> bool:
        """Whether this process started it, and not the one that this was forked from."""
        return self._owner == os.getpid()

    @contextlib.contextmanager
    def time_limit(self, limit: float) -> Iterator[None]:
        """Exchange messages with it in this block; it is killed after ``limit`` seconds.

        Raises:
            Ended: it ended, or took too long.
        """
        timed_out = threading.Event()

        def kill() -> None:
            timed_out.set()
            self._process.kill()

        watch = threading.Timer(limit, kill)
        watch.daemon = True
        watch.start()
        try:
            yield
            self._errors.seek(0)  # what it printed so far is not needed, and takes memory
            self._errors.truncate()
        except (OSError, EOFError):
            code = self.wait()
            took_too_long = f"gave no answer within {limit:.0f} s and was ended"
            how = took_too_long if timed_out.is_set() else _unexpected_end(code)
            raise Ended(code, how, self.last_output()) from None
        finally:
            watch.cancel()

    def wait(self) -> int:
        """Its return code, as `subprocess` has it, once it has ended by itself."""
        return self._process.wait()

    def last_output(self) -> str:
        """The end of what it printed."""
        self._errors.seek(0)
        return self._errors.read()[-_MAX_OUTPUT:].decode(errors="replace").strip()

    def stop(self, patience: float) -> None:
        """Close its input, so that it ends by itself; end it after ``patience`` seconds."""
        with contextlib.suppress(OSError):
            self.requests.close()
        if self.is_own:
            with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
                self._process.wait(patience)
        self.end()

    def end(self) -> None:
        """End it and what it started; one that was forked from its owner only lets go of it."""
        if self.is_own:
            end_group(self.pid)
            self._process.wait()
        else:
            self._process.returncode = 0  # of no concern here, nor is that it still runs
        for stream in (self.requests, self.replies, self._errors):
            with contextlib.suppress(OSError):
                stream.close()

    def __exit__(self, *_: object) -> None:
        self.end()


def child_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of a process of this package.

    Args:
        environment: those beside this process's own.
    """
    home = str(Path(__file__).resolve().parents[2])
    # Without empty parts, which would be the user's folder again.
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    path = os.pathsep.join([home, *filter(None, given)])
    return {**os.environ, "PYTHONPATH": path, **environment}


def describe_exit(code: int) -> str:
    """How a process ended, in words, by its return code as `subprocess` has it."""
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"ended with status {code}"


def end_group(leader: int) -> None:
    """End a process and what it has started, where anything is left of it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


def end_with_parent(last: Callable[[], object] = lambda: None) -> None:
    """End this process and what it started when the one that started it is gone.

    Its input may stay open then, held by processes that were forked from that one.

    Args:
        last: what is done before.
    """
    parent = int(sys.argv[-1])

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        with contextlib.suppress(Exception):
            last()
        end_group(os.getpgrp())

    threading.Thread(target=watch, daemon=True).start()


def reserve_stdout() -> BinaryIO:
    """Standard output, for answers alone; what else is printed there goes to standard error."""
    stream = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return stream


def _command(module: str) -> list[str]:
    # -P, and our own folder on the path instead: the user's folder may hold a numpy.py.
    return [sys.executable, "-P", "-m", module]


def _forked(
    server: ForkServer | None,
    module: str,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    errors: BinaryIO | None,
) -> ForkedProcess | None:
    """A process that is forked; None where there is no server, or none that can."""
    if server is None:
        return None
    try:
        descriptor = 2 if errors is None else errors.fileno()
        return server.start(module, arguments, environment, descriptor)
    except OSError:
        return None


def _unexpected_end(code: int) -> str:
    """How a process ended that this package did not end."""
    hint = ", as the kernel does where memory runs out" if code == -signal.SIGKILL else ""
    return describe_exit(code) + hint
