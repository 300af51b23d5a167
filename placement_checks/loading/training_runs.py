"""Which runs of a session train a model: those that update its trainable variables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

import tensorflow as tf

from placement_checks.core.op_types import (
    CALLS,
    OVERWRITES,
    PASSES_HANDLE,
    is_gradient_update,
    is_update,
)
from placement_checks.loading.applied_gradients import op_name
from placement_checks.loading.gradient_notes import GradientNotes
from placement_checks.loading.graph_strategy import copies
from placement_checks.loading.tf_internals.graph_building import function_body

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
        ops = needed_for(fetched)
        changed = {op: names for op in ops if (names := _changed(op))}
        of_trainable = {op for op, names in changed.items() if names & trainable}
        overwriting = {op for op in of_trainable if op.type in OVERWRITES}
        gradients = self._notes.live_ops(self._graph) if changed else set()
        of_gradients = made_of(gradients, ops)
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


def needed_for(ops: Iterable[tf.Operation]) -> set[tf.Operation]:
    """Some ops, and all that must run before them."""
    waiting = list(ops)
    needed = set(waiting)
    while waiting:
        op = waiting.pop()
        before = {*(tensor.op for tensor in op.inputs), *op.control_inputs} - needed
        needed |= before
        waiting += before
    return needed


def made_of(sources: Collection[tf.Operation], among: Iterable[tf.Operation]) -> set[tf.Operation]:
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
