"""Converts the traced training steps of a program to a `CapturedProgram`.

`read_steps` selects the steps that the rules check, makes one flat graph of them, and translates
the records of the program (gradients, variables, reductions) to the names of that graph.
`TracedGraph` looks up source lines and shapes of its ops in the graphs that Python traced.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from placement_checks.capture.eager.calls import (
    CallWatch,
    SeenCall,
    trained_handles,
    updates_nothing_trained,
)
from placement_checks.capture.eager.notes import TracingNotes, graph_tensors
from placement_checks.capture.eager.step_graph import FlatStep
from placement_checks.capture.eager.variables import state_before_step, step_strategy
from placement_checks.core.devices import Device
from placement_checks.core.errors import InputError
from placement_checks.core.frames import Frame
from placement_checks.core.op_types import LOOPS, OPTIONAL_VALUE, PIPELINE_OUTPUTS
from placement_checks.core.placement import (
    GLOBAL,
    TRAINABLE,
    UNKNOWN_TENSOR,
    GradientCall,
    StepOps,
    Tensor,
    producer_of,
    with_output,
)
from placement_checks.core.program import (
    AppliedGradient,
    CapturedProgram,
    Gradient,
    Program,
)
from placement_checks.core.user_code import users_line
from placement_checks.graph.details import LiveDetails
from placement_checks.graph.flatten import FlatBody, FlatGraph
from placement_checks.graph.gradients import GradientNotes, RecordedCall
from placement_checks.graph.inlining import FunctionOp, function_library, reachable_functions
from placement_checks.graph.reading import GraphSource
from placement_checks.graph.train_step import select_losses
from placement_checks.tf.distribution import replica_values
from placement_checks.tf.eager import next_element, variable_handle
from placement_checks.tf.keras import parts_of_keras, tensorflow_variable
from placement_checks.tf.simulated_devices import requested_name
from placement_checks.util.text import join_and, plural


def read_steps(
    calls: CallWatch, notes: TracingNotes, program: Program, gpus: int
) -> CapturedProgram:
    """Make one graph of the training steps of a program, with the devices that the program named.

    If calls train a variable in common, the first one is read.

    Raises:
        InputError: the steps are inside of one op, such as a loop over a dataset; or each GPU has
            its own call of the step.
    """
    _check_one_call(calls, program.name)
    steps = alternating_steps(calls.steps, notes)
    reader = _StepReader(steps, notes, program)
    built = reader.read(gpus, [step.name for step in calls.steps if step not in steps])
    if not calls.missing:
        if not updates_nothing_trained(steps, notes.gradients):
            return built
        names = join_and(step.name for step in steps)
        note = f"the gradients of {names} are applied by code that the rules do not check"
        return replace(built, notes=[*built.notes, note])
    missing = (
        f"{join_and(calls.missing)} {'was' if len(calls.missing) == 1 else 'were'} not called in "
        f"the first {plural(calls.skipped_steps, 'training step')}: not checked by the rules"
    )
    return replace(built, notes=[*built.notes, missing])


def _check_one_call(calls: CallWatch, program: str) -> None:
    """Check that no step is called once for each GPU: the towers are then no parts of one step.

    Raises:
        InputError: calls on several GPUs train the same variable.
    """
    for scopes in calls.devices.values():
        devices = sorted(map(Device.parse, map(requested_name, scopes)), key=str)
        # A coordinator schedules steps on the GPUs of several workers.
        gpus = [device for device in devices if device.is_gpu and not device.job]
        if len(gpus) > 1:
            raise InputError(
                program,
                f"calls {calls.steps[-1].name} separately on {join_and(gpus)}, so no step has all "
                "towers",
                "call it once, and loop over the GPUs inside of the tf.function",
                is_predicate=True,
            )


class _StepReader:
    """Translates the records of some steps: ops get the names that they have in the flat graph."""

    def __init__(self, steps: Sequence[SeenCall], notes: TracingNotes, program: Program) -> None:
        self._steps = steps
        self._notes = notes
        self._program = program
        self._flat = FlatStep(steps, notes, program.name)
        self._name_by_id = {id(each): name for name, each in self._flat.variables.items()}

    def read(self, gpus: int, left_out: Sequence[str]) -> CapturedProgram:
        """Read the steps; ``left_out`` are the names of steps that are not in the graph."""
        flat = self._flat
        strategy = step_strategy(self._notes.strategies, flat.variables)
        source = GraphSource(
            details=TracedGraph(flat, self._forward, self._program.folder),
            collections=self._collections,
            step_ops=self._step_ops(),
            strategy=strategy and replace(strategy, replica_of=self._replica_of()),
        )
        losses = tuple(self._losses(source))
        source = replace(source, step_ops=source.step_ops._replace(losses=losses))
        inside = self._gradients_inside
        return CapturedProgram(
            name=self._program.name,
            program=self._program,
            gpus=gpus,
            source=source,
            initial=state_before_step(flat.variables),
            applied=list(self._applied()),
            fed=self._fed(),
            step_count=len(self._steps),
            notes=[*step_notes(self._steps, left_out, flat.flat), *([inside] if inside else [])],
            gradients_inside=inside,
        )

    @cached_property
    def _gradients_inside(self) -> str:
        """A note for the report, with a fix, if no gradient of a variable is in the flat graph.

        All gradients are then in the bodies of functions that one op calls, such as a loop. The
        result is ``""`` if a gradient is in the flat graph, or if the steps take no gradients.
        """
        inside: list[tuple[str, str]] = []  # functions, each with the op of a gradient
        for function, graph in self._flat.graphs.items():
            if graph in self._notes.gradients:
                for source, gradient in self._notes.gradients[graph].by_source:
                    if isinstance(tensorflow_variable(source), tf.Variable):
                        if graph in self._bodies:
                            return ""
                        inside.append((function, gradient))
        if not inside:
            return ""
        function, gradient = inside[0]
        stack = self._flat.graphs[function].get_operation_by_name(gradient).traceback
        line = users_line(stack, self._program.folder)
        where = f", at {line}" if line else ""
        nodes = self._flat.graph_def.node
        library = function_library(self._flat.graph_def)
        holder = next(
            (each for each in nodes if function in reachable_functions([each], library)), None
        )
        subject = f"{self._steps[0].name} takes all its gradients inside"
        if holder is None or holder.op in LOOPS:
            return (
                f"{subject} a loop{where}; take one step per call of the tf.function, or loop in "
                "Python"
            )
        return (
            f"{subject} one op, {holder.name} ({holder.op}){where}; take them in the tf.function "
            "itself, outside of this op"
        )

    @cached_property
    def _gradient_notes(self) -> Sequence[tuple[Any, GradientNotes]]:
        """The traced graphs that compute gradients, each with the records of its gradients."""
        gradients = self._notes.gradients
        return [
            (graph, gradients[graph]) for graph in self._flat.graphs.values() if graph in gradients
        ]

    @cached_property
    def _forward(self) -> Mapping[str, str]:
        found: dict[str, str] = {}
        for graph, _ in self._gradient_notes:
            for backward, forward in self._notes.forward.in_graph(graph).items():
                for body in self._bodies.get(graph, ()):
                    if backward in body.ops and forward in body.ops:
                        found[body.ops[backward]] = body.ops[forward]
        return found

    def _name_of(self, variable: Any) -> str:
        """The name of a variable, or of its first copy; ``""`` if the step does not use it."""
        if not isinstance(inner := tensorflow_variable(variable), tf.Variable):
            return ""
        recorded = self._notes.variables.by_handle(variable_handle(replica_values(inner)[0]))
        return self._name_by_id.get(id(recorded), "")

    def _replica_of(self) -> Mapping[str, int]:
        """The replica of each op; all ops of a function belong to the replica that calls it."""
        found: dict[str, int] = {}
        todo: list[tuple[FlatBody, int | None]] = [(self._flat.flat.bodies[0], None)]
        for body, caller in todo:
            graph = self._flat.graphs.get(body.function)
            own = {} if graph is None else self._notes.replicas.in_graph(graph)
            for name, flat in body.ops.items():
                if (replica := own.get(name, caller)) is not None:
                    found[flat] = replica
            todo += [(inner, own.get(name, caller)) for name, inner in body.calls.items()]
        return found

    @cached_property
    def _collections(self) -> Mapping[str, Sequence[str]]:
        """The collections that a graph of TensorFlow 1 would have, with the first copies only."""
        firsts = {
            name: recorded
            for name, recorded in self._flat.variables.items()
            if not recorded.replica
        }
        trainable = [
            name
            for name, recorded in firsts.items()
            # Counters of Keras 2 are marked trainable.
            if recorded.variable.trainable and not recorded.variable.dtype.is_integer
        ]
        return {GLOBAL: tuple(firsts), TRAINABLE: tuple(trainable)}

    def _step_ops(self) -> StepOps:
        return StepOps(
            train_op=(self._flat.train_op,),
            inputs=self._flat.inputs,
            arguments={f"{name}:0": each for name, each in self._flat.argument_names.items()},
            traced=True,
        ).with_gradients(list(self._gradient_calls()))

    def _gradient_calls(self) -> Iterator[GradientCall]:
        """The calls that took gradients; a function that is called twice takes them twice."""
        for graph, notes in self._gradient_notes:
            ops = graph.get_operations()
            for recorded in notes.calls:
                built = [op.name for start, end in recorded.built for op in ops[start:end]]
                for body in self._bodies.get(graph, ()):
                    yield self._gradient_call(recorded, body, built)

    def _gradient_call(
        self, recorded: RecordedCall, body: FlatBody, built: Sequence[str]
    ) -> GradientCall:
        """A call that took gradients, for one call of the function that it is in."""

        def tensors(names: Iterable[str]) -> list[str]:
            return [name and (self._flat.tensor(body, name) or UNKNOWN_TENSOR) for name in names]

        def sources(known: Iterable[Any]) -> list[str]:
            return [self._source_name(source, body) for source in known]

        call = recorded.call
        return GradientCall(
            objectives=tensors(call.objectives),
            weights=tensors(call.weights),
            sources=sources(recorded.sources),
            gradients=[tuple(tensors(each)) for each in call.gradients],
            stopped=sources(recorded.stopped),
            ops=frozenset(self._flat.ops(body, built)),
        )

    def _source_name(self, source: Any, body: FlatBody) -> str:
        """The name of a variable, as `_name_of`, or of a tensor of a function."""
        name = self._name_of(source)
        if not name and tf.is_symbolic_tensor(source):
            if self._flat.graphs.get(body.function) is not source.graph:
                bodies = self._bodies.get(source.graph, ())
                if len(bodies) != 1:
                    return UNKNOWN_TENSOR
                body = bodies[0]
            name = self._flat.tensor(body, source.name)
        return name or UNKNOWN_TENSOR

    @cached_property
    def _bodies(self) -> Mapping[tf.Graph, Sequence[FlatBody]]:
        """The bodies in the flat graph that are made from each traced graph."""
        bodies: defaultdict[tf.Graph, list[FlatBody]] = defaultdict(list)
        for body in self._flat.flat.bodies:
            if body.function in self._flat.graphs:
                bodies[self._flat.graphs[body.function]].append(body)
        return bodies

    def _losses(self, source: GraphSource) -> list[str]:
        """The scalars that the step returns and that are losses."""
        returned = [
            with_output(output)
            for tensor, output in self._flat.results
            if tensor.dtype.is_floating and tensor.shape.rank == 0
        ]
        return select_losses(returned, source) if source.step_ops.objectives else []

    def _applied(self) -> Iterator[AppliedGradient]:
        """The gradient that is applied to each variable in the first replica, after reduction."""
        done = set()
        for call in self._notes.applied:
            name = self._name_of(call.variable) if call.variable is not None else ""
            if not name or name in done:
                continue
            tensors = graph_tensors(replica_values(call.gradient)[0])
            reduced = map(self._notes.reductions.result, tensors)
            flat = [self._first_tensor(tensor) for tensor in reduced]
            if flat and all(flat):
                done.add(name)
                yield AppliedGradient(Gradient(*flat), name, call.optimizer)

    def _first_tensor(self, tensor: Any) -> str:
        """The tensor of the flat graph for a tensor of the first call of a function, or ``""``."""
        bodies = self._bodies.get(tensor.graph, ())
        return self._flat.tensor(bodies[0], tensor.name) if bodies else ""

    def _fed(self) -> Mapping[str, Any]:
        """The data that were passed to the steps, and the next elements of their iterators."""
        fed = {
            f"{name}:0": np.array(self._flat.arguments[name])
            for name in self._flat.fed
            if hasattr(self._flat.arguments[name], "numpy")
        }
        return {**fed, **next_elements(self._flat.graph_def, self._flat.arguments)}


def alternating_steps(seen: Sequence[SeenCall], notes: TracingNotes) -> Sequence[SeenCall]:
    """Select the steps that train different variables, such as generator and discriminator.

    A step that trains variables of an earlier step is left out: it may be the same function,
    traced again for a smaller last batch, or an alternative step.
    """
    chosen: list[SeenCall] = []
    trained: set[int] = set()
    for step in seen:
        variables = trained_handles(step, notes.gradients)
        if trained.isdisjoint(variables):
            chosen.append(step)
            trained |= variables
    return chosen


def step_notes(
    steps: Sequence[SeenCall], left_out: Sequence[str], flat: FlatGraph
) -> Iterator[str]:
    """Yield remarks for the report on the steps that the rules check, and on the other steps."""
    described = [
        f"{step.name}, at {step.called_at}" if step.called_at else step.name for step in steps
    ]
    if len(steps) == 1:
        yield f"run until its first training step, {described[0]}"
    else:
        yield f"run until {len(steps)} alternating training steps: {join_and(described)}"
    names = [step.name for step in steps]
    if retraced := dict.fromkeys(name for name in left_out if name in names):
        yield f"{join_and(retraced)} is traced again for other arguments: not checked by the rules"
    if others := dict.fromkeys(name for name in left_out if name not in names):
        yield f"{join_and(others)} trains the same variables: not checked by the rules"
    if flat.loops and steps[0].method:
        yield "one call takes several steps; the rules check one of them"
    elif flat.loops:
        yield f"{flat.loops[0]} is a loop of training steps; the rules check one iteration"
    if flat.compiled:
        calls = plural(len(flat.compiled), "call")
        yield f"XLA compiles {calls} as a whole; the report shows their ops as without XLA"


def next_elements(graph_def: Any, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Read the next element of each iterator of a flat graph, by tensor name.

    An iterator without further elements is left out. ``arguments`` are the eager tensors and
    iterators that the steps were called with, by the names of their placeholders.
    """
    found: dict[str, Any] = {}
    for node in graph_def.node:
        source = producer_of(node.input[0]) if node.input else ""
        if node.op in PIPELINE_OUTPUTS and source in arguments:
            openers = [  # the ops that unpack the element, if the iterator yields an optional
                each.name
                for each in graph_def.node
                if each.op == OPTIONAL_VALUE and producer_of(each.input[0]) == node.name
            ]
            values = _next_element(node, arguments[source])
            for index, value in enumerate(values):
                found[f"{openers[0] if openers else node.name}:{index}"] = value
    return found


