"""Watches the traced functions that eager code calls, until one of them trains."""

from __future__ import annotations

import contextlib
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from placement_checks.capture.eager.devices import (
    Refused,
    is_gpu_only,
    refuse_stand_ins,
    zeros_like,
)
from placement_checks.core.keras_parts import FIT, STEPPING, TRAIN_ON_BATCH
from placement_checks.core.op_types import is_update
from placement_checks.core.user_code import users_frames
from placement_checks.graph.gradients import GradientNotes, is_top_level
from placement_checks.tf.distribution import around_strategies, is_default_strategy
from placement_checks.tf.eager import VARIABLE_CREATING_FUNCTION, around_calls, traced_functions
from placement_checks.tf.keras import around_keras_graph_training, parts_of_keras
from placement_checks.tf.patching import patched
from placement_checks.tf.process_state import is_eager_by_default

_MOST_STEPS = 20  # made up, while others may still come


class NotAGraphProgram(BaseException):
    """Ends a program that is built into a graph, and is meant to be run eagerly."""


@dataclass(frozen=True)
class SeenCall:
    """A call of a function that trains, which was about to run.

    Attributes:
        function: the traced function.
        given: the tensors that it is given.
        captured: those that it takes besides, such as the handles of variables.
        called_at: the user's line that called it; ``""`` where only libraries did.
        method: the method of a Keras model that called it; ``""`` where none did.
    """

    function: Any
    given: Sequence[Any]
    captured: Sequence[Any]
    called_at: str
    method: str = ""

    @property
    def graph(self) -> Any:
        """What it was traced into."""
        return self.function.graph

    @property
    def name(self) -> str:
        """What it is called in reports."""
        return f"the step of model.{self.method}" if self.method else str(self.graph.name)


