"""Prepare GraphDefs for placing and running, and read them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import types_pb2
from tensorflow.core.framework.node_def_pb2 import NodeDef

from placement_checks.core.op_types import CONST, PASSES_VALUE
from placement_checks.core.placement import producer_of

MAX_VALUE_BYTES = 1024  # of a constant; the values of larger constants are removed
# Integer and bool constants keep their values, since shape functions read them.
_STRIPPED = {
    types_pb2.DT_HALF,
    types_pb2.DT_BFLOAT16,
    types_pb2.DT_FLOAT,
    types_pb2.DT_DOUBLE,
    types_pb2.DT_COMPLEX64,
    types_pb2.DT_COMPLEX128,
    types_pb2.DT_STRING,
}


def keep_constants_whole(graph_def: Any) -> None:
    """Prevent TensorFlow from replicating constants after placement.

    If several tasks read a small constant, TensorFlow gives each task its own constant, with a new
    name. Constants with outgoing control edges are exempt
    (core/common_runtime/replicate_constants_pass.cc). So this function adds a control input to the
    first reader of each constant.
    """
    constants = {node.name for node in graph_def.node if node.op == CONST}
    for node in graph_def.node:
        read = constants.intersection(node.input)
        node.input.extend(f"^{name}" for name in sorted(read))
        constants -= read


def without_large_constants(graph_def: Any) -> Any:
    """Copy a graph without the values of large constants, unless shapes may depend on them.

    TensorFlow reads a constant without values as zeros. Most graphs have no large constants
    outside of functions. They are copied as a whole, in a third of the time that copying node by
    node takes. Otherwise the nodes are copied one by one, and large values are skipped.
    """
    large = [_is_large_constant(node) for node in graph_def.node]
    copied = type(graph_def)()
    if any(large):
        copied.versions.CopyFrom(graph_def.versions)
        copied.library.CopyFrom(graph_def.library)
        for node, is_large in zip(graph_def.node, large, strict=True):
            if is_large:
                _add_without_values(copied, node)
            else:
                copied.node.add().CopyFrom(node)
    else:
        copied.CopyFrom(graph_def)
    for function in copied.library.function:
        for node in filter(_is_large_constant, function.node_def):
            tensor = node.attr["value"].tensor
            tensor.CopyFrom(without_values(tensor))
    return copied


def _is_large_constant(node: Any) -> bool:
    if node.op != CONST:
        return False
    tensor = node.attr["value"].tensor
    return tensor.dtype in _STRIPPED and tensor.ByteSize() > MAX_VALUE_BYTES


def _add_without_values(graph_def: Any, node: Any) -> None:
    bare = graph_def.node.add(name=node.name, op=node.op, input=node.input, device=node.device)
    for name, value in node.attr.items():
        if name == "value":
            bare.attr[name].tensor.CopyFrom(without_values(value.tensor))
        else:
            bare.attr[name].CopyFrom(value)


def without_values(tensor: Any) -> Any:
    """Return a tensor with the same dtype and shape, but without values."""
    return type(tensor)(dtype=tensor.dtype, tensor_shape=tensor.tensor_shape)


def all_nodes(graph_def: Any) -> Iterator[Any]:
    """The nodes of a graph and of the bodies of its functions."""
    yield from graph_def.node
    for function in graph_def.library.function:
        yield from function.node_def


def op_types(graph_def: Any) -> set[str]:
    """The op types of a graph and its functions, without the names of functions."""
    functions = {function.signature.name for function in graph_def.library.function}
    return {node.op for node in all_nodes(graph_def)} - functions


def constant_int(source: str, nodes: Mapping[str, Any]) -> int | None:
    """The integer value of an input of a node; None if the value does not come from a constant."""
    node = nodes[producer_of(source)]
    while node.op in PASSES_VALUE:
        node = nodes[producer_of(node.input[0])]
    return int(tf.make_ndarray(node.attr["value"].tensor)) if node.op == CONST else None


def constant(name: str, value: Any, device: str, inputs: Sequence[str] = ()) -> Any:
    """The node of a constant with the dtype of a NumPy array or scalar, or of a tensor."""
    tensor = tf.make_tensor_proto(value)
    node = NodeDef(name=name, op=CONST, device=device, input=inputs)
    node.attr["dtype"].type = tensor.dtype
    node.attr["value"].tensor.CopyFrom(tensor)
    return node
