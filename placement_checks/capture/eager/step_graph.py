"""The steps of a program as one flat graph, with variables and constants as ops of their own.

A graph that calls the training steps of a program, one after the other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef

from placement_checks.capture.eager.calls import SeenCall, is_training_function
from placement_checks.capture.eager.notes import TracingNotes
from placement_checks.capture.eager.packed_gradients import take_sums_apart
from placement_checks.capture.eager.variables import NotedVariable
from placement_checks.core.errors import InputError
from placement_checks.core.op_types import (
    CONST,
    FUNCTION_CALL,
    NO_OP,
    PLACEHOLDER,
    VARIABLE_HANDLE,
)
from placement_checks.core.placement import producer_of
from placement_checks.graph.flatten import (
    FlatGraph,
    TracedOp,
    flatten,
    rename_colocation,
    rename_input,
)
from placement_checks.tf.distribution import GRADIENT_PACKING_FILES, replica_specs
from placement_checks.tf.eager import traced_functions
from placement_checks.tf.simulated_devices import requested_name
from placement_checks.util.text import free_name


class Result(NamedTuple):
    """What a step returns: Python's tensor, and the call's output in the graph around."""

    tensor: Any
    output: str


class OuterGraph(NamedTuple):
    """A graph that calls steps.

    Attributes:
        graph_def: its ``GraphDef``: a placeholder for each argument, and a call for each step.
        graphs: Python's graphs of the steps and of what they call, by the names of functions.
        arguments: what each placeholder stands for.
        given: the placeholders of what the steps are given, but for variables and iterators.
        inputs: those of each replica; empty where replicas share them.
        origins: which argument of which function each placeholder is.
        calls: the names of the calls, those of the user's functions.
        results: what the steps return.
    """

    graph_def: Any
    graphs: Mapping[str, Any]
    arguments: Mapping[str, Any]
    given: Sequence[str]
    inputs: Sequence[Sequence[str]]
    origins: Mapping[str, TracedOp]
    calls: Sequence[str]
    results: Sequence[Result]


def outer_graph(steps: Sequence[SeenCall]) -> OuterGraph:
    """The graph that calls some steps; what several of them capture has one placeholder."""
    graph_def = GraphDef()
    functions: dict[str, Any] = {}
    arguments: dict[str, Any] = {}
    given: list[str] = []
    inputs: defaultdict[int, list[str]] = defaultdict(list)
    origins: dict[str, TracedOp] = {}
    placeholders: dict[int, str] = {}  # of what is captured, by its id
    calls: list[str] = []
    results: list[Result] = []
    for step in steps:
        definition = step.function.function_def
        name = definition.signature.name
        inner = step.graph.as_graph_def()
        graph_def.versions.CopyFrom(inner.versions)
        functions |= {each.signature.name: each for each in [*inner.library.function, definition]}
        values = [*step.given, *step.captured]
        replicas = [*_replicas(step), *[None] * len(step.captured)]
        sources = []
        for tensor, value, replica in zip(step.graph.inputs, values, replicas, strict=True):
            if id(value) not in placeholders:
                source = placeholders[id(value)] = free_name(tensor.op.name, arguments)
                arguments[source] = value
                origins[source] = TracedOp(name, tensor.op.name)
                node = graph_def.node.add(name=source, op=PLACEHOLDER)
                node.attr["dtype"].type = tensor.dtype.as_datatype_enum
                node.attr["shape"].shape.CopyFrom(tensor.shape.as_proto())
            source = placeholders[id(value)]
            sources.append(source)
            if len(sources) <= len(step.given) and value.dtype not in (tf.resource, tf.variant):
                given.append(source)
                if replica is not None:
                    inputs[replica].append(f"{source}:0")
        call = free_name(step.graph.name, {*calls, *arguments})
        calls.append(call)
        node = graph_def.node.add(name=call, op=FUNCTION_CALL, input=sources)
        node.attr["f"].func.name = name
        results += [
            Result(tensor, f"{call}:{index}") for index, tensor in enumerate(step.graph.outputs)
        ]
    graph_def.library.function.extend(functions.values())
    groups = [inputs[replica] for replica in sorted(inputs)]
    graphs = {name: graph for step in steps for name, graph in graphs_of(step).items()}
    return OuterGraph(graph_def, graphs, arguments, given, groups, origins, calls, results)


def graphs_of(step: SeenCall) -> Mapping[str, Any]:
    """Python's graphs of a step and of the functions that it calls, by name."""
    found = {step.function.function_def.signature.name: step.graph}
    waiting = [step.graph]
    while waiting:
        for name, body in traced_functions(waiting.pop()).items():
            if name not in found:
                found[name] = body
                waiting.append(body)
    return found


