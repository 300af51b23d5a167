"""The module ``horovod.tensorflow.mpi_ops`` of a captured rank: collectives of single tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from placement_checks.horovod import collectives
from placement_checks.horovod.collectives import ReduceOp, process, unsupported_error
from placement_checks.horovod.ranks import global_process_set, local_rank, local_size, rank, size

Average, Sum, Adasum = collectives.Average, collectives.Sum, collectives.Adasum
Min, Max, Product = collectives.Min, collectives.Max, collectives.Product


def is_homogeneous() -> bool:
    """Whether each host has the same number of processes."""
    process().initialized_rank()
    return True


def join(*_args: Any, **_options: Any) -> int:
    """Return the number of the last rank. In Horovod, this function waits for all ranks."""
    return size() - 1


def check_supported(process_set: Any, ignore_name_scope: bool = False) -> None:
    """Raise an `InputError` for an ignored name scope, and any process set but the global set."""
    if process_set is not global_process_set:
        raise unsupported_error("a process set")
    if ignore_name_scope:
        raise unsupported_error("the argument ignore_name_scope")


def name_of(kind: str, tensor: Any) -> str | None:
    """The default name of a collective, from the name of its tensor; None without a name."""
    if tf.executing_eagerly() or not hasattr(tensor, "name"):
        return None
    return f"{kind}_{collectives.normalize_name(tensor.name)}"


# The parameters below have Horovod's names, because programs may pass them by name.


def _allreduce(
    tensor: Any,
    name: str | None = None,
    op: ReduceOp = Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: Any = global_process_set,
) -> Any:
    """Reduce a dense tensor over all ranks. Programs call this private function for sums."""
    check_supported(process_set, ignore_name_scope)
    return collectives.allreduce_tensor(tensor, op, name, prescale_factor, postscale_factor)


def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: Any = global_process_set,
) -> Any:
    """Return the value that a tensor or variable has on the rank ``root_rank``."""
    check_supported(process_set, ignore_name_scope)
    return collectives.broadcast_tensor(
        tensor, root_rank, name or name_of("HorovodBroadcast", tensor)
    )


def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: Any = global_process_set,
) -> Any:
    """Concatenate a tensor of all ranks along its first dimension."""
    check_supported(process_set, ignore_name_scope)
    return collectives.allgather_tensor(tensor, name or name_of("HorovodAllgather", tensor))


def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: Any = global_process_set,
) -> list[Any]:
    """Concatenate each tensor in a list over all ranks."""
    return [
        allgather(tensor, name and f"{name}_{number}", ignore_name_scope, process_set)
        for number, tensor in enumerate(tensors)
    ]


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
