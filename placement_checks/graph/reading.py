"""Read a GraphDef, from a live graph or a file, into a `Placement` of requested devices.

TensorFlow lowers ``If`` and ``While`` and inlines calls before it runs a graph, so it places each
op in their bodies. The `Placement` contains these ops too, with TensorFlow's names:
``while/body/Tanh``, ``cond/then/Sin``, ``PartitionedCall/MatMul``. Functions that are passed to a
kernel, such as the functions of ``tf.data``, are not placed.
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
from placement_checks.tf.distribution import strategy_name
from placement_checks.tf.simulated_devices import requested_name
from placement_checks.util.resources import gc_paused

tf1 = tf.compat.v1

MAX_NESTED = 2_000_000  # ops; large programs have a million, which take 5 GB to place
MAX_DEPTH = 100  # nested calls; programs nest about ten

_CALLS: Mapping[str, Mapping[str, str]] = {
    "PartitionedCall": {"f": ""},
    "StatefulPartitionedCall": {"f": ""},
    "If": {"then_branch": "/then", "else_branch": "/else"},
    "StatelessIf": {"then_branch": "/then", "else_branch": "/else"},
    "While": {"cond": "/cond", "body": "/body"},
    "StatelessWhile": {"cond": "/cond", "body": "/body"},
}
_CASES = ("Case", "StatelessCase")

_LARGE_BYTES = 1024  # bytes; values of larger constants are removed before placement
_MAX_VALUES = 1 << 16  # elements of a constant; a single stored value may fill any shape
_MAX_COMPARED_DEPTH = 100  # nested functions; deeper bodies are compared by name


@dataclass
class GraphSource:
    """A graph to be placed.

    Attributes:
        program: the name of the program in reports.
        graph_def: its ``GraphDef``.
        collections: names of variables, without ``:0``, by collection.
        origin: the source of details that the GraphDef lacks.
        step_ops: the ops of its training step, as far as they are known.
        strategy: the strategy that built it for several replicas; None if there is none.
    """

    program: str
    graph_def: Any
    collections: Mapping[str, Sequence[str]] = field(default_factory=dict)
    origin: Origin = field(default_factory=Origin)
    step_ops: StepOps = field(default_factory=StepOps)
    strategy: Strategy | None = None

    @property
    def live(self) -> tf.Graph | None:
        """The ``tf.Graph``, if the graph belongs to this process; else None."""
        return self.origin.graph if isinstance(self.origin, LiveGraph) else None


def from_live_graph(
    graph: tf.Graph,
    program: str,
    folder: Path | None = None,
    gradients: GradientNotes | None = None,
) -> GraphSource:
    """Read a live graph.

    Args:
        graph: the graph.
        program: the name of the program in reports.
        folder: the directory of the user's source files; None if any file outside of libraries is
            the user's.
        gradients: the gradients recorded while the graph was built; None if not recorded.

    Raises:
        InputError: the graph is larger than a GraphDef may be.
    """
    try:
        graph_def = graph.as_graph_def()
    except (DecodeError, ValueError, tf.errors.OpError):  # the type depends on the version
        raise InputError(
            program,
            "its graph is larger than the 2 GB that a GraphDef may have",
            "feed large arrays through placeholders or variables instead of constants",
        ) from None
    collections = {
        key: tuple(producer_of(variable.name) for variable in graph.get_collection(key))
        for key in (GLOBAL, TRAINABLE)
    }
    step_ops = StepOps(
        train_ops=_collected_ops(graph, tf.compat.v1.GraphKeys.TRAIN_OP),
        update_ops=_collected_ops(graph, tf.compat.v1.GraphKeys.UPDATE_OPS),
        counters=_collected_ops(graph, tf.compat.v1.GraphKeys.GLOBAL_STEP),
        objectives=gradients.objectives if gradients else (),
        gradients=gradients.gradients if gradients else {},
        taken=gradients.taken if gradients else {},
        backward=gradients.ops(graph_def) if gradients else None,
    )
    origin = LiveGraph(graph, [node.name for node in graph_def.node], folder)
    strategy = strategy_of_graph(graph)
    return GraphSource(program, graph_def, collections, origin, step_ops, strategy)


def _collected_ops(graph: tf.Graph, key: str) -> tuple[str, ...]:
    """The names of the ops in a collection; items without a name are skipped."""
    items = graph.get_collection(key)
    return tuple(
        producer_of(item.name) for item in items if isinstance(getattr(item, "name", None), str)
    )


def strategy_of_graph(graph: tf.Graph) -> Strategy | None:
    """The strategy that mirrored the variables of a graph; None without mirrored variables."""
    mirrored = [
        entry
        for entry in graph.get_collection(tf1.GraphKeys.GLOBAL_VARIABLES)
        if len(component_variables(entry)) > 1
    ]
    if not mirrored:
        return None
    strategy = mirrored[0].distribute_strategy
    return Strategy(
        strategy_name(strategy),
        [Device.parse(requested_name(name)) for name in strategy.extended.worker_devices],
        {name: copy for entry in mirrored for name, copy in _copies_by_name(entry)},
    )


def _copies_by_name(variable: Any) -> Sequence[tuple[str, Copy]]:
    """The copies of a mirrored variable, with their names."""
    in_sync = variable.synchronization is not tf.VariableSynchronization.ON_READ
    names = [part.op.name for part in variable.values]
    return [(name, Copy(names[0], replica, in_sync)) for replica, name in enumerate(names)]


def component_variables(variable: Any) -> Sequence[Any]:
    """The components of a distributed variable, one per replica; else the variable itself."""
    is_distributed = isinstance(variable, tf.distribute.DistributedValues)
    return tuple(variable.values) if is_distributed else (variable,)


@gc_paused()
def read_placement(source: GraphSource) -> Placement:
    """Read the placement that a graph requests; its ops have no assigned devices.

    Raises:
        InputError: an op has no unique name, requests a device name that cannot be read, or is a
            variable of an unknown dtype; or calls of functions cannot be inlined.
    """
    ops: dict[str, Op] = {}
    variables: list[Variable] = []
    device_of = partial(_device, source)
    devices: dict[str, Device] = {}  # parsed once per name
    for node in source.graph_def.node:
        name, kind, text, attributes = node.name, node.op, node.device, node.attr
        if not name or name in ops:
            raise InputError(
                source.program,
                f"has two ops of the name '{name}'" if name else "has an op without a name",
                "write the file again; TensorFlow writes no such graph",
                is_predicate=True,
            )
        if text not in devices:
            devices[text] = device_of(text, name)
        colocated = _colocated(attributes["_class"].list.s, name) if "_class" in attributes else ()
        ops[name] = Op(name, kind, devices[text], tuple(node.input[:]), None, colocated)
        if kind in VARIABLES:
            variables.append(_variable(node, source.program))
    details = GraphDetails(source.graph_def, source.origin, list(ops))
    check_calls(source.graph_def, source.program)
    for op, function, inner in inlined_ops(source.graph_def, ops, device_of):
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


def _device(source: GraphSource, text: str, op: str) -> Device:
    """Parse the device that an op requests."""
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
            f"its variable '{node.name}' has the dtype number {number}, which TensorFlow "
            f"{tf.__version__} does not know",
            "read the file with the version of TensorFlow that wrote it, or write it again",
        ) from None
    shape = node.attr["shape"].shape
    dims = (
        None if shape.unknown_rank else tuple(d.size if d.size >= 0 else None for d in shape.dim)
    )
    return Variable(node.name, dtype, dims)


def _colocated(classes: Iterable[bytes], own: str) -> tuple[str, ...]:
    """The ops in ``loc:@…`` entries, except the op itself: variables name themselves."""
    names = [entry.decode(errors="replace").removeprefix("loc:@") for entry in classes]
    return tuple([name for name in names if name != own])


class _Size(NamedTuple):
    ops: int
    levels: int


def check_calls(graph_def: Any, program: str) -> None:
    """Check that the calls of a graph can be inlined; a few functions can expand to many ops.

    Raises:
        InputError: a function calls itself, calls are nested too deep, or expand to too many ops.
    """
    library = _library(graph_def)
    if not library:
        return
    ops, levels = _Expansion(library, program).size_of_calls(graph_def.node, ())
    if levels > MAX_DEPTH:
        raise _too_deep(program)
    if ops > MAX_NESTED:
        raise InputError(
            program,
            f"the calls of its functions expand to {_rounded(ops)} ops, and at most "
            f"{MAX_NESTED:,} are placed",
            "build a part of the program, or nest fewer calls",
        )


class _Expansion:
    """Computes the expanded size of calls; each function of the library is measured once."""

    def __init__(self, library: Mapping[str, Any], program: str) -> None:
        self._library = library
        self._program = program
        self._sizes: dict[str, _Size] = {}

    def size_of_calls(self, nodes: Any, within: tuple[str, ...]) -> _Size:
        """The expanded size of all calls among nodes; ``within`` are the functions around them."""
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
                    f"its function '{function}' calls itself, but calls must be inlined to be "
                    "placed",
                    "write the recursion as a loop",
                )
            if function not in self._sizes:
                if len(within) == MAX_DEPTH:
                    raise _too_deep(self._program)
                body = self._library[function].node_def
                ops, levels = self.size_of_calls(body, (*within, function))
                self._sizes[function] = _Size(len(body) + ops, levels + 1)
        called = [self._sizes[function] for function in functions]
        return _Size(
            sum(size.ops for size in called), max((size.levels for size in called), default=0)
        )


def _too_deep(program: str) -> InputError:
    return InputError(
        program,
        f"its functions call each other more than {MAX_DEPTH} levels deep",
        "build the program with less deeply nested calls",
    )


def _rounded(number: int) -> str:
    return f"{number:,}" if number < 10**12 else f"more than 10^{len(str(number)) - 1}"


def inlined_ops(
    graph_def: Any, ops: Mapping[str, Op], device_of: Callable[[str, str], Device]
) -> Iterator[tuple[Op, str, str]]:
    """Inline all calls of a graph.

    Args:
        graph_def: a graph that has passed `check_calls`.
        ops: the ops of the graph itself, by name.
        device_of: parses a device name, given the op that requests it.

    Yields:
        Each inlined op, its function, and its name in that function. Its inputs are ops of the
        inlined graph: arguments of functions are replaced by the inputs of calls.
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
            # The first input of a branching op is its condition, which the branches do not
            # receive.
            arguments = inputs[1:] if suffix.startswith(("/then", "/else", "/branch")) else inputs
            data = [source for source in arguments if not source.startswith("^")]
            argument_of = dict(zip(parameters, data, strict=False))
            prefix = f"{name}{suffix}"
            for inner in body.node_def:
                path = f"{prefix}/{inner.name}"
                sources = [_source(source, prefix, argument_of) for source in inner.input]
                # The device of the call fills in missing parts of the node's device.
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
    """The functions that a call runs, each with its suffix for the names of inlined ops."""
    if node.op in library:
        yield node.op, ""
    elif node.op in _CASES:
        for index, branch in enumerate(node.attr["branches"].list.func):
            yield branch.name, f"/branch{index}"
    else:
        for attribute, suffix in _CALLS[node.op].items():
            yield node.attr[attribute].func.name, suffix


