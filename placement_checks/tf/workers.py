"""Strategies over several processes, and how they connect to their cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from placement_checks.tf.patching import (
    Around,
    Patched,
    all_patched,
    eager_context,
    existing,
    existing_in,
    existing_module,
    patched,
)

_MULTI_WORKER = "tensorflow.python.distribute.collective_all_reduce_strategy"
_PARAMETER_SERVER = "tensorflow.python.distribute.parameter_server_strategy_v2"
_COORDINATOR = "tensorflow.python.distribute.coordinator.cluster_coordinator"


def has_eager_runtime_started() -> bool:
    """Whether the eager runtime of this process has started."""
    return existing(eager_context(), "_context_handle") is not None


def around_tf_config(around: Around) -> Patched:
    """Patch the function that reads TF_CONFIG for strategies and estimators."""
    resolver = "tensorflow.python.distribute.cluster_resolver.tfconfig_cluster_resolver"
    return patched(existing_module(resolver), "_load_tf_config", around)


def around_worker_start(configure: Around, serve: Around) -> Patched:
    """Patch the methods of the eager context that make this process a task of a cluster.

    Args:
        configure: patches the method that stores the configuration. Its first argument is the
            eager context, which must not have started.
        serve: patches the methods that start a server and wait for the servers of other tasks.
    """
    methods = {
        "configure_collective_ops": configure,
        "configure_coordination_service": serve,
        "enable_collective_ops": serve,
    }
    return all_patched(existing_in("tensorflow.python.eager.context", "Context"), methods)


def around_worker_strategies(
    start: Around, devices: Around, first_value: Around, watch: Around
) -> Patched:
    """Patch how `MultiWorkerMirroredStrategy` sets up a worker.

    Args:
        start: patches the setup, which receives the cluster resolver.
        devices: patches the choice of the worker's devices, which receives the cluster resolver
            and the worker's name, and returns the devices' names and type.
        first_value: patches the method that returns the initializer of a variable.
        watch: patches the start of the health checks of other workers.
    """
    methods = {
        "_initialize_multi_worker": start,
        "_initialize_local_devices": devices,
        "_get_variable_creator_initial_value": first_value,
        "_start_check_health_thread": watch,
    }
    return all_patched(existing_in(_MULTI_WORKER, "CollectiveAllReduceExtended"), methods)


def use_host_as_worker(extended: Any, host: str) -> None:
    """Let a worker's strategy use the devices of a host without a cluster."""
    existing(extended, "_worker_device")
    extended._worker_device = host


@contextlib.contextmanager
def as_chief(extended: Any) -> Iterator[None]:
    """Let a worker's strategy act as the chief, which sends initial values, in this block."""
    is_chief = existing(extended, "_is_chief")
    extended._is_chief = True
    try:
        yield
    finally:
        extended._is_chief = is_chief


def forget_default_device(extended: Any) -> None:
    """Let a strategy's scope request no device."""
    existing(extended, "_default_device")
    extended._default_device = None


def around_collectives(functions: Mapping[str, Around]) -> Patched:
    """Patch functions, by name, that create collectives, such as ``all_reduce_v2``."""
    return all_patched(existing_module("tensorflow.python.ops.collective_ops"), functions)


@contextlib.contextmanager
def around_parameter_servers(connect: Around, count_gpus: Around) -> Iterator[None]:
    """Patch how `ParameterServerStrategy` connects to its cluster.

    Args:
        connect: patches the connection; receives the strategy and the coordinator's job name.
        count_gpus: patches the query for GPUs per worker; receives the strategy's extended.
    """
    strategy = existing_in(_PARAMETER_SERVER, "ParameterServerStrategyV2")
    extended = existing_in(_PARAMETER_SERVER, "ParameterServerStrategyV2Extended")
    with (
        patched(strategy, "_connect_to_cluster", connect),
        patched(extended, "_set_num_gpus", count_gpus),
    ):
        yield


def cluster_resolver(strategy: Any) -> Any:
    """The cluster resolver of a `ParameterServerStrategy`."""
    return existing(strategy, "_cluster_resolver")


def set_cluster_size(strategy: Any, workers: int, servers: int) -> None:
    """Set the numbers of workers and parameter servers of a `ParameterServerStrategy`."""
    strategy._num_workers, strategy._num_ps = workers, servers


def set_worker_gpus(extended: Any, gpus: int) -> None:
    """Set the number of GPUs of each worker of a `ParameterServerStrategy`."""
    extended._num_gpus_per_worker = gpus


@contextlib.contextmanager
def around_coordinators(schedule: Around, create: Around, wait: Around) -> Iterator[None]:
    """Patch how a `ClusterCoordinator` runs functions on workers.

    Args:
        schedule: patches scheduling; receives the cluster, a function, and its arguments.
        create: patches the creation of a per-worker resource; receives the worker and the
            function that creates the resource.
        wait: patches the loops of the coordinator's threads, which wait for scheduled functions
            and for failures of workers.
    """
    worker = existing_in(_COORDINATOR, "Worker")
    preemption = existing_in(_COORDINATOR, "WorkerPreemptionHandler")
    with (
        patched(existing_in(_COORDINATOR, "Cluster"), "schedule", schedule),
        patched(worker, "_schedule_resource", create),
        patched(worker, "_process_queue", wait),
        patched(preemption, "_preemption_handler", wait),
    ):
        yield


def make_closure(cluster: Any, function: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Create the closure of a scheduled function, and the remote value of its result."""
    cancel = existing(existing(cluster, "closure_queue"), "_cancellation_mgr")
    closure = existing_in(_COORDINATOR, "Closure")(function, cancel, args=args, kwargs=kwargs)
    return closure, closure.build_output_remote_value()
