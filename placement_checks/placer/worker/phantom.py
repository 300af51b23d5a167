"""TensorFlow's placer on devices that do not exist. Runs in the placer process only.

A real master (``tf.distribute.Server``) is given a cluster whose workers are this module: a gRPC
server that claims to have any devices. The master places and partitions the
graph and sends every worker its part; the part is kept, and the worker answers "aborted" before
anything runs.
"""

from __future__ import annotations

import concurrent.futures
import os
import re
from collections.abc import Iterator
from typing import Any, NoReturn, cast

import grpc
import tensorflow as tf
from tensorflow.core.framework import device_attributes_pb2
from tensorflow.core.protobuf import config_pb2

from placement_checks.placer.worker import grpc_messages
from placement_checks.placer.worker.refused import Failed, GraphRefused
from placement_checks.util import loopback

# Sorts after every job a program names: an op that may go anywhere goes to the first device by
# name, and must not end on the master.
MASTER_JOB = "zzz_placement_checks_master"
OPEN_PORT = "PLACEMENT_CHECKS_OPEN_PORT"  # set: leave the master's port open to everybody
_BOOT_JOB = "placement_checks_boot"
# In the placer's lists of available devices, where a user has no use for the master's own.
_MASTER = re.compile(rf",? ?/job:{MASTER_JOB}/replica:0/task:0/device:CPU:0(?:, (?=/))?")
_UNLIMITED = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.enable_http_proxy", 0),
]
# There is one connection to the master: its port is closed, and what listens there later is
# somebody else.
_NEVER_MS = (1 << 31) - 1  # milliseconds
_CONNECT_ONCE = [
    ("grpc.client_idle_timeout_ms", _NEVER_MS),
    ("grpc.initial_reconnect_backoff_ms", _NEVER_MS),
    ("grpc.min_reconnect_backoff_ms", _NEVER_MS),
]
_CONNECT_LIMIT = 60.0  # seconds
# Not errors of the placer: the master is gone, late, or out of memory.
_NO_ANSWER = {
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.UNAVAILABLE,
}
_MEMORY_LIMIT = 1 << 34  # bytes; the placer does not look at it, but 0 is refused

Devices = tuple[tuple[str, int], ...]


class Phantom:
    """One master, and one worker for each distinct list of devices of the last machine."""

    def __init__(self) -> None:
        hidden = config_pb2.ConfigProto(device_count={"GPU": 0})
        self._server = tf.distribute.Server(
            {_BOOT_JOB: ["127.0.0.1:0"]},
            job_name=_BOOT_JOB,
            task_index=0,
            config=hidden,
            start=False,
        )
        self._master = self._server.target.removeprefix("grpc://")
        self._channel = grpc.insecure_channel(self._master, options=_UNLIMITED + _CONNECT_ONCE)
        ready = grpc.channel_ready_future(self._channel)
        try:
            self._start(ready)
        except ConnectionError as error:
            raise Failed(str(error)) from None
        self._workers: dict[Devices, _Worker] = {}

    def _start(self, ready: Any) -> None:
        """Start the server so that only this process can connect to it."""
        number = int(self._master.rpartition(":")[2])
        is_shared = OPEN_PORT in os.environ
        if not is_shared:
            loopback.take(number, _CONNECT_LIMIT)
        self._server.start()  # only now, when the port is ours, does it answer
        ready.result(timeout=_CONNECT_LIMIT)
        if not is_shared:
            loopback.close(number)

    def place(
        self, graph: bytes, targets: list[str], tasks: list[Any], soft: bool, limit: float
    ) -> Iterator[tuple[str, str]]:
        """Every node of the placed and partitioned graph, with its device.

        Args:
            graph: a serialised GraphDef.
            targets: the names of its nodes; what none of them needs is pruned.
            tasks: ``[job, index, [[device type, count], …]]`` for every task.
            soft: whether an op may go elsewhere than it requests.
            limit: seconds for each call of the master.

        Raises:
            GraphRefused: the placer's own error.
            Failed: the master gave no answer.
        """
        cluster: dict[str, dict[int, str]] = {MASTER_JOB: {0: self._master}}
        workers = self._workers_of({_devices(devices) for _, _, devices in tasks})
        for job, index, devices in tasks:
            cluster.setdefault(job, {})[index] = workers[_devices(devices)].address
        session = self._session(graph, _config(cluster, soft), limit)
        for worker in workers.values():
            worker.expect(session)
        try:
            request = grpc_messages.RunStepRequest(session_handle=session, target=targets)
            self._call("RunStep", request.SerializeToString(), limit)
        except grpc.RpcError as error:
            if error.code() != grpc.StatusCode.ABORTED:
                _raise(error)
        finally:
            close = grpc_messages.CloseSessionRequest(session_handle=session)
            self._call("CloseSession", close.SerializeToString(), limit)
        for worker in workers.values():
            for graph_def in worker.parts():
                for node in graph_def.node:
                    yield node.name, node.device

    def _session(self, graph: bytes, config: config_pb2.ConfigProto, limit: float) -> str:
        """The handle of a new session of the master for a graph."""
        request = grpc_messages.CreateSessionRequest(
            graph_def=None, config=config, target=f"grpc://{self._master}"
        )
        # Appending the field by hand saves parsing the graph here: field 1, length-delimited.
        message = b"\x0a" + _varint(len(graph)) + graph + request.SerializeToString()
        try:
            answer = self._call("CreateSession", message, limit)
        except grpc.RpcError as error:
            _raise(error)
        return cast(str, grpc_messages.CreateSessionResponse.FromString(answer).session_handle)

    def _workers_of(self, lists: set[Devices]) -> dict[Devices, _Worker]:
        """A worker for each list of devices; those of the machine before are kept if they fit."""
        for devices in self._workers.keys() - lists:
            self._workers.pop(devices).stop()
        for devices in lists - self._workers.keys():
            self._workers[devices] = _Worker(devices)
        return self._workers

    def _call(self, method: str, message: bytes, limit: float) -> bytes:
        call = self._channel.unary_unary(f"/tensorflow.MasterService/{method}")
        return cast(bytes, call(message, timeout=limit))


