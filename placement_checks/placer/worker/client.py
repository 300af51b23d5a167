"""Starts the placer process on first use, keeps it, and replaces it when it dies or hangs.

Reads what the placer logs with ``log_device_placement``: a line for each node that it places.

It is ``NODE: (OP TYPE): DEVICE`` (core/common_runtime/placer.cc), alone on standard output. The
logs of users are another matter, which `placement_checks.logs` reads.
"""

from __future__ import annotations

import atexit
import contextlib
import re
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from placement_checks.core.errors import PlacerError
from placement_checks.placer.worker import protocol
from placement_checks.placer.worker.protocol import GraphRefused
from placement_checks.util.child import Child, Ended
from placement_checks.util.resources import available_memory

# Neither a name nor an op type has a space; other lines tell of the devices of a session.
_PLACED = re.compile(r"^([^ \n]+): \([^ \n]+\): (/.+)$", re.MULTILINE)


def logged_devices(log: str) -> Mapping[str, str]:
    """The device of each node of a log, by the node's name.

    Whether a node is missing is for those who know the graph.

    Raises:
        ValueError: a node is said to be on two devices.
    """
    devices: dict[str, str] = {}
    one = devices.setdefault
    names: dict[str, str] = {}  # one text for all nodes of a device
    for match in _PLACED.finditer(log):
        node, device = match.groups()
        if one(node, names.setdefault(device, device)) != device:
            raise ValueError(f"placed '{node}' on {devices[node]} and on {device}")
    return devices


START_LIMIT = 180.0  # seconds; importing TensorFlow takes 8 to 25 on a loaded machine
PLACE_LIMIT = 60.0  # seconds, and
PLACE_LIMIT_PER_OP = 0.002  # more for each op: fifty times what a placement was measured to take
_MEMORY_PER_OP = 4_000  # bytes at the least; 5,100 were measured on a graph of a million ops
_LITTLE_MEMORY = 1_000_000_000  # bytes, for which nothing is refused
_PIPE_LIMIT = 10.0  # seconds beside what the placer may take
_PATIENCE = 1.0  # seconds in which a process ends that is no longer needed


class Request(NamedTuple):
    """A graph to be placed.

    Attributes:
        graph: a serialised ``GraphDef``.
        ops: the number of its ops.
        types: their types.
        tasks: ``[job, index, [(device type, count), …]]`` for every task.
        soft: whether an op may go elsewhere than it requests.
    """

    graph: bytes
    ops: int
    types: Collection[str]
    tasks: list[Any]
    soft: bool

    @property
    def limit(self) -> float:
        """Seconds that the placer may take."""
        return PLACE_LIMIT + PLACE_LIMIT_PER_OP * self.ops


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
        self._lock = threading.RLock()  # a builder may place a graph of its own
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

    @contextlib.contextmanager
    def asked(self, request: Request) -> Iterator[Callable[[], Mapping[str, str]]]:
        """Send a graph to the placer; the block may do other work before it calls for the answer.

        The answer is the device of every node that was placed. Threads take turns.

        Raises:
            GraphRefused: the placer's own error, when the answer is called for.
            PlacerUnavailable: this installation has no placer that can answer.
            PlacerError: the process died or hung, its answer contradicts itself, or the graph
                needs more memory than there is; the next request gets a new process.
        """
        with self._lock:
            if self._unavailable:
                raise PlacerUnavailable(self._unavailable)
            self._check_memory(request.ops)
            child, self._child = self._running(), None
            with contextlib.ExitStack() as unanswered:
                unanswered.callback(child.end)
                try:
                    child.send(request)
                except PlacerUnavailable as reason:
                    self._unavailable = str(reason)
                    raise
                limit = request.limit
                del request  # its graph may be large
                yield partial(self._answer, child, limit, unanswered)

    def _answer(
        self, child: _Placer, limit: float, unanswered: contextlib.ExitStack
    ) -> Mapping[str, str]:
        """The answer of a process, which then is free again."""
        reply, blobs = child.receive(limit)
        try:
            devices = logged_devices(b"".join(blobs).decode())
        except ValueError as error:
            raise _error(self._kind, str(error)) from None
        unanswered.pop_all()
        if self._child is not None:  # of a request that was made before this one was answered
            self._child.end()
        self._child = child
        if "refused" in reply:
            raise GraphRefused(reply["refused"])
        return devices

    def _check_memory(self, ops: int) -> None:
        """Check that a graph fits, where that matters: the kernel would end any process for it."""
        needed, free = ops * _MEMORY_PER_OP, available_memory()
        if free is not None and max(free, _LITTLE_MEMORY) < needed:
            raise PlacerError(
                f"the {self._kind} placer",
                f"needs at least {needed / 1e9:.1f} GB of memory for {ops:,} ops, and "
                f"{free / 1e9:.1f} GB are free",
                "place it where there is more, or with fewer GPUs",
            )

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

    def send(self, request: Request) -> None:
        """Send a request.

        Raises:
            PlacerUnavailable: this installation has no placer that can answer.
            PlacerError: the process died, hung or failed.
        """
        if not self._is_ready:
            reply, _ = self.receive(START_LIMIT)
            if "unavailable" in reply:
                raise PlacerUnavailable(reply["unavailable"])
            self._is_ready = True
        self._requests += 1
        header = {
            "number": self._requests,
            "types": sorted(request.types),
            "tasks": request.tasks,
            "soft": request.soft,
            "limit": request.limit,
        }
        with self._told(request.limit):
            protocol.write(self.requests, header, request.graph)

    def receive(self, limit: float) -> tuple[dict[str, Any], list[bytes]]:
        """The reply to the last request.

        Raises:
            PlacerError: the process died, hung, failed or gave the answer to another request.
        """
        with self._told(limit):
            reply, blobs = protocol.read(self.replies)
            if reply["number"] != self._requests:
                what = f"answered request {reply['number']} instead of {self._requests}"
                raise _error(self._kind, what)
            if "failed" in reply:
                raise _error(self._kind, reply["failed"], self.last_output())
        return reply, blobs

    @contextlib.contextmanager
    def _told(self, limit: float) -> Iterator[None]:
        """A part of the conversation, which ends with an error where the process does."""
        try:
            with self.time_limit(limit + _PIPE_LIMIT):
                yield
        except Ended as ended:
            raise _error(self._kind, ended.how, ended.output) from None


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
        "MALLOC_ARENA_MAX": "1",  # of several, each would keep what it once took: 12 % of the peak
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "TF_XLA_FLAGS": "",  # clustering would hide ops from the placer
        "no_grpc_proxy": "127.0.0.1,localhost",  # gRPC takes a proxy even for loopback
    },
)
session = PlacerProcess("session", {"TF_CPP_MIN_LOG_LEVEL": "3"})
