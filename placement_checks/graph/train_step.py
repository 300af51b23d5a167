"""What a program says about its step, as names of ops and tensors of its graph.

Which of the scalars that a program reports are losses.

Which runs of a session train a model: those that update its trainable variables.

How the variables of a live graph get their first values.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import tensorflow as tf
from google.protobuf import json_format
from google.protobuf.message import Message

from placement_checks.core.builder_result import ScalarLosses
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
    is_gradient_update,
    is_update,
)
from placement_checks.core.placement import StepOps, producer_of
from placement_checks.core.program import InitialState, Step
from placement_checks.core.variables import Variable
from placement_checks.graph.gradients import GradientNotes, op_name
from placement_checks.graph.reading import GraphSource, copies, name_of, strategy_of_graph
from placement_checks.tf.graphs import function_body

tf1 = tf.compat.v1


@dataclass(frozen=True)
class Run:
    """What one run does with the variables of its graph.

    Attributes:
        updates: the ops by which trainable variables learn.
        changes: whether it changes any variable, as counters and statistics are changed.
        reads: whether it depends on trainable variables.
        keeps_gradients: whether it changes other variables by what is made of gradients.
        by_gradients: whether gradients, in this run or kept in variables by another, or an
            optimizer's op are behind the updates.
        beside_gradients: whether gradients are taken elsewhere in the graph, and none in this run.
    """

    updates: frozenset[tf.Operation]
    changes: bool
    reads: bool
    keeps_gradients: bool = False
    by_gradients: bool = False
    beside_gradients: bool = False

    @property
    def may_initialize(self) -> bool:
        """Whether it updates trainable variables by nothing that is known to be a gradient.

        As an initialization by the moments of a batch does, but also a step whose gradients are
        fed, or computed by hand.
        """
        return bool(self.updates) and not self.by_gradients and self.beside_gradients


class GraphRuns:
    """The runs of one graph, known by what they fetch.

    Args:
        graph: the graph, which may still grow.
        notes: what is noted of the gradients that are taken in it.
    """

    def __init__(self, graph: tf.Graph, notes: GradientNotes) -> None:
        self._graph = graph
        self._notes = notes
        self._known: dict[frozenset[tf.Operation], Run] = {}
        self._optimizer_ops: tuple[int, frozenset[tf.Operation]] = (-1, frozenset())

    def run_of(self, fetched: Iterable[tf.Operation]) -> Run:
        """What a run of these ops does; a queue runner asks for the same without end."""
        key = frozenset(fetched)
        if key not in self._known:
            self._known[key] = self._looked_at(key)
        return self._known[key]

    def optimizer_ops(self) -> frozenset[tf.Operation]:
        """The ops of optimisers that update a trainable variable, run or not."""
        version, found = self._optimizer_ops
        if version != self._graph.version:
            trainable = trainable_variables(self._graph)
            found = frozenset(
                op
                for op in self._graph.get_operations()
                if is_gradient_update(op.type) and _changed(op) & trainable
            )
            self._optimizer_ops = self._graph.version, found
        return found

    def _looked_at(self, fetched: Iterable[tf.Operation]) -> Run:
        trainable = trainable_variables(self._graph)
        ops = ancestors(fetched)
        changed = {op: names for op in ops if (names := _changed(op))}
        of_trainable = {op for op, names in changed.items() if names & trainable}
        overwriting = {op for op in of_trainable if op.type in OVERWRITES}
        gradients = self._notes.live_ops(self._graph) if changed else set()
        of_gradients = dependents(gradients, ops)
        # Else an initialiser or a restored value, and no step that is written by hand.
        overwriting -= of_gradients
        updates = frozenset(of_trainable - overwriting)
        return Run(
            updates,
            bool(changed),
            any(op.name in trainable for op in ops),
            not of_gradients.isdisjoint(changed.keys() - of_trainable),
            any(
                op in of_gradients or op.type in CALLS or is_gradient_update(op.type)
                for op in updates
            ),
            bool(gradients) and gradients.isdisjoint(ops),
        )


def trainable_variables(graph: tf.Graph) -> set[str]:
    """The names of the ops that hold the trainable variables of a graph."""
    return {
        op_name(copy)
        for variable in graph.get_collection(tf1.GraphKeys.TRAINABLE_VARIABLES)
        for copy in copies(variable)
    }


def ancestors(ops: Iterable[tf.Operation]) -> set[tf.Operation]:
    """Some ops, and all that must run before them."""
    waiting = list(ops)
    needed = set(waiting)
    while waiting:
        op = waiting.pop()
        before = {*(tensor.op for tensor in op.inputs), *op.control_inputs} - needed
        needed |= before
        waiting += before
    return needed


def dependents(
    sources: Collection[tf.Operation], among: Iterable[tf.Operation]
) -> set[tf.Operation]:
    """Those ops whose values are made of what some of them yield."""
    users = defaultdict(list)
    for op in among:
        for tensor in op.inputs:
            users[tensor.op].append(op)
    waiting = list(sources)
    made: set[tf.Operation] = set()
    while waiting:
        further = set(users[waiting.pop()]) - made
        made |= further
        waiting += further
    return made


def _changed(op: tf.Operation) -> set[str]:
    """The names of the ops that hold what an op changes, itself or in functions that it calls."""
    return {_holder(changed).name for changed in _changed_inputs(op)}


def _changed_inputs(op: tf.Operation) -> Iterator[tf.Operation]:
    if is_update(op.type) and op.inputs:
        yield op.inputs[0].op
    elif op.type in CALLS:
        for body in _bodies(op):
            arguments = [tensor.op for tensor in body.inputs]
            behind = len(op.inputs) - len(arguments)  # the condition of a branch comes first
            for inner in body.get_operations():
                for changed in map(_holder, _changed_inputs(inner)):
                    if changed in arguments:
                        yield op.inputs[behind + arguments.index(changed)].op


def _holder(op: tf.Operation) -> tf.Operation:
    """The op that holds a variable, through what passes its handle on."""
    while op.type in PASSES_HANDLE and op.inputs:
        op = op.inputs[0].op
    return op


def _bodies(call: tf.Operation) -> Iterator[tf.Graph]:
    """The bodies of the functions that an op calls, as far as Python has traced them."""
    for attribute in call.node_def.attr.values():
        for function in [attribute.func, *attribute.list.func]:
            body = function_body(call.graph, function.name) if function.name else None
            if body is not None:
                yield body


_COMBINES = ADDS | PRODUCTS | DIVISIONS | IDENTITIES | {CAST, MEAN, STACK, SUM}


def losses_among(reported: ScalarLosses, source: GraphSource) -> ScalarLosses:
    """Those that gradients have to do with; all of them where none are known to be taken.

    What gradients are taken of is made of them, or they are made of it, or of what is scaled and
    added up to it: a perplexity, of the loss before it was scaled. An accuracy, which may be that
    of one tower, is none.
    """
    names = {producer_of(name) for name in source.step_ops.objectives}
    if not names or source.live is None:
        return reported
    behind = _behind(map(source.live.get_operation_by_name, names))
    trainable = trainable_variables(source.live)
    learned = dependents([op for op in behind if op.name in trainable], behind)
    parts = set(_parts([op for op in behind if op.name in names], learned))
    backward = source.step_ops.backward or ()
    return ScalarLosses(
        loss
        for loss in reported
        if loss.op in behind or not parts.isdisjoint(_behind([loss.op], backward))
    )


def _behind(ops: Iterable[tf.Operation], ends: Collection[str] = ()) -> set[tf.Operation]:
    """Some ops, and all whose values they are made of; not by way of those that ``ends`` names."""
    waiting = list(ops)
    seen = set(waiting)
    while waiting:
        op = waiting.pop()
        before = {tensor.op for tensor in op.inputs} - seen if op.name not in ends else set()
        seen |= before
        waiting += before
    return seen


def _parts(
    objectives: Iterable[tf.Operation], learned: Collection[tf.Operation]
) -> Iterator[tf.Operation]:
    """The scalars that are scaled and added up to the objectives, and those themselves.

    Of a product only what is made of trainable variables: the other factor, as one over the
    number of words, is also one of an accuracy.
    """
    waiting = list(objectives)
    seen = set(waiting)
    while waiting:
        op = waiting.pop()
        yield op
        if op.type not in _COMBINES:
            continue
        terms = {
            tensor.op
            for tensor in (op.inputs[:1] if op.type in DIVISIONS else op.inputs)
            if tensor.op in learned and (tensor.shape.rank == 0 or tensor.op.type == STACK)
        }
        waiting += terms - seen
        seen |= terms


def step_ops(step: Step, source: GraphSource) -> StepOps:
    """What is known of a training step: what the graph shows, and what the program says.

    Raises:
        InputError: the program names an op that is not in its graph, or not an op at all.
    """
    names = partial(_names, source, {node.name for node in source.graph_def.node})
    return source.step_ops._replace(
        train_op=tuple(names("train_op", step.train_op)),
        losses=tuple(names("loss", _losses(step.loss, source))),
        inputs=tuple(
            tuple(names("inputs", list(inputs.values())))
            for inputs in (
                [step.inputs] if isinstance(step.inputs, Mapping) else step.inputs or ()
            )
            if isinstance(inputs, Mapping)
        ),
        session=_session(step.config),
    )


def _losses(returned: Any, source: GraphSource) -> Any:
    """What the program calls its loss; of a tuple's scalars those that are losses."""
    return losses_among(returned, source) if isinstance(returned, ScalarLosses) else returned


