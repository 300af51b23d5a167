"""TensorFlow's placer for GPUs that do not exist. Runs in the placer process only.

The placer is part of TensorFlow's server (the "master"), and needs a cluster of workers with
devices. `GpuLessServer` runs a real master, and one gRPC server per list of devices as a worker.
These servers answer only one question: which devices they have. The master places the whole graph
when a session is created, and logs the device of every node. No step runs, so no worker receives
any part of the graph.

In reports, this placer is called ``phantom``.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import ctypes
import re
from collections.abc import Iterator
from typing import Any, cast

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from tensorflow.core.framework import device_attributes_pb2
from tensorflow.core.protobuf import config_pb2, tensorflow_server_pb2
from tensorflow.python.client import pywrap_tf_session

from placement_checks.placer.worker.protocol import Failed, GraphRefused
from placement_checks.tf import c_library
from placement_checks.util import loopback
from placement_checks.util.streams import redirected, unnamed_file

# This name sorts after every job of a program: an op without a requested device is placed on the
# first device by name, which must not be the master's CPU.
MASTER_JOB = "zzz_placement_checks_master"
_BOOT_JOB = "placement_checks_boot"
# The master's own device in the placer's lists of available devices, which users should not see.
_MASTER = re.compile(rf",? ?/job:{MASTER_JOB}/replica:0/task:0/device:CPU:0(?:, (?=/))?")
_UNLIMITED = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.enable_http_proxy", 0),
]
# The connection to the master is never reopened, because its port drops later connections.
_NEVER_MS = (1 << 31) - 1  # milliseconds
_CONNECT_ONCE = [
    ("grpc.client_idle_timeout_ms", _NEVER_MS),
    ("grpc.initial_reconnect_backoff_ms", _NEVER_MS),
    ("grpc.min_reconnect_backoff_ms", _NEVER_MS),
]
_CONNECT_LIMIT = 60.0  # seconds
# These codes are not errors of the placer: the master has ended, is late, or is out of memory.
_NO_ANSWER = {
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.UNAVAILABLE,
}
_LARGE = 1 << 22  # bytes of a graph; about 20,000 ops
_MEMORY_LIMIT = 1 << 34  # bytes; the placer ignores the value, but refuses 0

Devices = tuple[tuple[str, int], ...]


class GpuLessServer:
    """Places graphs with one master, and one worker for each distinct list of devices."""

    def __init__(self, *, is_filtered: bool) -> None:
        """Start the master.

        Args:
            is_filtered: whether its port drops the connections of other processes.

        Raises:
            Failed: another process connected first, or this process could not connect.
            OSError: the kernel refuses the filter.
        """
        boot = tensorflow_server_pb2.ServerDef(
            protocol="grpc",
            job_name=_BOOT_JOB,
            default_session_config=config_pb2.ConfigProto(device_count={"GPU": 0}),
        )
        boot.cluster.job.add(name=_BOOT_JOB, tasks={0: "127.0.0.1:0"})
        self._server = pywrap_tf_session.TF_NewServer(boot.SerializeToString())
        target = pywrap_tf_session.TF_ServerTarget(self._server)
        self._master = target.removeprefix("grpc://")
        self._channel = grpc.insecure_channel(self._master, options=_UNLIMITED + _CONNECT_ONCE)
        ready = grpc.channel_ready_future(self._channel)
        port = int(self._master.rpartition(":")[2])
        if is_filtered:
            try:
                loopback.reserve(port, _CONNECT_LIMIT)
            except ConnectionError as error:
                raise Failed(str(error)) from None
        pywrap_tf_session.TF_ServerStart(self._server)  # from now on, the master answers
        ready.result(timeout=_CONNECT_LIMIT)
        self._workers: dict[Devices, _Worker] = {}

    @contextlib.contextmanager
    def place(
        self, graph: bytes, types: list[str], tasks: list[Any], soft: bool, limit: float
    ) -> Iterator[bytes]:
        """Yield the placer's log for a graph; leaving the block closes the session.

        Args:
            graph: a serialized GraphDef.
            types: the types of the ops in the graph.
            tasks: ``[job, index, [[device type, count], …]]`` for every task.
            soft: whether soft placement is on.
            limit: seconds for each call of the master.

        Raises:
            GraphRefused: the placer's own error.
            Failed: the master gave no answer.
        """
        c_library.provide_kernels(types)
        cluster: dict[str, dict[int, str]] = {MASTER_JOB: {0: self._master}}
        devices_of = {(job, task): tuple(map(tuple, listed)) for job, task, listed in tasks}
        self._set_workers({*devices_of.values()})
        for (job, task), devices in devices_of.items():
            cluster.setdefault(job, {})[task] = self._workers[devices].address
        request = CreateSessionRequest(
            graph_def=graph, config=_config(cluster, soft), target=f"grpc://{self._master}"
        )
        is_large = len(graph) > _LARGE
        messages = iter([request.SerializeToString()])
        del graph, request  # which may be large
        with unnamed_file() as log:
            with redirected(1, log.fileno()):
                session = self._create_session(messages, limit)
            try:
                log.seek(0)
                yield log.read()
            finally:
                close = CloseSessionRequest(session_handle=session)
                self._call("CloseSession", iter([close.SerializeToString()]), limit)
                if is_large:  # otherwise memory use would grow with each graph
                    ctypes.CDLL(None).malloc_trim(0)

    def _create_session(self, messages: Iterator[bytes], limit: float) -> str:
        """Create a session, and return its handle."""
        try:
            answer = self._call("CreateSession", messages, limit)
        except grpc.RpcError as error:
            if error.code() in _NO_ANSWER:
                raise Failed(f"TensorFlow's master gave no answer: {error.details()}") from None
            raise GraphRefused(_MASTER.sub("", error.details())) from None
        return cast(str, CreateSessionResponse.FromString(answer).session_handle)

    def _set_workers(self, lists: set[Devices]) -> None:
        """Run a worker for each list of devices; workers of earlier graphs are reused or ended."""
        for devices in self._workers.keys() - lists:
            self._workers.pop(devices).stop()
        for devices in lists - self._workers.keys():
            self._workers[devices] = _Worker(devices)

    def _call(self, method: str, messages: Iterator[bytes], limit: float) -> bytes:
        """Call the master with one message.

        The message is sent as a stream, so that it is freed after sending; gRPC would keep a
        message of a unary call in memory until the answer. The server receives the same bytes.
        """
        call = self._channel.stream_unary(f"/tensorflow.MasterService/{method}")
        return cast(bytes, call(messages, timeout=limit))


class _Worker(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types
    """A worker that claims to have the given devices, and runs nothing.

    The master replaces the job and task in the names of devices, so one worker serves all tasks
    with the same devices.
    """

    def __init__(self, devices: Devices) -> None:
        names = [(kind, index) for kind, count in devices for index in range(count)]
        attributes = [
            device_attributes_pb2.DeviceAttributes(
                name=f"/job:phantom/replica:0/task:0/device:{kind}:{index}",
                device_type=kind,
                memory_limit=_MEMORY_LIMIT,
                incarnation=incarnation,
            )
            for incarnation, (kind, index) in enumerate(names, start=1)
        ]
        self._status: bytes = GetStatusResponse(device_attributes=attributes).SerializeToString()
        self._server = grpc.server(
            concurrent.futures.ThreadPoolExecutor(max_workers=4),
            handlers=[self],
            options=_UNLIMITED,
        )
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def stop(self) -> None:
        """Close the worker's port."""
        self._server.stop(None)

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        asks_devices = details.method.endswith("/GetStatus")
        answer = self._status if asks_devices else b""
        return grpc.unary_unary_rpc_method_handler(lambda _request, _context: answer)


