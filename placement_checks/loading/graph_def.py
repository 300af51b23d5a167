"""Changes to a GraphDef that is to be placed or run elsewhere than where it was built."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tensorflow.core.framework import types_pb2

_STRIPPED_ABOVE = 1024  # bytes of a constant
# Integer and bool constants feed shape functions, which the master runs: those must stay.
_STRIPPED = {
    types_pb2.DT_HALF,
    types_pb2.DT_BFLOAT16,
    types_pb2.DT_FLOAT,
    types_pb2.DT_DOUBLE,
    types_pb2.DT_COMPLEX64,
    types_pb2.DT_COMPLEX128,
    types_pb2.DT_STRING,
}


def keep_whole(graph_def: Any) -> None:
    """Keep small constants from being split up among tasks after they were placed.

    TensorFlow replaces a constant that several tasks read by one for each, under other names, but
    leaves those alone that a control edge leads away from (core/common_runtime/
    replicate_constants_pass.cc). So the first reader of each constant waits for it as well.
    """
    constants = {node.name for node in graph_def.node if node.op == "Const"}
    for node in graph_def.node:
        read = constants.intersection(node.input)
        node.input.extend(f"^{name}" for name in sorted(read))
        constants -= read


def strip(tensor: Any) -> None:
    """Drop the values of a large constant; one without values is read as all zeros."""
    if tensor.dtype not in _STRIPPED or tensor.ByteSize() <= _STRIPPED_ABOVE:
        return
    bare = type(tensor)(dtype=tensor.dtype, tensor_shape=tensor.tensor_shape)
    tensor.CopyFrom(bare)


def all_nodes(graph_def: Any) -> Iterator[Any]:
    yield from graph_def.node
    for function in graph_def.library.function:
        yield from function.node_def
