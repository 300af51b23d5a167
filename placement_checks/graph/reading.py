"""A GraphDef, from a live graph or a file, read into a `Placement` of what was requested.

The strategy whose variables a graph of TensorFlow 1 has collected.

What is known of single ops, looked up in a GraphDef and in the graph that it came from.

The ops inside function bodies, named as TensorFlow names them where it inlines the call.

``If`` and ``While`` are lowered and calls are inlined before a graph runs, so the ops of their
bodies are placed one by one: ``while/body/Tanh``, ``cond/then/Sin``, ``PartitionedCall/MatMul``.
Functions that are handed to a kernel, such as those of ``tf.data``, are not placed.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf
from google.protobuf.message import DecodeError

from placement_checks.core.devices import Device
from placement_checks.core.errors import InputError
from placement_checks.core.op_types import CONST, VARIABLES
from placement_checks.core.placement import (
    GLOBAL,
    TRAINABLE,
    Body,
    Details,
    Frame,
    Op,
    Placement,
    StepOps,
    Tensor,
    producer_of,
)
from placement_checks.core.strategies import Copy, Strategy
from placement_checks.core.variables import Variable, Variables
from placement_checks.graph.gradients import GradientNotes
from placement_checks.graph.op_origins import BodyOp, LiveGraph, Origin
from placement_checks.tf.distribution import name_of_strategy
from placement_checks.tf.simulated_devices import as_requested
from placement_checks.util.resources import gc_paused

tf1 = tf.compat.v1


def strategy_of_graph(graph: tf.Graph) -> Strategy | None:
    """The strategy that keeps variables for each replica; None where none does."""
    mirrored = [
        entry
        for entry in graph.get_collection(tf1.GraphKeys.GLOBAL_VARIABLES)
        if len(copies(entry)) > 1
    ]
    if not mirrored:
        return None
    strategy = mirrored[0].distribute_strategy
    return Strategy(
        name_of_strategy(strategy),
        [Device.parse(as_requested(name)) for name in strategy.extended.worker_devices],
        {name: copy for entry in mirrored for name, copy in _copies(entry)},
    )


def _copies(variable: Any) -> Sequence[tuple[str, Copy]]:
    """The copies of a variable, by name."""
    in_sync = variable.synchronization is not tf.VariableSynchronization.ON_READ
    names = [part.op.name for part in variable.values]
    return [(name, Copy(names[0], replica, in_sync)) for replica, name in enumerate(names)]


def copies(variable: Any) -> Sequence[Any]:
    """The variables that one is made of: under ``MirroredStrategy`` one for each replica."""
    is_distributed = isinstance(variable, tf.distribute.DistributedValues)
    return tuple(variable.values) if is_distributed else (variable,)


_LARGE_BYTES = 1024  # bytes; of larger constants the values are cut out before a graph is placed
_MAX_VALUES = 1 << 16  # of a constant: one value may stand for all of any shape
_MAX_DEPTH = 100  # functions within functions, of which the bodies are compared


class GraphDetails(Details):
    """The details of the ops of one graph.

    Args:
        graph_def: the graph.
        origin: where it came from.
        names: those of its nodes, in their order.

    Attributes:
        bodies: where each op is that is in the body of a function.
    """

    def __init__(self, graph_def: Any, origin: Origin, names: Sequence[str]) -> None:
        self._graph_def = graph_def
        self._origin = origin
        self._names = names
        self.bodies: dict[str, BodyOp] = {}
        self._digests: dict[str, str] = {}

    def frames(self, op: str) -> Sequence[Frame]:
        return self._origin.frames(op, self.bodies.get(op))

    def device_line(self, op: str) -> Frame | None:
        return self._origin.device_line(op, self.bodies.get(op))

    def outputs(self, op: str) -> Sequence[Tensor]:
        return self._origin.outputs(op, self.bodies.get(op))

    def attributes(self, op: str) -> Mapping[str, Any]:
        node = self._node(op)
        if node is None:
            return {}
        plain = {key: self._plain(node.attr[key], 0) for key in _computing_attributes(node)}
        return {key: value for key, value in plain.items() if value is not None}

    def _plain(self, value: Any, depth: int) -> Any:
        """An attribute as numbers, texts, tuples and bodies; None for tensors."""
        kind = value.WhichOneof("value")
        if kind in ("i", "f", "b", "s", "type"):
            return _comparable(getattr(value, kind))
        if kind == "shape":
            return _shape(value.shape)
        if kind == "func":
            return Body(self._digest(value.func.name, depth))
        if kind == "list" and not value.list.func and not value.list.tensor:
            listed = value.list
            plain = (listed.i, listed.f, listed.b, listed.s, listed.type)
            return tuple(item for values in plain for item in values) or tuple(
                _shape(shape) for shape in listed.shape
            )
        return None

    def _digest(self, function: str, depth: int) -> str:
        """A digest that functions with the same body share, whatever their names."""
        if depth == _MAX_DEPTH:
            return function
        if function not in self._digests:
            self._digests[function] = function  # itself, should it call itself
            digest = hashlib.sha256()
            nodes = self._functions.get(function, {})
            place = {name: str(number) for number, name in enumerate(nodes)}
            for node in nodes.values():
                parts = (source.partition(":") for source in node.input)
                inputs = [(place.get(name, name), output) for name, _, output in parts]
                digest.update(f"{node.op} {inputs}".encode())
                for key in _computing_attributes(node):
                    attribute = self._plain(node.attr[key], depth + 1)
                    tensor = node.attr[key].tensor.SerializeToString(deterministic=True)
                    digest.update(f"{key} {attribute} {tensor!r}".encode())
            self._digests[function] = digest.hexdigest()
        return self._digests[function]

    def value(self, op: str) -> tuple[Any, ...] | None:
        node = self._node(op)
        if node is None or node.op != CONST:
            return None
        tensor = node.attr["value"].tensor
        bare = type(tensor)(dtype=tensor.dtype, tensor_shape=tensor.tensor_shape)
        if tensor.ByteSize() > _LARGE_BYTES or tensor == bare:
            return None
        if not 0 <= math.prod(dim.size for dim in tensor.tensor_shape.dim) <= _MAX_VALUES:
            return None
        try:
            array = tf.make_ndarray(tensor)
        except (TypeError, ValueError):  # a dtype without arrays, or values that miss its shape
            return None
        return (array.dtype.name, array.shape, *map(_comparable, array.ravel().tolist()))

    def forward_op(self, op: str) -> str:
        # The name of an op in a body is that of another graph.
        return "" if op in self.bodies else self._origin.forward_op(op)

    def parts_of_keras(self, op: str) -> Collection[str]:
        return self._origin.parts_of_keras(op, self.bodies.get(op))

    @cached_property
    def _nodes(self) -> dict[str, Any]:
        return dict(zip(self._names, self._graph_def.node, strict=True))

    @cached_property
    def _functions(self) -> dict[str, dict[str, Any]]:
        return {
            function.signature.name: {node.name: node for node in function.node_def}
            for function in self._graph_def.library.function
        }

    def _node(self, op: str) -> Any:
        if op in self.bodies:
            function, inner = self.bodies[op]
            return self._functions[function][inner]
        return self._nodes.get(op)


def _comparable(value: Any) -> Any:
    """A value that equals itself, which NaN does not."""
    return "nan" if isinstance(value, float) and value != value else value


def _computing_attributes(node: Any) -> list[str]:
    """The attributes that say what a node computes; a dataset's metadata numbers it."""
    return sorted(key for key in node.attr if not key.startswith("_") and key != "metadata")


