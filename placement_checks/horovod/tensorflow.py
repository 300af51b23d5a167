"""The optimizers, tapes and collectives of ``horovod.tensorflow`` of a captured rank."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from placement_checks.horovod import gradients
from placement_checks.horovod.collectives import (
    Adasum,
    Average,
    ReduceOp,
    Sum,
    allreduce_tensor,
    check_root,
    group_name,
    process,
    reduce_op,
    unsupported_error,
)
from placement_checks.horovod.gradients import Compression, Settings
from placement_checks.horovod.mpi_ops import check_supported, name_of
from placement_checks.horovod.ranks import global_process_set, size

_tf1 = tf.compat.v1
_IS_KERAS_3 = not hasattr(tf.keras.layers.BatchNormalization, "_calculate_mean_and_var")


class SyncBatchNormalization(tf.keras.layers.BatchNormalization):  # type: ignore[misc]
    """Batch normalization with the mean and variance over the rows of all ranks."""

    def __init__(self, fused: bool | None = False, **kwargs: Any) -> None:
        if fused in (True, None):
            raise ValueError("SyncBatchNormalization does not support fused=True.")
        if _IS_KERAS_3:
            raise unsupported_error(
                "SyncBatchNormalization with Keras 3, which Horovod 0.28 does not support,"
            )
        kwargs.setdefault("name", "sync_batch_normalization")
        super().__init__(fused=fused, **kwargs)

    def _moments(self, inputs: Any, reduction_axes: Any, keep_dims: bool, **kwargs: Any) -> Any:
        mean, variance = super()._moments(inputs, reduction_axes, keep_dims=keep_dims, **kwargs)
        size = process().initialized_rank().size
        if size == 1:
            return mean, variance
        of_rank = tf.stack([mean, variance + tf.math.square(mean)])
        means = allreduce_tensor(of_rank, Sum, None) / size
        group_mean, mean_of_squares = tf.unstack(means)
        return group_mean, mean_of_squares - tf.math.square(group_mean)


# The parameters below have Horovod's names, because programs may pass them by name.


def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: Any = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """Reduce a tensor, variable or `tf.IndexedSlices` over all ranks."""
    check_supported(process_set, ignore_name_scope)
    op = reduce_op(op, average)
    settings = Settings(compression, op=op, device_dense=device_dense, device_sparse=device_sparse)
    if isinstance(tensor, tf.Variable):
        if compression is Compression.none:
            name = name or name_of("HorovodAllreduce", tensor)
        tensor = tf.convert_to_tensor(tensor)
    return gradients.reduce_tensor(tensor, settings, name, prescale_factor, postscale_factor)


def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Any]:
    """Reduce several tensors over all ranks."""
    if name is None and not tf.executing_eagerly() and len(tensors):
        name = group_name(tensors)
    return [
        allreduce(
            tensor,
            average,
            device_dense,
            device_sparse,
            compression,
            op,
            prescale_factor,
            postscale_factor,
            name and f"{name}_{number}",
            process_set,
            ignore_name_scope,
        )
        for number, tensor in enumerate(tensors)
    ]


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: Any = global_process_set,
) -> Any:
    """Return the object of the rank ``root_rank``; here it is the object of this rank."""
    del session, name
    check_supported(process_set)
    check_root(root_rank)
    process().receives = True
    return pickle.loads(pickle.dumps(obj))


def allgather_object(
    obj: Any, session: Any = None, name: str | None = None, process_set: Any = global_process_set
) -> list[Any]:
    """Return the objects of all ranks; here they are the object of this rank."""
    del session, name
    check_supported(process_set)
    process().receives = True
    return [pickle.loads(pickle.dumps(obj)) for _ in range(size())]


def DistributedOptimizer(  # noqa: N802
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: Any = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Return an optimizer like ``optimizer`` that reduces gradients over all ranks.

    Raises:
        ValueError: the arguments are mutually exclusive.
    """
    if op == Adasum and not isinstance(optimizer, _tf1.train.Optimizer):
        raise ValueError("op == Adasum is not supported yet with Keras")
    check_supported(process_set)
    settings = Settings(
        compression,
        sparse_as_dense,
        op,
        gradient_predivide_factor,
        groups if groups is not None else num_groups or None,
        device_dense,
        device_sparse,
        scale_local_gradients,
    )
    settings.check()
    if backward_passes_per_step != 1:
        raise unsupported_error("backward_passes_per_step > 1")
    del average_aggregated_gradients  # of the gradients of several backward passes
    process().initialized_rank()
    if isinstance(optimizer, _tf1.train.Optimizer):
        return gradients.DistributedOptimizer1(optimizer, name, use_locking, settings)
    return gradients.distributed_keras_optimizer(optimizer, name, settings)


def DistributedGradientTape(  # noqa: N802
    gradtape: Any,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: Any = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Return a tape like ``gradtape`` that reduces gradients over all ranks.

    Raises:
        ValueError: the arguments are mutually exclusive.
    """
    check_supported(process_set)
    settings = Settings(
        compression,
        sparse_as_dense,
        op,
        gradient_predivide_factor,
        groups if groups is not None else num_groups or None,
        device_dense,
        device_sparse,
        scale_local_gradients,
    )
    settings.check()
    return gradients.distributed_tape(gradtape, settings)


def PartialDistributedGradientTape(  # noqa: N802
    gradtape: Any, *args: Any, local_layers: Any = None, **options: Any
) -> Any:
    """Return a tape that reduces all gradients, except the gradients of local layers."""
    tape = DistributedGradientTape(gradtape, *args, **options)
    layers = local_layers or []
    for layer in layers if isinstance(layers, list | tuple) else [layers]:
        for variable in layer.trainable_weights:
            tape.register_local_source(variable)
    return tape