class CallWatch:
    """What is seen of the traced functions that eager code calls.

    Args:
        notes: what is noted of the gradients that are taken, by graph.
        strategies: where those are noted that are made.
        ended: called when no further step is expected; it does not return.

    Attributes:
        steps: the distinct functions that train in turn, in the order in which they were called.
        others: the names of the functions that ran and do not train.
        eager_gradients: how many gradients were taken outside of functions.
        in_graph: whether what eager code does was done in a graph: a function called, or a tape
            asked for gradients.
    """

    def __init__(
        self,
        notes: Mapping[Any, GradientNotes],
        strategies: list[Any],
        ended: Callable[[], None],
    ) -> None:
        self.steps: list[SeenCall] = []
        self.others: dict[str, None] = {}
        self.eager_gradients = 0
        self.in_graph = False
        self._notes = notes
        self._strategies = strategies
        self._ended = ended
        self._made_up_steps = 0
        self._thread = threading.local()

    @property
    def means_eager(self) -> bool:
        """Whether the program does what is for eager code."""
        return bool(self._strategies or self.steps or self.others or self.eager_gradients)

    @property
    def has_strategy(self) -> bool:
        """Whether the program made a strategy."""
        return bool(self._strategies)

    def call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """What calls of traced functions end in, which runs none that trains."""

        # TensorFlow may name its arguments.
        def called(function: Any, tensor_inputs: Any, captured_inputs: Any) -> Any:
            if not tf.executing_eagerly():
                self._in_graph(function)
                return original(function, tensor_inputs, captured_inputs)
            if getattr(self._thread, "calls", False):
                return original(function, tensor_inputs, captured_inputs)
            if is_training_function(function.graph, self._notes):
                self._note(function, tensor_inputs, captured_inputs)
                return zeros_like(function.structured_outputs)
            self.others[function.graph.name] = None
            self._thread.calls = True  # what it runs in Python belongs to it
            try:
                return original(function, tensor_inputs, captured_inputs)
            except tf.errors.OpError as error:
                if not is_gpu_only(str(error)):
                    raise
                return zeros_like(function.structured_outputs)
            finally:
                self._thread.calls = False

        return called

    def gradient(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """``GradientTape.gradient``, of which eager calls are counted."""

        def taken(*args: Any, **kwargs: Any) -> Any:
            if tf.executing_eagerly():
                self._check_traced()
                self.eager_gradients += 1
            else:
                graph = tf.compat.v1.get_default_graph()
                self.in_graph |= is_top_level(graph) and not self._notes[graph].is_taking
            return original(*args, **kwargs)

        return taken

    def in_graph_training(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """``fit`` of Keras 2 in a graph, which would train there to the end.

        Unless the program has turned eager execution off, it trains otherwise by itself.
        """

        def fit(*args: Any, **kwargs: Any) -> Any:
            if is_eager_by_default() and is_top_level(tf.compat.v1.get_default_graph()):
                raise NotAGraphProgram
            return original(*args, **kwargs)

        return fit

    def strategy(self, original: Callable[..., None]) -> Callable[..., None]:
        """The constructor of strategies, which are noted."""

        def init(strategy: Any, *args: Any, **kwargs: Any) -> None:
            original(strategy, *args, **kwargs)
            if not is_default_strategy(strategy):
                refuse_stand_ins(strategy)
                self._strategies.append(strategy)

        return init

    def _check_traced(self) -> None:
        """Check that it is not Keras that takes its steps eagerly: it would take all of them.

        Raises:
            Refused: it does.
        """
        if not self.eager_gradients and STEPPING in parts_of_keras(traceback.extract_stack()):
            raise Refused(
                "a Keras model takes its steps eagerly, as it is compiled with run_eagerly=True: "
                "nothing is known of such a step before it runs",
                "compile it without run_eagerly, and leave out tf.config.run_functions_eagerly",
            )

    def _in_graph(self, function: Any) -> None:
        """A call that adds to a graph, where one that trains cannot be taken out again."""
        if is_top_level(tf.compat.v1.get_default_graph()):
            self.in_graph = True
            if is_training_function(function.graph, self._notes):
                raise NotAGraphProgram

    def _note(self, function: Any, given: Sequence[Any], captured: Sequence[Any]) -> None:
        """Note a step, which may be the last one: programs take their steps in turn."""
        is_new = all(step.function is not function for step in self.steps)
        if is_new:
            # The first call of a function may also make variables; the next ones only train.
            self.steps = [
                step for step in self.steps if step.graph.name != VARIABLE_CREATING_FUNCTION
            ]
            stack = traceback.extract_stack()
            frames = users_frames(stack, None)
            called_at = str(frames[-1]) if frames else ""
            method = next(iter(parts_of_keras(stack) & {FIT, TRAIN_ON_BATCH}), "")
            self.steps.append(SeenCall(function, list(given), list(captured), called_at, method))
        self._made_up_steps += 1
        is_last = not is_new or self._made_up_steps > _MOST_STEPS
        if is_last or not _can_be_made_up(function):
            self._ended()


@contextlib.contextmanager
def watching_calls(watch: CallWatch) -> Iterator[None]:
    """Watch all calls of traced functions in this block."""
    with (
        around_calls(watch.call),
        around_strategies(watch.strategy),
        around_keras_graph_training(watch.in_graph_training),
        patched(tf.GradientTape, "gradient", watch.gradient),
    ):
        yield


def is_training_function(graph: Any, notes: Mapping[Any, GradientNotes]) -> bool:
    """Whether a function takes gradients and changes variables, itself or in those it calls."""
    graphs = called_functions(graph)
    return any(each in notes and notes[each].has_any for each in graphs) and any(
        is_update(op.type) for each in graphs for op in each.get_operations()
    )


def called_functions(graph: Any) -> Sequence[Any]:
    """The graph of a function, and those of the functions that it calls."""
    found: dict[Any, None] = {}
    waiting = [graph]
    while waiting:
        each = waiting.pop()
        if each not in found:
            found[each] = None
            waiting += traced_functions(each).values()
    return list(found)


def _can_be_made_up(function: Any) -> bool:
    """Whether all results are arrays, and none is an iterator or an optional value."""
    return not any(
        isinstance(each, tf.Tensor) and each.dtype in (tf.resource, tf.variant)
        for each in tf.nest.flatten(function.structured_outputs, expand_composites=True)
    )
