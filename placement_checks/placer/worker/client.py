"""Start the placer process on first use, reuse it, and replace it if it dies or hangs."""

from __future__ import annotations

import atexit
import contextlib
import re
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from placement_checks.core.errors import PlacerError, Unavailable
from placement_checks.placer.worker import protocol
from placement_checks.placer.worker.protocol import GraphRefused, Isolation
from placement_checks.util.child import Child, Ended
from placement_checks.util.resources import available_memory

START_LIMIT = 180.0  # seconds; importing TensorFlow takes 8 to 25 on a loaded machine
PLACE_LIMIT = 60.0  # seconds for each request, plus PLACE_LIMIT_PER_OP for each op
PLACE_LIMIT_PER_OP = 0.002  # seconds; fifty times the measured time of a placement
_MEMORY_PER_OP = 4_000  # bytes; a lower bound: a graph of a million ops needed 5,100 per op
_ALWAYS_ALLOWED_MEMORY = 1_000_000_000  # bytes; smaller graphs are never refused
_PIPE_LIMIT = 10.0  # seconds for the pipes, in addition to the limit of a request
_STOP_LIMIT = 1.0  # seconds for an idle process to end


class Request(NamedTuple):
    """A graph to be placed."""

    graph: bytes  # a serialized `GraphDef`
    ops: int  # the number of ops in the graph, including ops in bodies of functions
    types: Collection[str]  # the types of these ops
    tasks: list[Any]  # `[job, index, [(device type, count), …]]` for every task
    soft: bool  # whether soft placement is on

    @property
    def limit(self) -> float:
        """Seconds that the placer may take."""
        return PLACE_LIMIT + PLACE_LIMIT_PER_OP * self.ops


class PlacerUnavailable(Unavailable):
    """This installation has no usable placer."""


class PlacerProcess:
    """TensorFlow's placer for GPUs that need not exist, in a process of its own.

    This object has a reference to the process only while the process is idle. A request removes
    the reference, and restores it after the complete answer. If an exception interrupts a request,
    such as Ctrl-C or an alarm, the process ends, so that a late answer cannot be confused with the
    answer to another request.
    """

    def __init__(self, environment: dict[str, str]) -> None:
        self._environment = environment
        self._lock = threading.RLock()  # a builder may place a graph of its own
        self._child: _PlacerChild | None = None
        self._unavailable: PlacerUnavailable | None = None
        atexit.register(self.stop)

    @property
    def pid(self) -> int | None:
        """The ID of the idle process; None if no process is idle."""
        return None if self._child is None else self._child.pid

    @property
    def isolation(self) -> Isolation | None:
        """The isolation of the idle process; None before its first request, or if none is idle."""
        return None if self._child is None else self._child.isolation

    def start(self) -> None:
        """Start the process in the background, to have it ready for the first request."""
        with self._lock:
            self._child = self._running()

    @contextlib.contextmanager
    def send(self, request: Request) -> Iterator[Callable[[], Mapping[str, str]]]:
        """Send a graph to the placer; the block may do other work before it calls the result.

        Only one thread at a time can be in the block.

        Yields:
            A function that waits for the answer: the device of every placed node.

        Raises:
            GraphRefused: the placer's own error, when the block calls the result.
            PlacerUnavailable: this installation has no usable placer.
            PlacerError: the process died or hung, its answer contradicts itself, or the graph
                needs more than the available memory; the next request gets a new process.
        """
        with self._lock:
            if self._unavailable is not None:
                raise self._unavailable
            self._check_memory(request.ops)
            child, self._child = self._running(), None
            with contextlib.ExitStack() as unanswered:
                unanswered.callback(child.end)
                try:
                    child.send(request)
                except PlacerUnavailable as reason:
                    self._unavailable = reason
                    raise
                limit = request.limit
                del request  # its graph may be large
                yield partial(self._answer, child, limit, unanswered)

    def _answer(
        self, child: _PlacerChild, limit: float, unanswered: contextlib.ExitStack
    ) -> Mapping[str, str]:
        """Receive the answer of a process, which is reused for the next request."""
        reply, blobs = child.receive(limit)
        try:
            devices = logged_devices(b"".join(blobs).decode())
        except ValueError as error:
            raise _error(str(error)) from None
        unanswered.pop_all()
        if self._child is not None:  # from a request that was sent and answered meanwhile
            self._child.end()
        self._child = child
        if "refused" in reply:
            raise GraphRefused(reply["refused"])
        return devices

    def _check_memory(self, ops: int) -> None:
        """Check that a graph fits into memory; otherwise the kernel might kill any process."""
        needed, free = ops * _MEMORY_PER_OP, available_memory()
        if free is not None and max(free, _ALWAYS_ALLOWED_MEMORY) < needed:
            raise PlacerError(
                "the placer",
                f"needs at least {needed / 1e9:.1f} GB of memory for {ops:,} ops, but "
                f"only {free / 1e9:.1f} GB are free",
                "place it on a machine with more memory, or with fewer GPUs",
                is_predicate=True,
            )

    def stop(self) -> None:
        """End the process, if there is one."""
        child, self._child = self._child, None
        if child is not None:
            child.stop(_STOP_LIMIT)

    def _running(self) -> _PlacerChild:
        """Return the idle process, or a new one if none is idle or if a fork shares its pipes."""
        if self._child is not None:
            if self._child.is_own:
                return self._child
            self._child.end()
        return _PlacerChild(self._environment)


