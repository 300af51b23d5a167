"""The module ``horovod.tensorflow`` of a program that is captured as a rank."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from placement_checks.horovod import collectives, elastic, gradients
from placement_checks.horovod.batch_norm import SyncBatchNormalization
from placement_checks.horovod.broadcasts import (
    BroadcastGlobalVariablesHook,
    broadcast,
    broadcast_,
    broadcast_global_variables,
    broadcast_variables,
    check_process_set,
    global_process_set,
    name_of,
    rank,
    size,
)
from placement_checks.horovod.collectives import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    ReduceOp,
    Sum,
    process,
)
from placement_checks.horovod.gradients import Compression, Settings
from placement_checks.horovod.unsupported import missing_attribute, unsupported

__all__ = [
    "Adasum",
    "Average",
    "BroadcastGlobalVariablesHook",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "Max",
    "Min",
    "PartialDistributedGradientTape",
    "Product",
    "Sum",
    "SyncBatchNormalization",
    "allgather",
    "allgather_object",
    "allreduce",
    "broadcast",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_variables",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allreduce",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
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
_tf1 = tf.compat.v1


def __getattr__(name: str) -> Any:
    raise missing_attribute("horovod.tensorflow", name)


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Initialize the rank; the command line sets the number of ranks."""
    if process_sets:
        raise unsupported("a process set")
    if comm is not None and not (isinstance(comm, Sequence) and not comm):
        raise unsupported("init with a communicator of mpi4py")
    process().initialized = True


def shutdown() -> None:
    """End."""
    process().initialized = False


def is_initialized() -> bool:
    """Whether `init` was called."""
    return process().initialized


def local_rank() -> int:
    """The number of this process on its host; all ranks are on one host."""
    return rank()


def local_size() -> int:
    """The number of processes on this host."""
    return size()


def cross_rank() -> int:
    """The number of this host."""
    process().place()
    return 0


def cross_size() -> int:
    """The number of hosts."""
    process().place()
    return 1


def is_homogeneous() -> bool:
    """Whether each host has the same number of processes."""
    process().place()
    return True


def _no() -> bool:
    """Whether Horovod was built with a library that the stand-in does not claim."""
    return False


def _yes() -> bool:
    """Whether Horovod was built with Gloo or NCCL."""
    return True


mpi_built = mpi_enabled = ddl_built = ccl_built = rocm_built = mpi_threads_supported = _no
gloo_built = gloo_enabled = cuda_built = _yes


def nccl_built() -> int:
    """The version of NCCL that Horovod was built with."""
    return 21200


def start_timeline(*_args: Any, **_options: Any) -> None:
    """Do nothing: no timeline is written."""


def stop_timeline() -> None:
    """Do nothing: no timeline is written."""


def join(*_args: Any, **_options: Any) -> int:
    """Wait for the other ranks; returns the last one."""
    return size() - 1


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
    """Combine a tensor, variable or `tf.IndexedSlices` over all ranks."""
    check_process_set(process_set)
    if ignore_name_scope:
        raise unsupported("the argument ignore_name_scope")
    settings = Settings(
        compression,
        op=collectives.reduce_op(op, average),
        device_dense=device_dense,
        device_sparse=device_sparse,
    )
    if isinstance(tensor, tf.Variable):
        if compression is Compression.none:
            name = name or name_of("HorovodAllreduce", tensor)
        tensor = tf.convert_to_tensor(tensor)
    return gradients.reduce_tensor(
        tensor, settings, name, prescale=prescale_factor, postscale=postscale_factor
    )


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
    """Combine several tensors over all ranks."""
    if name is None and not tf.executing_eagerly() and len(tensors):
        ends = f"HorovodGroupedAllreduce_{tensors[0].name}_{tensors[-1].name}"
        name = collectives.normalized(ends)
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


def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: Any = global_process_set,
) -> Any:
    """Join a tensor of all ranks along its first dimension."""
    check_process_set(process_set)
    if ignore_name_scope:
        raise unsupported("the argument ignore_name_scope")
    return collectives.allgather_tensor(tensor, name or name_of("HorovodAllgather", tensor))


def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: Any = global_process_set,
) -> list[Any]:
    """Join each of several tensors of all ranks."""
    return [
        allgather(tensor, name and f"{name}_{number}", ignore_name_scope, process_set)
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
    check_process_set(process_set)
    if not 0 <= root_rank < size():
        raise ValueError(f"root_rank {root_rank} does not exist: the number of ranks is {size()}")
    process().receives = True
    return pickle.loads(pickle.dumps(obj))


def allgather_object(
    obj: Any, session: Any = None, name: str | None = None, process_set: Any = global_process_set
) -> list[Any]:
    """Return the objects of all ranks; here they are the object of this rank."""
    del session, name
    check_process_set(process_set)
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
        ValueError: the arguments exclude each other.
    """
    check_process_set(process_set)
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
        raise unsupported("backward_passes_per_step > 1")
    del average_aggregated_gradients  # of the gradients of several backward passes
    process().initialized_rank()
    if isinstance(optimizer, _tf1.train.Optimizer):
        if op == Adasum:
            raise unsupported("DistributedOptimizer with op=hvd.Adasum")
        return gradients.DistributedOptimizer1(optimizer, name, use_locking, settings)
    if op == Adasum:
        raise ValueError("op == Adasum is not supported yet with Keras")
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
        ValueError: the arguments exclude each other.
    """
    check_process_set(process_set)
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


def size_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """The number of processes as a tensor."""
    del process_set_id
    return tf.constant(size(), tf.int32, name=name or "HorovodSize")


def rank_op(name: str | None = None) -> Any:
    """The number of this process as a tensor."""
    return tf.constant(rank(), tf.int32, name=name or "HorovodRank")


def local_rank_op(name: str | None = None) -> Any:
    """The number of this process on its host as a tensor."""
    return tf.constant(local_rank(), tf.int32, name=name or "HorovodLocalRank")


def local_size_op(name: str | None = None) -> Any:
    """The number of processes on this host as a tensor."""
    return tf.constant(local_size(), tf.int32, name=name or "HorovodLocalSize")
