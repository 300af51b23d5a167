"""Starts the placer process on first use, keeps it, and replaces it when it dies or hangs."""

from __future__ import annotations

import array
import atexit
import contextlib
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from typing import Any, BinaryIO, cast

from placement_checks.capture.placer import frames
from placement_checks.capture.placer.refusal import Refused
from placement_checks.errors import PlacerError
from placement_checks.processes import start

START_LIMIT = 180.0  # seconds; importing TensorFlow takes 8 to 25 on a loaded machine
PLACE_LIMIT = 60.0  # seconds, and
PLACE_LIMIT_PER_OP = 0.002  # more for each op: fifty times what a placement was measured to take


class Unusable(Exception):
    """Why the placer of this installation cannot answer; the message says so."""


class PlacerProcess:
    """One kind of placer, ``phantom`` or ``session``, in a process of its own."""

    def __init__(self, kind: str, environment: dict[str, str]) -> None:
        self._kind = kind
        self._environment = environment
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._ready = False
        self._owner = 0
        self._stderr: BinaryIO | None = None
        self._unusable = ""
        atexit.register(self.stop)

    @property
    def pid(self) -> int | None:
        """The process, if it is running."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the process in the background, so that it is ready when it is needed."""
        with self._lock:
            self._running()

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
        with self._lock:
            if self._unusable:
                raise Unusable(self._unusable)
            process = self._running()
            if not self._ready:
                self._exchange(process, None, (), START_LIMIT)
                self._ready = True
            request = {"targets": len(targets), "tasks": tasks, "soft": soft, "limit": limit}
            header, blobs = self._exchange(
                process, request, (graph, "\n".join(names).encode()), limit + 10
            )
        devices = header["devices"]
        return [devices[index] for index in array.array("I", blobs[0])]

    def stop(self) -> None:
        """End the process, if it is ours and still there."""
        process, self._process = self._process, None
        if process is None or self._owner != os.getpid():
            return
        for stream in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                cast(BinaryIO, stream).close()
        try:
            process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _running(self) -> subprocess.Popen[bytes]:
        """The process; a new one where there is none, or after a fork, whose pipes are shared."""
        if self._process is not None and self._owner == os.getpid():
            return self._process
        self._stderr = cast(BinaryIO, tempfile.TemporaryFile())  # noqa: SIM115
        self._process = start(
            "placement_checks.capture.placer.child",
            self._kind,
            environment=self._environment,
            stderr=self._stderr,
        )
        self._ready = False
        self._owner = os.getpid()
        return self._process

    def _exchange(
        self,
        process: subprocess.Popen[bytes],
        request: dict[str, Any] | None,
        blobs: tuple[bytes, ...],
        limit: float,
    ) -> tuple[dict[str, Any], list[bytes]]:
        """Send a request, if there is one, and read a reply; a process that is late is killed."""
        late = threading.Event()

        def kill() -> None:
            late.set()
            process.kill()

        watch = threading.Timer(limit, kill)
        watch.start()
        try:
            if request is not None:
                frames.write(cast(BinaryIO, process.stdin), request, *blobs)
            header, answer = frames.read(cast(BinaryIO, process.stdout))
        except (OSError, EOFError):
            raise self._failure(process, late.is_set(), limit) from None
        finally:
            watch.cancel()
        if "unusable" in header:
            self.stop()
            self._unusable = header["unusable"]
            raise Unusable(self._unusable)
        if "refused" in header:
            raise Refused(header["refused"])
        return header, answer

    def _failure(self, process: subprocess.Popen[bytes], late: bool, limit: float) -> PlacerError:
        code = process.wait()
        self.stop()
        if late:
            what = f"gave no answer within {limit:.0f} s and was ended"
        elif code < 0:
            what = f"was ended by {signal.Signals(-code).name}"
        else:
            what = f"ended with status {code}"
        return PlacerError(
            f"the {self._kind} placer",
            what,
            "run it again: a new process is started each time",
            details=self._last_words(),
        )

    def _last_words(self) -> str:
        """The end of what the process printed."""
        stream = cast(BinaryIO, self._stderr)
        stream.seek(0)
        return stream.read().decode(errors="replace")[-4000:].strip()


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
