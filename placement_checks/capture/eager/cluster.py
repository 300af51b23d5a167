"""Simulates the cluster of a multi-process strategy in a single process.

`simulate_worker`: `MultiWorkerMirroredStrategy` normally starts a server and waits for the other
workers. Here the strategy starts no server, and its devices name no task. Collectives still have
the group size and keys of the whole cluster, so that they match collectives of the other workers.

`simulate_coordinator`: `ParameterServerStrategy` normally connects to its cluster, and a
`ClusterCoordinator` schedules functions on the workers. Here the strategy opens no connection.
Logical CPU devices simulate the parameter servers; they follow the devices that simulate GPUs.
This process is also the first worker, and executes scheduled functions at once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from placement_checks.core.cluster_spec import RecordedServer, check_environment
from placement_checks.core.devices import LOCALHOST, Device
from placement_checks.core.errors import InputError
from placement_checks.tf.distribution import (
    as_chief,
    cluster_resolver,
    forget_default_device,
    has_eager_runtime_started,
    set_cluster_size,
    set_worker_gpus,
    use_host_as_worker,
)
from placement_checks.tf.distribution import make_closure as scheduled
from placement_checks.tf.patches import Patch
from placement_checks.tf.patching import Around, all_patched, patched
from placement_checks.util.text import plural


@contextlib.contextmanager
def simulate_worker() -> Iterator[list[RecordedServer]]:
    """Simulate the other workers in this block: results that need them are computed locally.

    Yields:
        A list that receives the server that the worker would start.

    Raises:
        InputError: in the block, if TF_CONFIG does not name the task of this worker.
    """
    servers: list[RecordedServer] = []
    had_begun = has_eager_runtime_started()

    def wrap_configure(original: Callable[..., None]) -> Callable[..., None]:
        def configure(*args: Any, **kwargs: Any) -> None:
            if not had_begun and has_eager_runtime_started():
                original(*args, **kwargs)  # raises, because the program ran ops before

        return configure

    def wrap_start(original: Callable[..., None]) -> Callable[..., None]:
        def start(extended: Any, resolver: Any) -> None:
            job, task = resolver.task_type, resolver.task_id
            if job is not None and task is not None:  # otherwise the original raises
                servers.append(RecordedServer.from_spec(resolver.cluster_spec(), job, task))
            original(extended, resolver)
            forget_default_device(extended)

        return start

    def wrap_devices(original: Callable[..., Any]) -> Callable[..., Any]:
        def devices(extended: Any, resolver: Any, worker_device: str) -> Any:
            if worker_device:
                use_host_as_worker(extended, str(LOCALHOST))
            return original(extended, resolver, "")

        return devices

    def if_eager(compute: Callable[..., Any]) -> Callable[..., Any]:
        """Compute the result of an eager collective locally. In functions, trace it."""

        def around(original: Callable[..., Any]) -> Callable[..., Any]:
            def collective(value: Any, size: Any, *args: Any, **kwargs: Any) -> Any:
                if servers and tf.executing_eagerly():
                    return compute(value, size)
                return original(value, size, *args, **kwargs)

            return collective

        return around

    patches: Mapping[Patch, Around] = {
        Patch.READ_TF_CONFIG: _check_tf_config,
        Patch.CONFIGURE_COLLECTIVES: wrap_configure,
        Patch.CONFIGURE_COORDINATION: _do_nothing,
        Patch.ENABLE_COLLECTIVES: _do_nothing,
        Patch.START_WORKER: wrap_start,
        Patch.WORKER_DEVICES: wrap_devices,
        Patch.FIRST_VALUE: _compute_first_value,
        Patch.CHECK_HEALTH: _do_nothing,
        Patch.BROADCAST_SEND: lambda _: lambda value, *_args, **_kwargs: tf.identity(value),
        Patch.ALL_REDUCE_OP: if_eager(lambda value, size: value * tf.cast(size, value.dtype)),
        Patch.ALL_GATHER_OP: if_eager(lambda value, size: tf.concat([value] * int(size), 0)),
    }
    with all_patched(patches):
        yield servers


def _check_tf_config(original: Callable[..., Any]) -> Callable[..., Any]:
    """Check TF_CONFIG before TensorFlow reads it."""

    def load() -> Any:
        check_environment()
        return original()

    return load


def _compute_first_value(original: Callable[..., Any]) -> Callable[..., Any]:
    """Patch the initial value of a variable: compute it, instead of receiving it from the chief.

    The value matters: programs read some variables before the step, such as a learning rate.
    """

    def maker(extended: Any, *args: Any, **kwargs: Any) -> Any:
        make = original(extended, *args, **kwargs)

        def make_as_chief() -> Any:
            with as_chief(extended):
                return make()

        return make_as_chief

    return maker


def _do_nothing(_: Callable[..., Any]) -> Callable[..., None]:
    return lambda *_args, **_kwargs: None


SERVERS, COORDINATOR = "ps", "/job:chief/task:0/device:CPU:0"
_COORDINATOR, _WORKER = "chief", "worker"


@contextlib.contextmanager
def simulate_coordinator(gpus: int, servers: list[RecordedServer]) -> Iterator[None]:
    """Simulate the servers and workers of a coordinator in this block.

    Each worker has ``gpus`` GPUs. ``servers`` receives the server of the coordinator.

    Raises:
        InputError: in the block, if there are too few logical CPU devices to simulate the
            parameter servers.
    """

    def replace_connect(_: Callable[..., None]) -> Callable[..., None]:
        def connect(strategy: Any, coordinator_name: str) -> None:
            spec = cluster_resolver(strategy).cluster_spec().as_dict()
            if _COORDINATOR not in spec:
                spec[coordinator_name] = ["coordinator.invalid:2222"]
            server = RecordedServer.from_spec(spec, coordinator_name, 0)
            _check_device_count(gpus, len(server.cluster[SERVERS]))
            servers.append(server)
            set_cluster_size(strategy, len(server.cluster[_WORKER]), len(server.cluster[SERVERS]))

        return connect

    def replace_count(_: Callable[..., None]) -> Callable[..., None]:
        return lambda extended: set_worker_gpus(extended, gpus)

    def replace_schedule(_: Callable[..., Any]) -> Callable[..., Any]:
        def schedule(cluster: Any, function: Any, args: Any, kwargs: Any) -> Any:
            closure, result = scheduled(cluster, function, args, kwargs)
            closure.execute_on(cluster.workers[0])
            return result

        return schedule

    def replace_create(_: Callable[..., None]) -> Callable[..., None]:
        def create(worker: Any, closure: Any) -> None:
            if worker.worker_index == 0:
                closure.execute_on(worker)

        return create

    def wrap_scope(scope: Callable[..., Any]) -> Callable[..., Any]:
        return lambda self, name: scope(self, _simulated_device(name, gpus) if servers else name)

    with (
        patched(Patch.CONNECT, replace_connect),
        patched(Patch.COUNT_WORKER_GPUS, replace_count),
        patched(Patch.SCHEDULE, replace_schedule),
        patched(Patch.CREATE_RESOURCE, replace_create),
        patched(Patch.PROCESS_QUEUE, _do_nothing),
        patched(Patch.PREEMPTION, _do_nothing),
        patched(Patch.EAGER_CLUSTER_SCOPE, wrap_scope),
        patched(Patch.GRAPH_CLUSTER_SCOPE, wrap_scope),
    ):
        yield


def cluster_device(device: Device, gpus: int) -> Device:
    """Convert a device of this process to a device of the cluster.

    GPUs beyond the first ``gpus`` simulate parameter servers. All other devices belong to the
    first worker.
    """
    if device.is_gpu and (device.index or 0) >= gpus:
        return Device(SERVERS, task=(device.index or 0) - gpus, type="CPU", index=0)
    return device.over(Device(_WORKER, task=0))


def _simulated_device(name: Any, gpus: int) -> Any:
    """Convert a device of the cluster to the device of this process that simulates it."""
    if not isinstance(name, str) or "/job:" not in name:
        return name
    device = Device.parse(name)
    if device.job == SERVERS:
        return str(Device("localhost", 0, 0, "CPU", 1 + gpus + (device.task or 0)))
    if device.job in (_WORKER, _COORDINATOR):
        return str(Device(type=device.type, index=device.index).over(LOCALHOST))
    return name


def _check_device_count(gpus: int, servers: int) -> None:
    host = tf.config.list_physical_devices("CPU")[0]
    present = len(tf.config.get_logical_device_configuration(host) or [None])
    if present < 1 + gpus + servers:
        raise InputError(
            "ParameterServerStrategy",
            f"has {plural(servers, 'server')}, but their number was unknown when TensorFlow "
            "started",
            f'name the cluster: --machine "chief*1; ps*{servers}; worker*2: gpu*{gpus}"',
            is_predicate=True,
        )
