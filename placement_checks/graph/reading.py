"""Read a GraphDef, from a live graph or a file, into a `Placement` of requested devices.

TensorFlow lowers ``If`` and ``While`` and inlines calls before it runs a graph, so it places each
op in their bodies. The `Placement` contains these ops too, with TensorFlow's names:
``while/body/Tanh``, ``cond/then/Sin``, ``PartitionedCall/MatMul``. Functions that are passed to a
kernel, such as the functions of ``tf.data``, are not placed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf
from google.protobuf.message import DecodeError

from placement_checks.core import limits
from placement_checks.core.devices import Device
from placement_checks.core.errors import InputError
from placement_checks.core.op_types import VARIABLES
from placement_checks.core.placement import (
    GLOBAL,
    TRAINABLE,
    Op,
    Placement,
    StepOps,
    producer_of,
)
from placement_checks.core.strategies import Copy, Strategy
from placement_checks.core.variables import Variable, Variables
from placement_checks.graph.details import BodyOp, GraphDetails, LiveGraph
from placement_checks.graph.gradients import GradientNotes
from placement_checks.graph.graph_def import called_bodies, function_library
from placement_checks.tf.distribution import replica_values, strategy_name
from placement_checks.tf.simulated_devices import requested_name
from placement_checks.util.resources import gc_paused

tf1 = tf.compat.v1


@dataclass(frozen=True, kw_only=True)
class GraphSource:
    """A graph, with facts that its GraphDef does not contain.

    Attributes:
        details: the ``GraphDef``, and details of single ops.
        collections: names of variables, without ``:0``, by collection.
        step_ops: the known ops of the training step.
        strategy: the strategy that built the graph for several replicas, if any.
    """

    details: GraphDetails
    collections: Mapping[str, Sequence[str]] = field(default_factory=dict)
    step_ops: StepOps = field(default_factory=StepOps)
    strategy: Strategy | None = None

    @property
    def graph_def(self) -> Any:
        return self.details.graph_def

    @property
    def live(self) -> tf.Graph | None:
        """The ``tf.Graph``, if the graph belongs to this process; else None."""
        return self.details.graph if isinstance(self.details, LiveGraph) else None

    @gc_paused()
    def read_placement(self, program: str, *, gpus: int = 0, soft: bool = False) -> Placement:
        """Read the placement that the graph requests; its ops have no assigned devices.

        Args:
            program: the name of the program in reports.
            gpus: the number of GPUs that the graph was built for; 0 if unknown.
            soft: whether soft placement is allowed.

        Raises:
            InputError: an op has no unique name, requests a device name that cannot be read, or is
                a variable of an unknown dtype; or calls of functions cannot be inlined.
        """
        ops: dict[str, Op] = {}
        variables: list[Variable] = []
        device_of = partial(_device, self.details, program)
        devices: dict[str, Device] = {}  # parsed once per name
        for node in self.graph_def.node:
            name, kind, text, attributes = node.name, node.op, node.device, node.attr
            if not name or name in ops:
                raise InputError(
                    program,
                    f"has two ops of the name '{name}'" if name else "has an op without a name",
                    "write the file again; TensorFlow writes no such graph",
                    is_predicate=True,
                )
            if text not in devices:
                devices[text] = device_of(text, name)
            colocated: tuple[str, ...] = ()
            if "_class" in attributes:
                entries = attributes["_class"].list.s
                bound = [each.decode(errors="replace").removeprefix("loc:@") for each in entries]
                # A variable is colocated with itself.
                colocated = tuple([other for other in bound if other != name])
            ops[name] = Op(name, kind, devices[text], tuple(node.input[:]), None, colocated)
            if kind in VARIABLES:
                variables.append(_variable(node, program))
        check_calls(self.graph_def, program)
        for op, body in inlined_ops(self.graph_def, ops, device_of):
            if op.name not in ops:
                ops[op.name] = op
                self.details.bodies[op.name] = body
        return Placement(
            program,
            ops,
            Variables(variables),
            self.collections,
            gpus=gpus,
            soft=soft,
            step=self.step_ops,
            strategy=self.strategy,
            details=self.details,
        )


def from_live_graph(
    graph: tf.Graph,
    program: str,
    folder: Path | None = None,
    gradients: GradientNotes | None = None,
) -> GraphSource:
    """Read a live graph.

    Args:
        graph: the graph.
        program: the name of the program for errors.
        folder: the directory of the program, as for `core.user_code.is_user_file`.
        gradients: the gradients recorded while the graph was built; None if not recorded.

    Raises:
        InputError: the graph is larger than 2 GB, the limit of a GraphDef.
    """
    try:
        graph_def = graph.as_graph_def()
    except (DecodeError, ValueError, tf.errors.OpError):  # the type depends on the version
        raise InputError(
            program,
            "its graph is larger than the 2 GB that a GraphDef may have",
            "feed large arrays through placeholders or variables instead of constants",
        ) from None
    return GraphSource(
        details=LiveGraph(graph, graph_def, folder),
        collections={
            key: tuple(producer_of(variable.name) for variable in graph.get_collection(key))
            for key in (GLOBAL, TRAINABLE)
        },
        step_ops=StepOps(
            train_ops=_collected_ops(graph, tf1.GraphKeys.TRAIN_OP),
            update_ops=_collected_ops(graph, tf1.GraphKeys.UPDATE_OPS),
            counters=_collected_ops(graph, tf1.GraphKeys.GLOBAL_STEP),
            objectives=gradients.objectives if gradients else (),
            gradients=gradients.gradients if gradients else {},
            gradients_by_variable=gradients.by_variable if gradients else {},
            backward=gradients.ops(graph_def) if gradients else None,
        ),
        strategy=strategy_of_graph(graph),
    )


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
        if len(replica_values(entry)) > 1
    ]
    if not mirrored:
        return None
    strategy = mirrored[0].distribute_strategy
    return Strategy(
        strategy_name(strategy),
        [Device.parse(requested_name(name)) for name in strategy.extended.worker_devices],
        {
            part.op.name: Copy(
                variable.values[0].op.name,
                replica,
                variable.synchronization is not tf.VariableSynchronization.ON_READ,
            )
            for variable in mirrored
            for replica, part in enumerate(variable.values)
        },
    )


def _device(details: GraphDetails, program: str, text: str, op: str) -> Device:
    try:
        return Device.parse(text)
    except InputError as error:
        where = next(map(str, details.frames(op)), "")
        raise InputError(
            program,
            f"op '{op}'{where and f' ({where})'} requests the device {error.object}, "
            f"but {error.message}",
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


class _Size(NamedTuple):
    ops: int
    levels: int


def check_calls(graph_def: Any, program: str) -> None:
    """Check that the calls of a graph can be inlined; a few functions can expand to many ops.

    Raises:
        InputError: a function calls itself, calls are nested too deep, or expand to too many ops.
    """
    library = function_library(graph_def)
    sizes: dict[str, _Size] = {}  # each function is measured once

    def size_of_calls(nodes: Any, within: tuple[str, ...]) -> _Size:
        """The expanded size of all calls among nodes; ``within`` are the functions around them."""
        called = [function for node in nodes for function, _ in called_bodies(node, library)]
        for function in called:
            name = function.signature.name
            if name in within:
                raise InputError(
                    program,
                    f"its function '{name}' calls itself, but calls must be inlined to be placed",
                    "write the recursion as a loop",
                )
            if name not in sizes:
                if len(within) == limits.CALL_DEPTH.most:
                    raise too_deep
                ops, levels = size_of_calls(function.node_def, (*within, name))
                sizes[name] = _Size(len(function.node_def) + ops, levels + 1)
        of_calls = [sizes[function.signature.name] for function in called]
        return _Size(
            sum(size.ops for size in of_calls), max((size.levels for size in of_calls), default=0)
        )

    too_deep = InputError(
        program,
        f"its functions call each other more than {limits.CALL_DEPTH.most} levels deep",
        "build the program with less deeply nested calls",
    )
    ops, levels = size_of_calls(graph_def.node if library else (), ())
    if levels > limits.CALL_DEPTH.most:
        raise too_deep
    if ops > limits.INLINED_OPS.most:
        rounded = f"{ops:,}" if ops < 10**12 else f"more than 10^{len(str(ops)) - 1}"
        raise InputError(
            program,
            f"the calls of its functions expand to {rounded} ops, but at most "
            f"{limits.INLINED_OPS.most:,} are placed",
            "build a part of the program, or nest fewer calls",
        )


def inlined_ops(
    graph_def: Any, ops: Mapping[str, Op], device_of: Callable[[str, str], Device]
) -> Iterator[tuple[Op, BodyOp]]:
    """Inline all calls of a graph that has passed `check_calls`.

    Args:
        graph_def: the graph.
        ops: the ops of the graph itself, by name.
        device_of: parses a device name, given the op that requests it.

    Yields:
        Each inlined op, and the op of the function body that it comes from. Its inputs are ops of
        the inlined graph: the inputs of a call replace the arguments of its function.
    """
    library = function_library(graph_def)

    def expand(
        node: Any, name: str, device: Device, inputs: Sequence[str]
    ) -> Iterator[tuple[Op, BodyOp]]:
        for body, suffix in called_bodies(node, library):
            parameters = [argument.name for argument in body.signature.input_arg]
            # The first input of a branching op is the condition. Its branches do not receive it.
            arguments = inputs[1:] if suffix.startswith(("/then", "/else", "/branch")) else inputs
            data = [source for source in arguments if not source.startswith("^")]
            argument_of = dict(zip(parameters, data, strict=False))
            prefix = f"{name}{suffix}"
            for inner in body.node_def:
                path = f"{prefix}/{inner.name}"
                sources = tuple(_source(source, prefix, argument_of) for source in inner.input)
                # The device of the call fills in missing parts of the node's device.
                own = device_of(inner.device, path).over(device)
                op = Op(path, inner.op, own, sources, caller=name)
                yield op, BodyOp(body.signature.name, inner.name)
                yield from expand(inner, path, own, sources)

    for node in graph_def.node if library else ():
        call = ops[node.name]
        yield from expand(node, node.name, call.requested, call.inputs)


def _source(source: str, prefix: str, arguments: Mapping[str, str]) -> str:
    """Convert an input of a body's node to an input in the inlined graph."""
    producer = producer_of(source)
    control = "^" if source.startswith("^") else ""
    if producer in arguments:
        return control + producer_of(arguments[producer])
    return f"{control}{prefix}/{producer}"
