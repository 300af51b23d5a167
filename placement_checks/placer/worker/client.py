"""Starts the placer process on first use, keeps it, and replaces it when it dies or hangs."""

from __future__ import annotations

import array
import atexit
import contextlib
import os
import subprocess
import threading
from collections.abc import Sequence
from typing import Any, BinaryIO, cast

from placement_checks.core.errors import PlacerError
from placement_checks.placer.worker import messages
from placement_checks.placer.worker.refused import Refused
from placement_checks.util.processes import ending, start
from placement_checks.util.streams import unnamed_file

START_LIMIT = 180.0  # seconds; importing TensorFlow takes 8 to 25 on a loaded machine
PLACE_LIMIT = 60.0  # seconds, and
PLACE_LIMIT_PER_OP = 0.002  # more for each op: fifty times what a placement was measured to take
_PIPE_LIMIT = 10.0  # seconds beside what the placer may take


class Unusable(Exception):
    """Why the placer of this installation cannot answer; the message says so."""


class PlacerProcess:
    """One kind of placer, ``phantom`` or ``session``, in a process of its own.

    A process is kept only while nothing is asked of it. Whoever asks takes it out, and puts it
    back when the whole answer is there: what an exception cuts short, Ctrl-C or an alarm among
    them, ends with its process, and no answer can be taken for that to another request.
    """

    def __init__(self, kind: str, environment: dict[str, str]) -> None:
        self._kind = kind
        self._environment = environment
        self._lock = threading.Lock()
        self._child: _Child | None = None
        self._unusable = ""
        atexit.register(self.stop)

    @property
    def pid(self) -> int | None:
        """The process, if it is running."""
        return None if self._child is None else self._child.pid

    def start(self) -> None:
        """Start the process in the background, so that it is ready when it is needed."""
        with self._lock:
            self._child = self._running()

    def place(
        self,
        graph: bytes,
        targets: Sequence[str],
        nested: Sequence[str],
        tasks: list[Any],
        *,
        soft: bool,
    ) -> list[str]:
        """The device of each of ``targets`` and ``nested``, ``""`` where it was not placed.

        Raises:
            Refused: the placer's own error.
            Unusable: this installation has no placer that can answer.
            PlacerError: the process died or hung; the next call gets a new one.
        """
        names = [*targets, *nested]
        limit = PLACE_LIMIT + PLACE_LIMIT_PER_OP * len(names)
        request = {"targets": len(targets), "tasks": tasks, "soft": soft, "limit": limit}
        with self._lock:
            if self._unusable:
                raise Unusable(self._unusable)
            child, self._child = self._running(), None
            try:
                answer, blobs = child.ask(request, graph, "\n".join(names).encode())
                indices = array.array("I", *blobs)
                if blobs and len(indices) != len(names):
                    what = f"answered for {len(indices)} ops, and not for {len(names)}"
                    raise _error(self._kind, what)
            except BaseException:
                child.end()
                raise
            if "unusable" in answer:
                child.end()
                self._unusable = answer["unusable"]
                raise Unusable(self._unusable)
            self._child = child
        if "refused" in answer:
            raise Refused(answer["refused"])
        devices = answer["devices"]
        return [devices[index] for index in indices]

    def stop(self) -> None:
        """End the process, if there is one."""
        child, self._child = self._child, None
        if child is not None:
            child.stop()

    def _running(self) -> _Child:
        """The process; a new one where there is none, or after a fork, whose pipes are shared."""
        if self._child is not None:
            if self._child.is_own:
                return self._child
            self._child.leave()
        return _Child(self._kind, self._environment)


class _Child:
    """The process itself, and what is said to it."""

    def __init__(self, kind: str, environment: dict[str, str]) -> None:
        self._kind = kind
        self._owner = os.getpid()
        self._is_ready = False
        self._asked = 0
        self._errors = unnamed_file()
        self._process = start(
            "placement_checks.placer.worker.main",
            kind,
            str(self._owner),
            environment=environment,
            stderr=self._errors,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_own(self) -> bool:
        """Whether this process started it, and not the one that this was forked from."""
        return self._owner == os.getpid()

    def ask(
        self, request: dict[str, Any], *blobs: bytes
    ) -> tuple[dict[str, Any], Sequence[bytes]]:
        """The reply to a request, whose ``limit`` is in seconds; "unusable" may be one.

        Raises:
            PlacerError: the process died, hung, failed or gave the answer to another request.
        """
        if not self._is_ready:
            ready, _ = self._exchange(None, (), START_LIMIT)
            if "unusable" in ready:
                return ready, ()
            self._is_ready = True
        self._asked += 1
        request = {"number": self._asked, **request}
        return self._exchange(request, blobs, request["limit"] + _PIPE_LIMIT)

    def _exchange(
        self, request: dict[str, Any] | None, blobs: tuple[bytes, ...], limit: float
    ) -> tuple[dict[str, Any], list[bytes]]:
        """Send a request, if there is one, and read a reply; a process that is late is killed."""
        late = threading.Event()

        def kill() -> None:
            late.set()
            self._process.kill()

        watch = threading.Timer(limit, kill)
        watch.daemon = True
        watch.start()
        try:
            if request is not None:
                messages.write(cast(BinaryIO, self._process.stdin), request, *blobs)
            reply, answer = messages.read(cast(BinaryIO, self._process.stdout))
        except (OSError, EOFError):
            raise self._failure(late.is_set(), limit) from None
        finally:
            watch.cancel()
        if reply["number"] != self._asked:
            raise _error(self._kind, f"answered request {reply['number']}, and not {self._asked}")
        if "failed" in reply:
            raise _error(self._kind, reply["failed"], self._last_words())
        self._errors.seek(0)  # what it printed so far is of no more use, and takes memory
        self._errors.truncate()
        return reply, answer

    def stop(self) -> None:
        """Let it end by itself, and if it does not, end it."""
        if not self.is_own:
            self.leave()
            return
        self._close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=1)
        self.end()

    def end(self) -> None:
        """End it at once."""
        self._process.kill()
        self._process.wait()
        self._close()

    def leave(self) -> None:
        """Let go of it in a forked process: it is the parent's."""
        self._process.returncode = 0  # of no concern here, nor is that it still runs
        self._close()

    def _close(self) -> None:
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            with contextlib.suppress(OSError):
                cast(BinaryIO, stream).close()

    def _failure(self, late: bool, limit: float) -> PlacerError:
        code = self._process.wait()
        what = f"gave no answer within {limit:.0f} s and was ended" if late else ending(code)
        return _error(self._kind, what, self._last_words())

    def _last_words(self) -> str:
        """The end of what the process printed."""
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")[-4000:].strip()


def _error(kind: str, what: str, details: str = "") -> PlacerError:
    return PlacerError(
        f"the {kind} placer",
        what,
        "run it again, which starts a new process; if that ends so too, report this graph",
        details=details,
    )


phantom = PlacerProcess(
    "phantom",
    {
        "CUDA_VISIBLE_DEVICES": "-1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "TF_XLA_FLAGS": "",  # auto-clustering would hide ops from the partitions
        "no_grpc_proxy": "127.0.0.1,localhost",  # gRPC takes a proxy even for loopback
    },
)
session = PlacerProcess("session", {"TF_CPP_MIN_LOG_LEVEL": "3"})