class _Worker(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types
    """A worker that has the given devices and never runs anything.

    The master rewrites the job and task of the devices to those of the task, so one worker stands
    for every task that has these devices.
    """

    def __init__(self, devices: Devices) -> None:
        self._session: str | None = None
        self._parts: list[Any] = []
        attributes = [
            device_attributes_pb2.DeviceAttributes(
                name=f"/job:phantom/replica:0/task:0/device:{kind}:{index}",
                device_type=kind,
                memory_limit=_MEMORY_LIMIT,
            )
            for kind, count in devices
            for index in range(count)
        ]
        for incarnation, attribute in enumerate(attributes, start=1):
            attribute.incarnation = incarnation
        self._status: bytes = grpc_messages.GetStatusResponse(
            device_attributes=attributes
        ).SerializeToString()
        self._server = grpc.server(
            concurrent.futures.ThreadPoolExecutor(max_workers=4),
            handlers=[self],
            options=_UNLIMITED,
        )
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def expect(self, session: str) -> None:
        """Keep the graphs of this session from now on, and no other's.

        Only the master knows its handle, and any user of this machine can reach a worker.
        """
        self._session, self._parts = session, []

    def parts(self) -> list[Any]:
        """The GraphDefs that have come; none is kept any longer."""
        parts = self._parts
        self._session, self._parts = None, []
        return parts

    def stop(self) -> None:
        """Close its port."""
        self._server.stop(None)

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        method = details.method.rpartition("/")[2]
        return grpc.unary_unary_rpc_method_handler(
            {"GetStatus": self._get_status, "RegisterGraph": self._register}.get(
                method, lambda _request, _context: b""
            )
        )

    def _get_status(self, _request: bytes, _context: grpc.ServicerContext) -> bytes:
        return self._status

    def _register(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        part = grpc_messages.RegisterGraphRequest.FromString(request)
        if part.session_handle == self._session:
            self._parts.append(part.graph_def)
        context.abort(grpc.StatusCode.ABORTED, "kept, not run")
        raise AssertionError  # abort() does not return


def _devices(listed: list[list[Any]]) -> Devices:
    return tuple((kind, count) for kind, count in listed)


def _raise(error: grpc.RpcError) -> NoReturn:
    """Tell the placer's own error from a call that it did not answer."""
    if error.code() in _NO_ANSWER:
        raise Failed(f"TensorFlow's master gave no answer: {error.details()}") from None
    raise GraphRefused(_MASTER.sub("", error.details())) from None


def _config(cluster: dict[str, dict[int, str]], soft: bool) -> config_pb2.ConfigProto:
    config = config_pb2.ConfigProto(allow_soft_placement=soft)
    for job, tasks in cluster.items():
        config.cluster_def.job.add(name=job, tasks=tasks)
    options = config.graph_options
    options.rewrite_options.disable_meta_optimizer = True
    options.optimizer_options.opt_level = config_pb2.OptimizerOptions.L0
    options.optimizer_options.global_jit_level = config_pb2.OptimizerOptions.OFF
    options.optimizer_options.do_function_inlining = True
    return config


def _varint(number: int) -> bytes:
    """The base-128 varint that protobuf writes before a length-delimited field."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
