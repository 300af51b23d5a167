"""The training step of a live graph: its session runs, ops, losses and initial values."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from functools import partial
from typing import Any

import tensorflow as tf
from google.protobuf import json_format
from google.protobuf.message import Message

from placement_checks.core.builder_result import ScalarLosses, SeparateRuns
from placement_checks.core.errors import InputError
from placement_checks.core.op_types import (
    ADDS,
    CALLS,
    CAST,
    DIVISIONS,
    IDENTITIES,
    MEAN,
    OVERWRITES,
    PASSES_HANDLE,
    PRODUCTS,
    STACK,
    SUM,
    VARIABLES,
    is_gradient_update,
    is_update,
)
from placement_checks.core.placement import StepOps, producer_of
from placement_checks.core.program import InitialState, Step
from placement_checks.graph.gradients import GradientNotes, variable_op_name
from placement_checks.graph.inlining import called_functions
from placement_checks.graph.reading import GraphSource, strategy_of_graph
from placement_checks.tf.distribution import replica_values
from placement_checks.tf.graphs import function_body
from placement_checks.util.walks import walk

tf1 = tf.compat.v1

# Ops by which a program combines terms into a loss.
_COMBINING_OPS = ADDS | PRODUCTS | DIVISIONS | IDENTITIES | {CAST, MEAN, STACK, SUM}


@dataclass(frozen=True)
class RunEffect:
    """How one session run uses the variables of its graph."""

    updates: frozenset[tf.Operation]  # the ops that train trainable variables
    changes: bool  # whether the run changes any variable, including counters and statistics
    reads: bool  # whether the run depends on trainable variables
    # Whether the run stores gradients, or values computed from them, in variables that are not
    # trainable.
    keeps_gradients: bool = False
    by_gradients: bool = False  # whether the updates depend on gradients or are ops of optimizers
    # Whether the graph has gradients and the run computes none of them.
    skips_gradients: bool = False

    @property
    def may_initialize(self) -> bool:
        """Whether the run updates trainable variables without any known gradient.

        Such a run may initialize variables from the moments of a batch. It may also be a training
        step with fed or manually computed gradients.
        """
        return bool(self.updates) and not self.by_gradients and self.skips_gradients


class RunAnalyzer:
    """Analyzes session runs of one graph, which may still grow."""

    def __init__(self, graph: tf.Graph, notes: GradientNotes) -> None:
        self._graph = graph
        self._notes = notes
        self._known: dict[frozenset[tf.Operation], RunEffect] = {}
        self._optimizer_ops: tuple[int, frozenset[tf.Operation]] = (-1, frozenset())

    def run_of(self, fetched: Iterable[tf.Operation]) -> RunEffect:
        """Analyze a run of these ops; results are cached, because queue runners repeat runs."""
        key = frozenset(fetched)
        if key not in self._known:
            self._known[key] = self._analyze(key)
        return self._known[key]

    def optimizer_ops(self) -> frozenset[tf.Operation]:
        """The optimizer ops in the graph that update a trainable variable."""
        version, found = self._optimizer_ops
        if version != self._graph.version:
            trainable = trainable_variables(self._graph)
            found = frozenset(
                op
                for op in self._graph.get_operations()
                if is_gradient_update(op.type) and _changed_variables(op) & trainable
            )
            self._optimizer_ops = self._graph.version, found
        return found

    def _analyze(self, fetched: Iterable[tf.Operation]) -> RunEffect:
        trainable = trainable_variables(self._graph)
        ops = ancestors(fetched)
        changed = {op: names for op in ops if (names := _changed_variables(op))}
        of_trainable = {op for op, names in changed.items() if names & trainable}
        overwriting = {op for op in of_trainable if op.type in OVERWRITES}
        gradients = self._notes.live_ops(self._graph) if changed else set()
        of_gradients = dependents(gradients, ops)
        # An overwriting op trains if it depends on gradients. All others initialize or restore.
        overwriting -= of_gradients
        updates = frozenset(of_trainable - overwriting)
        return RunEffect(
            updates=updates,
            changes=bool(changed),
            reads=any(op.name in trainable for op in ops),
            keeps_gradients=not of_gradients.isdisjoint(changed.keys() - of_trainable),
            by_gradients=any(
                op in of_gradients or op.type in CALLS or is_gradient_update(op.type)
                for op in updates
            ),
            skips_gradients=bool(gradients) and gradients.isdisjoint(ops),
        )


def trainable_variables(graph: tf.Graph) -> set[str]:
    """The names of the ops that hold the trainable variables of a graph, with all their copies."""
    return {
        variable_op_name(copy)
        for variable in graph.get_collection(tf1.GraphKeys.TRAINABLE_VARIABLES)
        for copy in replica_values(variable)
    }


def ancestors(ops: Iterable[tf.Operation]) -> set[tf.Operation]:
    """The given ops, and all ops that run before them."""
    return set(walk(ops, lambda op: [*(tensor.op for tensor in op.inputs), *op.control_inputs]))


def dependents(
    sources: Collection[tf.Operation], among: Iterable[tf.Operation]
) -> set[tf.Operation]:
    """The ops in ``among`` that depend on the value of any source."""
    users = defaultdict(list)
    for op in among:
        for tensor in op.inputs:
            users[tensor.op].append(op)
    direct = (user for source in sources for user in users[source])
    return set(walk(direct, users.__getitem__))


def _changed_variables(op: tf.Operation) -> set[str]:
    """The names of the variables that an op changes, itself or in functions that it calls."""
    return {_holder(changed).name for changed in _changed_inputs(op)}


def _changed_inputs(op: tf.Operation) -> Iterator[tf.Operation]:
    if is_update(op.type) and op.inputs:
        yield op.inputs[0].op
    elif op.type in CALLS:
        for body in _bodies(op):
            arguments = [tensor.op for tensor in body.inputs]
            offset = len(op.inputs) - len(arguments)  # 1 for a branch, which has a condition
            for inner in body.get_operations():
                for changed in map(_holder, _changed_inputs(inner)):
                    if changed in arguments:
                        yield op.inputs[offset + arguments.index(changed)].op


def _holder(op: tf.Operation) -> tf.Operation:
    """The op that holds a variable, given an op that passes its handle on."""
    while op.type in PASSES_HANDLE and op.inputs:
        op = op.inputs[0].op
    return op


def _bodies(call: tf.Operation) -> Iterator[tf.Graph]:
    """The bodies of the functions that an op calls, if Python has traced them."""
    bodies = (function_body(call.graph, name) for name in called_functions(call.node_def) if name)
    return filter(None, bodies)


def select_losses(reported: Iterable[str], source: GraphSource) -> list[str]:
    """Select the reported scalars that are losses; all of them if no gradients are known.

    A scalar is a loss if an objective of gradients depends on it. It is also a loss if it depends
    on an objective or on a term of an objective: a perplexity depends on the loss before scaling,
    but an accuracy depends on no term.
    """
    nodes = {node.name: node for node in source.graph_def.node}
    objectives = nodes.keys() & map(producer_of, source.step_ops.objectives)
    if not objectives:
        return list(reported)
    backward = source.step_ops.backward or ()
    inputs = {
        name: [each for each in node.input if not each.startswith("^")]
        for name, node in nodes.items()
    }

    def ancestors_of(names: Iterable[str]) -> set[str]:
        """The ops, and the ops that compute their inputs, but not the inputs of backward ops."""
        return set(walk(names, lambda op: () if op in backward else map(producer_of, inputs[op])))

    def terms_of(op: str) -> set[str]:
        """The ops of the scalars that an op combines, as terms of a loss."""
        kind, found = nodes[op].op, set()
        for tensor in inputs[op][: 1 if kind in DIVISIONS else None]:
            name, _, index = tensor.partition(":")
            outputs = source.details.outputs(name)
            is_scalar = bool(outputs) and outputs[int(index or 0)].shape == ()
            if kind in _COMBINING_OPS and (is_scalar or nodes[name].op == STACK):
                found.add(name)
        return found

    upstream = ancestors_of(objectives)
    users = defaultdict(list)
    for name in upstream:
        for tensor in inputs[name]:
            users[producer_of(tensor)].append(name)
    variables = [name for name in upstream if nodes[name].op in VARIABLES]
    learned = set(walk(variables, users.__getitem__))
    # The objectives, and the scalars whose scaled sum is an objective. An accuracy may share other
    # factors with them, such as 1 / number of words.
    terms = set(walk(objectives, lambda op: learned & terms_of(op)))
    return [
        tensor
        for tensor in reported
        if (op := producer_of(tensor)) in upstream or not terms.isdisjoint(ancestors_of([op]))
    ]


def resolve_step_ops(step: Step, source: GraphSource, program: str) -> StepOps:
    """Complete the step of a graph with the ops that the program returned.

    Raises:
        InputError: the program returned an object that is not an op or tensor of its graph.
    """
    nodes = {node.name for node in source.graph_def.node}
    names = partial(_names, program, source.live, nodes)
    losses = list(names("loss", step.loss))
    if isinstance(step.loss, ScalarLosses):
        losses = select_losses(losses, source)
    separate = step.train_op if isinstance(step.train_op, SeparateRuns) else ()
    return source.step_ops._replace(
        train_op=tuple(names("train_op", step.train_op)),
        runs=tuple(tuple(names("train_op", run)) for run in separate),
        losses=tuple(losses),
        inputs=tuple(
            tuple(names("inputs", list(inputs.values())))
            for inputs in (
                [step.inputs] if isinstance(step.inputs, Mapping) else step.inputs or ()
            )
            if isinstance(inputs, Mapping)
        ),
        session=_session_config(step.config),
    )


def _names(
    program: str, graph: Any, nodes: Collection[str], key: str, value: Any
) -> Iterator[str]:
    """The names of the ops and tensors that a program returned under a key."""
    if value is None:
        return
    if isinstance(value, list | tuple):
        for item in value:
            yield from _names(program, graph, nodes, key, item)
        return
    named = value
    if isinstance(value, tf.Variable):  # also the result of an assignment
        named = getattr(value, "op", None)
    elif parts := component_tensors(value):
        yield from _names(program, graph, nodes, key, parts)
        return
    name = named if isinstance(named, str) else getattr(named, "name", None)
    foreign = getattr(named, "graph", graph) is not graph
    if foreign or not isinstance(name, str) or producer_of(name) not in nodes:
        raise InputError(
            program,
            f"its {key} is {value!r:.80}, which is not an op of the graph it built",
            "return the ops and tensors themselves",
        )
    yield name


def component_tensors(value: Any) -> list[Any]:
    """The tensors of a composite tensor, such as a sparse placeholder; empty for other values."""
    if tf.nest.is_nested(value):
        return []
    parts: list[Any] = tf.nest.flatten(value, expand_composites=True)
    return [] if any(part is value for part in parts) else parts


def _session_config(config: Any) -> Mapping[str, Any] | None:
    """A session configuration as nested mappings, without unset fields."""
    if isinstance(config, Message):
        return dict(json_format.MessageToDict(config, preserving_proto_field_name=True))
    return config if isinstance(config, Mapping) else None


def initial_state(graph: tf.Graph) -> InitialState:
    """The initializers of variables and tables in a complete graph, and copies of variables."""
    strategy = strategy_of_graph(graph)
    copies = strategy.copies.items() if strategy is not None else ()
    initializers = _initializers(graph, tf1.GraphKeys.GLOBAL_VARIABLES)
    local_initializers = _initializers(graph, tf1.GraphKeys.LOCAL_VARIABLES)
    return InitialState(
        initializers,
        _uncollected(graph, initializers.keys() | local_initializers.keys()) | local_initializers,
        tables=[table.name for table in graph.get_collection(tf1.GraphKeys.TABLE_INITIALIZERS)],
        mirrors={name: copy.first for name, copy in copies if copy.replica},
        unsynchronized=frozenset(name for name, copy in copies if not copy.in_sync),
    )


def _initializers(graph: tf.Graph, key: str) -> dict[str, str]:
    return {
        name: variable.initializer.name
        for entry in graph.get_collection(key)
        for variable in replica_values(entry)
        if _is_variable(graph, name := producer_of(variable.name))
    }


def _uncollected(graph: tf.Graph, collected: Set[str]) -> dict[str, str]:
    """The initializers of variables in no collection, such as those of metrics of Keras.

    TensorFlow names the initializer after the variable.
    """
    found = {}
    for op in graph.get_operations():
        variable = op.name.removesuffix("/Assign")
        is_initializer = (
            op.type in OVERWRITES and variable != op.name and variable not in collected
        )
        if is_initializer and op.inputs[0].op.name == variable and _is_variable(graph, variable):
            found[variable] = op.name
    return found


def _is_variable(graph: tf.Graph, name: str) -> bool:
    try:
        return graph.get_operation_by_name(name).type in VARIABLES
    except KeyError:
        return False
