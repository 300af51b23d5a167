"""Records the traced functions that eager code calls, until one of them trains.

A call of a function that trains is not executed; it returns zeros.
"""

from __future__ import annotations

import contextlib
import threading
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from placement_checks.capture.eager.devices import (
    Refusal,
    check_step_inputs,
    check_strategy_devices,
    is_gpu_only_error,
    zeros_like,
)
from placement_checks.capture.eager.notes import graph_tensors
from placement_checks.capture.eager.uncalled import UncalledFunctions, record_uncalled
from placement_checks.core.keras_parts import FIT, STEPPING, TRAIN_ON_BATCH
from placement_checks.core.op_types import VARIABLE_LOOKUPS, VARIABLE_READS, is_update
from placement_checks.core.user_code import users_line
from placement_checks.graph.gradients import GradientNotes, OptimizerCall, is_top_level
from placement_checks.tf.distribution import is_default_strategy, replica_values
from placement_checks.tf.eager import (
    VARIABLE_CREATING_FUNCTION,
    eager_device,
    traced_functions,
    variable_handle,
)
from placement_checks.tf.keras import (
    around_keras_graph_training,
    parts_of_keras,
    tensorflow_variable,
)
from placement_checks.tf.patches import Patch
from placement_checks.tf.patching import afterwards, patched
from placement_checks.tf.process_state import is_eager_by_default
from placement_checks.util.walks import walk

_READS = VARIABLE_READS | VARIABLE_LOOKUPS
_MOST_STEPS = 20  # calls of steps to skip while waiting for a different step


class NotAGraphProgram(BaseException):
    """Ends a program that is built into a graph, but must run eagerly."""


@dataclass(frozen=True, eq=False)  # `==` of tensors is not a bool
class SeenCall:
    """A call of a function that trains, or that applies gradients of another function."""

    function: Any  # the traced function
    inputs: Sequence[Any]  # the tensors that are passed to it
    captured: Sequence[Any]  # the tensors that it captured, such as the handles of variables
    called_at: str  # the user's source line of the call; `""` if only libraries called it
    method: str = ""  # the method of a Keras model that called it; `""` if Keras did not call it

    @property
    def graph(self) -> Any:
        """The graph of the function."""
        return self.function.graph

    @property
    def creates_variables(self) -> bool:
        """Whether it is the first call of a function that creates variables in this call."""
        return bool(self.graph.name == VARIABLE_CREATING_FUNCTION)

    @property
    def name(self) -> str:
        """The name of the step in reports."""
        return f"the step of model.{self.method}" if self.method else str(self.graph.name)


