"""Runs a builder in a new default graph, and restores the global state of TensorFlow."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import tensorflow as tf

from placement_checks.core.errors import InputError
from placement_checks.core.missing import Missing
from placement_checks.core.program import AppliedGradient, BuiltProgram, Program, Step
from placement_checks.loading.applied_gradients import (
    Call,
    in_graph,
    record_applied,
    with_declared,
)
from placement_checks.loading.behaviour import Behaviour
from placement_checks.loading.gpu_count import Asked, answering_gpus
from placement_checks.loading.gradient_notes import GradientNotes, record_gradients
from placement_checks.loading.graph_reading import GraphSource, from_live_graph, requested
from placement_checks.loading.initial_state import initial_state
from placement_checks.loading.own_graphs import built_graph, record_graphs
from placement_checks.loading.sessions import Stopped, Watch, watching
from placement_checks.loading.steps import step_ops
from placement_checks.loading.tf_internals import names_of_keras
from placement_checks.loading.users_code import users_code

# What is noted, and what a program finds, are patches of TensorFlow: of two threads that build,
# the one that ends first would take the other's away, and leave its own.
_one_at_a_time = threading.RLock()


class Built(NamedTuple):
    """What a program built.

    Attributes:
        source: its graph.
        step: what it returned, or ran first.
        applied: the gradients that are applied.
        fed: what its first training step was fed; empty where none was seen.
        turns: how many different training steps it takes in turn.
        asked_for_gpus: whether it asked how many GPUs there are.
    """

    source: GraphSource
    step: Step
    applied: Sequence[AppliedGradient]
    fed: Mapping[str, Any]
    turns: int
    asked_for_gpus: bool


class Building:
    """What is noted while a program builds.

    Attributes:
        watch: what its sessions run.
        asked: by which calls it has asked how many GPUs there are.
    """

    def __init__(
        self,
        program: Program,
        watch: Watch,
        asked: Asked,
        gradients: Mapping[tf.Graph, GradientNotes],
        applied: Sequence[Call],
    ) -> None:
        self.watch = watch
        self.asked = asked
        self._program = program
        self._gradients = gradients
        self._applied = applied

    def trained(self) -> Built:
        """What was built when the first training step came.

        Raises:
            InputError: the graph is larger than 2 GB.
        """
        assert self.watch.graph is not None
        return self.built(self.watch.graph, self.watch.step)

    def built(self, graph: tf.Graph, step: Step) -> Built:
        """What was built in one graph.

        Raises:
            InputError: what it says of its step is wrong, or the graph is larger than 2 GB.
        """
        name, folder = self._program.name, self._program.folder
        source = from_live_graph(graph, name, folder, self._gradients.get(graph))
        source.step_ops = step_ops(step, source)
        calls = with_declared(self._applied, step.gradients or (), name)
        turns = max(1, len(self.watch.own_steps))
        applied = in_graph(calls, graph)
        return Built(source, step, applied, self.watch.fed, turns, bool(self.asked))


def stop(_building: Building) -> None:
    """End what is built at its first training step."""
    raise Stopped


@contextlib.contextmanager
def noting(program: Program, gpus: int, trains: Callable[[Building], None]) -> Iterator[Building]:
    """Note in this block what a program builds that finds so many GPUs.

    When it would train, ``trains`` is called.
    """
    with (
        answering_gpus(gpus) as asked,
        record_gradients() as gradients,
        record_applied() as applied,
    ):
        watch = Watch(gradients, lambda: trains(building))
        building = Building(program, watch, asked, gradients, applied)
        with watching(watch):
            yield building


def build(program: Program, num_gpus: int, trains: Callable[[Building], None] = stop) -> Built:
    """Build a program for so many GPUs. One that goes on to train is stopped at its first step.

    Args:
        program: its builder, or a function that trains.
        num_gpus: the number of GPUs.
        trains: called in place of its first training step.

    Raises:
        InputError: the builder raised, built nothing, or returned what does not describe a step;
            or its graph is larger than 2 GB.
    """
    arguments = program.arguments(num_gpus)
    graph, step = None, Step()
    with in_new_graph(program, num_gpus, trains) as (building, graph_of):
        with (
            contextlib.suppress(Stopped),
            users_code(program.name, "the builder", program.folder),
        ):
            returned = program.build(**arguments)
            graph = graph_of(returned)  # a mapping of the user's own
            step = Step() if returned is graph else Step.of(returned, program.name)
        if building.watch.steps:
            return building.trained()
    if graph is None or not graph.get_operations():
        raise InputError(
            program.name,
            "the builder built no graph",
            "build ops in the default graph or in a tf.Graph() of its own, without eager code",
        )
    return building.built(graph, step)


@contextlib.contextmanager
def in_new_graph(
    program: Program, gpus: int, trains: Callable[[Building], None] = stop
) -> Iterator[tuple[Building, Callable[[object], tf.Graph]]]:
    """Note in this block what is built, in a new default graph or in others.

    Yields:
        The notes, and what tells the graph that was built, from what a builder returned.
    """
    default = tf.Graph()
    with (
        _one_at_a_time,
        _undisturbed(program),
        default.as_default(),
        record_graphs() as made,
        noting(program, gpus, trains) as building,
    ):
        yield building, partial(built_graph, default, made)


def of_live_graph(
    program: Program, gpus: int, built: Built, for_gpus: Callable[[int], BuiltProgram | Missing]
) -> BuiltProgram:
    """The built program of a graph of this process."""
    source = built.source
    assert source.live is not None
    placement = replace(requested(source), soft=built.step.soft)
    return BuiltProgram(
        program=program,
        gpus=gpus,
        requested=placement,
        step=built.step,
        graph_def=source.graph_def,
        graph=source.live,
        initial=initial_state(source.live, placement.variables),
        applied=built.applied,
        for_gpus=for_gpus,
        fed=built.fed,
        turns=built.turns,
    )


@contextlib.contextmanager
def _undisturbed(program: Program) -> Iterator[None]:
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
            flags([*sys.argv[:1], *program.argv])
    try:
        yield
    finally:
        if names is not None:
            names.clear()
            names.update(kept)
        behaviour.restore()
        # Always: starting the eager runtime inside a graph turns it off, and the getter says on.
        tf.config.set_soft_device_placement(soft)