def _config(cluster: dict[str, dict[int, str]], soft: bool) -> config_pb2.ConfigProto:
    config = config_pb2.ConfigProto(allow_soft_placement=soft, log_device_placement=True)
    for job, tasks in cluster.items():
        config.cluster_def.job.add(name=job, tasks=tasks)
    options = config.graph_options
    options.rewrite_options.disable_meta_optimizer = True
    options.optimizer_options.opt_level = config_pb2.OptimizerOptions.L0
    options.optimizer_options.global_jit_level = config_pb2.OptimizerOptions.OFF
    options.optimizer_options.do_function_inlining = True
    return config


_PACKAGE = "placement_checks_wire"
_Field = descriptor_pb2.FieldDescriptorProto
_STRING, _BYTES, _MESSAGE = _Field.TYPE_STRING, _Field.TYPE_BYTES, _Field.TYPE_MESSAGE
_ONE, _MANY = _Field.LABEL_OPTIONAL, _Field.LABEL_REPEATED

# Messages of TensorFlow's master and worker services (master.proto and worker.proto in
# tensorflow/core/protobuf), reduced to the fields that are needed here, with their numbers. The
# wheel ships no classes for them. The wire format has no type names, so any package name will do.
_MESSAGES: dict[str, list[tuple[str, int, Any, Any, str | None]]] = {
    "GetStatusResponse": [
        ("device_attributes", 1, _MANY, _MESSAGE, ".tensorflow.DeviceAttributes")
    ],
    "CreateSessionRequest": [
        ("graph_def", 1, _ONE, _BYTES, None),  # a GraphDef, which is not parsed here
        ("config", 2, _ONE, _MESSAGE, ".tensorflow.ConfigProto"),
        ("target", 3, _ONE, _STRING, None),
    ],
    "CreateSessionResponse": [("session_handle", 1, _ONE, _STRING, None)],
    "CloseSessionRequest": [("session_handle", 1, _ONE, _STRING, None)],
}


def _message_classes() -> dict[str, Any]:
    """Create the message classes, by name."""
    file = descriptor_pb2.FileDescriptorProto(
        name=f"{_PACKAGE}.proto",
        package=_PACKAGE,
        syntax="proto3",
        dependency=[module.DESCRIPTOR.name for module in (device_attributes_pb2, config_pb2)],
    )
    for message, fields in _MESSAGES.items():
        descriptor = file.message_type.add(name=message)
        for name, number, label, kind, type_name in fields:
            descriptor.field.add(
                name=name, number=number, label=label, type=kind, type_name=type_name
            )
    pool = descriptor_pool.Default()
    pool.AddSerializedFile(file.SerializeToString())
    # Before protobuf 4.22, which TensorFlow 2.15 accepts, GetMessageClass was a method.
    class_of = getattr(message_factory, "GetMessageClass", None) or (
        message_factory.MessageFactory(pool).GetPrototype
    )
    return {name: class_of(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in _MESSAGES}


_CLASSES = _message_classes()
CloseSessionRequest = _CLASSES["CloseSessionRequest"]
CreateSessionRequest = _CLASSES["CreateSessionRequest"]
CreateSessionResponse = _CLASSES["CreateSessionResponse"]
GetStatusResponse = _CLASSES["GetStatusResponse"]
