"""Makes one flat graph of the training steps of a program.

`outer_graph` builds a graph that calls the steps, one after the other. `FlatStep` replaces all
calls by the bodies of the functions, and turns captured variables and constants into ops.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from functools import cached_property, partial
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef

from placement_checks.capture.eager.calls import (
    SeenCall,
    called_graphs,
    is_training_function,
    trained_handles,
)
from placement_checks.capture.eager.notes import TracingNotes
from placement_checks.capture.eager.packed_gradients import split_packed_sums
from placement_checks.capture.eager.variables import RecordedVariable
from placement_checks.core.errors import InputError
from placement_checks.core.op_types import (
    FUNCTION_CALL,
    NO_OP,
    PLACEHOLDER,
    VARIABLE_HANDLE,
)
from placement_checks.core.placement import COMPONENT, producer_of
from placement_checks.graph.edits import rename_input, rename_ops
from placement_checks.graph.flatten import (
    FlatBody,
    FlatGraph,
    flatten,
    unpack_optionals,
)
from placement_checks.graph.graph_def import all_nodes, constant
from placement_checks.graph.inlining import FunctionOp
from placement_checks.tf.distribution import GRADIENT_PACKING_FILES, replica_specs
from placement_checks.tf.simulated_devices import requested_name
from placement_checks.util.text import free_name


class Result(NamedTuple):
    """A result of a step."""

    tensor: Any  # the tensor in the graph of the step
    output: str  # the name of the same tensor in the graph that calls the step


class OuterGraph(NamedTuple):
    """A graph that calls steps.

    Attributes:
        graph_def: the ``GraphDef``: a placeholder for each argument, and a call for each step.
        graphs: the Python graphs of the steps and of the functions that they call, by the name of
            the function.
        arguments: the eager tensor of each placeholder, by name.
        fed: the placeholders of data that are passed to the steps; variables and iterators are
            excluded.
        inputs: the placeholders of each replica; empty if the replicas share them.
        argument_names: for each placeholder of data, the name of the argument that it stands for.
        origins: the function and argument of each placeholder.
        calls: the names of the calls, which are the names of the user's functions.
        results: the results of the steps.
    """

    graph_def: Any
    graphs: Mapping[str, Any]
    arguments: Mapping[str, Any]
    fed: Sequence[str]
    inputs: Sequence[Sequence[str]]
    argument_names: Mapping[str, str]
    origins: Mapping[str, FunctionOp]
    calls: Sequence[str]
    results: Sequence[Result]


def outer_graph(steps: Sequence[SeenCall], applying: Collection[SeenCall]) -> OuterGraph:
    """Build a graph that calls the steps. Steps share the placeholder of a captured tensor.

    The steps ``applying`` wait for the steps before them, whose gradients they apply.
    """
    graph_def = GraphDef()
    functions: dict[str, Any] = {}
    arguments: dict[str, Any] = {}
    fed: list[str] = []
    argument_names: dict[str, str] = {}
    inputs: defaultdict[int, list[str]] = defaultdict(list)
    origins: dict[str, FunctionOp] = {}
    placeholders: dict[int, str] = {}  # by the id of the eager tensor
    calls: list[str] = []
    results: list[Result] = []
    for step in steps:
        definition = step.function.function_def
        name = definition.signature.name
        inner = step.graph.as_graph_def()
        graph_def.versions.CopyFrom(inner.versions)
        functions |= {each.signature.name: each for each in [*inner.library.function, definition]}
        values = [*step.inputs, *step.captured]
        slots = [*_input_slots(step), *[None] * len(step.captured)]
        of_step: dict[str, _Slot] = {}  # by new placeholder
        sources = []
        for tensor, value, slot in zip(step.graph.inputs, values, slots, strict=True):
            if id(value) not in placeholders:
                source = placeholders[id(value)] = free_name(tensor.op.name, arguments)
                arguments[source] = value
                origins[source] = FunctionOp(name, tensor.op.name)
                node = graph_def.node.add(name=source, op=PLACEHOLDER)
                node.attr["dtype"].type = tensor.dtype.as_datatype_enum
                node.attr["shape"].shape.CopyFrom(tensor.shape.as_proto())
            source = placeholders[id(value)]
            sources.append(source)
            if slot is not None and value.dtype not in (tf.resource, tf.variant):
                fed.append(source)
                if source not in argument_names:
                    of_step.setdefault(source, slot)
                if slot.replica is not None:
                    inputs[slot.replica].append(f"{source}:0")
        argument_names |= _argument_names(of_step, set(argument_names.values()))
        call = free_name(step.graph.name, {*calls, *arguments})
        waits = [f"^{each}" for each in calls] if step in applying else []
        calls.append(call)
        node = graph_def.node.add(name=call, op=FUNCTION_CALL, input=[*sources, *waits])
        node.attr["f"].func.name = name
        results += [
            Result(tensor, f"{call}:{index}") for index, tensor in enumerate(step.graph.outputs)
        ]
    graph_def.library.function.extend(functions.values())
    groups = [inputs[replica] for replica in sorted(inputs)]
    graphs = {name: graph for step in steps for name, graph in graphs_of(step).items()}
    return OuterGraph(
        graph_def, graphs, arguments, fed, groups, argument_names, origins, calls, results
    )


def graphs_of(step: SeenCall) -> Mapping[str, Any]:
    """The Python graphs of a step and of the functions that it calls, by name."""
    name = step.function.function_def.signature.name
    return {name: step.graph, **called_graphs(step.graph)}


class _Slot(NamedTuple):
    """The place of an input in the call of a step.

    Attributes:
        part: the number of the argument's part, and of its component. For example, a ragged tensor
            has several components. The inputs of all replicas have the same numbers.
        replica: the replica that the input belongs to; None for all replicas.
        name: the name that the user gave to the argument.
        created: the number of its placeholder in the order of creation.
    """

    part: tuple[int, int]
    replica: int | None
    name: str
    created: int


def _input_slots(step: SeenCall) -> Sequence[_Slot]:
    """The place of each input in the call of a step."""
    places: list[tuple[tuple[int, int], int | None]] = []
    for leaf, spec in enumerate(tf.nest.flatten(step.function.structured_input_signature)):
        of_replicas = replica_specs(spec)
        for replica, own in enumerate(of_replicas or [spec]):
            parts = tf.nest.flatten(own, expand_composites=True)
            if any(isinstance(part, tf.TypeSpec) for part in parts):
                places += [
                    ((leaf, component), replica if of_replicas else None)
                    for component in range(len(parts))
                ]
    if len(places) != len(step.inputs):
        places = [((number, 0), None) for number in range(len(step.inputs))]
    created = {op.name: number for number, op in enumerate(step.graph.get_operations())}
    return [
        _Slot(*place, _user_name(tensor.op), created[tensor.op.name])
        for place, tensor in zip(places, step.graph.inputs, strict=False)
    ]


def _user_name(placeholder: Any) -> str:
    """The user's name of an argument: TensorFlow gives the placeholders of replicas numbers."""
    specified = placeholder.node_def.attr["_user_specified_name"].s.decode()
    return specified or str(placeholder.name)


