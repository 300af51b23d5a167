"""One worker of a strategy over several processes, watched while the others are not there.

`MultiWorkerMirroredStrategy` starts a server, and waits for those of the others. Here it starts
none and names no task: it takes the worker for a host of its own. The sizes and keys of its sums
are those of the whole cluster, so that they can be matched with those of the other workers.

The coordinator of parameter servers, watched without any server or worker.

`ParameterServerStrategy` connects to its cluster, and a `ClusterCoordinator` hands functions to
the workers. Here it connects to nobody: a logical CPU of this process stands in for each server,
behind those that stand in for GPUs, and the first worker is this process, which runs what is
scheduled at once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from placement_checks.core.cluster_spec import RecordedServer, check_environment
from placement_checks.core.devices import LOCALHOST, Device
from placement_checks.core.errors import InputError
from placement_checks.tf.eager import around_eager_devices
from placement_checks.tf.patching import Around, patched
from placement_checks.tf.workers import (
    around_collectives,
    around_coordinators,
    around_parameter_servers,
    around_tf_config,
    around_worker_start,
    around_worker_strategies,
    as_chief,
    cluster_resolver,
    forget_default_device,
    has_eager_runtime_started,
    set_cluster_size,
    set_worker_gpus,
    use_host_as_worker,
)
from placement_checks.tf.workers import make_closure as scheduled
from placement_checks.util.text import plural


@contextlib.contextmanager
def workers_alone() -> Iterator[list[RecordedServer]]:
    """Let a worker train alone in this block; what it would wait for is made up.

    Yields:
        The servers that workers would start.

    Raises:
        InputError: in the block, where TF_CONFIG does not say which worker this is.
    """
    servers: list[RecordedServer] = []
    had_begun = has_eager_runtime_started()

    def configuring(original: Callable[..., None]) -> Callable[..., None]:
        def configure(*args: Any, **kwargs: Any) -> None:
            if not had_begun and has_eager_runtime_started():
                original(*args, **kwargs)  # refuses: the program ran ops before

        return configure

    def starting(original: Callable[..., None]) -> Callable[..., None]:
        def start(extended: Any, resolver: Any) -> None:
            job, task = resolver.task_type, resolver.task_id
            if job is not None and task is not None:  # else TensorFlow says so
                servers.append(RecordedServer.of(resolver.cluster_spec(), job, task))
            original(extended, resolver)
            forget_default_device(extended)

        return start

    def on_host(original: Callable[..., Any]) -> Callable[..., Any]:
        def devices(extended: Any, resolver: Any, worker_device: str) -> Any:
            if worker_device:
                use_host_as_worker(extended, str(LOCALHOST))
            return original(extended, resolver, "")

        return devices

    def of_whole_cluster(makes_up: Callable[..., Any]) -> Callable[..., Any]:
        """A collective of eager code, whose others are not there; in functions it is traced."""

        def around(original: Callable[..., Any]) -> Callable[..., Any]:
            def make(value: Any, size: Any, *args: Any, **kwargs: Any) -> Any:
                if servers and tf.executing_eagerly():
                    return makes_up(value, size)
                return original(value, size, *args, **kwargs)

            return make

        return around

    collectives: Mapping[str, Around] = {
        "broadcast_send": lambda _: lambda value, *_args, **_kwargs: tf.identity(value),
        "all_reduce_v2": of_whole_cluster(lambda value, size: value * tf.cast(size, value.dtype)),
        "all_gather_v2": of_whole_cluster(lambda value, size: tf.concat([value] * int(size), 0)),
    }
    with (
        around_tf_config(_checked),
        around_worker_start(configuring, _nothing),
        around_worker_strategies(starting, on_host, _own_first_value, _nothing),
        around_collectives(collectives),
    ):
        yield servers


def _checked(original: Callable[..., Any]) -> Callable[..., Any]:
    """What reads TF_CONFIG, which is checked before."""

    def load() -> Any:
        check_environment()
        return original()

    return load


def _own_first_value(original: Callable[..., Any]) -> Callable[..., Any]:
    """What gives the function for a variable's first value: not what the chief would send.

    The value is read before the step where it is a number of steps, or a rate.
    """

    def maker(extended: Any, *args: Any, **kwargs: Any) -> Any:
        make = original(extended, *args, **kwargs)

        def made() -> Any:
            with as_chief(extended):
                return make()

        return made

    return maker


def _nothing(_: Callable[..., Any]) -> Callable[..., None]:
    return lambda *_args, **_kwargs: None


SERVERS, COORDINATOR = "ps", "/job:chief/task:0/device:CPU:0"
_COORDINATOR, _WORKERS = "chief", "worker"


@contextlib.contextmanager
def coordinator_alone(gpus: int, servers: list[RecordedServer]) -> Iterator[None]:
    """Let a coordinator train alone in this block.

    Args:
        gpus: how many each worker has.
        servers: where the coordinator's own is noted.

    Raises:
        InputError: in the block, where too few logical CPUs stand in for the parameter servers.
    """

    def connecting(_: Callable[..., None]) -> Callable[..., None]:
        def connect(strategy: Any, coordinator_name: str) -> None:
            spec = cluster_resolver(strategy).cluster_spec().as_dict()
            if _COORDINATOR not in spec:
                spec[coordinator_name] = ["coordinator.invalid:2222"]
            server = RecordedServer.of(spec, coordinator_name, 0)
            _check_stand_ins(gpus, len(server.cluster[SERVERS]))
            servers.append(server)
            set_cluster_size(strategy, len(server.cluster[_WORKERS]), len(server.cluster[SERVERS]))

        return connect

    def counting(_: Callable[..., None]) -> Callable[..., None]:
        return lambda extended: set_worker_gpus(extended, gpus)

    def scheduling(_: Callable[..., Any]) -> Callable[..., Any]:
        def schedule(cluster: Any, function: Any, args: Any, kwargs: Any) -> Any:
            closure, result = scheduled(cluster, function, args, kwargs)
            closure.execute_on(cluster.workers[0])
            return result

        return schedule

    def creating(_: Callable[..., None]) -> Callable[..., None]:
        def create(worker: Any, closure: Any) -> None:
            if worker.worker_index == 0:
                closure.execute_on(worker)

        return create

    def on_stand_ins(scope: Callable[..., Any]) -> Callable[..., Any]:
        return lambda self, name: scope(self, _stand_in(name, gpus) if servers else name)

    with (
        around_parameter_servers(connecting, counting),
        around_coordinators(scheduling, creating, lambda _: lambda *_args: None),
        around_eager_devices(on_stand_ins),
        patched(tf.Graph, "device", on_stand_ins),
    ):
        yield


def of_task(device: Device, gpus: int) -> Device:
    """What a device of this process is in the cluster: a server's, or of the first worker.

    Args:
        device: as on a machine with GPUs, where servers' devices are GPUs behind the others.
        gpus: how many each worker has.
    """
    if device.is_gpu and (device.index or 0) >= gpus:
        return Device(SERVERS, task=(device.index or 0) - gpus, type="CPU", index=0)
    return device.over(Device(_WORKERS, task=0))


def _stand_in(name: Any, gpus: int) -> Any:
    """The device of this process for one of a task."""
    if not isinstance(name, str) or "/job:" not in name:
        return name
    device = Device.parse(name)
    if device.job == SERVERS:
        return str(Device("localhost", 0, 0, "CPU", 1 + gpus + (device.task or 0)))
    if device.job in (_WORKERS, _COORDINATOR):
        return str(Device(type=device.type, index=device.index).over(LOCALHOST))
    return name


def _check_stand_ins(gpus: int, servers: int) -> None:
    present = len(tf.config.get_logical_device_configuration(_host()) or [None])
    if present < 1 + gpus + servers:
        raise InputError(
            "ParameterServerStrategy",
            f"has {plural(servers, 'server')}, of which nothing was known before it was made",
            f'name the cluster: --machine "chief*1; ps*{servers}; worker*2: gpu*{gpus}"',
        )


def _host() -> Any:
    return tf.config.list_physical_devices("CPU")[0]
