"""The modules ``horovod.tensorflow.keras`` and ``horovod.keras`` of a captured rank."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from placement_checks.horovod import broadcasts, mpi_ops
from placement_checks.horovod import tensorflow as hvd
from placement_checks.horovod.collectives import Average, ReduceOp, Sum
from placement_checks.horovod.gradients import Compression

broadcast_object = hvd.broadcast_object
# The parameters of DistributedOptimizer in order. The order differs in `tensorflow`.
_PARAMETERS = (
    "name",
    "device_dense",
    "device_sparse",
    "compression",
    "sparse_as_dense",
    "gradient_predivide_factor",
    "op",
    "backward_passes_per_step",
    "average_aggregated_gradients",
    "num_groups",
    "groups",
    "process_set",
    "scale_local_gradients",
)


def DistributedOptimizer(optimizer: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N802
    """Return a Keras optimizer like ``optimizer`` that reduces gradients over all ranks.

    Raises:
        ValueError: the arguments are mutually exclusive, or Keras does not support ``op``.
    """
    options = {**dict(zip(_PARAMETERS, args, strict=False)), **kwargs}
    if options.get("op", Average) not in (Average, Sum):
        raise ValueError("op currently only supports Average and Sum")
    return hvd.DistributedOptimizer(optimizer, **options)


def broadcast_global_variables(root_rank: int) -> Any:
    """Assign the values on the rank ``root_rank`` to all global variables."""
    return _evaluate(broadcasts.broadcast_global_variables(root_rank))


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: ReduceOp | None = None,
    compression: Any = Compression.none,
) -> Any:
    """Reduce a value over all ranks."""
    tensor = hvd.allreduce(
        tf.constant(value, name=name),
        average=average,
        compression=compression,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
    )
    return _evaluate(tensor)


def allgather(value: Any, name: str | None = None) -> Any:
    """Concatenate the values of all ranks along their first dimension."""
    return _evaluate(mpi_ops.allgather(tf.constant(value, name=name)))


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """Return the value on the rank ``root_rank``."""
    return _evaluate(mpi_ops.broadcast(tf.constant(value, name=name), root_rank))


def _evaluate(result: Any) -> Any:
    """Return the result; in a graph of TensorFlow 1, compute its value in Keras's session."""
    if tf.executing_eagerly() or result is None:
        return result
    return tf.compat.v1.keras.backend.get_session().run(result)
