"""The ops inside function bodies, named as TensorFlow names them where it inlines the call.

``If`` and ``While`` are lowered and calls are inlined before a graph runs, so the ops of their
bodies are placed one by one: ``while/body/Tanh``, ``cond/then/Sin``, ``PartitionedCall/MatMul``.
Functions that are handed to a kernel, such as those of ``tf.data``, are not placed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from placement_checks.core.devices import Device
from placement_checks.core.errors import InputError
from placement_checks.core.placement import Op, producer_of

MAX_NESTED = 2_000_000  # ops; large programs have one million, and a million takes 5 GB to place
MAX_DEPTH = 100  # calls within calls; loops in branches in functions of programs go ten deep

_CALLS: Mapping[str, Mapping[str, str]] = {
    "PartitionedCall": {"f": ""},
    "StatefulPartitionedCall": {"f": ""},
    "If": {"then_branch": "/then", "else_branch": "/else"},
    "StatelessIf": {"then_branch": "/then", "else_branch": "/else"},
    "While": {"cond": "/cond", "body": "/body"},
    "StatelessWhile": {"cond": "/cond", "body": "/body"},
}
_CASES = ("Case", "StatelessCase")


class _Size(NamedTuple):
    ops: int
    levels: int


def check_calls(graph_def: Any, program: str) -> None:
    """Make sure that a graph's calls can be inlined: a few functions can expand to endless ops.

    Raises:
        InputError: a function calls itself, calls are nested too deep, or expand to too many ops.
    """
    library = _library(graph_def)
    if not library:
        return
    ops, levels = _Expansion(library, program).of_calls(graph_def.node, ())
    if levels > MAX_DEPTH:
        raise _too_deep(program)
    if ops > MAX_NESTED:
        raise InputError(
            program,
            f"the calls of its functions expand to {_rounded(ops)} ops, and at most "
            f"{MAX_NESTED:,} are placed",
            "build a part of it, or call fewer functions from each other",
        )


class _Expansion:
    """What the calls of a program expand to; each function of its library is counted once."""

    def __init__(self, library: Mapping[str, Any], program: str) -> None:
        self._library = library
        self._program = program
        self._sizes: dict[str, _Size] = {}

    def of_calls(self, nodes: Any, within: tuple[str, ...]) -> _Size:
        """What all calls among the nodes of a function expand to, inside the others ``within``."""
        functions = [
            function
            for node in nodes
            if _is_call(node, self._library)
            for function, _ in _bodies(node, self._library)
            if function in self._library
        ]
        for function in functions:
            if function in within:
                raise InputError(
                    self._program,
                    f"its function '{function}' calls itself, and every call is inlined to be "
                    "placed",
                    "write the recursion as a loop",
                )
            if function not in self._sizes:
                if len(within) == MAX_DEPTH:
                    raise _too_deep(self._program)
                body = self._library[function].node_def
                ops, levels = self.of_calls(body, (*within, function))
                self._sizes[function] = _Size(len(body) + ops, levels + 1)
        called = [self._sizes[function] for function in functions]
        return _Size(
            sum(size.ops for size in called), max((size.levels for size in called), default=0)
        )


def _too_deep(program: str) -> InputError:
    return InputError(
        program,
        f"its functions call each other more than {MAX_DEPTH} levels deep",
        "build it with less deeply nested calls",
    )


def _rounded(number: int) -> str:
    return f"{number:,}" if number < 10**12 else f"more than 10^{len(str(number)) - 1}"


def nested_ops(
    graph_def: Any, ops: Mapping[str, Op], device_of: Callable[[str, str], Device]
) -> Iterator[tuple[Op, str, str]]:
    """Every op of a body that is placed, with the name of its function and its name in there.

    Its inputs are those of the graph: an argument of the body stands for what the call is given.

    Args:
        graph_def: a graph that has passed `check_calls`.
        ops: those of the graph itself, by name.
        device_of: parses a device name, given the op that requests it.
    """
    library = _library(graph_def)

    def expand(
        node: Any, name: str, device: Device, inputs: list[str]
    ) -> Iterator[tuple[Op, str, str]]:
        for function, suffix in _bodies(node, library):
            if function not in library:
                continue
            body = library[function]
            parameters = [argument.name for argument in body.signature.input_arg]
            # A branch is not given the condition, which is the first input of its call.
            arguments = inputs[1:] if suffix.startswith(("/then", "/else", "/branch")) else inputs
            data = [source for source in arguments if not source.startswith("^")]
            argument_of = dict(zip(parameters, data, strict=False))
            prefix = f"{name}{suffix}"
            for inner in body.node_def:
                path = f"{prefix}/{inner.name}"
                sources = [_source(source, prefix, argument_of) for source in inner.input]
                # A node without a device of its own takes that of the call.
                own = device_of(inner.device, path).over(device)
                yield Op(path, inner.op, own, tuple(sources), caller=name), function, inner.name
                if _is_call(inner, library):
                    yield from expand(inner, path, own, sources)

    for node in graph_def.node if library else ():
        if _is_call(node, library):
            call = ops[node.name]
            yield from expand(node, node.name, call.requested, list(call.inputs))


def _library(graph_def: Any) -> Mapping[str, Any]:
    return {function.signature.name: function for function in graph_def.library.function}


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
