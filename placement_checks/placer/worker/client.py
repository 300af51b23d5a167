"""Starts the placer process on first use, keeps it, and replaces it when it dies or hangs."""

from __future__ import annotations

import array
import atexit
import threading
from collections.abc import Collection, Sequence
from typing import Any

from placement_checks.core.errors import PlacerError
from placement_checks.placer.worker import messages
from placement_checks.placer.worker.refused import GraphRefused
from placement_checks.util.child import Child, Ended

START_LIMIT = 180.0  # seconds; importing TensorFlow takes 8 to 25 on a loaded machine
PLACE_LIMIT = 60.0  # seconds, and
PLACE_LIMIT_PER_OP = 0.002  # more for each op: fifty times what a placement was measured to take
_PIPE_LIMIT = 10.0  # seconds beside what the placer may take
_PATIENCE = 1.0  # seconds in which a process ends that is no longer needed


class PlacerUnavailable(Exception):
    """The placer of this installation cannot answer; the message says why."""


class PlacerProcess:
    """One kind of placer, ``phantom`` or ``session``, in a process of its own.

    A process is kept only while it is idle. A request takes it out, and puts it back when the
    whole answer is there: what an exception cuts short, Ctrl-C or an alarm among them, ends with
    its process, and no answer can be taken for that to another request.
    """

    def __init__(self, kind: str, environment: dict[str, str]) -> None:
        self._kind = kind
        self._environment = environment
        self._lock = threading.Lock()
        self._child: _Placer | None = None
        self._unavailable = ""
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
        ops: Sequence[str],
        nested: Sequence[str],
        types: Collection[str],
        tasks: list[Any],
        *,
        soft: bool,
    ) -> list[str]:
        """The device of each of ``ops`` and ``nested``, ``""`` where it was not placed.

        Args:
            graph: a serialised ``GraphDef``.
            ops: the names of its nodes.
            nested: the names of the ops in bodies of functions.
            types: the types of all of them.
            tasks: ``[job, index, [(device type, count), …]]`` for every task.
            soft: whether an op may go elsewhere than it requests.

        Raises:
            GraphRefused: the placer's own error.
            PlacerUnavailable: this installation has no placer that can answer.
            PlacerError: the process died or hung; the next call gets a new one.
        """
        names = [*ops, *nested]
        limit = PLACE_LIMIT + PLACE_LIMIT_PER_OP * len(names)
        request = {
            "own": len(ops),
            "types": sorted(types),
            "tasks": tasks,
            "soft": soft,
            "limit": limit,
        }
        with self._lock:
            if self._unavailable:
                raise PlacerUnavailable(self._unavailable)
            child, self._child = self._running(), None
            try:
                answer, blobs = child.ask(request, graph, "\n".join(names).encode())
                indices = array.array("I", *blobs)
                if blobs and len(indices) != len(names):
                    what = f"answered for {len(indices)} ops instead of {len(names)}"
                    raise _error(self._kind, what)
            except BaseException:
                child.end()
                raise
            if "unavailable" in answer:
                child.end()
                self._unavailable = answer["unavailable"]
                raise PlacerUnavailable(self._unavailable)
            self._child = child
        if "refused" in answer:
            raise GraphRefused(answer["refused"])
        devices = answer["devices"]
        return [devices[index] for index in indices]

    def stop(self) -> None:
        """End the process, if there is one."""
        child, self._child = self._child, None
        if child is not None:
            child.stop(_PATIENCE)

    def _running(self) -> _Placer:
        """The process; a new one where there is none, or after a fork, whose pipes are shared."""
        if self._child is not None:
            if self._child.is_own:
                return self._child
            self._child.end()
        return _Placer(self._kind, self._environment)


class _Placer(Child):
    """The process itself, and the requests to it."""

    def __init__(self, kind: str, environment: dict[str, str]) -> None:
        super().__init__("placement_checks.placer.worker.main", kind, environment=environment)
        self._kind = kind
        self._is_ready = False
        self._requests = 0

    def ask(
        self, request: dict[str, Any], *blobs: bytes
    ) -> tuple[dict[str, Any], Sequence[bytes]]:
        """The reply to a request, whose ``limit`` is in seconds; "unavailable" may be one.

        Raises:
            PlacerError: the process died, hung, failed or gave the answer to another request.
        """
        if not self._is_ready:
            ready, _ = self._exchange(None, (), START_LIMIT)
            if "unavailable" in ready:
                return ready, ()
            self._is_ready = True
        self._requests += 1
        request = {"number": self._requests, **request}
        return self._exchange(request, blobs, request["limit"] + _PIPE_LIMIT)

    def _exchange(
        self, request: dict[str, Any] | None, blobs: tuple[bytes, ...], limit: float
    ) -> tuple[dict[str, Any], list[bytes]]:
        """Send a request, if there is one, and read a reply."""
        try:
            with self.time_limit(limit):
                if request is not None:
                    messages.write(self.requests, request, *blobs)
                reply, answer = messages.read(self.replies)
                if reply["number"] != self._requests:
                    what = f"answered request {reply['number']} instead of {self._requests}"
                    raise _error(self._kind, what)
                if "failed" in reply:
                    raise _error(self._kind, reply["failed"], self.last_output())
        except Ended as ended:
            raise _error(self._kind, ended.how, ended.output) from None
        return reply, answer


def _error(kind: str, what: str, details: str = "") -> PlacerError:
    return PlacerError(
        f"the {kind} placer",
        what,
        "run it again, which starts a new process; if that fails too, report this graph",
        details=details,
    )


phantom = PlacerProcess(
    "phantom",
    {
        "CUDA_VISIBLE_DEVICES": "-1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "TF_XLA_FLAGS": "",  # clustering would hide ops from the placer
        "no_grpc_proxy": "127.0.0.1,localhost",  # gRPC takes a proxy even for loopback
    },
)
session = PlacerProcess("session", {"TF_CPP_MIN_LOG_LEVEL": "3"})
