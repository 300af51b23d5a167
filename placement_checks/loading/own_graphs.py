"""Which graph a builder built: the default one, or one that it made itself."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from placement_checks.core.program import Step
from placement_checks.loading.tf_internals.patching import patched
from placement_checks.loading.tf_internals.process_state import close_graph, open_graphs


def is_whole(graph: tf.Graph) -> bool:
    """Whether it is a graph by itself, and not the body of a function."""
    return type(graph) is tf.Graph


@contextlib.contextmanager
def record_graphs() -> Iterator[list[tf.Graph]]:
    """The graphs that are made in this block, without the bodies of functions.

    Those that are the default one when it ends, such as that of a session which stays open, are so
    no longer.
    """
    made: list[tf.Graph] = []
    opened = open_graphs()

    def recording(make: Callable[..., None]) -> Callable[..., None]:
        def init(self: tf.Graph, *args: Any, **kwargs: Any) -> None:
            make(self, *args, **kwargs)
            if is_whole(self):
                made.append(self)

        return init

    with patched(tf.Graph, "__init__", recording):
        try:
            yield made
        finally:
            while open_graphs() > opened:
                close_graph()


def built_graph(default: tf.Graph, made: Sequence[tf.Graph], returned: object) -> tf.Graph:
    """The graph that is the program.

    It is the one of what the builder returned. If that names none, it is the default graph, or
    the last one that the builder made if it built nothing into the default graph.
    """
    named = [graph for graph in _graphs_of(returned) if graph is default or graph in made]
    if named:
        return default if default in named else named[0]
    if default.get_operations():
        return default
    return next((graph for graph in reversed(made) if graph.get_operations()), default)


def _graphs_of(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        for item in value:
            yield from _graphs_of(item)
    elif isinstance(value, Mapping):
        yield from _graphs_of(list(value.values()))
    elif isinstance(value, Step):
        yield from _graphs_of([value.train_op, value.loss, value.inputs, value.gradients])
    elif isinstance(value, tf.Graph):
        yield value
    elif isinstance(graph := getattr(value, "graph", None), tf.Graph):
        yield graph