def _replicas(step: SeenCall) -> Sequence[int | None]:
    """The replica that each tensor which a step is given is for; None for all."""
    found = list(_of_leaves(step.function.structured_input_signature))
    return found if len(found) == len(step.given) else [None] * len(step.given)


def _of_leaves(signature: Any) -> Iterator[int | None]:
    for leaf in tf.nest.flatten(signature):
        of_replicas = replica_specs(leaf)
        for replica, spec in enumerate(of_replicas or [leaf]):
            parts = tf.nest.flatten(spec, expand_composites=True)
            if any(isinstance(part, tf.TypeSpec) for part in parts):
                yield from [replica if of_replicas else None] * len(parts)


class FlatStep:
    """The flat graph of some steps, its devices as on a machine with GPUs.

    Args:
        steps: the calls.
        notes: what was noted of them.
        program: what it is called in reports.

    Attributes:
        graphs: Python's graphs of the steps and of what they call, by the names of functions.
        arguments: what each placeholder stands for.
        given: the placeholders of what the steps are given, but for variables and iterators.
        inputs: those of each replica; empty where replicas share them.

    Raises:
        InputError: a step is within one op of it.
    """

    def __init__(self, steps: Sequence[SeenCall], notes: TracingNotes, program: str) -> None:
        self._notes = notes
        self._outer = outer_graph(steps)
        self.graphs = self._outer.graphs
        self.arguments = self._outer.arguments
        self.given = self._outer.given
        self.inputs = self._outer.inputs
        self._check_open(program, steps[0].name)
        self._put_in_arguments()
        self._part_of = take_sums_apart(self.graph_def, self._packs_gradients)
        self._add_train_op()
        nodes = [self.graph_def.node, *(f.node_def for f in self.graph_def.library.function)]
        for node in (node for body in nodes for node in body):
            node.device = requested_name(node.device)

    def _check_open(self, program: str, step: str) -> None:
        """Check that what trains is in the flat graph, and in no op of it."""
        for name, kind in self.flat.closed.items():
            raise InputError(
                program,
                f"{step} takes its steps inside of one op, {name} ({kind}), "
                "as a loop over a dataset does",
                "write 'for batch in iter(dataset):', or call a tf.function for each batch",
            )

    @cached_property
    def flat(self) -> FlatGraph:
        """The bodies of all functions in one graph."""

        def holds_step(function: str) -> bool:
            return function in self.graphs and is_training_function(
                self.graphs[function], self._notes.gradients
            )

        def placeholders(function: str) -> Sequence[str]:
            graph = self.graphs.get(function)
            return [tensor.op.name for tensor in graph.inputs] if graph is not None else ()

        return flatten(self._outer.graph_def, holds_step, placeholders)

    @property
    def graph_def(self) -> Any:
        """Its ``GraphDef``."""
        return self.flat.graph_def

    @cached_property
    def _names(self) -> Mapping[str, str]:
        """The names of variables by those of the placeholders that stand for them.

        Variables of one name are numbered, and with each its copies.
        """
        placeholders = {
            id(noted): name
            for name, value in self.arguments.items()
            if value.dtype == tf.resource
            and (noted := self._notes.variables.of_handle(value)) is not None
            and not noted.orders_collectives
        }
        names: dict[str, str] = {}
        bases: dict[int, str] = {}  # by what the copies are copies of
        taken_bases: set[str] = set()
        taken = set(self._all_names) - self.arguments.keys()
        for noted in self._notes.variables.all():
            if id(noted) in placeholders:
                owner = id(noted if noted.of is None else noted.of)
                if owner not in bases:
                    bases[owner] = free_name(noted.name, taken_bases)
                    taken_bases.add(bases[owner])
                base = bases[owner]
                full = f"{base}/replica_{noted.replica}" if noted.replica else base
                names[placeholders[id(noted)]] = name = free_name(full, taken)
                taken.add(name)
        return names

    @cached_property
    def variables(self) -> Mapping[str, NotedVariable]:
        """The variables of the step, by name."""
        found = {}
        for placeholder, name in self._names.items():
            noted = self._notes.variables.of_handle(self.arguments[placeholder])
            assert noted is not None
            found[name] = noted
        return found

    def _put_in_arguments(self) -> None:
        """Put variables and constants in the place of the placeholders that stand for them."""
        given = set(self.given)
        for node in self.graph_def.node:
            if node.name in self._names:
                name = self._names[node.name]
                _make_variable(node, name, self.variables[name])
            elif node.name in self.arguments:
                value = self.arguments[node.name]
                node.attr.pop("_user_specified_name", None)
                if node.name not in given and value.dtype not in (tf.resource, tf.variant):
                    _make_constant(node, value)
        for node in self.graph_def.node:
            node.input[:] = [rename_input(source, self._names) for source in node.input]
            rename_colocation(node, self._names)

    def _packs_gradients(self, name: str) -> bool:
        """Whether an op is part of how a strategy adds up many gradients at once."""
        function, traced = self.flat.origins.get(name, TracedOp("", ""))
        try:
            stack = self.graphs[function].get_operation_by_name(traced).traceback
        except KeyError:
            return False
        return any(frame.filename.endswith(GRADIENT_PACKING_FILES) for frame in stack)

    @cached_property
    def train_op(self) -> str:
        """The op that waits for all that the steps do."""
        return free_name("train_step", set(self._all_names))

    def _add_train_op(self) -> None:
        """Add an op that waits for all that the steps do."""
        waits = [self.flat.op(call) for call in self._outer.calls]
        waits += [producer_of(output) for _, output in self.results]
        self.graph_def.node.add(
            name=self.train_op,
            op=NO_OP,
            input=sorted({f"^{self._names.get(name, name)}" for name in waits}),
        )

    @cached_property
    def results(self) -> Sequence[Result]:
        """What the steps return, as tensors of the flat graph."""
        return [
            Result(tensor, rename_input(self.flat.tensor(output), self._names))
            for tensor, output in self._outer.results
        ]

    @cached_property
    def origins(self) -> Mapping[str, TracedOp]:
        """Where each op was traced, by its name."""
        origins = {
            self._names.get(name, name): origin
            for name, origin in (*self.flat.origins.items(), *self._outer.origins.items())
        }
        names = {name: self._part_of.get(name, name) for name in self._all_names}
        return {name: origins[traced] for name, traced in names.items() if traced in origins}

    @property
    def _all_names(self) -> Sequence[str]:
        return [node.name for node in self.graph_def.node]


def _make_variable(node: Any, name: str, noted: NotedVariable) -> None:
    variable = noted.variable
    node.name, node.op, node.device = name, VARIABLE_HANDLE, noted.device
    node.attr.clear()
    node.attr["dtype"].type = variable.dtype.base_dtype.as_datatype_enum
    node.attr["shape"].shape.CopyFrom(variable.shape.as_proto())
    node.attr["shared_name"].s = name.encode()


def _make_constant(node: Any, value: Any) -> None:
    node.op = CONST
    node.attr.clear()
    node.attr["dtype"].type = value.dtype.as_datatype_enum
    node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value))
