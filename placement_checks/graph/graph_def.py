"""Changes to a GraphDef that is to be placed or run elsewhere than where it was built."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import types_pb2

from placement_checks.core.op_types import CONST, PASSES_VALUE
from placement_checks.core.placement import producer_of

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


def keep_constants_whole(graph_def: Any) -> None:
    """Keep small constants from being split up among tasks after they were placed.

    TensorFlow replaces a constant that several tasks read by one for each, under other names, but
    leaves those alone that a control edge leads away from (core/common_runtime/
    replicate_constants_pass.cc). So the first reader of each constant waits for it as well.
    """
    constants = {node.name for node in graph_def.node if node.op == CONST}
    for node in graph_def.node:
        read = constants.intersection(node.input)
        node.input.extend(f"^{name}" for name in sorted(read))
        constants -= read


def without_large_constants(graph_def: Any) -> Any:
    """A copy in which large constants that no shape depends on have no values.

    One without values is read as all zeros.
    """
    copied = _copy_of_graph(graph_def)
    for function in copied.library.function:
        for node in function.node_def:
            if node.op == CONST and _is_large(node.attr["value"].tensor):
                tensor = node.attr["value"].tensor
                tensor.CopyFrom(_bare(tensor))
    return copied


def _copy_of_graph(graph_def: Any) -> Any:
    """A copy whose library is whole; the values of large constants are never copied.

    To copy all nodes at once takes a third of the time, and few graphs have a large constant.
    """
    large = [node.op == CONST and _is_large(node.attr["value"].tensor) for node in graph_def.node]
    copied = type(graph_def)()
    if not any(large):
        copied.CopyFrom(graph_def)
        return copied
    copied.versions.CopyFrom(graph_def.versions)
    copied.library.CopyFrom(graph_def.library)
    for node, is_large in zip(graph_def.node, large, strict=True):
        if is_large:
            _add_bare(copied, node)
        else:
            copied.node.add().CopyFrom(node)
    return copied


def _is_large(tensor: Any) -> bool:
    return tensor.dtype in _STRIPPED and tensor.ByteSize() > _STRIPPED_ABOVE


def _add_bare(graph_def: Any, node: Any) -> None:
    """Add a copy of a constant without its values, which are never copied."""
    bare = graph_def.node.add(name=node.name, op=node.op, input=node.input, device=node.device)
    for name, value in node.attr.items():
        if name == "value":
            bare.attr[name].tensor.CopyFrom(_bare(value.tensor))
        else:
            bare.attr[name].CopyFrom(value)


def _bare(tensor: Any) -> Any:
    return type(tensor)(dtype=tensor.dtype, tensor_shape=tensor.tensor_shape)


def all_nodes(graph_def: Any) -> Iterator[Any]:
    """The nodes of a graph and of the bodies of its functions."""
    yield from graph_def.node
    for function in graph_def.library.function:
        yield from function.node_def


def op_types(graph_def: Any) -> set[str]:
    """The types of its nodes, but for the calls of its own functions."""
    functions = {function.signature.name for function in graph_def.library.function}
    return {node.op for node in all_nodes(graph_def)} - functions


def whole_number(source: str, nodes: Mapping[str, Any]) -> int | None:
    """The value of a constant, also behind ops that pass it on; None for anything else.

    Args:
        source: the tensor, as an input names it.
        nodes: those of the graph, by name.
    """
    node = nodes[producer_of(source)]
    while node.op in PASSES_VALUE:
        node = nodes[producer_of(node.input[0])]
    return int(tf.make_ndarray(node.attr["value"].tensor)) if node.op == CONST else None
