"""Notes, while a program builds, what it takes gradients of and which ops this adds."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import tensorflow as tf

from placement_checks.loading.tf_internals import around_gradients, patched


class GradientNotes:
    """The gradients that a program takes while it builds.

    Attributes:
        objectives: the tensors that gradients were taken of, by name, in the order of the calls.
    """

    def __init__(self) -> None:
        self.objectives: list[str] = []
        self._built: list[tuple[int, int]] = []
        self._busy = False  # with gradients of a part, taken within the gradients of the whole

    def ops(self, graph_def: Any) -> frozenset[str]:
        """The names of the ops that were built while gradients were taken."""
        return frozenset(
            node.name for start, end in self._built for node in graph_def.node[start:end]
        )

    def _recording(self, graph: tf.Graph, take: Callable[..., Any]) -> Callable[..., Any]:
        """``take``, whose first argument is the objectives, with notes of what it adds."""

        def recording(targets: Any, *args: Any, **kwargs: Any) -> Any:
            if self._busy or tf.compat.v1.get_default_graph() is not graph:
                return take(targets, *args, **kwargs)
            # A graph's version is the number of its ops.
            self._busy, start = True, graph.version
            try:
                return take(targets, *args, **kwargs)
            finally:
                self._busy = False
                self._built.append((start, graph.version))
                self.objectives += [
                    target.name
                    for target in tf.nest.flatten(targets)
                    if getattr(target, "graph", None) is graph
                ]

        return recording


@contextlib.contextmanager
def record_gradients(graph: tf.Graph) -> Iterator[GradientNotes]:
    """Note the gradients that are taken in ``graph``, by `tf.gradients`, optimisers and tapes."""
    notes = GradientNotes()

    def of_tape(gradient: Callable[..., Any]) -> Callable[..., Any]:
        def recording(self: tf.GradientTape, target: Any, *args: Any, **kwargs: Any) -> Any:
            return notes._recording(graph, partial(gradient, self))(target, *args, **kwargs)

        return recording

    with (
        around_gradients(partial(notes._recording, graph)),
        patched(tf.GradientTape, "gradient", of_tape),
    ):
        yield notes
