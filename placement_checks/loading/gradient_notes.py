"""Notes, while a program builds, what it takes gradients of and which ops this adds."""

from __future__ import annotations

import contextlib
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, cast

import tensorflow as tf

from placement_checks.loading.applied_gradients import op_name
from placement_checks.loading.own_graphs import is_whole
from placement_checks.loading.tf_internals.graph_building import around_gradients
from placement_checks.loading.tf_internals.patching import patched


class GradientNotes:
    """The gradients that are taken in one graph while a program builds.

    Attributes:
        objectives: the tensors that gradients were taken of, by name, in the order of the calls.
        gradients: the ops that yield the gradients of each objective, by the objective's name.
        taken: the ops that yield the gradients by each variable or tensor, by its op's name.
        by_source: in a function, pairs of a variable or tensor, and the op of a gradient by it.
    """

    def __init__(self) -> None:
        self.objectives: list[str] = []
        self.gradients: defaultdict[str, list[str]] = defaultdict(list)
        self.taken: defaultdict[str, list[str]] = defaultdict(list)
        self.by_source: list[tuple[Any, str]] = []
        self._built: list[tuple[int, int]] = []
        # By the threads that take gradients, where what each has built last begins; gradients of
        # a part are taken within those of the whole.
        self._began: dict[int, int] = {}

    @property
    def has_any(self) -> bool:
        """Whether any gradient was taken."""
        return bool(self._built)

    @property
    def is_taking(self) -> bool:
        """Whether this thread takes gradients, within which others are taken of a part."""
        return threading.get_ident() in self._began

    def ops(self, graph_def: Any) -> frozenset[str]:
        """The names of the ops that were built while gradients were taken."""
        return frozenset(
            node.name for start, end in self._built for node in graph_def.node[start:end]
        )

    def live_ops(self, graph: tf.Graph) -> set[tf.Operation]:
        """The ops themselves, in the graph that was noted."""
        ops = graph.get_operations()
        return {op for start, end in self._built for op in ops[start:end]}

    def recorded(
        self, graph: tf.Graph, targets: Any, sources: Any, take: Callable[[], Any]
    ) -> Any:
        """What ``take`` returns, with notes of what it adds to the graph."""
        if self.is_taking:
            return take()
        thread = threading.get_ident()
        self._began[thread] = graph.version  # the number of its ops
        objectives = [
            target.name
            for target in tf.nest.flatten(targets)
            if getattr(target, "graph", None) is graph
        ]
        try:
            gradients = take()
            ops = self._note_taken(graph, sources, gradients)
            for objective in objectives:
                self.gradients[objective] += ops
            return gradients
        finally:
            self._built.append((self._began.pop(thread), graph.version))
            self.objectives += objectives

    @contextlib.contextmanager
    def waiting(self, graph: tf.Graph) -> Iterator[None]:
        """While this thread, which takes gradients, waits for others that build in the graph."""
        thread = threading.get_ident()
        self._built.append((self._began[thread], graph.version))
        try:
            yield
        finally:
            self._began[thread] = graph.version

    def noted(self, graph: tf.Graph, build: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, which is called for threads that take gradients and wait for it."""

        def build_backward(*args: Any, **kwargs: Any) -> Any:
            start = graph.version
            try:
                return build(*args, **kwargs)
            finally:
                self._built.append((start, graph.version))

        return cast(Callable[..., Any], tf.autograph.experimental.do_not_convert(build_backward))

    def _note_taken(self, graph: tf.Graph, sources: Any, gradients: Any) -> list[str]:
        """Note the gradients of a call, as many as its sources; None where there is none.

        Returns:
            The names of the ops that yield them.
        """
        ops: list[str] = []
        pairs = zip(tf.nest.flatten(sources), tf.nest.flatten(gradients), strict=False)
        for source, gradient in pairs:
            values = getattr(gradient, "values", gradient)  # of rows, their values
            if getattr(values, "graph", None) is graph:
                ops.append(values.op.name)
                if is_whole(graph):
                    self.taken[op_name(source)].append(values.op.name)
                else:  # eager code's variables have no ops
                    self.by_source.append((source, values.op.name))
        return ops


@contextlib.contextmanager
def record_gradients() -> Iterator[Mapping[tf.Graph, GradientNotes]]:
    """Note the gradients that are taken in each graph, by `tf.gradients`, optimisers and tapes."""
    notes: defaultdict[tf.Graph, GradientNotes] = defaultdict(GradientNotes)

    def recording(take: Callable[..., Any]) -> Callable[..., Any]:
        def taken(targets: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
            take_these = partial(take, targets, sources, *args, **kwargs)
            if tf.executing_eagerly():
                return take_these()
            graph = tf.compat.v1.get_default_graph()
            return notes[graph].recorded(graph, targets, sources, take_these)

        return taken

    def of_tape(gradient: Callable[..., Any]) -> Callable[..., Any]:
        # Programs may name its arguments.
        def taken(
            self: tf.GradientTape, target: Any, sources: Any, *args: Any, **kwargs: Any
        ) -> Any:
            return recording(partial(gradient, self))(target, sources, *args, **kwargs)

        return taken

    def of_replica(merge: Callable[..., Any]) -> Callable[..., Any]:
        # Each replica has a thread. One that brings values of all together within its gradients
        # waits until the others are there, which build their forward pass meanwhile.
        def merge_call(self: Any, merge_fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
            if graph not in notes or not notes[graph].is_taking:
                return merge(self, merge_fn, *args, **kwargs)
            with notes[graph].waiting(graph):
                return merge(self, notes[graph].noted(graph, merge_fn), *args, **kwargs)

        return merge_call

    with (
        around_gradients(recording),
        patched(tf.GradientTape, "gradient", of_tape),
        patched(tf.distribute.ReplicaContext, "merge_call", of_replica),
    ):
        yield notes
