"""Calls a builder, and records what it builds until its first training step.

`build` runs the builder in a new default graph. `build_eagerly` runs a builder of eager code. Both
return a `CapturedProgram`, restore the global state of TensorFlow, and run one builder at a time.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import tensorflow as tf

from placement_checks.capture.eager.calls import CallWatch, NotAGraphProgram, watch_calls
from placement_checks.capture.eager.cluster import simulate_coordinator, simulate_worker
from placement_checks.capture.eager.errors import (
    EXAMPLE_MODEL,
    EagerOnlyError,
    detect_eager_code,
    explain_keras_error,
    explain_refusals,
    explain_scope_error,
    no_traced_step_error,
)
from placement_checks.capture.eager.notes import TracingNotes, record_tracing
from placement_checks.capture.eager.reading import read_steps
from placement_checks.capture.in_process.fake_gpus import (
    fake_gpu_count,
    set_variable,
    visible_limit,
)
from placement_checks.capture.in_process.sessions import SessionWatch, StopProgram, watch_sessions
from placement_checks.core.cluster_spec import RecordedServer
from placement_checks.core.errors import InputError, message_of
from placement_checks.core.op_types import EXAMPLE_SOURCES
from placement_checks.core.program import CapturedProgram, Program, Step
from placement_checks.core.user_code import call_user_code, users_code
from placement_checks.graph.gradients import (
    applied_in_graph,
    record_graphs,
    replace_declared,
    select_graph,
)
from placement_checks.graph.reading import from_live_graph
from placement_checks.graph.train_step import initial_state, resolve_step_ops
from placement_checks.tf.keras import keras_name_counter
from placement_checks.tf.process_state import (
    Behavior,
    own_default_sessions,
    restore_soft_placement,
)


class BuildRecorder:
    """Records a program while it builds.

    Attributes:
        program: the program. Eager code is recorded before its module is imported; until then
            this is a placeholder.
        gpus: the number of GPUs that the program finds.
        watch: the runs of the program's sessions.
        calls: the traced functions that the program calls.
        gpu_queries: the functions that the program called to find GPUs.
        policy: the policy that the builder returned.
    """

    def __init__(
        self,
        program: Program,
        gpus: int,
        on_train_step: Callable[[BuildRecorder], None],
        gpu_queries: set[str],
        tracing: TracingNotes,
        servers: Sequence[RecordedServer] = (),
    ) -> None:
        self.program = program
        self.watch = SessionWatch(tracing.gradients, self.train)
        self.calls = CallWatch(tracing.gradients, tracing.applied, tracing.strategies, self.train)
        self.gpu_queries = gpu_queries
        self.policy: Mapping[str, Any] = {}
        self.gpus = gpus
        self._on_train_step = on_train_step
        self._tracing = tracing
        self._servers = servers

    @property
    def has_step(self) -> bool:
        """Whether the program reached a training step."""
        return bool(self.watch.steps or self.calls.steps)

    def train(self) -> None:
        """Call ``on_train_step`` in place of the first training step."""
        self._on_train_step(self)

    def explain(self, error: InputError) -> InputError:
        """Replace an error of the program's code by its cause, if the cause is known."""
        explained = explain_scope_error(error, self._tracing, self.program.folder)
        return explain_keras_error(error) if explained is error else explained

    def capture_step(self) -> CapturedProgram:
        """Return what the program built until its first training step.

        Raises:
            InputError: the graph is larger than 2 GB.
        """
        if self.watch.steps:
            assert self.watch.graph is not None
            return self.capture_graph(self.watch.graph, self.watch.step)
        captured = read_steps(self.calls, self._tracing, self.program, self.gpus)
        return replace(
            captured,
            soft=tf.config.get_soft_device_placement(),
            step=Step(policy=self.policy),
            asked_for_gpus=bool(self.gpu_queries) or self.program.takes_num_gpus,
            visible=visible_limit(),
            server=self._servers[-1] if self._servers else None,
            is_worker=bool(self._servers),
        )

    def capture_graph(self, graph: tf.Graph, step: Step) -> CapturedProgram:
        """Return what the program built in one graph.

        Raises:
            InputError: the step does not match the graph, or the graph is larger than 2 GB.
        """
        name, folder = self.program.name, self.program.folder
        source = from_live_graph(graph, name, folder, self._tracing.gradients.get(graph))
        if (strategy := source.strategy) is not None:
            replica_of = self._tracing.replicas.in_graph(graph)
            source = replace(source, strategy=replace(strategy, replica_of=replica_of))
        calls = replace_declared(self._tracing.applied, step.gradients or (), name)
        return CapturedProgram(
            name=name,
            program=self.program,
            gpus=self.gpus,
            source=replace(source, step_ops=resolve_step_ops(step, source, name)),
            soft=step.soft,
            step=step,
            initial=initial_state(graph),
            applied=applied_in_graph(calls, graph, self._tracing.reductions.result),
            fed=self.watch.fed,
            sets_fed_values=self.watch.sets_fed_values,
            step_count=max(1, len(self.watch.own_steps)),
            asked_for_gpus=bool(self.gpu_queries) or self.program.takes_num_gpus,
            visible=visible_limit(),
        )


