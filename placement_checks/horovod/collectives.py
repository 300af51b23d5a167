"""The collectives of a rank: each result is computed from the rank's own value.

Eager code gets the value that the operation would have if all ranks had the same input. In a
graph, an op computes this value, and its attribute `core.ranks.COLLECTIVE` names the operation.
Horovod combines the collectives that have the same op name on all ranks.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from placement_checks.core.errors import InputError
from placement_checks.core.frames import Frame
from placement_checks.core.ranks import (
    ALLGATHER,
    ALLREDUCE,
    AVERAGE,
    BROADCAST,
    COLLECTIVE,
    SUM,
    FileWrite,
    Rank,
)
from placement_checks.core.user_code import calling_frames
from placement_checks.tf.graphs import set_text_attribute

# The dtypes of TensorFlow's collectives, which replace Horovod's collectives in the joint graph.
_DTYPES = (tf.float16, tf.float32, tf.float64, tf.int32, tf.int64)
_NOT_INITIALIZED = "Horovod has not been initialized; use hvd.init()."


def unsupported_error(what: str) -> InputError:
    """Return the error for a part of Horovod that this package does not implement.

    ``what`` describes the part, for example "a process set".
    """
    return InputError(
        "horovod",
        f"{what} is not supported by --horovod",
        "remove it for the check; docs/horovod.md lists the supported names",
    )


@dataclass
class Process:
    """The process of one rank.

    Attributes:
        rank: the rank.
        initialized: whether the program has called ``init``.
        broadcast: the variables that a broadcast outside of sessions makes equal on all ranks,
            each with the digest of the sent value. The digest is ``""`` if the broadcast was
            traced into a graph; the value before the step is then the sent value.
        broadcasts_later: whether the program broadcasts after its first step, by a callback.
        receives: whether the program gets a value, such as a seed, from another rank. This process
            does not know that value. So variables may be equal on all ranks in a real run, even if
            they differ between the captures of the ranks.
        collectives: the names of the collectives that eager code has run.
        frames: the source lines of these collectives and of ``init``, as in a `RankRecord`.
        writes: the files that the program writes.
    """

    rank: Rank
    initialized: bool = False
    broadcast: list[tuple[Any, str]] = field(default_factory=list)
    broadcasts_later: bool = False
    receives: bool = False
    collectives: list[str] = field(default_factory=list)
    frames: dict[str, tuple[Frame, ...]] = field(default_factory=dict)
    writes: list[FileWrite] = field(default_factory=list)

    def initialized_rank(self) -> Rank:
        """The rank.

        Raises:
            ValueError: the program has not called ``init``.
        """
        if not self.initialized:
            raise ValueError(_NOT_INITIALIZED)
        return self.rank


_processes: list[Process] = []  # at most one; a list, so that modules share its changes


@contextlib.contextmanager
def run_as(process: Process) -> Iterator[None]:
    """Let this block run as the process of one rank."""
    _processes.append(process)
    try:
        yield
    finally:
        _processes.remove(process)


def process() -> Process:
    """The process of the current `run_as` block."""
    return _processes[-1]


class ReduceOp(str):
    """An operation that combines the values of all ranks, such as `AVERAGE`."""


Average, Sum, Adasum = ReduceOp(AVERAGE), ReduceOp(SUM), ReduceOp("Adasum")
Min, Max, Product = ReduceOp("Min"), ReduceOp("Max"), ReduceOp("Product")


def normalize_name(name: str) -> str:
    """Convert the name of a tensor to a valid part of the name of an op."""
    return re.sub(r"\W", "_", name, flags=re.ASCII)


def group_name(tensors: Sequence[Any]) -> str:
    """The default name of tensors that are reduced together, without the number of each tensor."""
    return normalize_name(f"HorovodGroupedAllreduce_{tensors[0].name}_{tensors[-1].name}")


def reduce_op(op: ReduceOp | None, average: bool | None) -> ReduceOp:
    """The operation that a program requests by ``op``, or by the deprecated ``average``.

    Raises:
        ValueError: both are given.
    """
    if op is not None and average is not None:
        raise ValueError("op and average cannot be given at the same time; average is deprecated")
    if op is not None:
        return op
    return Sum if average is False else Average


def allreduce_tensor(
    tensor: Any, op: ReduceOp, name: str | None, prescale: float = 1.0, postscale: float = 1.0
) -> Any:
    """Reduce a dense tensor over all ranks; the result can be differentiated."""
    tensor = tf.convert_to_tensor(tensor)
    name = name or _default_name("HorovodAllreduce", tensor)

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def reduced(value: Any) -> tuple[Any, Callable[..., Any]]:
        def gradient(upstream: Any) -> Any:
            return allreduce_without_gradient(upstream, op, None, prescale, postscale)

        return allreduce_without_gradient(value, op, name, prescale, postscale), gradient

    return reduced(tensor)


def allreduce_without_gradient(
    tensor: Any, op: ReduceOp, name: str | None, prescale: float = 1.0, postscale: float = 1.0
) -> Any:
    """Reduce a dense tensor or gradient over all ranks; the result has no gradient function."""
    size = process().initialized_rank().size
    if op == Adasum and size & (size - 1):
        raise NotImplementedError("Adasum requires a number of ranks that is a power of 2")
    tensor = tf.convert_to_tensor(tensor)
    name = name or _default_name("HorovodAllreduce", tensor)
    if prescale != 1.0:
        tensor = tensor * tf.cast(prescale, tensor.dtype)

    def value(name: str | None) -> Any:
        if op == Sum and size > 1:
            return tf.multiply(tensor, tf.cast(size, tensor.dtype), name=name)
        if op == Product and size > 1:
            return tf.pow(tensor, tf.cast(size, tensor.dtype), name=name)
        return tf.identity(tensor, name=name)

    result = _collective(f"{ALLREDUCE} {op}", name, value)
    return result if postscale == 1.0 else result * tf.cast(postscale, tensor.dtype)


def allgather_tensor(tensor: Any, name: str | None) -> Any:
    """Concatenate a tensor of all ranks; the result can be differentiated if it is a float."""
    tensor = tf.convert_to_tensor(tensor)
    name = name or _default_name("HorovodAllgather", tensor)
    rank = process().initialized_rank()

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def gathered(value: Any) -> tuple[Any, Callable[..., Any]]:
        def gradient(upstream: Any) -> Any:
            mean = allreduce_without_gradient(upstream, Average, None)
            rows = tf.shape(value)[0]
            return mean[rank.number * rows : (rank.number + 1) * rows]

        return _allgather(value, name), gradient

    return gathered(tensor) if tensor.dtype.is_floating else _allgather(tensor, name)


def _allgather(tensor: Any, name: str | None) -> Any:
    size = process().initialized_rank().size

    def value(name: str | None) -> Any:
        # `tf.concat` would name the axis `{name}/axis`. `run.graph_rewrites` uses that name for
        # another constant.
        axis = tf.constant(0, name=name and f"{name}_dimension")
        return tf.raw_ops.ConcatV2(values=[tensor] * size, axis=axis, name=name)

    return _collective(ALLGATHER, name, value if size > 1 else partial(tf.identity, tensor))


def broadcast_tensor(tensor: Any, root: int, name: str | None) -> Any:
    """Return the value that a tensor has on the rank ``root``.

    Raises:
        ValueError: there is no such rank.
    """
    check_root(root)
    tensor = tf.convert_to_tensor(tensor)
    name = name or _default_name("HorovodBroadcast", tensor)
    return _collective(f"{BROADCAST} {root}", name, partial(tf.identity, tensor))


def check_root(root: int) -> None:
    """Check the number of the rank that a broadcast sends from.

    Raises:
        ValueError: there is no such rank.
    """
    size = process().initialized_rank().size
    if not 0 <= root < size:
        raise ValueError(f"root_rank {root} does not exist: the number of ranks is {size}")


def _default_name(kind: str, tensor: Any) -> str | None:
    return None if tf.executing_eagerly() else normalize_name(f"{kind}_{tensor.name}")


def _collective(kind: str, name: str | None, value: Callable[[str | None], Any]) -> Any:
    """Compute the value of a collective. In a graph, mark its op with an attribute."""
    current = process()
    result = value(name)
    if tf.executing_eagerly():
        current.collectives.append(name or kind)
        current.frames[name or kind] = calling_frames()
        current.receives |= not kind.startswith(ALLREDUCE)
    elif current.rank.size > 1:
        if result.dtype not in _DTYPES and not kind.startswith(BROADCAST):
            raise unsupported_error(f"{kind} of {result.dtype.name} in a graph")
        set_text_attribute(result.op, COLLECTIVE, kind)
    return result


def note_broadcast(variables: Iterable[Any]) -> None:
    """Note variables that a broadcast outside of sessions makes equal on all ranks."""
    is_eager = tf.executing_eagerly()
    process().broadcast += [(each, digest(each.numpy()) if is_eager else "") for each in variables]


def digest(value: Any) -> str:
    """A short text that differs for different arrays."""
    array = np.ascontiguousarray(value)
    header = f"{array.dtype} {array.shape}".encode()
    return hashlib.sha256(header + array.tobytes()).hexdigest()[:16]


def kind_of(op: Any) -> str:
    """The operation of a collective; ``""`` for any other op."""
    try:
        return str(op.get_attr(COLLECTIVE).decode())
    except ValueError:
        return ""
