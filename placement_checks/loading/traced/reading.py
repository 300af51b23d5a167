"""From a traced step that was about to run to an ordinary graph, with all that is known of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from placement_checks.core.op_types import LOOPS
from placement_checks.core.placement import GLOBAL, TRAINABLE, StepOps, producer_of
from placement_checks.core.program import AppliedGradient, Gradient, InitialState
from placement_checks.loading.gradient_notes import GradientNotes
from placement_checks.loading.graph_reading import GraphSource
from placement_checks.loading.source_lines import users_frames
from placement_checks.loading.tf_internals.distribution import parts_of
from placement_checks.loading.tf_internals.eager_variables import handle_of
from placement_checks.loading.tf_internals.keras_objects import variable_of
from placement_checks.loading.traced.calls import SeenCall
from placement_checks.loading.traced.first_values import values_before
from placement_checks.loading.traced.flat_nodes import called_by
from placement_checks.loading.traced.flat_step import FlatStep
from placement_checks.loading.traced.iterators import next_elements
from placement_checks.loading.traced.noting import TracingNotes
from placement_checks.loading.traced.origin import TracedGraph
from placement_checks.loading.traced.reductions import of_first_replica, tensors_of
from placement_checks.loading.traced.strategies import strategy_of
from placement_checks.loading.traced.turns import in_turn, notes_of


class TracedStep(NamedTuple):
    """The training steps that a program takes in turn, as one ordinary graph.

    Attributes:
        source: the graph.
        initial: the values of its variables before the step.
        applied: the gradients that optimisers apply, added up over the replicas.
        fed: what the step was given, by the names of tensors.
        turns: how many steps it is made of.
        notes: what a report says of it.
        gradients_inside: where its gradients are taken, if they are all inside of a loop or of
            another op; else ``""``.
    """

    source: GraphSource
    initial: InitialState
    applied: Sequence[AppliedGradient]
    fed: Mapping[str, Any]
    turns: int
    notes: Sequence[str]
    gradients_inside: str


def read_steps(
    seen: Sequence[SeenCall], notes: TracingNotes, program: str, folder: Path | None
) -> TracedStep:
    """The graph of the steps of a program, with its devices as on a machine with GPUs.

    Args:
        seen: the calls. Of two that train the same variables the first is read.
        notes: what was noted of them.
        program: what it is called in reports.
        folder: where the user's source lines are; None for anywhere but in libraries.

    Raises:
        InputError: the steps are inside of one op, such as a loop over a dataset.
    """
    steps = in_turn(seen, notes)
    return _Reading(steps, notes, program, folder).step(
        [step.name for step in seen if step not in steps]
    )


class _Reading:
    """What was noted of some steps, in the names of their flat graph."""

    def __init__(
        self, steps: Sequence[SeenCall], notes: TracingNotes, program: str, folder: Path | None
    ) -> None:
        self._steps = steps
        self._notes = notes
        self._program = program
        self._folder = folder
        self._flat = FlatStep(steps, notes, program)

    def step(self, left_out: Sequence[str]) -> TracedStep:
        flat = self._flat
        stacks = {name: noted.stack for name, noted in flat.variables.items()}
        origin = TracedGraph(flat.graphs, flat.origins, stacks, self._forward, self._folder)
        source = GraphSource(
            self._program,
            flat.graph_def,
            self._collections,
            origin,
            self._step_ops(),
            strategy_of(self._notes.strategies, flat.variables),
        )
        return TracedStep(
            source,
            values_before(flat.variables),
            list(self._applied()),
            self._fed(),
            len(self._steps),
            [*notes_of(self._steps, left_out, flat.flat), *filter(None, [self._gradients_inside])],
            self._gradients_inside,
        )

    @cached_property
    def _gradients_inside(self) -> str:
        """Where gradients by variables are taken, if none is in the flat graph itself.

        In words, with what to do; ``""`` if there are others, or no gradients at all.
        """
        inside: list[tuple[str, str]] = []  # pairs of a function and an op of it
        for function, graph in self._flat.graphs.items():
            if graph in self._notes.gradients:
                for source, gradient in self._notes.gradients[graph].by_source:
                    if isinstance(variable_of(source), tf.Variable):
                        if any(self._ops(graph, [gradient])):
                            return ""
                        inside.append((function, gradient))
        if not inside:
            return ""
        function, gradient = inside[0]
        stack = self._flat.graphs[function].get_operation_by_name(gradient).traceback
        frames = users_frames(stack, self._folder)
        at = f", at {frames[-1]}" if frames else ""
        nodes = self._flat.graph_def.node
        library = self._flat.graph_def.library.function
        holder = next((each for each in nodes if function in called_by([each], library)), None)
        taken = f"{self._steps[0].name} takes its gradients inside"
        if holder is None or holder.op in LOOPS:
            return (
                f"{taken} a loop{at}, and no gradient outside of it; take one step per call of "
                "the tf.function, or loop in Python"
            )
        return f"{taken} one op, {holder.name} ({holder.op}){at}; take them in the tf.function"

    @cached_property
    def _flat_names(self) -> Mapping[tuple[int, str], Sequence[str]]:
        """The ops that one of Python's became, by its graph and name: one for each call."""
        names: defaultdict[tuple[int, str], list[str]] = defaultdict(list)
        for name, (function, traced) in self._flat.origins.items():
            if function in self._flat.graphs:
                names[id(self._flat.graphs[function]), traced].append(name)
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
        return [
            (graph, gradients[graph]) for graph in self._flat.graphs.values() if graph in gradients
        ]

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
        return {id(noted): name for name, noted in self._flat.variables.items()}

    @cached_property
    def _collections(self) -> Mapping[str, Sequence[str]]:
        """The variables but for copies, as strategies collect them in a graph."""
        firsts = {name: noted for name, noted in self._flat.variables.items() if not noted.replica}
        trainable = [
            name
            for name, noted in firsts.items()
            # Counters of Keras 2 call themselves trainable.
            if noted.variable.trainable and not noted.variable.dtype.is_integer
        ]
        return {GLOBAL: tuple(firsts), TRAINABLE: tuple(trainable)}

    def _step_ops(self) -> StepOps:
        taken: defaultdict[str, list[str]] = defaultdict(list)
        objectives: list[str] = []
        gradients: dict[str, Sequence[str]] = {}
        backward: set[str] = set()
        for graph, notes in self._noted:
            for source, gradient in notes.by_source:
                if name := self._name_of(source):
                    taken[name] += self._ops(graph, [gradient])
            for tensor in notes.objectives:
                name, _, output = tensor.partition(":")
                objectives += [f"{flat}:{output}" for flat in self._ops(graph, [name])]
            for tensor, ops in notes.gradients.items():
                name, _, output = tensor.partition(":")
                # The function may be called several times: what a call is part of is not noted.
                for flat in self._ops(graph, [name]):
                    gradients[f"{flat}:{output}"] = tuple(self._ops(graph, ops))
            backward.update(self._ops(graph, (op.name for op in notes.live_ops(graph))))
        return StepOps(
            train_op=(self._flat.train_op,),
            losses=tuple(self._losses(objectives)),
            inputs=self._flat.inputs,
            objectives=tuple(objectives),
            gradients=gradients,
            taken=taken,
            backward=frozenset(backward),
            traced=True,
        )

    def _losses(self, objectives: Sequence[str]) -> Iterator[str]:
        """The numbers that the function returns and that are made of its objectives."""
        made = self._made_of(set(map(producer_of, objectives)))
        for tensor, output in self._flat.results:
            is_number = tensor.dtype.is_floating and tensor.shape.rank == 0
            if is_number and producer_of(output) in made:
                yield output if ":" in output else f"{output}:0"

    def _made_of(self, sources: set[str]) -> set[str]:
        """The ops whose values are made of some; each op comes after its inputs."""
        made = set(sources)
        for node in self._flat.graph_def.node:
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

    def _fed(self) -> Mapping[str, Any]:
        """What the step was given, and what its iterators would give it."""
        given = {
            f"{name}:0": np.array(self._flat.arguments[name])
            for name in self._flat.given
            if hasattr(self._flat.arguments[name], "numpy")
        }
        return {**given, **next_elements(self._flat.graph_def, self._flat.arguments)}
