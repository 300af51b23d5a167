"""From a traced step that was about to run to an ordinary graph, with all that is known of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from placement_checks.core.errors import InputError
from placement_checks.core.op_types import (
    CONST,
    NO_OP,
    VARIABLE_HANDLE,
)
from placement_checks.core.placement import GLOBAL, TRAINABLE, StepOps, producer_of
from placement_checks.core.program import AppliedGradient, Gradient, InitialState
from placement_checks.loading.gradient_notes import GradientNotes
from placement_checks.loading.graph_reading import GraphSource
from placement_checks.loading.simulated import as_requested
from placement_checks.loading.tf_internals import (
    handle_of,
    parts_of,
    variable_of,
)
from placement_checks.loading.traced.calls import SeenCall, trains
from placement_checks.loading.traced.flattening import (
    FlatGraph,
    TracedOp,
    flatten,
    rename_classes,
    renamed,
)
from placement_checks.loading.traced.iterators import next_elements
from placement_checks.loading.traced.noting import TracingNotes
from placement_checks.loading.traced.origin import TracedGraph
from placement_checks.loading.traced.outer_graph import Result, outer_graph
from placement_checks.loading.traced.reductions import (
    of_first_replica,
    tensors_of,
)
from placement_checks.loading.traced.strategies import strategy_of
from placement_checks.loading.traced.turns import in_turn, notes_of
from placement_checks.loading.traced.variables import NotedVariable
from placement_checks.util.text import free_name


class TracedStep(NamedTuple):
    """The training steps that a program takes in turn, as one ordinary graph.

    Attributes:
        source: the graph.
        initial: the values of its variables before the step.
        applied: the gradients that optimisers apply, added up over the replicas.
        fed: what the step was given, by the names of tensors.
        turns: how many steps it is made of.
        notes: what a report says of it.
    """

    source: GraphSource
    initial: InitialState
    applied: Sequence[AppliedGradient]
    fed: Mapping[str, Any]
    turns: int
    notes: Sequence[str]


def read_steps(
    seen: Sequence[SeenCall], notes: TracingNotes, program: str, folder: Path | None
) -> TracedStep:
    """The graph of the steps of a program, with its devices as on a machine with GPUs.

    Args:
        seen: the calls. Of two that train the same variables the first is read.
        notes: what was noted of them.
        program: what it is called in reports.
        folder: where the user's source lines are; None for anywhere but in libraries.
    """
    steps = in_turn(seen, notes)
    return _Reading(steps, notes, program, folder).step(
        [step.graph.name for step in seen if step not in steps]
    )


class _Reading:
    def __init__(
        self, steps: Sequence[SeenCall], notes: TracingNotes, program: str, folder: Path | None
    ) -> None:
        self._steps = steps
        self._notes = notes
        self._program = program
        self._folder = folder
        self._outer = outer_graph(steps)
        self._graphs = self._outer.graphs
        self._arguments = self._outer.arguments
        self._given = self._outer.given

    def step(self, left_out: Sequence[str]) -> TracedStep:
        self._check_open()
        self._put_in_arguments()
        self._add_train_op()
        nodes = [self._graph_def.node, *(f.node_def for f in self._graph_def.library.function)]
        for node in (node for body in nodes for node in body):
            node.device = as_requested(node.device)
        stacks = {name: noted.stack for name, noted in self._variables.items()}
        origin = TracedGraph(self._graphs, self._origins, stacks, self._forward, self._folder)
        source = GraphSource(
            self._program,
            self._graph_def,
            self._collections,
            origin,
            self._step_ops(),
            strategy_of(self._notes.strategies, self._variables),
        )
        return TracedStep(
            source,
            self._initial(),
            list(self._applied()),
            self._fed(),
            len(self._steps),
            list(notes_of(self._steps, left_out, self._flat)),
        )

    def _check_open(self) -> None:
        """Check that the step is in the flat graph, and in no op of it.

        Raises:
            InputError: it is.
        """
        for name, kind in self._flat.closed.items():
            raise InputError(
                self._program,
                f"{self._steps[0].graph.name} takes its steps inside of one op, {name} ({kind}), "
                "as a loop over a dataset does",
                "write 'for batch in iter(dataset):', or call a tf.function for each batch",
            )

    @cached_property
    def _flat(self) -> FlatGraph:
        def holds_step(function: str) -> bool:
            return function in self._graphs and trains(
                self._graphs[function], self._notes.gradients
            )

        def placeholders(function: str) -> Sequence[str]:
            graph = self._graphs.get(function)
            return [tensor.op.name for tensor in graph.inputs] if graph is not None else ()

        return flatten(self._outer.graph_def, holds_step, placeholders)

    @property
    def _graph_def(self) -> Any:
        return self._flat.graph_def

    # What the function is given, and takes besides.

    @cached_property
    def _names(self) -> Mapping[str, str]:
        """The names of variables by those of the placeholders that stand for them.

        Variables of one name are numbered, and with each its copies.
        """
        placeholders = {
            id(noted): name
            for name, value in self._arguments.items()
            if value.dtype == tf.resource
            and (noted := self._notes.variables.of_handle(value)) is not None
            and not noted.orders_collectives
        }
        names: dict[str, str] = {}
        bases: dict[int, str] = {}  # by what the copies are copies of
        taken_bases: set[str] = set()
        taken = {node.name for node in self._graph_def.node} - self._arguments.keys()
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
    def _variables(self) -> Mapping[str, NotedVariable]:
        """The variables of the step, by name."""
        found = {}
        for placeholder, name in self._names.items():
            noted = self._notes.variables.of_handle(self._arguments[placeholder])
            assert noted is not None
            found[name] = noted
        return found

    def _put_in_arguments(self) -> None:
        """Put variables and constants in the place of the placeholders that stand for them."""
        given = set(self._given)
        for node in self._graph_def.node:
            if node.name in self._names:
                name = self._names[node.name]
                _make_variable(node, name, self._variables[name])
            elif node.name in self._arguments:
                value = self._arguments[node.name]
                node.attr.pop("_user_specified_name", None)
                if node.name not in given and value.dtype not in (tf.resource, tf.variant):
                    _make_constant(node, value)
        for node in self._graph_def.node:
            node.input[:] = [renamed(source, self._names) for source in node.input]
            rename_classes(node, self._names)

    @cached_property
    def _train_op(self) -> str:
        return free_name("train_step", {node.name for node in self._graph_def.node})

    def _add_train_op(self) -> None:
        """Add an op that waits for all that the steps do."""
        waits = [self._flat.op(call) for call in self._outer.calls]
        waits += [producer_of(output) for _, output in self._results]
        self._graph_def.node.add(
            name=self._train_op,
            op=NO_OP,
            input=sorted({f"^{self._names.get(name, name)}" for name in waits}),
        )

    @cached_property
    def _results(self) -> Sequence[Result]:
        """What the steps return, as tensors of the flat graph."""
        return [
            Result(tensor, renamed(self._flat.tensor(output), self._names))
            for tensor, output in self._outer.results
        ]

    # What was noted, in the names of the flat graph.

    @cached_property
    def _origins(self) -> Mapping[str, TracedOp]:
        origins = {**self._flat.origins, **self._outer.origins}
        return {self._names.get(name, name): origin for name, origin in origins.items()}

    @cached_property
    def _flat_names(self) -> Mapping[tuple[int, str], Sequence[str]]:
        """The ops that one of Python's became, by its graph and name: one for each call."""
        names: defaultdict[tuple[int, str], list[str]] = defaultdict(list)
        for name, (function, traced) in self._origins.items():
            if function in self._graphs:
                names[id(self._graphs[function]), traced].append(name)
        return names

    def _tensors(self, tensor: Any) -> Sequence[str]:
        """The tensors that one of Python's became."""
        name, _, output = tensor.name.partition(":")
        return [f"{flat}:{output}" for flat in self._flat_names.get((id(tensor.graph), name), ())]

    def _ops(self, graph: Any, names: Iterable[str]) -> Iterator[str]:
        for name in names:
            yield from self._flat_names.get((id(graph), name), ())

    @cached_property
    def _noted(self) -> Sequence[tuple[Any, GradientNotes]]:
        """The graphs of the step in which gradients are taken, with what was noted."""
        gradients = self._notes.gradients
        return [(graph, gradients[graph]) for graph in self._graphs.values() if graph in gradients]

    @cached_property
    def _forward(self) -> Mapping[str, str]:
        found: dict[str, str] = {}
        for graph, _ in self._noted:
            for backward, forward in self._notes.forward.of(graph).items():
                pairs = zip(
                    self._ops(graph, [backward]), self._ops(graph, [forward]), strict=False
                )
                found.update(pairs)
        return found

    def _name_of(self, variable: Any) -> str:
        """The name of a variable, that of its first copy; ``""`` if the step does not take it."""
        if not isinstance(inner := variable_of(variable), tf.Variable):
            return ""
        noted = self._notes.variables.of_handle(handle_of(parts_of(inner)[0]))
        return self._name_by_id.get(id(noted), "")

    @cached_property
    def _name_by_id(self) -> Mapping[int, str]:
        return {id(noted): name for name, noted in self._variables.items()}

    @cached_property
    def _collections(self) -> Mapping[str, Sequence[str]]:
        """The variables but for copies, as strategies collect them in a graph."""
        firsts = {name: noted for name, noted in self._variables.items() if not noted.replica}
        trainable = [name for name, noted in firsts.items() if noted.variable.trainable]
        return {GLOBAL: tuple(firsts), TRAINABLE: tuple(trainable)}

    def _step_ops(self) -> StepOps:
        taken: defaultdict[str, list[str]] = defaultdict(list)
        objectives: list[str] = []
        backward: set[str] = set()
        for graph, notes in self._noted:
            for source, gradient in notes.by_source:
                if name := self._name_of(source):
                    taken[name] += self._ops(graph, [gradient])
            for tensor in notes.objectives:
                name, _, output = tensor.partition(":")
                objectives += [f"{flat}:{output}" for flat in self._ops(graph, [name])]
            backward.update(self._ops(graph, (op.name for op in notes.live_ops(graph))))
        return StepOps(
            train_op=(self._train_op,),
            losses=tuple(self._losses(objectives)),
            inputs=self._outer.inputs,
            objectives=tuple(objectives),
            taken=taken,
            backward=frozenset(backward),
            traced=True,
        )

    def _losses(self, objectives: Sequence[str]) -> Iterator[str]:
        """The numbers that the function returns and that are made of its objectives."""
        made = self._made_of(set(map(producer_of, objectives)))
        for tensor, output in self._results:
            is_number = tensor.dtype.is_floating and tensor.shape.rank == 0
            if is_number and producer_of(output) in made:
                yield output if ":" in output else f"{output}:0"

    def _made_of(self, sources: set[str]) -> set[str]:
        """The ops whose values are made of some; each op comes after its inputs."""
        made = set(sources)
        for node in self._graph_def.node:
            inputs = (producer_of(source) for source in node.input if not source.startswith("^"))
            if not made.isdisjoint(inputs):
                made.add(node.name)
        return made

    def _applied(self) -> Iterator[AppliedGradient]:
        """What the optimisers were given, after it was added up; that of the first replica."""
        done = set()
        for call in self._notes.applied:
            name = self._name_of(call.variable) if call.variable is not None else ""
            if not name or name in done:
                continue
            given = tensors_of(of_first_replica(call.gradient))
            flat = [self._tensors(self._notes.reductions.result(tensor)) for tensor in given]
            if flat and all(flat):
                done.add(name)
                gradient = Gradient(*(tensors[0] for tensors in flat))
                yield AppliedGradient(gradient, name, call.optimizer)

    def _initial(self) -> InitialState:
        first = {
            id(noted.of): name
            for name, noted in self._variables.items()
            if noted.of is not None and not noted.replica
        }
        mirrors = {
            name: first[id(noted.of)]
            for name, noted in self._variables.items()
            if noted.replica and id(noted.of) in first
        }
        unsynchronised = frozenset(
            name for name, noted in self._variables.items() if noted.is_brought_together
        )
        values = {
            name: value
            for name, noted in self._variables.items()
            if (value := _value(noted)) is not None
        }
        for copy, of in mirrors.items():
            if copy not in values and of in values:
                values[copy] = values[of]
        return InitialState(values=values, mirrors=mirrors, unsynchronised=unsynchronised)

    def _fed(self) -> Mapping[str, Any]:
        """What the step was given, and what its iterators would give it."""
        given = {
            f"{name}:0": np.array(self._arguments[name])
            for name in self._given
            if hasattr(self._arguments[name], "numpy")
        }
        return {**given, **next_elements(self._graph_def, self._arguments)}


def _value(noted: NotedVariable) -> Any:
    """The value of a variable before the step; None where only the step can tell."""
    # To read one without a value may yield an empty array, and no error.
    if noted.variable.is_initialized():
        return np.array(noted.variable.read_value())
    return noted.first_value


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