class CallWatch:
    """Records the calls of traced functions, and other signs of eager code.

    Args:
        notes: the gradients that the program takes, by graph.
        applied: the gradients that optimizers receive.
        strategies: receives the strategies that the program creates.
        on_last_step: called when no further training step is expected; does not return.

    Attributes:
        steps: the distinct functions that train, in the order of their first calls. A function
            that only applies gradients counts if an earlier step takes them.
        skipped_steps: the number of calls of steps.
        missing: the functions that train, but had not been called at the last repeated step.
        others: the names of the functions that ran and do not train.
        eager_gradients: the number of times that gradients were taken outside of functions.
        in_replica: whether one of them was taken in a replica of a strategy.
        in_graph: whether the program called a traced function, or took gradients with a tape,
            while a graph was built.
        devices: the device scopes of the calls that train a variable, by the id of its handle. CPU
            devices simulate the GPUs.
        repeated: whether the program called a step twice. All code between two calls of the step
            has then been executed.
    """

    def __init__(
        self,
        notes: Mapping[Any, GradientNotes],
        applied: Sequence[OptimizerCall],
        strategies: list[Any],
        on_last_step: Callable[[], None],
    ) -> None:
        self.steps: list[SeenCall] = []
        self.skipped_steps = 0
        self.missing: Sequence[str] = ()
        self.uncalled = UncalledFunctions()
        self.others: dict[str, None] = {}
        self.devices: defaultdict[int, set[str]] = defaultdict(set)
        self.eager_gradients = 0
        self.in_replica = False
        self.in_graph = False
        self.repeated = False
        self._notes = notes
        self._applied = applied
        self._strategies = strategies
        self._on_last_step = on_last_step
        self._thread = threading.local()

    @property
    def means_eager(self) -> bool:
        """Whether the program shows a sign of eager code."""
        return bool(self._strategies or self.steps or self.others or self.eager_gradients)

    @property
    def has_strategy(self) -> bool:
        """Whether the program created a strategy."""
        return bool(self._strategies)

    def wrap_call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap the method that calls traced functions, so that it executes no training step."""

        # TensorFlow may pass these arguments by name.
        def call(function: Any, tensor_inputs: Any, captured_inputs: Any) -> Any:
            is_eager = tf.executing_eagerly()
            if not is_eager and is_top_level(tf.compat.v1.get_default_graph()):
                self.in_graph = True
                if is_training_function(function.graph, self._notes):
                    raise NotAGraphProgram
            if not is_eager or getattr(self._thread, "calls", False):
                return original(function, tensor_inputs, captured_inputs)
            if (
                is_training_function(function.graph, self._notes)
                or self._applies_gradients(function.graph)
                or self._applies_sums(function.graph, [*tensor_inputs, *captured_inputs])
            ):
                self._note_step(function, tensor_inputs, captured_inputs)
                return zeros_like(function.structured_outputs)
            self.others[function.graph.name] = None
            self._thread.calls = True  # functions called inside are part of this function
            try:
                return original(function, tensor_inputs, captured_inputs)
            except tf.errors.OpError as error:
                if not is_gpu_only_error(str(error)):
                    raise
                return zeros_like(function.structured_outputs)
            finally:
                self._thread.calls = False

        return call

    def wrap_gradient(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap ``GradientTape.gradient``: count eager calls, and refuse eager calls by Keras."""

        def gradient(*args: Any, **kwargs: Any) -> Any:
            if tf.executing_eagerly():
                if not self.eager_gradients and STEPPING in parts_of_keras(
                    traceback.extract_stack()
                ):  # Keras would train to the end
                    raise Refusal(
                        "a Keras model trains eagerly, as it is compiled with run_eagerly=True: "
                        "such a training step has no graph that could be checked",
                        "compile it without run_eagerly, and remove "
                        "tf.config.run_functions_eagerly",
                    )
                self.eager_gradients += 1
                self.in_replica |= not tf.distribute.in_cross_replica_context() and (
                    tf.distribute.has_strategy()
                )
            else:
                graph = tf.compat.v1.get_default_graph()
                self.in_graph |= is_top_level(graph) and not self._notes[graph].is_taking
            return original(*args, **kwargs)

        return gradient

    def wrap_training_in_graph(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap the ``fit`` of Keras 2 that trains in a graph.

        If eager execution is enabled, the program must run eagerly: in a graph, ``fit`` would
        train to the end.
        """

        def fit(*args: Any, **kwargs: Any) -> Any:
            if is_eager_by_default() and is_top_level(tf.compat.v1.get_default_graph()):
                raise NotAGraphProgram
            return original(*args, **kwargs)

        return fit

    def note_strategy(self, strategy: Any, *_: Any) -> None:
        """Record a new strategy."""
        if not is_default_strategy(strategy):
            check_strategy_devices(strategy)
            self._strategies.append(strategy)

    def _applies_gradients(self, graph: Any) -> bool:
        """Whether a function applies gradients to variables that a step differentiates by."""
        trained = {handle for step in self.steps for handle in trained_handles(step, self._notes)}
        graphs = {graph, *called_graphs(graph).values()} if trained else ()
        return any(
            tensor.graph in graphs and _handle_id(call.variable) in trained
            for call in self._applied
            for tensor in graph_tensors(replica_values(call.gradient)[0])
        )

    def _applies_sums(self, graph: Any, values: Sequence[Any]) -> bool:
        """Whether a function updates variables with the gradients that earlier steps added up.

        The steps take gradients of variables that they do not update, and update other variables,
        which this function reads. ``values`` are the inputs of the function.
        """
        taking = [step for step in self.steps if trained_handles(step, self._notes)]
        if not taking:
            return False
        uses = list(_variable_uses(graph, values))
        updated = {handle for handle, op in uses if is_update(op.type)}
        if updated.isdisjoint(waiting_handles(taking, self._notes)):
            return False
        sums = {
            handle
            for step in taking
            for handle, op in _variable_uses(step.graph, [*step.inputs, *step.captured])
            if is_update(op.type)
        }
        return any(
            handle in sums and op.type in _READS and op.outputs[0].dtype.is_floating
            for handle, op in uses
        )

    def _note_step(self, function: Any, inputs: Sequence[Any], captured: Sequence[Any]) -> None:
        """Record a step. It is the last step if its function was called before.

        But if the program has training functions that it has not called, it continues.

        Raises:
            Refusal: the step cannot be captured.
        """
        check_step_inputs([*inputs, *captured])
        is_new = all(step.function is not function for step in self.steps)
        if is_new:
            # The first call of a function may also create variables; later calls only train.
            self.steps = [step for step in self.steps if not step.creates_variables]
            stack = traceback.extract_stack()
            method = next(iter(parts_of_keras(stack) & {FIT, TRAIN_ON_BATCH}), "")
            self.steps.append(
                SeenCall(function, list(inputs), list(captured), users_line(stack), method)
            )
        self.skipped_steps += 1
        step = next(step for step in self.steps if step.function is function)
        for handle in trained_handles(step, self._notes):
            self.devices[handle].add(eager_device())
        self.repeated |= not is_new
        if self.repeated:
            self.missing = self._missing_functions()
        # The program can go on with zeros instead of arrays, but iterators and optionals have no
        # such replacement.
        has_array_results = not any(
            isinstance(each, tf.Tensor) and each.dtype in (tf.resource, tf.variant)
            for each in tf.nest.flatten(function.structured_outputs, expand_composites=True)
        )
        awaits_other = self.missing or any(step.creates_variables for step in self.steps)
        is_last = not is_new and not awaits_other
        if is_last or self.skipped_steps > _MOST_STEPS or not has_array_results:
            self._on_last_step()

    def _missing_functions(self) -> Sequence[str]:
        """The training functions that the program has not called; for Keras, its models."""
        methods = {step.method for step in self.steps}
        if FIT in methods:  # trains one model to the end before another one
            return ()
        return self.uncalled.models() if TRAIN_ON_BATCH in methods else self.uncalled.functions()


@contextlib.contextmanager
def watch_calls(watch: CallWatch) -> Iterator[None]:
    """Record all calls of traced functions in this block."""
    with (
        record_uncalled() as watch.uncalled,
        patched(Patch.CALL, watch.wrap_call),
        patched(Patch.ITERATE, _without_autotune),
        patched(Patch.NEW_STRATEGY, afterwards(watch.note_strategy)),
        around_keras_graph_training(watch.wrap_training_in_graph),
        patched(Patch.TAPE_MODE, watch.wrap_gradient),
    ):
        yield


def _without_autotune(dataset: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Disable autotuning of pipelines that eager code iterates over.

    The destructor of an iterator waits for its autotuning thread, which may miss the notification
    and then sleeps on, for up to a minute (core/framework/model.cc, OptimizeLoop). A program that
    ends at its first step leaves such iterators to the garbage collector of this process.
    """
    options = tf.data.Options()
    options.autotune.enabled = False

    def untuned(self: Any) -> Any:
        return dataset(self).with_options(options) if tf.executing_eagerly() else dataset(self)

    return untuned


def is_training_function(graph: Any, notes: Mapping[Any, GradientNotes]) -> bool:
    """Whether a function, or a function that it calls, takes gradients and updates variables."""
    graphs = {graph, *called_graphs(graph).values()}
    return any(each in notes and notes[each].has_any for each in graphs) and any(
        is_update(op.type) for each in graphs for op in each.get_operations()
    )


def trained_handles(step: SeenCall, notes: Mapping[Any, GradientNotes]) -> set[int]:
    """The variables that a step computes the gradients of, as the ids of their handles."""
    graphs = [step.graph, *called_graphs(step.graph).values()]
    sources = [
        source for graph in graphs if graph in notes for source, _ in notes[graph].by_source
    ]
    return {handle for source in sources if (handle := _handle_id(source)) is not None}


def updates_nothing_trained(steps: Sequence[SeenCall], notes: Mapping[Any, GradientNotes]) -> bool:
    """Whether steps take gradients, but update no variable that they take the gradient of."""
    trained = {handle for step in steps for handle in trained_handles(step, notes)}
    waiting = waiting_handles(steps, notes)
    return bool(waiting) and waiting == trained


def waiting_handles(steps: Sequence[SeenCall], notes: Mapping[Any, GradientNotes]) -> set[int]:
    """The variables that steps compute the gradients of, but do not update."""
    trained = {handle for step in steps for handle in trained_handles(step, notes)}
    for step in steps:
        for handle, op in _variable_uses(step.graph, [*step.inputs, *step.captured]):
            if op.type not in _READS:  # an update, or a branch that may contain one
                trained.discard(handle)
    return trained


def _variable_uses(graph: Any, values: Sequence[Any]) -> Iterator[tuple[int, Any]]:
    """The ops of a function that use a variable, each with the id of the variable's handle.

    ``values`` are the inputs of the function.
    """
    for tensor, value in zip(graph.inputs, values, strict=False):
        if tensor.dtype == tf.resource:
            for op in tensor.consumers():
                yield id(value), op


def _handle_id(variable: Any) -> int | None:
    """The id of the handle of a variable, or of its first copy; None for any other object."""
    inner = tensorflow_variable(variable)
    if not isinstance(inner, tf.Variable):
        return None
    return id(variable_handle(replica_values(inner)[0]))


def called_graphs(graph: Any) -> Mapping[str, Any]:
    """The graphs of the functions that a function calls, directly or indirectly, by name."""
    called = traced_functions(graph).items()
    return dict(walk(called, lambda function: traced_functions(function[1]).items()))
