"""The coordinator of parameter servers, watched without any server or worker.

`ParameterServerStrategy` connects to its cluster, and a `ClusterCoordinator` hands functions to
the workers. Here it connects to nobody: a logical CPU of this process stands in for each server,
behind those that stand in for GPUs, and the first worker is this process, which runs what is
scheduled at once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from placement_checks.core.devices import LOCALHOST, Device
from placement_checks.core.errors import InputError
from placement_checks.core.recorded_server import RecordedServer
from placement_checks.loading.tf_internals.eager_devices import around_eager_devices
from placement_checks.loading.tf_internals.patching import patched
from placement_checks.loading.tf_internals.workers import (
    around_coordinators,
    around_parameter_servers,
    resolver_of,
    scheduled,
    set_connected,
    set_worker_gpus,
)
from placement_checks.util.text import plural

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
            spec = resolver_of(strategy).cluster_spec().as_dict()
            if _COORDINATOR not in spec:
                spec[coordinator_name] = ["coordinator.invalid:2222"]
            server = RecordedServer.of(spec, coordinator_name, 0)
            _check_stand_ins(gpus, len(server.cluster[SERVERS]))
            servers.append(server)
            set_connected(strategy, len(server.cluster[_WORKERS]), len(server.cluster[SERVERS]))

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