def _names(source: GraphSource, in_graph: Collection[str], key: str, value: Any) -> Iterator[str]:
    """The names of the ops and tensors in what a program says under a key."""
    if value is None:
        return
    if isinstance(value, list | tuple):
        for item in value:
            yield from _names(source, in_graph, key, item)
        return
    named = value
    if isinstance(value, tf.Variable):  # also what an assignment yields, by its own op
        named = getattr(value, "op", None)
    elif parts := components(value):
        yield from _names(source, in_graph, key, parts)
        return
    name = named if isinstance(named, str) else getattr(named, "name", None)
    foreign = getattr(named, "graph", source.live) is not source.live
    if foreign or not isinstance(name, str) or producer_of(name) not in in_graph:
        raise InputError(
            source.program,
            f"its {key} is {value!r:.80}, which is not an op of the graph it built",
            "return the ops and tensors themselves",
        )
    yield name


def components(value: Any) -> list[Any]:
    """The tensors of what is made of several, such as a sparse placeholder; else none."""
    if tf.nest.is_nested(value):
        return []
    parts: list[Any] = tf.nest.flatten(value, expand_composites=True)
    return [] if any(part is value for part in parts) else parts


def _session(config: Any) -> Mapping[str, Any] | None:
    """A session configuration as nested mappings, fields that are not set left out."""
    if isinstance(config, Message):
        return dict(json_format.MessageToDict(config, preserving_proto_field_name=True))
    return config if isinstance(config, Mapping) else None


