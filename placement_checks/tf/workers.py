"""Strategies over several processes, and what they start to reach one another."""

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


def around_start_of_worker(configure: Around, serve: Around) -> Patched:
    """Patch what makes this process a task of a cluster.

    Args:
        configure: takes the eager context, which must not have begun; and others.
        serve: starts a server, and waits for those of the other tasks.
    """
    context = existing_in("tensorflow.python.eager.context", "Context")
    methods = {
        "configure_collective_ops": configure,
        "configure_coordination_service": serve,
        "enable_collective_ops": serve,
    }
    return all_patched(context, methods)


def has_begun() -> bool:
    """Whether the eager runtime of this process has started."""
    return existing(eager_context(), "_context_handle") is not None


def around_worker_strategies(
    start: Around, devices: Around, first_value: Around, watch: Around
) -> Patched:
    """Patch how `MultiWorkerMirroredStrategy` becomes that of a worker.

    Args:
        start: takes the resolver of the cluster.
        devices: gives the names of the worker's devices and their type; takes the resolver, and
            the name of the worker.
        first_value: gives the function that makes what a variable begins with.
        watch: starts to ask whether the other workers live.
    """
    methods = {
        "_initialize_multi_worker": start,
        "_initialize_local_devices": devices,
        "_get_variable_creator_initial_value": first_value,
        "_start_check_health_thread": watch,
    }
    return all_patched(existing_in(_STRATEGY, "CollectiveAllReduceExtended"), methods)


def around_environment(around: Around) -> Patched:
    """Patch what reads TF_CONFIG for strategies and estimators."""
    resolver = "tensorflow.python.distribute.cluster_resolver.tfconfig_cluster_resolver"
    return patched(existing_module(resolver), "_load_tf_config", around)


def make_local(extended: Any, host: str) -> None:
    """Let the strategy of a worker take its devices for those of a host without a cluster."""
    existing(extended, "_worker_device")
    extended._worker_device = host


@contextlib.contextmanager
def as_chief(extended: Any) -> Iterator[None]:
    """Let the strategy of a worker take it for the one that sends first values to the others."""
    is_chief = existing(extended, "_is_chief")
    extended._is_chief = True
    try:
        yield
    finally:
        extended._is_chief = is_chief


def forget_default_device(extended: Any) -> None:
    """Let a strategy's scope name no task."""
    existing(extended, "_default_device")
    extended._default_device = None


def around_collectives(functions: Mapping[str, Around]) -> Patched:
    """Patch the functions that make collectives, such as ``all_reduce_v2``."""
    return all_patched(existing_module("tensorflow.python.ops.collective_ops"), functions)


_STRATEGY = "tensorflow.python.distribute.collective_all_reduce_strategy"


@contextlib.contextmanager
def around_parameter_servers(connect: Around, count_gpus: Around) -> Iterator[None]:
    """Patch how `ParameterServerStrategy` reaches its cluster.

    Args:
        connect: takes the strategy and the name of the coordinator's job.
        count_gpus: takes the strategy's extended, and notes how many GPUs a worker has.
    """
    module = "tensorflow.python.distribute.parameter_server_strategy_v2"
    strategy = existing_in(module, "ParameterServerStrategyV2")
    extended = existing_in(module, "ParameterServerStrategyV2Extended")
    with (
        patched(strategy, "_connect_to_cluster", connect),
        patched(extended, "_set_num_gpus", count_gpus),
    ):
        yield


def resolver_of(strategy: Any) -> Any:
    """What tells a `ParameterServerStrategy` its cluster."""
    return existing(strategy, "_cluster_resolver")


def set_connected(strategy: Any, workers: int, servers: int) -> None:
    """Let a `ParameterServerStrategy` have so many tasks."""
    strategy._num_workers, strategy._num_ps = workers, servers


def set_worker_gpus(extended: Any, gpus: int) -> None:
    """Let each worker of a `ParameterServerStrategy` have so many GPUs."""
    extended._num_gpus_per_worker = gpus


@contextlib.contextmanager
def around_coordinators(schedule: Around, create: Around, wait: Around) -> Iterator[None]:
    """Patch how a `ClusterCoordinator` lets its workers run functions.

    Args:
        schedule: takes the cluster, a function, and its arguments.
        create: takes a worker, and what makes a resource for it.
        wait: what threads of the coordinator do until there is something for workers to do, or
            one of them fails.
    """
    module = _COORDINATOR
    worker = existing_in(module, "Worker")
    with (
        patched(existing_in(module, "Cluster"), "schedule", schedule),
        patched(worker, "_schedule_resource", create),
        patched(worker, "_process_queue", wait),
        patched(existing_in(module, "WorkerPreemptionHandler"), "_preemption_handler", wait),
    ):
        yield


def schedule(cluster: Any, function: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """What a coordinator makes of a function that it schedules, and of its result."""
    cancel = existing(existing(cluster, "closure_queue"), "_cancellation_mgr")
    closure = existing_in(_COORDINATOR, "Closure")(function, cancel, args=args, kwargs=kwargs)
    return closure, closure.build_output_remote_value()


_COORDINATOR = "tensorflow.python.distribute.coordinator.cluster_coordinator"