def stop_at_train_step(_building: BuildRecorder) -> None:
    """End the program at its first training step."""
    raise StopProgram


@contextlib.contextmanager
def record_build(
    program: Program,
    gpus: int,
    on_train_step: Callable[[BuildRecorder], None],
    *,
    eager: bool = False,
) -> Iterator[BuildRecorder]:
    """Record the program in this block, which finds ``gpus`` GPUs.

    ``on_train_step`` is called in place of the first training step. With ``eager``, the program
    may be eager code, and logical CPU devices must simulate the GPUs.
    """
    with (
        fake_gpu_count(gpus, program.visible_gpus) as gpu_queries,
        record_tracing(eager=eager) as tracing,
        simulate_worker() as servers,
        simulate_coordinator(gpus, servers),
    ):
        building = BuildRecorder(program, gpus, on_train_step, gpu_queries, tracing, servers)
        with watch_sessions(building.watch), watch_calls(building.calls):
            yield building


_MODEL = "model"  # the key of a Keras model in the mapping that a builder returns

# Recording patches functions of TensorFlow. If two threads recorded at once, the first thread to
# end would remove the patches of the second.
_one_at_a_time = threading.RLock()


def build(
    program: Program,
    num_gpus: int,
    on_train_step: Callable[[BuildRecorder], None] = stop_at_train_step,
) -> CapturedProgram:
    """Build a program into a graph. A program that trains ends at its first training step.

    ``on_train_step`` is called in place of this step.

    Raises:
        EagerOnlyError: the program must run eagerly.
        InputError: the builder raised, built nothing, or returned something that does not
            describe a step; or its graph is larger than 2 GB.
    """
    with hold_logs(unless=EagerOnlyError) as release_logs:

        def train(building: BuildRecorder) -> None:
            if not building.watch.steps:  # a thread without the default graph runs eagerly
                is_main = threading.current_thread() is threading.main_thread()
                raise NotAGraphProgram if is_main else SystemExit  # threads end silently with this
            release_logs()
            on_train_step(building)

        return _build(program, num_gpus, train)


def _build(
    program: Program, num_gpus: int, on_train_step: Callable[[BuildRecorder], None]
) -> CapturedProgram:
    arguments = program.arguments(num_gpus)
    graph, step, returned = None, Step(), None
    with record_in_new_graph(program, num_gpus, on_train_step) as (building, find_graph):
        try:
            with (
                contextlib.suppress(StopProgram),
                detect_eager_code(building.calls),
                users_code(program.name, "the builder", program.folder),
            ):
                returned = call_user_code(program.build, **arguments)
                if _is_eager_step(returned):
                    raise NotAGraphProgram
                graph = find_graph(returned)
                step = Step() if returned is graph else Step.from_result(returned, program.name)
        except InputError as failure:
            if not building.watch.steps or isinstance(failure, EagerOnlyError):
                raise
            building.watch.later_error = failure
            with contextlib.suppress(StopProgram):
                building.train()
        if building.watch.steps:
            return building.capture_step()
    if graph is None or not graph.get_operations():
        error = InputError(
            program.name,
            "the builder built no graph",
            "build ops in the default graph or in a tf.Graph() of its own, or call the function "
            "that trains",
        )
        raise EagerOnlyError.from_error(error) if building.calls.means_eager else error
    # Eager code leaves a graph without inputs, such as the variables of a Keras model.
    means_eager = building.calls.in_graph or building.calls.has_strategy
    has_inputs = any(op.type in EXAMPLE_SOURCES for op in graph.get_operations())
    if returned is None and means_eager and not has_inputs:
        raise EagerOnlyError(
            program.name, "took no training step", "return it, or call it", is_predicate=True
        )
    return building.capture_graph(graph, step)


@contextlib.contextmanager
def record_in_new_graph(
    program: Program,
    gpus: int,
    on_train_step: Callable[[BuildRecorder], None] = stop_at_train_step,
) -> Iterator[tuple[BuildRecorder, Callable[[object], tf.Graph]]]:
    """Run this block in a new default graph, and record what it builds in this or another graph.

    Yields:
        The recorder, and a function that selects the graph of the program. Its argument is the
        value that the builder returned.
    """
    default = tf.Graph()
    parse_flags(program)
    with (
        _one_at_a_time,
        _restore_settings(),
        default.as_default(),
        record_graphs() as graphs,
        record_build(program, gpus, on_train_step) as building,
    ):
        yield building, partial(select_graph, default, graphs)


