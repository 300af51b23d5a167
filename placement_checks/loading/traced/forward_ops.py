"""Notes for which forward op a tape builds each backward op in a traced function."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from placement_checks.loading.tf_internals.traced_functions import around_gradients_of_ops


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

    with around_gradients_of_ops(around):
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
