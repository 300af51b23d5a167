"""Records how eager code creates variables and traces functions.

`record_tracing` starts all recorders: of variables (`eager.variables`), of reductions over
replicas, of the replica of each op, and of the forward op of each backward op. It also redirects
device scopes from GPUs to the CPU devices that simulate them.
"""

from __future__ import annotations

import contextlib
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import tensorflow as tf

from placement_checks.capture.eager.devices import check_device_scope, fake_gpu_only_ops
from placement_checks.capture.eager.variables import VariableNotes, record_variables
from placement_checks.graph.gradients import (
    GradientNotes,
    OptimizerCall,
    is_top_level,
    record_applied,
    record_gradients,
)
from placement_checks.tf.distribution import (
    build_of_replica,
    replica_values,
    user_lines_in_replica_threads,
)
from placement_checks.tf.eager import around_op_gradients
from placement_checks.tf.patches import Patch
from placement_checks.tf.patching import afterwards, patched
from placement_checks.tf.simulated_devices import simulated_scope

_T = TypeVar("_T")


class Reductions:
    """The reductions over replicas (sums and means) in graphs and traced functions."""

    def __init__(self) -> None:
        self._results: dict[tuple[tf.Graph, str], Any] = {}

    def result(self, tensor: Any) -> Any:
        """The result of reducing a tensor; the tensor itself if it was not reduced."""
        seen = set()
        while (key := _key(tensor)) in self._results and key not in seen:
            seen.add(key)
            tensor = self._results[key]
        return tensor

    def note(self, values: Any, results: Any) -> None:
        """Record the result of each value. A value belongs to one replica or to all replicas."""
        for value, result in zip(values, results, strict=False):
            reduced = replica_values(result)
            for replica, part in enumerate(replica_values(value)):
                # There is only one result for all replicas if the variables are on one device.
                whole = graph_tensors(reduced[replica if len(reduced) > 1 else 0])
                for before, after in zip(graph_tensors(part), whole, strict=False):
                    if before is not after:
                        self._results.setdefault(_key(before), after)