def build_eagerly(building: BuildRecorder) -> CapturedProgram:
    """Run eager code until its first training step, the call of a traced function.

    The recorder was started before the module of the program was imported.

    Raises:
        InputError: the program raised, or did not call a function that trains.
    """
    program = building.program
    set_variable(program.visible_gpus)
    arguments = program.arguments(building.gpus)
    parse_flags(program)
    failed: InputError | None = None
    try:
        with (
            contextlib.suppress(StopProgram),
            explain_refusals(program.name),
            users_code(program.name, "it", program.folder),
        ):
            returned: Any = call_user_code(program.build, **arguments)
            policy = returned.get("policy") if isinstance(returned, Mapping) else None
            building.policy = policy if isinstance(policy, Mapping) else {}
            if _is_eager_step(returned) and not building.calls.steps:
                call_user_code(_call_step, returned, building.calls)
    except InputError as error:
        failed = building.explain(error)
    if building.has_step:  # an error after the first step does not matter
        with contextlib.suppress(StopProgram):
            building.train()
        return building.capture_step()
    raise failed or no_traced_step_error(program.name, building.calls)


@contextlib.contextmanager
def record_eager_code(
    program: Program,
    gpus: int,
    on_train_step: Callable[[BuildRecorder], None] = stop_at_train_step,
) -> Iterator[BuildRecorder]:
    """Record the variables and traced functions of eager code in this block.

    Logical CPU devices must already simulate the GPUs. `build` describes the arguments.
    """
    with (
        _one_at_a_time,
        _restore_settings(),
        record_build(program, gpus, on_train_step, eager=True) as building,
    ):
        yield building


def _is_eager_step(returned: Any) -> bool:
    """Whether a builder returned a function to call as the step, or a Keras model."""
    return isinstance(returned, Mapping) and (callable(returned.get("step")) or _MODEL in returned)


def _call_step(returned: Mapping[str, Any], calls: CallWatch) -> None:
    """Call the step that a builder returned. A step that calls no traced function is traced."""
    if _MODEL in returned:
        _fit(returned)
        return
    step, arguments = returned["step"], returned.get("args", ())
    arguments = arguments() if callable(arguments) else arguments
    step(*arguments)
    if not calls.steps:
        tf.function(step)(*arguments)


def _fit(returned: Mapping[str, Any]) -> None:
    """Train the Keras model that a builder returned.

    Raises:
        InputError: the value is not a model, or the data are missing.
    """
    model = returned[_MODEL]
    has_fit = callable(getattr(model, "fit", None))
    if not has_fit or "x" not in returned:
        raise InputError(
            "the return value of the builder",
            "has a 'model', but no 'x' to train it with"
            if has_fit
            else f"has a 'model' of type {type(model).__name__}, which has no method fit",
            f"return {'its data too' if has_fit else 'a compiled Keras model and its data'}: "
            f"{EXAMPLE_MODEL}",
            is_predicate=True,
        )
    data = [returned[key] for key in ("x", "y") if key in returned]
    rows = {"batch_size": returned["batch"]} if "batch" in returned else {}
    model.fit(*data, **rows, shuffle=False, verbose=0)


def parse_flags(program: Program) -> None:
    """Parse the flags of absl, as ``app.run`` does, if the program uses them.

    Raises:
        InputError: an argument is not a flag, or has a wrong value; or a required flag is missing.
    """
    flags: Any = sys.modules.get("absl.flags")
    if flags is not None and not flags.FLAGS.is_parsed():
        try:
            flags.FLAGS([*sys.argv[:1], *program.argv])
        except flags.Error as error:
            raise InputError(
                program.name,
                f"absl cannot parse its flags: {message_of(error).rstrip('.')}",
                "correct the arguments of the program, after -- on the command line",
            ) from None


@contextlib.contextmanager
def _restore_settings() -> Iterator[None]:
    """Restore, after this block, the settings that a builder may change for the whole process.

    These are soft placement, default sessions, the TensorFlow 2 behavior, and the name counters of
    Keras. Keras 3 numbers layers over the whole process: without the reset, the second of two
    equal programs would call its first layer `dense_1`, not `dense`.
    """
    behavior = Behavior.current()
    counters = keras_name_counter()
    before = dict(counters) if counters is not None else {}
    if counters is not None:
        counters.clear()
    try:
        with restore_soft_placement(), own_default_sessions():
            yield
    finally:
        if counters is not None:
            counters.clear()
            counters.update(before)
        behavior.restore()


@contextlib.contextmanager
def hold_logs(unless: type[BaseException]) -> Iterator[Callable[[], None]]:
    """Delay TensorFlow's log records in this block until its end.

    Args:
        unless: if the block raises this exception, the records are dropped.

    Yields:
        A function that logs the records at once and ends the delay.
    """
    logger = tf.get_logger()
    held: list[logging.LogRecord] = []

    def hold(record: logging.LogRecord) -> bool:
        held.append(record)
        return False

    def release() -> None:
        logger.removeFilter(hold)
        while held:
            logger.handle(held.pop(0))

    logger.addFilter(hold)
    try:
        yield release
    except unless:
        logger.removeFilter(hold)
        raise
    except BaseException:
        release()
        raise
    release()
