"""Read a GraphDef, from a live graph or a file, into a `Placement` of requested devices.

TensorFlow lowers ``If`` and ``While`` and inlines calls before it runs a graph, so it places each
op in their bodies. The `Placement` contains these ops too, with TensorFlow's names:
``while/body/Tanh``, ``cond/then/Sin``, ``PartitionedCall/MatMul``. Functions that are passed to a
kernel, such as the functions of ``tf.data``, are not placed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf
from google.protobuf.message import DecodeError

from placement_checks.core import limits
from placement_checks.core.devices import Device
from placement_checks.core.errors import InputError
from placement_checks.core.op_types import LOOPS, VARIABLES
from placement_checks.core.placement import (
    GLOBAL,
    TRAINABLE,
    Op,
    Placement,
    StepOps,
    producer_of,
    tensor_name,
)
from placement_checks.core.strategies import Copy, Strategy
from placement_checks.core.variables import Variable, Variables
from placement_checks.graph.details import GraphDetails, LiveGraph
from placement_checks.graph.edits import colocated_ops
from placement_checks.graph.gradients import GradientNotes
from placement_checks.graph.inlining import (
    FunctionOp,
    Inliner,
    called_bodies,
    function_library,
)
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
            name, kind, text = node.name, node.op, node.device
            if not name or name in ops:
                raise InputError(
                    program,
                    f"has two ops of the name '{name}'" if name else "has an op without a name",
                    "write the file again; TensorFlow writes no such graph",
                    is_predicate=True,
                )
            if text not in devices:
                devices[text] = device_of(text, name)
            bound = colocated_ops(node)
            # A variable is colocated with itself.
            colocated = tuple([other for other in bound if other != name]) if bound else ()
            ops[name] = Op(name, kind, devices[text], tuple(node.input[:]), None, colocated)
            if kind in VARIABLES:
                variables.append(_variable(node, program))
        check_calls(self.graph_def, program)
        inlined = Inlined(self.graph_def, ops, device_of)
        for name, op in inlined.ops.items():
            if name not in ops:
                ops[name] = op
                self.details.bodies[name] = inlined.origins[name]
        return Placement(
            program,
            ops,
            Variables(variables),
            self.collections,
            gpus=gpus,
            soft=soft,
            step=self.step_ops,
            strategy=self.strategy,
            results=inlined.results,
            loop_variables=inlined.loop_variables,
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
    step_ops = StepOps(
        train_ops=_collected_ops(graph, tf1.GraphKeys.TRAIN_OP),
        update_ops=_collected_ops(graph, tf1.GraphKeys.UPDATE_OPS),
        counters=_collected_ops(graph, tf1.GraphKeys.GLOBAL_STEP),
    )
    return GraphSource(
        details=LiveGraph(graph, graph_def, folder),
        collections={
            key: tuple(producer_of(variable.name) for variable in graph.get_collection(key))
            for key in (GLOBAL, TRAINABLE)
        },
        step_ops=step_ops.with_gradients(gradients.finished_calls(graph_def))
        if gradients
        else step_ops,
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


class Inlined:
    """The ops in the bodies of the functions that a graph calls.

    Attributes:
        ops: the ops by name. Their inputs are tensors of the inlined graph: the inputs of a call
            replace the arguments of its function.
        origins: the op of a function body that each op comes from, by the op's name.
        results, loop_variables: as in `Placement`.
    """

    def __init__(
        self, graph_def: Any, ops: Mapping[str, Op], device_of: Callable[[str, str], Device]
    ) -> None:
        """Inline all calls of a graph that has passed `check_calls`.

        Args:
            graph_def: the graph.
            ops: the ops of the graph itself, by name.
            device_of: parses a device name, given the op that requests it.
        """
        self.ops: dict[str, Op] = {}
        self.origins: dict[str, FunctionOp] = {}
        self.results: dict[str, dict[str, Sequence[str]]] = {}
        self.loop_variables: dict[str, Mapping[int, str]] = {}
        self._library = function_library(graph_def)
        self._device_of = device_of
        self._inliner = Inliner(self._library)
        for node in graph_def.node if self._library else ():
            self._expand(node, ops[node.name], {})

    def _expand(self, node: Any, call: Op, variables: Mapping[int, str]) -> None:
        """Inline the bodies that a node calls.

        ``variables`` are the variables of enclosing loops among the inputs of the call.
        """
        for function, suffix in called_bodies(node, self._library):
            # The first input of a branching op is the condition. Its branches do not receive it.
            first = int(suffix.startswith(("/then", "/else", "/branch")))
            data = [source for source in call.inputs if not source.startswith("^")][first:]
            body = self._inliner.body(function, f"{call.name}{suffix}/", data)
            arguments = self._loop_arguments(node, call.name, function, first, variables)
            for inner in function.node_def:
                name = f"{body.prefix}{inner.name}"
                # The device of the call fills in missing parts of the node's device.
                device = self._device_of(inner.device, name).over(call.requested)
                inputs = tuple([body.tensor(source) for source in inner.input])
                op = Op(name, inner.op, device, inputs, caller=call.name)
                looping = {
                    number: arguments[source]
                    for number, source in enumerate(inner.input if arguments else ())
                    if source in arguments
                }
                if name not in self.ops:
                    self.ops[name] = op
                    self.origins[name] = FunctionOp(function.signature.name, inner.name)
                    if looping:
                        self.loop_variables[name] = looping
                self._expand(inner, op, looping)
            results = (function.ret.get(each.name, "") for each in function.signature.output_arg)
            self.results.setdefault(call.name, {})[suffix] = [
                arguments.get(result) or body.tensor(result) for result in results
            ]

    def _loop_arguments(
        self, node: Any, call: str, function: Any, first: int, variables: Mapping[int, str]
    ) -> Mapping[str, str]:
        """The loop variables that a body receives, by the names of its arguments.

        ``variables`` are the loop variables among the inputs of the call. The first argument is
        the data input ``first``.
        """
        numbered = {
            argument.name: number
            for number, argument in enumerate(function.signature.input_arg, first)
        }
        looping = {
            argument: variables[number]
            for argument, number in numbered.items()
            if number in variables
        }
        if node.op in LOOPS:
            constant = self._constant_variables(node)
            looping |= {
                argument: tensor_name(call, number)
                for argument, number in numbered.items()
                if number not in constant
            }
        return looping

    def _constant_variables(self, loop: Any) -> Set[int]:
        """The numbers of the loop variables that the body of a loop returns as they are."""
        body = self._library.get(loop.attr["body"].func.name)
        if body is None:
            return frozenset()
        pairs = zip(body.signature.input_arg, body.signature.output_arg, strict=False)
        return {
            number
            for number, (argument, output) in enumerate(pairs)
            if body.ret.get(output.name) == argument.name
        }
