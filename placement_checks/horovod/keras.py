"""The modules ``horovod.tensorflow.keras`` and ``horovod.keras`` of a captured rank."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from placement_checks.horovod import callbacks, elastic
from placement_checks.horovod import tensorflow as hvd
from placement_checks.horovod.collectives import Adasum, Average, ReduceOp, Sum
from placement_checks.horovod.gradients import Compression
from placement_checks.horovod.tensorflow import (
    broadcast_object,
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    global_process_set,
    gloo_built,
    gloo_enabled,
    init,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    rocm_built,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)
from placement_checks.horovod.unsupported import missing_attribute

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "Sum",
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_object",
    "callbacks",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]


def __getattr__(name: str) -> Any:
    raise missing_attribute("horovod.keras", name)


# The parameters below have Horovod's names, because programs may pass them by name.


def DistributedOptimizer(  # noqa: N802
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: ReduceOp = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: Any = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Return a Keras optimizer like ``optimizer`` that reduces gradients over all ranks.

    Raises:
        ValueError: the arguments exclude each other.
    """
    if op not in (Average, Sum):
        raise ValueError("op currently only supports Average and Sum")
    return hvd.DistributedOptimizer(
        optimizer,
        name,
        device_dense=device_dense,
        device_sparse=device_sparse,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        op=op,
        gradient_predivide_factor=gradient_predivide_factor,
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients,
        num_groups=num_groups,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )


def broadcast_global_variables(root_rank: int) -> Any:
    """Assign the values on the rank ``root_rank`` to all global variables."""
    return _evaluated(hvd.broadcast_global_variables(root_rank))


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: ReduceOp | None = None,
    compression: Any = Compression.none,
) -> Any:
    """Combine a value over all ranks."""
    tensor = hvd.allreduce(
        tf.constant(value, name=name),
        average=average,
        compression=compression,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
    )
    return _evaluated(tensor)


def allgather(value: Any, name: str | None = None) -> Any:
    """Join a value of all ranks along its first dimension."""
    return _evaluated(hvd.allgather(tf.constant(value, name=name)))


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """Return the value on the rank ``root_rank``."""
    return _evaluated(hvd.broadcast(tf.constant(value, name=name), root_rank))


def _evaluated(result: Any) -> Any:
    """The result; in a graph of TensorFlow 1 its value, from Keras's session."""
    if tf.executing_eagerly() or result is None:
        return result
    return tf.compat.v1.keras.backend.get_session().run(result)
