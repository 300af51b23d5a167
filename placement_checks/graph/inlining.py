"""The functions that the nodes of a graph call, and the graph in which their bodies replace calls.

A FunctionDef names tensors otherwise than a GraphDef: ``op:output:index``, with the name of an
output in the signature of the op (core/framework/function.proto). A GraphDef numbers all outputs
of an op: ``op`` is the first, and ``op:1`` the second.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from placement_checks.core.placement import producer_of, tensor_name
from placement_checks.tf.graphs import definition_of
from placement_checks.util.walks import walk


class FunctionOp(NamedTuple):
    """The function that contains an op, and the op's name in that function.

    The function is ``""`` for an op of the graph itself.
    """

    function: str
    name: str


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


def inlined_functions(graph_def: Any) -> Sequence[Any]:
    """The functions that TensorFlow inlines, without duplicates."""
    library = function_library(graph_def)

    def called(nodes: Iterable[Any]) -> Iterator[str]:
        bodies = (called_bodies(node, library) for node in nodes)
        return (function.signature.name for each in bodies for function, _ in each)

    start = called(graph_def.node) if library else ()
    return [library[name] for name in walk(start, lambda name: called(library[name].node_def))]


def called_functions(node: Any) -> Iterator[str]:
    """The names of functions that a node may call, and its op type, which may be a function."""
    yield node.op
    for attribute in node.attr.values():
        for function in (attribute.func, *attribute.list.func):
            yield function.name


def reachable_functions(nodes: Iterable[Any], library: Mapping[str, Any]) -> Mapping[str, Any]:
    """The functions of a library that nodes call or receive, directly or indirectly."""

    def called(nodes: Iterable[Any]) -> Iterator[str]:
        return (name for node in nodes for name in called_functions(node) if name in library)

    start = called(nodes) if library else ()
    found = set(walk(start, lambda name: called(library[name].node_def)))
    return {name: function for name, function in library.items() if name in found}


class InlinedBody(NamedTuple):
    """The body of a function in the graph of its call.

    Attributes:
        prefix: begins the names of its ops, such as ``call/``.
        tensors: the tensors that its ops compute, as `body_tensors`.
        arguments: the tensors of the graph that the call passes, by the names of the arguments.
    """

    prefix: str
    tensors: Mapping[str, str]
    arguments: Mapping[str, str]

    def tensor(self, source: str) -> str:
        """The tensor or control input of the graph for one of the function."""
        name = source.removeprefix("^")
        own = f"{self.prefix}{self.tensors.get(name, name)}".removesuffix(":0")
        passed = self.arguments.get(producer_of(name), own)
        return passed if name == source else f"^{producer_of(passed)}"


class Inliner:
    """Makes the bodies of calls; the tensors of a function are numbered once."""

    def __init__(self, library: Mapping[str, Any]) -> None:
        self._library = library
        self._tensors: dict[str, Mapping[str, str]] = {}

    def body(self, function: Any, prefix: str, inputs: Iterable[str]) -> InlinedBody:
        """The body of a function for one call.

        Args:
            function: the ``FunctionDef``.
            prefix: as in `InlinedBody`.
            inputs: the tensors that the call passes.
        """
        name = function.signature.name
        if name not in self._tensors:
            self._tensors[name] = body_tensors(function, self._library)
        arguments = (argument.name for argument in function.signature.input_arg)
        return InlinedBody(prefix, self._tensors[name], dict(zip(arguments, inputs, strict=False)))


def body_tensors(function: Any, library: Mapping[str, Any]) -> Mapping[str, str]:
    """The tensors that the nodes of a function compute: their names in a GraphDef, by their names.

    If the type of an op is unknown to TensorFlow, its outputs are numbered as they are mentioned.
    """
    tensors = {}
    for node in function.node_def:
        for index, output in enumerate(_output_names(node, library)):
            tensors[f"{node.name}:{output}"] = tensor_name(node.name, index)
    unknown = Counter[str]()
    read = (source for node in function.node_def for source in node.input)
    for source in (*read, *function.ret.values()):
        name, colon, _ = source.partition(":")
        if colon and source not in tensors:
            tensors[source] = tensor_name(name, unknown[name])
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
