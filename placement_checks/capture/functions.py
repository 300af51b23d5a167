"""The ops inside function bodies, named as TensorFlow names them where it inlines the call.

``If`` and ``While`` are lowered and calls are inlined before a graph runs, so the ops of their
bodies are placed one by one: ``while/body/Tanh``, ``cond/then/Sin``, ``PartitionedCall/MatMul``.
Functions that are handed to a kernel, such as those of ``tf.data``, are not placed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from placement_checks.devices import Device
from placement_checks.placement import Op, producer_of

_CALLS: Mapping[str, Mapping[str, str]] = {
    "PartitionedCall": {"f": ""},
    "StatefulPartitionedCall": {"f": ""},
    "If": {"then_branch": "/then", "else_branch": "/else"},
    "StatelessIf": {"then_branch": "/then", "else_branch": "/else"},
    "While": {"cond": "/cond", "body": "/body"},
    "StatelessWhile": {"cond": "/cond", "body": "/body"},
}
_CASES = ("Case", "StatelessCase")


def nested_ops(graph_def: Any, ops: Mapping[str, Op]) -> Iterator[tuple[Op, str, str]]:
    """Every op of a body that is placed, with its function's name and its name therein.

    Its inputs are those of the graph: an argument of the body stands for what the call is given.
    """
    library = {function.signature.name: function for function in graph_def.library.function}
    if not library:
        return
    for node in graph_def.node:
        if _is_call(node, library):
            call = ops[node.name]
            yield from _expand(node, node.name, call.requested, list(call.inputs), library, ())


def _expand(
    node: Any,
    name: str,
    device: Device,
    inputs: list[str],
    library: Mapping[str, Any],
    within: tuple[str, ...],
) -> Iterator[tuple[Op, str, str]]:
    for function, suffix in _bodies(node, library):
        if function not in library or function in within:  # unknown, or recursive
            continue
        body = library[function]
        arguments = [argument.name for argument in body.signature.input_arg]
        # A branch is not given the condition, which is the first input of its call.
        given = inputs[1:] if suffix.startswith(("/then", "/else", "/branch")) else inputs
        data = [source for source in given if not source.startswith("^")]
        known = dict(zip(arguments, data, strict=False))
        prefix = f"{name}{suffix}"
        for inner in body.node_def:
            sources = [_source(source, prefix, known) for source in inner.input]
            # A node without a device of its own takes that of the call.
            own = Device.parse(inner.device).over(device)
            op = Op(f"{prefix}/{inner.name}", inner.op, own, tuple(sources), call=name)
            yield op, function, inner.name
            if _is_call(inner, library):
                yield from _expand(inner, op.name, own, sources, library, (*within, function))


def _is_call(node: Any, library: Mapping[str, Any]) -> bool:
    return node.op in _CALLS or node.op in _CASES or node.op in library


def _bodies(node: Any, library: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The functions that a call runs, each with what it adds to the call's name."""
    if node.op in library:
        yield node.op, ""
    elif node.op in _CASES:
        for index, branch in enumerate(node.attr["branches"].list.func):
            yield branch.name, f"/branch{index}"
    else:
        for attribute, suffix in _CALLS[node.op].items():
            yield node.attr[attribute].func.name, suffix


def _source(source: str, prefix: str, arguments: Mapping[str, str]) -> str:
    """An input of a body's node, as an input in the graph around it."""
    producer = producer_of(source)
    control = "^" if source.startswith("^") else ""
    if producer in arguments:
        return control + producer_of(arguments[producer])
    return f"{control}{prefix}/{producer}"
