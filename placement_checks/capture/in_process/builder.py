"""Runs a builder in a new default graph, and restores the global state of TensorFlow.

Holds back what TensorFlow logs while it is not known whether that matters to the user.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial

import tensorflow as tf

from placement_checks.capture.eager.calls import NotAGraphProgram
from placement_checks.capture.eager.errors import (
    EagerOnlyError,
    eager_code_told,
    is_eager_step,
    no_traced_step,
    policy_of,
    refusals_told,
    seems_eager,
    take_step,
)
from placement_checks.capture.in_process.recorder import (
    BuildRecorder,
    Built,
    record_build,
    stop_at_train_step,
)
from placement_checks.capture.in_process.sessions import Stopped
from placement_checks.core.errors import InputError
from placement_checks.core.missing import Missing
from placement_checks.core.program import (
    BuiltProgram,
    Program,
    Step,
)
from placement_checks.core.user_code import users_code
from placement_checks.graph.gradients import record_graphs, select_graph
from placement_checks.tf.keras import keras_name_counter
from placement_checks.tf.process_state import Behavior


class _Held(logging.Filter):
    """Keeps the records of a logger from it."""

    def __init__(self) -> None:
        super().__init__()
        self._records: list[logging.LogRecord] = []

    def filter(self, record: logging.LogRecord) -> bool:
        self._records.append(record)
        return False

    def log(self) -> None:
        """Log what was held back so far, and hold back nothing more."""
        logger = tf.get_logger()
        logger.removeFilter(self)
        while self._records:
            logger.handle(self._records.pop(0))


@contextlib.contextmanager
def logs_held(unless: type[BaseException]) -> Iterator[Callable[[], None]]:
    """Hold back what TensorFlow logs in this block until its end.

    Args:
        unless: the error with which the block ends if nothing of it is to be logged.

    Yields:
        What ends that earlier.
    """
    held = _Held()
    tf.get_logger().addFilter(held)
    try:
        yield held.log
    except unless:
        raise
    except BaseException:
        held.log()
        raise
    else:
        held.log()
    finally:
        tf.get_logger().removeFilter(held)


# What is noted, and what a program finds, are patches of TensorFlow: of two threads that build,
# the one that ends first would take the other's away, and leave its own.
_one_at_a_time = threading.RLock()


def build(
    program: Program, num_gpus: int, trains: Callable[[BuildRecorder], None] = stop_at_train_step
) -> Built:
    """Build a program for so many GPUs. One that goes on to train is stopped at its first step.

    Args:
        program: its builder, or a function that trains.
        num_gpus: the number of GPUs.
        trains: called in place of its first training step.

    Raises:
        MeansEager: it is not meant to be built into a graph.
        InputError: the builder raised, built nothing, or returned what does not describe a step;
            or its graph is larger than 2 GB.
    """
    with logs_held(unless=EagerOnlyError) as log:

        def ends(building: BuildRecorder) -> None:
            log()
            trains(building)

        return _build(program, num_gpus, ends)


def _build(program: Program, num_gpus: int, trains: Callable[[BuildRecorder], None]) -> Built:
    arguments = program.arguments(num_gpus)
    graph, step, returned = None, Step(), None
    with in_new_graph(program, num_gpus, trains) as (building, graph_of):
        with (
            contextlib.suppress(Stopped),
            eager_code_told(building.calls),
            users_code(program.name, "the builder", program.folder),
        ):
            returned = program.build(**arguments)
            if is_eager_step(returned):
                raise NotAGraphProgram
            graph = graph_of(returned)  # a mapping of the user's own
            step = Step() if returned is graph else Step.of(returned, program.name)
        if building.watch.steps:
            return building.trained()
    if graph is None or not graph.get_operations():
        built_nothing = InputError(
            program.name,
            "the builder built no graph",
            "build ops in the default graph or in a tf.Graph() of its own, or call the function "
            "that trains",
        )
        raise EagerOnlyError.of(built_nothing) if building.calls.means_eager else built_nothing
    if returned is None and seems_eager(graph, building.calls):
        raise EagerOnlyError(program.name, "took no training step", "return it, or call it")
    return building.built(graph, step)


@contextlib.contextmanager
def noting_eager_code(
    program: Program, gpus: int, trains: Callable[[BuildRecorder], None] = stop_at_train_step
) -> Iterator[BuildRecorder]:
    """Note in this block what eager code traces; logical CPUs must stand in for the GPUs already.

    The arguments are those of `build`.
    """
    with (
        _one_at_a_time,
        _undisturbed(),
        record_build(program, gpus, trains, eager=True) as building,
    ):
        yield building


def build_eagerly(building: BuildRecorder, num_gpus: int) -> Built:
    """Run eager code for so many GPUs until its first training step, a traced function.

    Args:
        building: what is noted of it since before its module was imported.
        num_gpus: the number of GPUs.

    Raises:
        InputError: it raised, or no function that trains was called.
    """
    program = building.program
    arguments = program.arguments(num_gpus)
    parse_flags(program)
    failed: InputError | None = None
    try:
        with (
            contextlib.suppress(Stopped),
            refusals_told(program.name),
            users_code(program.name, "it", program.folder),
        ):
            returned = program.build(**arguments)
            building.policy = policy_of(returned)
            take_step(returned, building.calls)
    except InputError as error:
        failed = building.refused(error)
    if building.has_step:  # whatever failed later
        with contextlib.suppress(Stopped):
            building.train()
        return building.trained()
    raise failed or no_traced_step(program.name, building.calls)


@contextlib.contextmanager
def in_new_graph(
    program: Program, gpus: int, trains: Callable[[BuildRecorder], None] = stop_at_train_step
) -> Iterator[tuple[BuildRecorder, Callable[[object], tf.Graph]]]:
    """Note in this block what is built, in a new default graph or in others.

    Yields:
        The notes, and what tells the graph that was built, from what a builder returned.
    """
    default = tf.Graph()
    parse_flags(program)
    with (
        _one_at_a_time,
        _undisturbed(),
        default.as_default(),
        record_graphs() as made,
        record_build(program, gpus, trains) as building,
    ):
        yield building, partial(select_graph, default, made)


def built_program(
    program: Program, gpus: int, built: Built, for_gpus: Callable[[int], BuiltProgram | Missing]
) -> BuiltProgram:
    """The built program of what this process has built."""
    return BuiltProgram(
        program=program,
        gpus=gpus,
        requested=dataclasses.replace(built.requested, gpus=gpus),
        step=built.step,
        graph_def=built.source.graph_def,
        graph=built.source.live,
        initial=built.initial,
        applied=built.applied,
        for_gpus=for_gpus,
        fed=built.fed,
        turns=built.turns,
        notes=built.notes,
        gradients_inside=built.gradients_inside,
    )


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Restore what a builder may change for the whole process.

    That is soft placement, the behaviour of TensorFlow 2, and Keras's counters of names.

    Keras 3 numbers its layers over the whole process, so that the second of two equal programs
    would have other names than the first (`dense_1` for `dense`).
    """
    soft = tf.config.get_soft_device_placement()
    behaviour = Behavior.current()
    names = keras_name_counter()
    kept = dict(names) if names is not None else {}
    if names is not None:
        names.clear()
    try:
        yield
    finally:
        if names is not None:
            names.clear()
            names.update(kept)
        behaviour.restore()
        # Always: starting the eager runtime inside a graph turns it off, and the getter says on.
        tf.config.set_soft_device_placement(soft)


def parse_flags(program: Program) -> None:
    """Give flags of absl their values, as ``app.run`` would."""
    if "absl.flags" in sys.modules:
        flags = sys.modules["absl.flags"].FLAGS
        if not flags.is_parsed():
            flags([*sys.argv[:1], *program.argv])