class _PlacerChild(Child):
    """The child process, and its protocol.

    Attributes:
        isolation: how the process is isolated; None before the first request.
    """

    def __init__(self, environment: dict[str, str]) -> None:
        super().__init__("placement_checks.placer.worker.main", environment=environment)
        self.isolation: Isolation | None = None
        self._requests = 0

    def send(self, request: Request) -> None:
        """Send a request.

        Raises:
            PlacerUnavailable: this installation has no usable placer.
            PlacerError: the process died, hung or failed.
        """
        if self.isolation is None:
            reply, _ = self.receive(START_LIMIT)
            if "unavailable" in reply:
                raise PlacerUnavailable(reply["unavailable"], reply["fix"])
            self.isolation = reply["isolation"]
        self._requests += 1
        header = {
            "number": self._requests,
            "types": sorted(request.types),
            "tasks": request.tasks,
            "soft": request.soft,
            "limit": request.limit,
        }
        with self._end_as_error(request.limit):
            protocol.write(self.requests, header, request.graph)

    def receive(self, limit: float) -> tuple[dict[str, Any], list[bytes]]:
        """Receive the reply to the last request.

        Raises:
            PlacerError: the process died, hung, failed or answered another request.
        """
        with self._end_as_error(limit):
            reply, blobs = protocol.read(self.replies)
            if reply["number"] != self._requests:
                what = f"answered request {reply['number']} instead of {self._requests}"
                raise _error(what, is_predicate=True)
            if "failed" in reply:
                raise _error(reply["failed"], self.last_output(), reply["fix"])
        return reply, blobs

    @contextlib.contextmanager
    def _end_as_error(self, limit: float) -> Iterator[None]:
        """Raise a `PlacerError` if the process ends or exceeds the limit in this block."""
        try:
            with self.time_limit(limit + _PIPE_LIMIT):
                yield
        except Ended as ended:
            raise _error(ended.how, ended.output, is_predicate=True) from None


def _error(
    what: str, details: str = "", fix: str = "", *, is_predicate: bool = False
) -> PlacerError:
    return PlacerError(
        "the placer",
        what,
        fix or "run it again, which starts a new process; if that fails too, report this graph",
        details=details,
        is_predicate=is_predicate,
    )


# Neither a name nor an op type contains a space. Other lines list the devices of a session.
_PLACED = re.compile(r"^([^ \n]+): \([^ \n]+\): (/.+)$", re.MULTILINE)


def logged_devices(log: str) -> Mapping[str, str]:
    """Parse the placer's log: the device of each node, by the node's name.

    With ``log_device_placement`` the placer prints a line ``NODE: (OP TYPE): DEVICE`` for each
    node (core/common_runtime/placer.cc). The log may lack nodes; `check_answer` compares it with
    the graph. `placement_checks.logs` reads users' logs, which also contain other output.

    Raises:
        ValueError: the log has two devices for a node.
    """
    devices: dict[str, str] = {}
    shared: dict[str, str] = {}  # one text for all nodes of a device
    for match in _PLACED.finditer(log):
        node, device = match.groups()
        if devices.setdefault(node, shared.setdefault(device, device)) != device:
            raise ValueError(f"placed '{node}' on {devices[node]} and on {device}")
    return devices


phantom = PlacerProcess(
    {
        "CUDA_VISIBLE_DEVICES": "-1",
        "MALLOC_ARENA_MAX": "1",  # further arenas would not free their memory: 12 % of the peak
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "TF_XLA_FLAGS": "",  # XLA clusters would hide ops from the placer
        "no_grpc_proxy": "127.0.0.1,localhost",  # gRPC uses proxies even for loopback
    },
)