@contextlib.contextmanager
def record_reductions() -> Iterator[Reductions]:
    """Record the reductions of strategies in graphs that are built in this block."""
    notes = Reductions()

    def wrap_batch_reduce(reduce: Callable[..., Any]) -> Callable[..., Any]:
        def batch_reduce_to(self: Any, how: Any, pairs: Any, *args: Any, **kwargs: Any) -> Any:
            pairs = list(pairs)
            results = reduce(self, how, pairs, *args, **kwargs)
            notes.note([value for value, _ in pairs], results)
            return results

        return batch_reduce_to

    def wrap_reduce(reduce: Callable[..., Any]) -> Callable[..., Any]:
        def reduce_and_note(self: Any, how: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
            result = reduce(self, how, value, *args, **kwargs)
            notes.note(tf.nest.flatten(value), tf.nest.flatten(result))
            return result

        return reduce_and_note

    with (
        patched(Patch.REDUCE_SEVERAL, wrap_batch_reduce),
        patched(Patch.REDUCE, wrap_reduce),
        patched(Patch.ALL_REDUCE, wrap_reduce),
    ):
        yield notes


class OpRanges(Generic[_T]):
    """A value for each op of some ranges, in graphs and traced functions."""

    def __init__(self) -> None:
        # The numbers of the first op and of the op after the last one, and the value.
        self._ranges: defaultdict[tf.Graph, list[tuple[int, int, _T]]] = defaultdict(list)

    def note(self, graph: tf.Graph, start: int, value: _T) -> None:
        """Record the value of all ops from number ``start`` on."""
        self._ranges[graph].append((start, graph.version, value))

    def in_graph(self, graph: tf.Graph) -> Mapping[str, _T]:
        """The value of each op in one graph, by name; other ops are left out."""
        ops = graph.get_operations() if graph in self._ranges else []
        found: dict[str, _T] = {}
        for start, end, value in self._ranges.get(graph, ()):
            for op in ops[start:end]:
                found.setdefault(op.name, value)  # inner ranges are recorded first
        return found


class Replicas(OpRanges[int]):
    """The replicas that build ops."""

    def __init__(self) -> None:
        super().__init__()
        # For each thread of a replica: its graph, its replica and the number of its next op.
        self._building: dict[int, tuple[tf.Graph, int, int]] = {}

    @contextlib.contextmanager
    def building(self, graph: tf.Graph, replica: int) -> Iterator[None]:
        """Record the ops that this thread builds in this block for a replica."""
        thread = threading.get_ident()
        self._building[thread] = graph, replica, graph.version
        try:
            yield
        finally:
            graph, replica, start = self._building.pop(thread)
            self.note(graph, start, replica)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Exclude ops that other threads build while this thread waits for these threads."""
        thread = threading.get_ident()
        if thread not in self._building:
            yield
            return
        graph, replica, start = self._building[thread]
        self.note(graph, start, replica)
        try:
            yield
        finally:
            self._building[thread] = graph, replica, graph.version


@contextlib.contextmanager
def record_replicas() -> Iterator[Replicas]:
    """Record the replicas of ops under strategies that run each replica in a thread.

    In graphs and functions, the threads run one at a time: each thread runs until it ends, or
    until it calls ``merge_call`` (distribute/mirrored_run.py in TensorFlow).
    """
    notes = Replicas()

    def note_thread(thread: Any, *_: Any) -> None:
        if not tf.executing_eagerly():
            build_of_replica(thread, notes.building)

    def around_merge(merge: Callable[..., Any]) -> Callable[..., Any]:
        def merge_call(self: Any, *args: Any, **kwargs: Any) -> Any:
            with notes.paused():
                return merge(self, *args, **kwargs)

        return merge_call

    with (
        patched(Patch.NEW_REPLICA, afterwards(note_thread)),
        patched(Patch.REPLICA_MERGE, around_merge),
    ):
        yield notes


def graph_tensors(value: Any) -> Sequence[Any]:
    """The symbolic tensors of a value: the tensor, or the two tensors of `IndexedSlices`."""
    parts = (value.values, value.indices) if isinstance(value, tf.IndexedSlices) else (value,)
    return [part for part in parts if isinstance(getattr(part, "graph", None), tf.Graph)]


def _key(tensor: Any) -> tuple[tf.Graph, str]:
    return tensor.graph, tensor.name


@contextlib.contextmanager
def record_forward_ops() -> Iterator[OpRanges[str]]:
    """Record the forward op of each backward op that a tape builds in this block."""
    notes = OpRanges[str]()

    def around(gradient: Callable[..., Any]) -> Callable[..., Any]:
        def gradient_of(
            kind: str, attributes: Any, number: int, inputs: Any, outputs: Any, *others: Any
        ) -> Any:
            if tf.executing_eagerly():
                return gradient(kind, attributes, number, inputs, outputs, *others)
            graph = tf.compat.v1.get_default_graph()
            start = graph.version
            gradients = gradient(kind, attributes, number, inputs, outputs, *others)
            forward = _forward_op(graph, kind, inputs or (), outputs or ())
            if forward is not None:
                notes.note(graph, start, forward.name)
            return gradients

        return gradient_of

    with around_op_gradients(around):
        yield notes


def _forward_op(graph: tf.Graph, kind: str, inputs: Sequence[Any], outputs: Sequence[Any]) -> Any:
    """Return the op with these outputs, or the only op of this type with all these inputs."""
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


@dataclass(frozen=True, kw_only=True)
class TracingNotes:
    """The records of a program that creates variables and traces functions.

    Attributes:
        gradients: the gradients that were taken, by graph.
        applied: the gradients that optimizers were called with.
        variables: the variables.
        reductions: the reductions over replicas.
        replicas: the replicas that build ops.
        forward: the forward ops of backward ops.
        strategies: the strategies that were created.
    """

    gradients: Mapping[Any, GradientNotes]
    applied: Sequence[OptimizerCall]
    variables: VariableNotes = field(default_factory=VariableNotes)
    reductions: Reductions = field(default_factory=Reductions)
    replicas: Replicas = field(default_factory=Replicas)
    forward: OpRanges[str] = field(default_factory=OpRanges[str])
    strategies: list[Any] = field(default_factory=list)


@contextlib.contextmanager
def record_tracing(*, eager: bool) -> Iterator[TracingNotes]:
    """Record a program in this block.

    Without ``eager``, only gradients, optimizer calls, reductions and replicas are recorded.
    """
    with (
        record_gradients() as gradients,
        record_applied() as applied,
        record_reductions() as reductions,
        record_replicas() as replicas,
    ):
        if not eager:
            yield TracingNotes(
                gradients=gradients, applied=applied, reductions=reductions, replicas=replicas
            )
            return
        with (
            patched(Patch.EAGER_SCOPE, _simulate_scope),
            fake_gpu_only_ops(),
            user_lines_in_replica_threads(),
            patched(Patch.GRAPH_SCOPE, _simulate_graph_scope),
            record_variables() as variables,
            record_forward_ops() as forward,
        ):
            yield TracingNotes(
                gradients=gradients,
                applied=applied,
                variables=variables,
                reductions=reductions,
                replicas=replicas,
                forward=forward,
            )


def _simulate_scope(scope: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``tf.device``: redirect GPUs to the CPU devices that simulate them."""
    simulated = simulated_scope(scope)

    def device(self: Any, name: Any) -> Any:
        check_device_scope(name)
        return simulated(self, name)

    return device


def _simulate_graph_scope(scope: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``tf.Graph.device`` in the same way for functions that eager code traces."""
    simulated = _simulate_scope(scope)

    def device(graph: tf.Graph, name: Any) -> Any:
        traces = not is_top_level(graph) and tf.compat.v1.executing_eagerly_outside_functions()
        return (simulated if traces else scope)(graph, name)

    return device