def _next_element(node: Any, iterator: Any) -> list[Any]:
    """Read the next element of an iterator; empty at its end, or if a component is no array."""
    dtypes = [tf.dtypes.as_dtype(number) for number in node.attr["output_types"].list.type]
    shapes = [tf.TensorShape(shape) for shape in node.attr["output_shapes"].list.shape]
    try:
        with tf.init_scope(), tf.device(iterator.device):
            values = next_element(iterator, dtypes, shapes)
    except tf.errors.OpError:
        return []
    return [value.numpy() for value in values] if tf.variant not in dtypes else []


class TracedGraph(LiveDetails):
    """Details of the ops in a flat graph, from the graphs that Python traced.

    ``forward`` has the forward op of each backward op.
    """

    def __init__(self, flat: FlatStep, forward: Mapping[str, str], folder: Path | None) -> None:
        super().__init__(flat.graph_def, folder)
        self._graphs = flat.graphs
        self._origins = flat.origins
        self._variable_stacks = {name: recorded.stack for name, recorded in flat.variables.items()}
        self._forward = forward
        self._parts_in_stack = cache(parts_of_keras)
        self._outputs: dict[Any, Sequence[Tensor]] = {}

    def parts_of_keras(self, op: str) -> Collection[str]:
        stack = self._stack(op)
        return () if stack is None else self._parts_in_stack(stack)

    def device_line(self, op: str) -> Frame | None:
        return None if op in self._variable_stacks else super().device_line(op)

    def outputs(self, op: str) -> Sequence[Tensor]:
        # Cached, because the op that splits packed gradients has many outputs and is looked up for
        # each of them.
        traced = self._live_op(op)
        if traced not in self._outputs:
            self._outputs[traced] = super().outputs(op)
        return self._outputs[traced]

    def forward_op(self, op: str) -> str:
        return self._forward.get(op, "")

    def _stack(self, op: str) -> Any:
        return self._variable_stacks[op] if op in self._variable_stacks else super()._stack(op)

    def _origin(self, op: str) -> FunctionOp:
        return self.bodies.get(op) or self._origins.get(op, FunctionOp("", ""))

    def _find_ops(self, function: str) -> Mapping[str, Any]:
        graph = self._graphs.get(function)
        return {} if graph is None else {op.name: op for op in graph.get_operations()}
