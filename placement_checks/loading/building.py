"""Runs a builder in a new default graph, and restores the global state of TensorFlow."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import tensorflow as tf

from placement_checks.core.errors import InputError
from placement_checks.core.program import AppliedGradient, Program, Step
from placement_checks.loading.applied_gradients import record_applied
from placement_checks.loading.behaviour import Behaviour
from placement_checks.loading.gradient_notes import record_gradients
from placement_checks.loading.graph_reading import GraphSource, from_live_graph
from placement_checks.loading.own_graphs import built_graph, is_whole, record_graphs
from placement_checks.loading.steps import step_ops
from placement_checks.loading.tf_internals import names_of_keras
from placement_checks.loading.users_code import users_code


class Built(NamedTuple):
    """A graph, what its builder returned, and the gradients that optimisers were called with."""

    source: GraphSource
    step: Step
    applied: Sequence[AppliedGradient]


def build(program: Program, num_gpus: int) -> Built:
    """Build a program for so many GPUs.

    Raises:
        InputError: the builder raised, built nothing, or returned what does not describe a step;
            or its graph is larger than 2 GB.
    """
    arguments = program.arguments(num_gpus)
    default = tf.Graph()
    with (
        _undisturbed(),
        default.as_default(),
        record_graphs() as made,
        record_gradients() as gradients,
        record_applied() as applied,
    ):
        with users_code(program.name, "the builder", program.folder):
            returned = program.build(**arguments)
            graph = built_graph(default, made, returned)  # a mapping of the user's own
            step = Step() if returned is graph else Step.of(returned, program.name)
    if not graph.get_operations():
        raise InputError(
            program.name,
            "the builder built no graph",
            "build ops in the default graph or in a tf.Graph() of its own, without eager code",
        )
    source = from_live_graph(graph, program.name, program.folder, gradients.get(graph))
    source.step_ops = step_ops(step, source)
    return Built(source, step, [of for of in applied if not _is_of_another(of, graph)])


def _is_of_another(applied: AppliedGradient, graph: tf.Graph) -> bool:
    """Whether it was applied in another graph, which is no body of a function."""
    other = getattr(applied.gradient, "graph", graph)
    return other is not graph and is_whole(other)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Restore what a builder may change for the whole process.

    That is soft placement, the behaviour of TensorFlow 2, and Keras's counters of names.

    Keras 3 numbers its layers over the whole process, so that the second of two equal programs
    would have other names than the first (`dense_1` for `dense`).
    """
    soft = tf.config.get_soft_device_placement()
    behaviour = Behaviour.now()
    names = names_of_keras()
    kept = dict(names) if names is not None else {}
    if names is not None:
        names.clear()
    if "absl.flags" in sys.modules:
        flags = sys.modules["absl.flags"].FLAGS
        if not flags.is_parsed():
            flags(sys.argv[:1])
    try:
        yield
    finally:
        if names is not None:
            names.clear()
            names.update(kept)
        behaviour.restore()
        # Always: starting the eager runtime inside a graph turns it off, and the getter says on.
        tf.config.set_soft_device_placement(soft)