def _shape(shape: Any) -> tuple[int, ...] | str:
    return "unknown" if shape.unknown_rank else tuple(dim.size for dim in shape.dim)


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


@dataclass
class GraphSource:
    """A graph to be placed, with all that is known of it.

    Attributes:
        program: what it is called in reports.
        graph_def: its ``GraphDef``.
        collections: names of variables, without ``:0``, by collection.
        origin: where it came from.
        step_ops: what is known of its training step.
        strategy: the strategy that made it for several replicas; None where none is known to.
    """

    program: str
    graph_def: Any
    collections: Mapping[str, Sequence[str]] = field(default_factory=dict)
    origin: Origin = field(default_factory=Origin)
    step_ops: StepOps = field(default_factory=StepOps)
    strategy: Strategy | None = None

    @property
    def live(self) -> tf.Graph | None:
        """The ``tf.Graph`` of this process that it is; None for another."""
        return self.origin.graph if isinstance(self.origin, LiveGraph) else None


def from_live_graph(
    graph: tf.Graph,
    program: str,
    folder: Path | None = None,
    gradients: GradientNotes | None = None,
) -> GraphSource:
    """Read a live graph; ``gradients`` are the notes that were taken while it was built.

    Raises:
        InputError: it is larger than a GraphDef may be.
    """
    try:
        graph_def = graph.as_graph_def()
    except (DecodeError, ValueError, tf.errors.OpError):  # by version; nothing else can fail
        raise InputError(
            program,
            "its graph is larger than the 2 GB that a GraphDef may have",
            "feed large arrays through placeholders or variables instead of constants",
        ) from None
    collections = {
        key: tuple(name_of(variable.name) for variable in graph.get_collection(key))
        for key in (GLOBAL, TRAINABLE)
    }
    step_ops = StepOps(
        train_ops=_collected(graph, tf.compat.v1.GraphKeys.TRAIN_OP),
        update_ops=_collected(graph, tf.compat.v1.GraphKeys.UPDATE_OPS),
        counters=_collected(graph, tf.compat.v1.GraphKeys.GLOBAL_STEP),
        objectives=gradients.objectives if gradients else (),
        gradients=gradients.gradients if gradients else {},
        taken=gradients.taken if gradients else {},
        backward=gradients.ops(graph_def) if gradients else None,
    )
    origin = LiveGraph(graph, [node.name for node in graph_def.node], folder)
    strategy = strategy_of_graph(graph)
    return GraphSource(program, graph_def, collections, origin, step_ops, strategy)