def _source(source: str, prefix: str, arguments: Mapping[str, str]) -> str:
    """Convert an input of a body's node to an input in the inlined graph."""
    producer = producer_of(source)
    control = "^" if source.startswith("^") else ""
    if producer in arguments:
        return control + producer_of(arguments[producer])
    return f"{control}{prefix}/{producer}"


class GraphDetails(Details):
    """Details of the ops of one graph, from its GraphDef and its origin.

    Args:
        graph_def: the graph.
        origin: the source of details that the GraphDef lacks.
        names: the names of its nodes, in graph order.

    Attributes:
        bodies: the functions that contain inlined ops, by the op's name in the placement.
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
        """Convert an attribute to numbers, texts, tuples and bodies; None for tensors."""
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
        """A digest of a function's body; functions with equal bodies have the same digest."""
        if depth == _MAX_COMPARED_DEPTH:
            return function
        if function not in self._digests:
            self._digests[function] = function  # for recursive calls
            digest = hashlib.sha256()
            nodes = self._functions.get(function, {})
            numbers = {name: str(number) for number, name in enumerate(nodes)}
            for node in nodes.values():
                parts = (source.partition(":") for source in node.input)
                inputs = [(numbers.get(name, name), output) for name, _, output in parts]
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
        except (TypeError, ValueError):  # a dtype without arrays, or values that do not fit
            return None
        return (array.dtype.name, array.shape, *map(_comparable, array.ravel().tolist()))

    def forward_op(self, op: str) -> str:
        # Ops in bodies belong to another graph; its names may be the same.
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
    """Replace NaN, which does not equal itself."""
    return "nan" if isinstance(value, float) and value != value else value


def _computing_attributes(node: Any) -> list[str]:
    """The attributes that affect a node's result; ``metadata`` only numbers a dataset."""
    return sorted(key for key in node.attr if not key.startswith("_") and key != "metadata")


def _shape(shape: Any) -> tuple[int, ...] | str:
    return "unknown" if shape.unknown_rank else tuple(dim.size for dim in shape.dim)
