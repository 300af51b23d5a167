"""Notes what eager code makes, and what functions are traced with.

Notes what strategies add up over their replicas, and what comes of it.

Notes for which forward op a tape builds each backward op in a traced function.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import tensorflow as tf

from placement_checks.capture.eager.devices import gpu_only_ops_made_up, refuse_stand_in
from placement_checks.capture.eager.variables import VariableNotes, noting_variables
from placement_checks.graph.gradients import GradientNotes, OptimizerCall, is_top_level
from placement_checks.tf.distribution import around_reductions, user_lines_in_replica_threads
from placement_checks.tf.eager import around_eager_devices, around_op_gradients
from placement_checks.tf.patching import patched
from placement_checks.tf.simulated_devices import simulated_scope


class Reductions:
    """The sums and means over replicas that functions were traced with."""

    def __init__(self) -> None:
        self._results: dict[tuple[int, str], Any] = {}
        self._graphs: list[Any] = []  # kept, so that their ids stay theirs

    def result(self, tensor: Any) -> Any:
        """What was made of a tensor; the tensor itself where it was not added up."""
        seen = set()
        while (key := _key(tensor)) in self._results and key not in seen:
            seen.add(key)
            tensor = self._results[key]
        return tensor

    def note(self, given: Any, made: Any) -> None:
        """Note some values of one replica, or of all, and what was made of each."""
        for value, result in zip(given, made, strict=False):
            results = _of_replicas(result)
            for replica, part in enumerate(_of_replicas(value)):
                # One for all replicas, where variables are in one place.
                after = results[replica if len(results) > 1 else 0]
                self._note_part(part, after)

    def _note_part(self, given: Any, made: Any) -> None:
        for before, after in zip(tensors_of(given), tensors_of(made), strict=False):
            if before is not after:
                self._graphs.append(before.graph)
                self._results.setdefault(_key(before), after)


@contextlib.contextmanager
def noting_reductions() -> Iterator[Reductions]:
    """Note what strategies add up in this block, in functions that are traced."""
    notes = Reductions()

    def several(reduce: Callable[..., Any]) -> Callable[..., Any]:
        def batch_reduce_to(self: Any, how: Any, pairs: Any, *args: Any, **kwargs: Any) -> Any:
            pairs = list(pairs)
            made = reduce(self, how, pairs, *args, **kwargs)
            notes.note([value for value, _ in pairs], made)
            return made

        return batch_reduce_to

    def one(reduce: Callable[..., Any]) -> Callable[..., Any]:
        def reduce_to(self: Any, how: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
            made = reduce(self, how, value, *args, **kwargs)
            notes.note([value], [made])
            return made

        return reduce_to

    def in_replica(reduce: Callable[..., Any]) -> Callable[..., Any]:
        def all_reduce(self: Any, how: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
            made = reduce(self, how, value, *args, **kwargs)
            notes.note(tf.nest.flatten(value), tf.nest.flatten(made))
            return made

        return all_reduce

    with around_reductions(several, one, in_replica):
        yield notes


def tensors_of(value: Any) -> Sequence[Any]:
    """The tensor of a value in a function, of slices that of their rows and of their indices."""
    parts = (value.values, value.indices) if isinstance(value, tf.IndexedSlices) else (value,)
    return [part for part in parts if isinstance(getattr(part, "graph", None), tf.Graph)]


def of_first_replica(value: Any) -> Any:
    """What a value is in the first replica."""
    return _of_replicas(value)[0]


def _of_replicas(value: Any) -> Sequence[Any]:
    """What a value is in each replica; one for all where it is the same for them."""
    is_distributed = isinstance(value, tf.distribute.DistributedValues)
    return value.values if is_distributed else (value,)


def _key(tensor: Any) -> tuple[int, str]:
    return id(tensor.graph), tensor.name


class _Built(NamedTuple):
    """The ops of a graph, by their numbers, that were built for a forward op."""

    start: int
    end: int
    forward: str


class ForwardOps:
    """The forward op of each backward op of some graphs."""

    def __init__(self) -> None:
        self._built: defaultdict[tf.Graph, list[_Built]] = defaultdict(list)

    def note(self, graph: tf.Graph, start: int, forward: str) -> None:
        """Note what was built last."""
        self._built[graph].append(_Built(start, graph.version, forward))

    def of(self, graph: tf.Graph) -> Mapping[str, str]:
        """The forward op by the name of each backward op in one graph."""
        ops = graph.get_operations()
        found: dict[str, str] = {}
        for start, end, forward in self._built[graph]:
            for op in ops[start:end]:
                found.setdefault(op.name, forward)  # what is within others is noted first
        return found


@contextlib.contextmanager
def noting_forward_ops() -> Iterator[ForwardOps]:
    """Note the forward op of each backward op that is built in this block."""
    notes = ForwardOps()

    def around(gradient: Callable[..., Any]) -> Callable[..., Any]:
        def gradient_of(
            kind: str, attributes: Any, number: int, inputs: Any, outputs: Any, *others: Any
        ) -> Any:
            if tf.executing_eagerly():
                return gradient(kind, attributes, number, inputs, outputs, *others)
            graph = tf.compat.v1.get_default_graph()
            start = graph.version
            made = gradient(kind, attributes, number, inputs, outputs, *others)
            forward = _forward_op(graph, kind, inputs or (), outputs or ())
            if forward is not None:
                notes.note(graph, start, forward.name)
            return made

        return gradient_of

    with around_op_gradients(around):
        yield notes


def _forward_op(graph: tf.Graph, kind: str, inputs: Sequence[Any], outputs: Sequence[Any]) -> Any:
    """The op that has some outputs, or the only one that takes all of some inputs."""
    for tensor in outputs:
        if getattr(tensor, "graph", None) is graph:
            return tensor.op
    users = [
        {op for op in tensor.consumers() if op.type == kind}
        for tensor in inputs
        if getattr(tensor, "graph", None) is graph
    ]
    shared = set.intersection(*users) if users else set()
    return shared.pop() if len(shared) == 1 else None


@dataclass(frozen=True)
class TracingNotes:
    """What was noted while a program made variables and traced functions.

    Attributes:
        variables: the variables.
        gradients: the gradients that were taken, by graph.
        applied: what optimisers were called with.
        reductions: what strategies added up.
        forward: the forward op of each backward op.
        strategies: those that were made.
    """

    variables: VariableNotes
    gradients: Mapping[Any, GradientNotes]
    applied: Sequence[OptimizerCall]
    reductions: Reductions
    forward: ForwardOps
    strategies: list[Any]


@contextlib.contextmanager
def noting_traced(*, eager: bool) -> Iterator[tuple[VariableNotes, Reductions, ForwardOps]]:
    """Note in this block what eager code makes; nothing where none is expected."""
    if not eager:
        yield VariableNotes(), Reductions(), ForwardOps()
        return
    with (
        around_eager_devices(_simulated),
        gpu_only_ops_made_up(),
        user_lines_in_replica_threads(),
        patched(tf.Graph, "device", _simulated_in_functions),
        noting_variables() as variables,
        noting_reductions() as reductions,
        noting_forward_ops() as forward,
    ):
        yield variables, reductions, forward


def _simulated(scope: Callable[..., Any]) -> Callable[..., Any]:
    """``tf.device``, led to what stands in for GPUs, which the program must not name itself."""
    simulated = simulated_scope(scope)

    def device(self: Any, name: Any) -> Any:
        refuse_stand_in(name)
        return simulated(self, name)

    return device


def _simulated_in_functions(scope: Callable[..., Any]) -> Callable[..., Any]:
    """``tf.device`` of graphs, led to what stands in for GPUs where eager code traces."""
    simulated = _simulated(scope)

    def device(graph: tf.Graph, name: Any) -> Any:
        traces = not is_top_level(graph) and tf.compat.v1.executing_eagerly_outside_functions()
        return (simulated if traces else scope)(graph, name)

    return device
