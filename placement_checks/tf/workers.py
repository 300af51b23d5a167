"""Strategies over several processes, and how they connect to their cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from placement_checks.tf.patching import eager_context, existing, existing_in

_COORDINATOR = "tensorflow.python.distribute.coordinator.cluster_coordinator"


def has_eager_runtime_started() -> bool:
    """Whether the eager runtime of this process has started."""
    return existing(eager_context(), "_context_handle") is not None


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


def cluster_resolver(strategy: Any) -> Any:
    """The cluster resolver of a `ParameterServerStrategy`."""
    return existing(strategy, "_cluster_resolver")


def set_cluster_size(strategy: Any, workers: int, servers: int) -> None:
    """Set the numbers of workers and parameter servers of a `ParameterServerStrategy`."""
    strategy._num_workers, strategy._num_ps = workers, servers


def set_worker_gpus(extended: Any, gpus: int) -> None:
    """Set the number of GPUs of each worker of a `ParameterServerStrategy`."""
    extended._num_gpus_per_worker = gpus


def make_closure(cluster: Any, function: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Create the closure of a scheduled function, and the remote value of its result."""
    cancel = existing(existing(cluster, "closure_queue"), "_cancellation_mgr")
    closure = existing_in(_COORDINATOR, "Closure")(function, cancel, args=args, kwargs=kwargs)
    return closure, closure.build_output_remote_value()