def _argument_names(slots: Mapping[str, _Slot], taken: set[str]) -> Mapping[str, str]:
    """The name of the argument that each placeholder of a step stands for.

    It is the name that TensorFlow gives the placeholder if there is one replica: equal names of
    the user are numbered in the order of creation. The components of a sparse or ragged tensor are
    ``x/component_0`` and so on.
    """
    names: dict[tuple[int, int], str] = {}
    composite = {slot.part[0] for slot in slots.values() if slot.part[1]}
    for slot in sorted(slots.values(), key=lambda slot: slot.created):
        if slot.part not in names:
            leaf, component = slot.part
            of_component = f"{slot.name}/{COMPONENT}{component}"
            name = of_component if leaf in composite else slot.name
            names[slot.part] = free_name(name, taken)
            taken.add(names[slot.part])
    return {source: names[slot.part] for source, slot in slots.items()}


class FlatStep:
    """The flat graph of some steps, with the devices of a machine with GPUs.

    Attributes:
        graphs, arguments, fed, inputs, argument_names: as in `OuterGraph`.
        variables: the variables of the steps, by name.
        train_op: the name of the op that depends on all effects and results of the steps.

    Raises:
        InputError: a training step is inside of one op, such as a loop over a dataset.
    """

    def __init__(self, steps: Sequence[SeenCall], notes: TracingNotes, program: str) -> None:
        self._notes = notes
        applying = [step for step in steps if not trained_handles(step, notes.gradients)]
        self._outer = outer_graph(steps, applying)
        self.graphs = self._outer.graphs
        self.arguments = self._outer.arguments
        self.fed = self._outer.fed
        self.inputs = self._outer.inputs
        self.argument_names = self._outer.argument_names
        self.variables: dict[str, RecordedVariable] = {}
        self._names: dict[str, str] = {}  # of the variables, by the name of their placeholder
        for name, kind in self.flat.closed.items():
            raise InputError(
                program,
                f"{steps[0].name} takes its training steps inside of one op, {name} ({kind}), as "
                "a loop over a dataset does",
                "write 'for batch in iter(dataset):', or call a tf.function for each batch",
            )
        self._name_variables()
        self._replace_placeholders()
        unpack_optionals(self.graph_def)
        self._part_of = split_packed_sums(self.graph_def, self._packs_gradients)
        self.train_op = self._add_train_op()
        for node in all_nodes(self.graph_def):
            node.device = requested_name(node.device)

    @cached_property
    def flat(self) -> FlatGraph:
        """The graph with the bodies of all functions in place of their calls."""

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
        """The ``GraphDef`` of the flat graph."""
        return self.flat.graph_def

    def _name_variables(self) -> None:
        """Give the variables different names. All copies of a variable get the same number."""
        placeholders = {
            id(recorded): name
            for name, value in self.arguments.items()
            if value.dtype == tf.resource
            and (recorded := self._notes.variables.by_handle(value)) is not None
            and not recorded.orders_collectives
        }
        bases: dict[int, str] = {}  # names without the replica, by the id of the whole variable
        taken_bases: set[str] = set()
        taken = set(self._all_names) - self.arguments.keys()
        for recorded in self._notes.variables.all():
            if id(recorded) in placeholders:
                owner = id(recorded.whole)
                if owner not in bases:
                    bases[owner] = free_name(recorded.name, taken_bases)
                    taken_bases.add(bases[owner])
                base = bases[owner]
                full = f"{base}/replica_{recorded.replica}" if recorded.replica else base
                name = free_name(full, taken)
                taken.add(name)
                self._names[placeholders[id(recorded)]] = name
                self.variables[name] = recorded

    def _replace_placeholders(self) -> None:
        """Replace the placeholders of captured tensors by variables and constants."""
        fed = set(self.fed)
        for node in self.graph_def.node:
            if node.name in self._names:
                name = self._names[node.name]
                recorded = self.variables[name]
                node.op, node.device = VARIABLE_HANDLE, recorded.device
                node.attr.clear()
                dtype, shape = recorded.variable.dtype.base_dtype, recorded.variable.shape
                node.attr["dtype"].type = dtype.as_datatype_enum
                node.attr["shape"].shape.CopyFrom(shape.as_proto())
                node.attr["shared_name"].s = name.encode()
            elif node.name in self.arguments:
                value = self.arguments[node.name]
                node.attr.pop("_user_specified_name", None)
                if value.dtype in (tf.resource, tf.variant):
                    # TensorFlow places an argument with its resource, such as an iterator.
                    node.device = value.device
                elif node.name not in fed:
                    node.CopyFrom(constant(node.name, value, node.device))
        rename_ops(self.graph_def.node, partial(rename_input, names=self._names))

    def _packs_gradients(self, name: str) -> bool:
        """Whether an op was created by TensorFlow's code that packs gradients into one vector."""
        function, traced = self.flat.origins.get(name, FunctionOp("", ""))
        try:
            stack = self.graphs[function].get_operation_by_name(traced).traceback
        except KeyError:
            return False
        return any(frame.filename.endswith(GRADIENT_PACKING_FILES) for frame in stack)

    def _add_train_op(self) -> str:
        """Add an op that depends on all effects and results of the steps, and return its name."""
        name = free_name("train_step", set(self._all_names))
        waits = [self.flat.op(call) for call in self._outer.calls]
        waits += [producer_of(output) for _, output in self.results]
        self.graph_def.node.add(
            name=name,
            op=NO_OP,
            input=sorted({f"^{self._names.get(wait, wait)}" for wait in waits}),
        )
        return name

    @cached_property
    def results(self) -> Sequence[Result]:
        """The results of the steps, with their names in the flat graph."""
        return [
            Result(tensor, rename_input(self.flat.tensor(output), self._names))
            for tensor, output in self._outer.results
        ]

    def tensor(self, body: FlatBody, name: str) -> str:
        """The tensor ``op:0`` for a tensor of a function; ``""`` if it was removed."""
        op, _, output = rename_input(self.flat.tensor(name, body), self._names).partition(":")
        return f"{op}:{output or 0}" if op in self._name_set else ""

    def ops(self, body: FlatBody, names: Iterable[str]) -> Iterator[str]:
        """The ops for ops of a function, without removed ops."""
        return (op for op in body.flat_ops(names) if op in self._name_set)

    @cached_property
    def _name_set(self) -> Set[str]:
        return frozenset(self._all_names)

    @cached_property
    def origins(self) -> Mapping[str, FunctionOp]:
        """The traced op that each op of the flat graph is made from, with its function."""
        origins = {
            self._names.get(name, name): origin
            for name, origin in (*self.flat.origins.items(), *self._outer.origins.items())
        }
        names = {name: self._part_of.get(name, name) for name in self._all_names}
        return {name: origins[traced] for name, traced in names.items() if traced in origins}

    @property
    def _all_names(self) -> Sequence[str]:
        return [node.name for node in self.graph_def.node]
