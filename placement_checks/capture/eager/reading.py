"""From a traced step that was about to run to an ordinary graph, with all that is known of it.

Which of the training steps of a program are judged, and what a report says of them.

What the iterators of a step give next.

What Python's graphs of traced functions tell of the ops of a flat graph.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from placement_checks.capture.eager.calls import SeenCall
from placement_checks.capture.eager.notes import TracingNotes, of_first_replica, tensors_of
from placement_checks.capture.eager.step_graph import FlatStep, graphs_of
from placement_checks.capture.eager.variables import strategy_of, values_before
from placement_checks.core.op_types import LOOPS, OPTIONAL_VALUE, PIPELINE_OUTPUTS
from placement_checks.core.placement import GLOBAL, TRAINABLE, Frame, StepOps, Tensor, producer_of
from placement_checks.core.program import AppliedGradient, Gradient, InitialState
from placement_checks.core.user_code import users_frames
from placement_checks.graph.flatten import FlatGraph, TracedOp, reachable_functions
from placement_checks.graph.gradients import GradientNotes
from placement_checks.graph.op_origins import BodyOp, Origin, deciding_line, static_shape
from placement_checks.graph.reading import GraphSource
from placement_checks.tf.distribution import replica_values
from placement_checks.tf.eager import next_element, variable_handle
from placement_checks.tf.keras import parts_of_keras, tensorflow_variable
from placement_checks.util.text import join_and, plural


def alternating_steps(seen: Sequence[SeenCall], notes: TracingNotes) -> Sequence[SeenCall]:
    """The steps that each train other variables, as adversaries do.

    A step that trains variables of one before is left out: it may be the same function, traced
    again for a last batch of fewer rows, or another way to train.
    """
    chosen: list[SeenCall] = []
    trained: set[int] = set()
    for step in seen:
        variables = _trained(step, notes)
        if trained.isdisjoint(variables):
            chosen.append(step)
            trained |= variables
    return chosen


def _trained(step: SeenCall, notes: TracingNotes) -> set[int]:
    """The variables that a step takes gradients by, by the ids of their handles."""
    sources = [
        tensorflow_variable(source)
        for graph in graphs_of(step).values()
        if graph in notes.gradients
        for source, _ in notes.gradients[graph].by_source
    ]
    return {
        id(variable_handle(replica_values(source)[0]))
        for source in sources
        if isinstance(source, tf.Variable)
    }


def notes_of(steps: Sequence[SeenCall], left_out: Sequence[str], flat: FlatGraph) -> Iterator[str]:
    """What a report says of the steps that are judged.

    Args:
        steps: those steps.
        left_out: the names of others, which are not.
        flat: their graph.
    """
    told = [_told(step) for step in steps]
    if len(steps) == 1:
        yield f"watched until its first training step, {told[0]}"
    else:
        yield f"watched until {len(steps)} training steps, which take turns: {join_and(told)}"
    names = [step.name for step in steps]
    if retraced := [name for name in left_out if name in names]:
        yield f"{join_and(dict.fromkeys(retraced))} is traced again, for other shapes: not judged"
    if others := [name for name in left_out if name not in names]:
        yield f"{join_and(dict.fromkeys(others))} trains the same variables, and is not judged"
    if flat.loops and steps[0].method:
        yield "a call of it takes several steps, of which one is judged"
    elif flat.loops:
        yield f"{flat.loops[0]} is a loop of steps, of which one trip is judged"
    if flat.compiled:
        calls = plural(len(flat.compiled), "call")
        yield f"XLA compiles {calls} as a whole; where their ops are is told as if it did not"


def _told(step: SeenCall) -> str:
    return f"{step.name}, at {step.called_at}" if step.called_at else step.name


def next_elements(graph_def: Any, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """The next element of each iterator that a graph reads, by the names of the tensors.

    Where an iterator has no further element, nothing is known of it.

    Args:
        graph_def: a flat graph.
        arguments: the iterators among others, by the names of the placeholders of their resources.
    """
    found: dict[str, Any] = {}
    for node in graph_def.node:
        source = producer_of(node.input[0]) if node.input else ""
        if node.op in PIPELINE_OUTPUTS and source in arguments:
            values = _next(node, arguments[source])
            found |= dict(zip(_tensors(graph_def, node), values, strict=False))
    return found


def _next(node: Any, iterator: Any) -> list[Any]:
    """The next element of an iterator; empty at its end, and for what is no array."""
    dtypes = [tf.dtypes.as_dtype(number) for number in node.attr["output_types"].list.type]
    shapes = [tf.TensorShape(shape) for shape in node.attr["output_shapes"].list.shape]
    try:
        with tf.init_scope(), tf.device(iterator.device):
            values = next_element(iterator, dtypes, shapes)
    except tf.errors.OpError:
        return []
    return [value.numpy() for value in values] if tf.variant not in dtypes else []


def _tensors(graph_def: Any, node: Any) -> Iterator[str]:
    """The tensors of an element: outputs of the op itself, or of the one that opens it."""
    count = len(node.attr["output_types"].list.type)
    openers = [
        each.name
        for each in graph_def.node
        if each.op == OPTIONAL_VALUE and producer_of(each.input[0]) == node.name
    ]
    for index in range(count):
        yield f"{openers[0] if openers else node.name}:{index}"


_NUMBER = re.compile(r"_\d+$")


class TracedGraph(Origin):
    """The flat graph of a traced step.

    Args:
        graphs: Python's graphs of the step's functions, by name; that of the step under ``""``.
        origins: where each op was traced, by its name in the flat graph.
        stacks: the frames in which each variable was made.
        forward: the forward op of each backward op.
        folder: where the user's source lines are; None for anywhere but in libraries.
    """

    def __init__(
        self,
        graphs: Mapping[str, Any],
        origins: Mapping[str, TracedOp],
        stacks: Mapping[str, Sequence[Any]],
        forward: Mapping[str, str],
        folder: Path | None,
    ) -> None:
        self._graphs = graphs
        self._origins = origins
        self._stacks = stacks
        self._forward = forward
        self._folder = folder
        self._frames: dict[Any, Sequence[Frame]] = {}
        self._parts: dict[Any, Collection[str]] = {}
        self._outputs: dict[Any, Sequence[Tensor]] = {}

    def frames(self, op: str, body: BodyOp | None) -> Sequence[Frame]:
        if op in self._stacks:
            return users_frames(self._stacks[op], self._folder)
        traced = self._op(op, body)
        if traced is None:
            return ()
        stack = traced.traceback
        if stack not in self._frames:
            self._frames[stack] = users_frames(stack, self._folder)
        return self._frames[stack]

    def parts_of_keras(self, op: str, body: BodyOp | None) -> Collection[str]:
        if op in self._stacks:
            return parts_of_keras(self._stacks[op])
        traced = self._op(op, body)
        if traced is None:
            return ()
        stack = traced.traceback
        if stack not in self._parts:
            self._parts[stack] = parts_of_keras(stack)
        return self._parts[stack]

    def device_line(self, op: str, body: BodyOp | None) -> Frame | None:
        traced = None if op in self._stacks else self._op(op, body)
        return None if traced is None else deciding_line(traced, self._folder)

    def outputs(self, op: str, body: BodyOp | None) -> Sequence[Tensor]:
        traced = self._op(op, body)
        if traced is None:
            return ()
        # An op that parts a sum of all gradients has as many outputs as there are, and is asked
        # for each.
        if traced not in self._outputs:
            self._outputs[traced] = [
                Tensor(output.dtype.base_dtype.name, static_shape(output.shape))
                for output in traced.outputs
            ]
        return self._outputs[traced]

    def forward_op(self, op: str) -> str:
        return self._forward.get(op, "")

    def _op(self, op: str, body: BodyOp | None) -> Any:
        """Python's op; None for one that it has not traced.

        A FunctionDef may have added a number to its name.
        """
        function, name = body or self._origins.get(op, TracedOp("", ""))
        ops = self._ops.get(function, {})
        return ops.get(name) or ops.get(_NUMBER.sub("", name))

    @cached_property
    def _ops(self) -> Mapping[str, Mapping[str, Any]]:
        """Python's ops by their names, of each function."""
        return {
            function: {op.name: op for op in graph.get_operations()}
            for function, graph in self._graphs.items()
        }


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
    steps = alternating_steps(seen, notes)
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
                    if isinstance(tensorflow_variable(source), tf.Variable):
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
        holder = next(
            (each for each in nodes if function in reachable_functions([each], library)), None
        )
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
        if not isinstance(inner := tensorflow_variable(variable), tf.Variable):
            return ""
        noted = self._notes.variables.of_handle(variable_handle(replica_values(inner)[0]))
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