def initial_state(graph: tf.Graph, variables: Iterable[Variable]) -> InitialState:
    """What initialises the variables of a graph, its tables, and the copies of a strategy.

    Args:
        graph: it was just built.
        variables: those that its ops hold.
    """
    holders = {variable.name for variable in variables}
    tables = graph.get_collection(tf1.GraphKeys.TABLE_INITIALIZERS)
    mirrors, unsynchronised = _mirrors(graph)
    return InitialState(
        _initialisers(graph, holders, tf1.GraphKeys.GLOBAL_VARIABLES),
        _initialisers(graph, holders, tf1.GraphKeys.LOCAL_VARIABLES),
        tables=[table.name for table in tables],
        mirrors=mirrors,
        unsynchronised=unsynchronised,
    )


def _initialisers(graph: tf.Graph, holders: Collection[str], key: str) -> dict[str, str]:
    """The initialisers of the variables of a collection."""
    return {
        name_of(variable.name): variable.initializer.name
        for entry in graph.get_collection(key)
        for variable in copies(entry)
        if name_of(variable.name) in holders
    }


def _mirrors(graph: tf.Graph) -> tuple[dict[str, str], frozenset[str]]:
    """The copies that a strategy keeps of variables, each with the variable that it copies.

    The second result has those, first ones too, that it aggregates only when they are read.
    """
    strategy = strategy_of_graph(graph)
    kept = strategy.copies.items() if strategy is not None else ()
    mirrors = {name: copy.of for name, copy in kept if copy.replica}
    return mirrors, frozenset(name for name, copy in kept if not copy.in_sync)
