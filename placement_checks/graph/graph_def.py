"""Prepare GraphDefs for placing and running, and read them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.core.framework import types_pb2
from tensorflow.core.framework.node_def_pb2 import NodeDef

from placement_checks.core.op_types import CONST, PASSES_VALUE
from placement_checks.core.placement import producer_of
from placement_checks.tf.graphs import definition_of
from placement_checks.util.walks import walk


class FunctionOp(NamedTuple):
    """The function that contains an op, and the op's name in that function.

    The function is ``""`` for an op of the graph itself.
    """

    function: str
    name: str


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


def int_constant(name: str, value: int, device: str) -> Any:
    """The node of a scalar int32 constant."""
    tensor = tf.make_tensor_proto(value, tf.int32)
    node = NodeDef(name=name, op=CONST, device=device)
    node.attr["dtype"].type = tensor.dtype
    node.attr["value"].tensor.CopyFrom(tensor)
    return node


# The op types that TensorFlow inlines. The attributes name functions; the suffixes follow the name
# of the inlined op in the names of the function's ops.
_INLINED: Mapping[str, Mapping[str, str]] = {
    "PartitionedCall": {"f": ""},
    "StatefulPartitionedCall": {"f": ""},
    "If": {"then_branch": "/then", "else_branch": "/else"},
    "StatelessIf": {"then_branch": "/then", "else_branch": "/else"},
    "While": {"cond": "/cond", "body": "/body"},
    "StatelessWhile": {"cond": "/cond", "body": "/body"},
}
_CASES = ("Case", "StatelessCase")


def function_library(graph_def: Any) -> Mapping[str, Any]:
    """The functions of a graph, by name."""
    return {function.signature.name: function for function in graph_def.library.function}


def called_bodies(node: Any, library: Mapping[str, Any]) -> Iterator[tuple[Any, str]]:
    """The functions that TensorFlow inlines for a node; none if the node is not a call.

    Yields:
        Each function, and the suffix that follows the call's name in the names of inlined ops.
    """
    if node.op in library:
        yield library[node.op], ""
    elif node.op in _CASES:
        for index, branch in enumerate(node.attr["branches"].list.func):
            if branch.name in library:
                yield library[branch.name], f"/branch{index}"
    elif node.op in _INLINED:
        for attribute, suffix in _INLINED[node.op].items():
            name = node.attr[attribute].func.name
            if name in library:
                yield library[name], suffix


def body_tensors(function: Any, library: Mapping[str, Any]) -> Mapping[str, str]:
    """The tensors that the nodes of a function compute: their names in a GraphDef.

    The keys are the names in a FunctionDef: ``op:output:index``, with the name of an output in the
    signature of the op (core/framework/function.proto). A GraphDef numbers all outputs of an op:
    ``op`` is the first, and ``op:1`` the second.

    If the type of an op is unknown to TensorFlow, its outputs are numbered as they are mentioned.
    """
    tensors = {}
    for node in function.node_def:
        for index, output in enumerate(_output_names(node, library)):
            tensors[f"{node.name}:{output}"] = f"{node.name}:{index}" if index else node.name
    unknown = Counter[str]()
    read = (source for node in function.node_def for source in node.input)
    for source in (*read, *function.ret.values()):
        name, colon, _ = source.partition(":")
        if colon and source not in tensors:
            tensors[source] = f"{name}:{unknown[name]}" if unknown[name] else name
            unknown[name] += 1
    return tensors


def _output_names(node: Any, library: Mapping[str, Any]) -> Sequence[str]:
    """The outputs of a node as ``output:index``, in order; empty for an unknown op type."""
    called = library.get(node.op)
    if called is None:
        outputs, plain = _outputs_of_type(node.op)
        if plain is not None:
            return plain
    else:
        outputs = called.signature.output_arg
    names = []
    for output in outputs:
        number = 1
        if output.number_attr:
            number = node.attr[output.number_attr].i
        elif output.type_list_attr:
            number = len(node.attr[output.type_list_attr].list.type)
        names += [f"{output.name}:{index}" for index in range(number)]
    return names


@cache
def _outputs_of_type(op_type: str) -> tuple[Sequence[Any], Sequence[str] | None]:
    """The outputs of an op type, and their names unless attributes decide their number."""
    definition = definition_of(op_type)
    outputs = () if definition is None else tuple(definition.output_arg)
    if any(output.number_attr or output.type_list_attr for output in outputs):
        return outputs, None
    return outputs, [f"{output.name}:0" for output in outputs]


def inlined_functions(graph_def: Any) -> Sequence[Any]:
    """The functions that TensorFlow inlines, without duplicates."""
    library = function_library(graph_def)

    def called(nodes: Iterable[Any]) -> Iterator[str]:
        bodies = (called_bodies(node, library) for node in nodes)
        return (function.signature.name for each in bodies for function, _ in each)

    start = called(graph_def.node) if library else ()
    return [library[name] for name in walk(start, lambda name: called(library[name].node_def))]