def _collected(graph: tf.Graph, key: str) -> tuple[str, ...]:
    """The names of the ops in a collection; what has no name, such as a callable, is left out."""
    items = graph.get_collection(key)
    return tuple(
        name_of(item.name) for item in items if isinstance(getattr(item, "name", None), str)
    )


@gc_paused()
def requested(source: GraphSource) -> Placement:
    """The placement that a graph requests; none of its ops is assigned.

    Raises:
        InputError: an op has no name of its own, requests a device whose name cannot be read, or
            is a variable of an unknown dtype; or calls of functions cannot be inlined.
    """
    ops: dict[str, Op] = {}
    variables: list[Variable] = []
    device_of = partial(_device, source)
    devices: dict[str, Device] = {}  # few names, which many ops share
    for node in source.graph_def.node:
        name, kind, text, attributes = node.name, node.op, node.device, node.attr
        if not name or name in ops:
            what = f"has two ops of the name '{name}'" if name else "has an op without a name"
            raise InputError(
                source.program, what, "write it again: TensorFlow writes no such graph"
            )
        if text not in devices:
            devices[text] = device_of(text, name)
        colocated = _colocated(attributes["_class"].list.s, name) if "_class" in attributes else ()
        ops[name] = Op(name, kind, devices[text], tuple(node.input[:]), None, colocated)
        if kind in VARIABLES:
            variables.append(_variable(node, source.program))
    details = GraphDetails(source.graph_def, source.origin, list(ops))
    check_calls(source.graph_def, source.program)
    for op, function, inner in nested_ops(source.graph_def, ops, device_of):
        if op.name not in ops:
            ops[op.name] = op
            details.bodies[op.name] = BodyOp(function, inner)
    return Placement(
        source.program,
        ops,
        Variables(variables),
        source.collections,
        step=source.step_ops,
        strategy=source.strategy,
        details=details,
    )


def name_of(tensor: str) -> str:
    """The name of a variable without ``:0``."""
    return tensor.partition(":")[0]


def _device(source: GraphSource, text: str, op: str) -> Device:
    """The device that an op requests."""
    try:
        return Device.parse(text)
    except InputError as error:
        where = next(map(str, source.origin.frames(op, None)), "")
        raise InputError(
            source.program,
            f"op '{op}'{where and f' ({where})'} asks for the device {error.object}, "
            f"and {error.message}",
            error.fix,
        ) from None


def _variable(node: Any, program: str) -> Variable:
    number = node.attr["dtype"].type
    try:
        dtype = tf.dtypes.as_dtype(number).base_dtype.name
    except TypeError:
        raise InputError(
            program,
            f"its variable '{node.name}' is of the dtype {number}, which TensorFlow "
            f"{tf.__version__} does not know",
            "read it with the version that wrote it, or write it again",
        ) from None
    shape = node.attr["shape"].shape
    dims = (
        None if shape.unknown_rank else tuple(d.size if d.size >= 0 else None for d in shape.dim)
    )
    return Variable(node.name, dtype, dims)


def _colocated(classes: Iterable[bytes], own: str) -> tuple[str, ...]:
    """The ops of ``loc:@…`` entries; every variable is in a group named after itself."""
    names = [entry.decode(errors="replace").removeprefix("loc:@") for entry in classes]
    return tuple([name for name in names if name != own])
