"""Watches the sessions of a program until its first training step, which is not run.

Every run of a session, also of hooked and monitored sessions, ends in one private method of
TensorFlow. `SessionWatch` replaces that method. Callables and partial runs do not use it, so they
are replaced by ordinary runs. Runs before the first training step are executed on the CPU with
soft placement, because the GPUs of the program need not exist. If an op of such a run has no CPU
kernel, as pools with channels first, the run returns zeros.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import numpy as np
import tensorflow as tf

from placement_checks.capture.eager.devices import is_gpu_only_error
from placement_checks.capture.in_process.fake_gpus import read_variable
from placement_checks.core.builder_result import ScalarLosses, SeparateRuns
from placement_checks.core.errors import InputError
from placement_checks.core.op_types import CUTS, PIPELINE_OUTPUTS, is_update
from placement_checks.core.placement import producer_of, with_output
from placement_checks.core.program import Step
from placement_checks.core.target import RowsToRead
from placement_checks.core.user_code import users_line
from placement_checks.graph.details import static_shape
from placement_checks.graph.gradients import GradientNotes
from placement_checks.graph.train_step import RunAnalyzer, RunEffect
from placement_checks.tf.graphs import options_buffer
from placement_checks.tf.keras import creates_session_of_keras
from placement_checks.tf.patches import Patch
from placement_checks.tf.patching import patched
from placement_checks.util.walks import walk

tf1 = tf.compat.v1

_Fetches = tuple[tf.Graph, frozenset[tf.Operation]]  # the ops that a run fetches from a graph
_MOST_STEPS = 20  # steps to skip while waiting for the other optimizers of the graph
_READING_LIMIT = 20.0  # seconds for all runs that only read the model
_PIPELINE_LIMIT = 10_000  # milliseconds


class StopProgram(BaseException):
    """Ends a program at its first training step.

    It does not derive from `Exception`, which programs catch.
    """


@dataclass(frozen=True, eq=False)
class SeenStep:
    """A training step that a session was about to run, or a run that accumulates gradients.

    Attributes:
        graph: the graph of the session.
        config: the configuration of the session, as the program wrote it.
        train_ops: the fetches that change variables.
        reported: the other fetched tensors.
        fed: the values that were fed, or read from input pipelines, by tensor name.
        updates: the ops that update trainable variables; empty for a run that accumulates
            gradients.
        called_at: the user's source line of the run; ``""`` if only libraries called it.
    """

    graph: tf.Graph
    config: Any
    train_ops: Sequence[tf.Operation | tf.Tensor]
    reported: Sequence[tf.Tensor]
    fed: Mapping[str, Any]
    updates: frozenset[tf.Operation]
    called_at: str

    @property
    def losses(self) -> ScalarLosses:
        """The fetched scalars of a float dtype. A loss may wait for updates, as of statistics."""
        return ScalarLosses(
            fetched
            for fetched in (*self.train_ops, *self.reported)
            if isinstance(fetched, tf.Tensor)
            and fetched.dtype.is_floating
            and fetched.shape.rank == 0
            and not is_update(fetched.op.type)
        )


class SessionWatch:
    """Records the sessions of a program and their runs.

    Args:
        notes: the gradients that the program takes, by graph.
        on_last_step: called when no further training step is expected; does not return.

    Attributes:
        steps: the distinct training steps, in the order of their first runs. If a step applies
            accumulated gradients, the accumulating runs are included.
        sessions: the number of sessions that were opened.
        runs: the number of runs.
        servers: the addresses of servers in sessions. No connection is made to them.
        graphs: the graphs that runs fetched from.
        accumulations: the distinct runs that accumulated gradients without training; they were
            executed.
        sets_fed_values: whether a run that trains nothing set variables to fed values.
        rows: as `Script.rows`.
        later_error: the error that ended the program after a training step, which returned zeros.
    """

    def __init__(
        self, notes: Mapping[tf.Graph, GradientNotes], on_last_step: Callable[[], None]
    ) -> None:
        self.steps: list[SeenStep] = []
        self.sessions = 0
        self.runs = 0
        self.servers: list[str] = []
        self.graphs: dict[tf.Graph, RunAnalyzer] = {}
        self.accumulations: dict[_Fetches, SeenStep] = {}
        self.sets_fed_values = False
        self.rows: RowsToRead = "all"
        self.later_error: InputError | None = None
        self._initializations: set[_Fetches] = set()
        self._notes = notes
        self._on_last_step = on_last_step
        self._configs: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
        self._remote: WeakSet[Any] = WeakSet()  # the sessions on servers
        self._skipped_steps = 0
        self._has_faked = False  # whether a run returned zeros because an op has no CPU kernel
        self._seconds_of_reading = 0.0
        self._lock = threading.RLock()

    @property
    def graph(self) -> tf.Graph | None:
        """The graph of the first training step; None without a step."""
        return self.steps[0].graph if self.steps else None

    @property
    def own_steps(self) -> Sequence[SeenStep]:
        """The steps in `graph`. Steps in another graph belong to another program."""
        return [step for step in self.steps if step.graph is self.graph]

    @property
    def step(self) -> Step:
        """All `own_steps` as one step, such as the alternating steps of a GAN."""
        runs = [list(step.train_ops) for step in self.own_steps]
        return Step(
            train_op=SeparateRuns(runs) if len(runs) > 1 else runs[0],
            loss=ScalarLosses(loss for step in self.own_steps for loss in step.losses),
            config=self.own_steps[0].config,
        )

    @property
    def fed(self) -> Mapping[str, Any]:
        """The values that were fed to `own_steps`, by tensor name."""
        return {name: value for step in self.own_steps for name, value in step.fed.items()}

    @property
    def never_run(self) -> set[tf.Operation]:
        """The optimizer ops that no step has run, in the graphs of the steps."""
        return {
            op
            for graph in {step.graph for step in self.steps}
            for op in self.graphs[graph].optimizer_ops() - self._updates
        }

    @property
    def _updates(self) -> frozenset[tf.Operation]:
        return frozenset[tf.Operation]().union(*(step.updates for step in self.steps))

    def wrap_constructor(self, original: Callable[..., None]) -> Callable[..., None]:
        """Wrap the constructor of sessions, so that it connects to no server."""

        def init(session: Any, target: Any = "", graph: Any = None, config: Any = None) -> None:
            written = tf1.ConfigProto()
            if config is None:  # as TensorFlow does
                written.allow_soft_placement = tf.config.get_soft_device_placement()
            else:
                written.CopyFrom(config)
            frame = inspect.currentframe()
            if creates_session_of_keras(frame and frame.f_back):
                # Keras sets both options from the GPUs of this machine, not of the program's.
                written.device_count.pop("GPU", None)
                written.gpu_options.visible_device_list = ""
            read_variable()
            original(session, "", graph, with_soft_placement(written))
            self.sessions += 1
            self._configs[session] = written
            if target:
                self._remote.add(session)
                self.servers.append(tf.compat.as_text(target))

        return init

    def wrap_run(self, original: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
        """Wrap the method that all runs end in, so that it executes no training step."""

        def run_unless_training(
            session: Any,
            handle: Any,
            targets: Sequence[tf.Operation],
            fetches: Sequence[tf.Tensor],
            feeds: Mapping[Any, Any],
            options: Any,
            metadata: Any,
        ) -> list[Any]:
            execute = partial(original, session, handle, targets, fetches, feeds)
            fetched = [*targets, *fetches]
            run = self._classify(session.graph, fetched)
            key = session.graph, frozenset(map(op_of, fetched))
            trains = bool(run.updates) and not self._initializes(run, key)
            self.sets_fed_values |= bool(feeds) and run.changes and not trains
            if trains:
                self._note_step(session, run, fetched, feeds, original)
            elif run.keeps_gradients:
                with self._lock:
                    if key not in self.accumulations:
                        seen = self._create_step(session, run, fetched, feeds, {})
                        self.accumulations[key] = seen
            if trains or session in self._remote:
                return list(map(zeros_for, fetches))
            only_reads = run.reads and not run.changes and not targets
            try:
                if only_reads and options is None:
                    return self._read(execute, metadata) or list(map(zeros_for, fetches))
                return execute(options, metadata)
            except tf.errors.OpError as error:
                if not self._needs_gpu(error):
                    raise
                return list(map(zeros_for, fetches))

        return run_unless_training

    def _needs_gpu(self, error: tf.errors.OpError) -> bool:
        """Whether a run failed because an op has no CPU kernel, or because such a run failed.

        The op may have the initial value of a variable, which then stays uninitialized.
        """
        if isinstance(error, tf.errors.FailedPreconditionError):
            return self._has_faked
        needs_gpu = is_gpu_only_error(error.message)
        self._has_faked |= needs_gpu
        return needs_gpu

    def _classify(self, graph: tf.Graph, fetched: Iterable[tf.Operation | tf.Tensor]) -> RunEffect:
        with self._lock:
            self.runs += 1
            if graph not in self.graphs:
                self.graphs[graph] = RunAnalyzer(graph, self._notes[graph])
            return self.graphs[graph].run_of(map(op_of, fetched))

    def _initializes(self, run: RunEffect, key: _Fetches) -> bool:
        """Whether a run initializes variables from a batch. Such a run happens only once."""
        if not run.may_initialize:
            return False
        with self._lock:
            is_first = key not in self._initializations
            self._initializations.add(key)
            return is_first

    def _note_step(
        self,
        session: Any,
        run: RunEffect,
        fetched: Sequence[tf.Operation | tf.Tensor],
        feeds: Mapping[Any, Any],
        execute: Callable[..., list[Any]],
    ) -> None:
        """Record a training step. It is the last step if every optimizer of the graph has run."""
        rows: Mapping[str, Any] = {}
        is_new = run.updates - self._updates and session not in self._remote
        if is_new and self.rows != "none":
            roots = [*(item.name for item in fetched), *self._notes[session.graph].objectives]
            # Without the lock: other threads of the program fill the pipelines meanwhile.
            rows = read_pipelines(execute, session, roots, of_towers=self.rows == "of-towers")
        with self._lock:
            if run.updates - self._updates:
                if run.skips_gradients:  # the run applies gradients that other runs accumulated
                    self.steps += [
                        each
                        for each in self.accumulations.values()
                        if each.graph is session.graph and each not in self.steps
                    ]
                self.steps.append(self._create_step(session, run, fetched, feeds, rows))
            self._skipped_steps += 1
            unrun = self.graphs[session.graph].optimizer_ops() - self._updates
            if self._skipped_steps > _MOST_STEPS or not unrun:
                self._on_last_step()

    def _create_step(
        self,
        session: Any,
        run: RunEffect,
        fetched: Sequence[tf.Operation | tf.Tensor],
        feeds: Mapping[Any, Any],
        rows: Mapping[str, Any],
    ) -> SeenStep:
        # Hooks fetch counters and updates of statistics together with the train op.
        runs = self.graphs[session.graph]
        changing = [item for item in fetched if runs.run_of([op_of(item)]).changes]
        ids = set(map(id, changing))
        return SeenStep(
            session.graph,
            self._configs[session],
            changing,
            [item for item in fetched if id(item) not in ids and isinstance(item, tf.Tensor)],
            {**rows, **{feed.deref().name: np.array(value) for feed, value in feeds.items()}},
            run.updates,
            users_line(traceback.extract_stack()),
        )

    def _read(self, execute: Callable[..., list[Any]], metadata: Any) -> list[Any] | None:
        """Execute a run that only reads the model; returns None if it exceeds the time limit.

        Programs draw samples or evaluate before they train, which takes much longer on CPUs.
        """
        left = _READING_LIMIT - self._seconds_of_reading
        if left <= 0:
            return None
        begin = time.monotonic()
        try:
            with options_buffer(tf1.RunOptions(timeout_in_ms=math.ceil(left * 1000))) as options:
                return execute(options, metadata)
        except tf.errors.DeadlineExceededError:
            return None
        finally:
            self._seconds_of_reading += time.monotonic() - begin


def op_of(item: tf.Operation | tf.Tensor) -> tf.Operation:
    """The op itself, or the op that produces a tensor."""
    return item.op if isinstance(item, tf.Tensor) else item


@contextlib.contextmanager
def watch_sessions(watch: SessionWatch) -> Iterator[None]:
    """Record all sessions in this block."""
    with (
        patched(Patch.NEW_SESSION, watch.wrap_constructor),
        patched(Patch.RUN, watch.wrap_run),
        patched(Patch.MAKE_CALLABLE, make_callable_with_run),
        patched(Patch.MAKE_KERAS_CALLABLE, make_keras_callable_with_run),
        patched(Patch.PARTIAL_RUN_SETUP, lambda _: begin_partial_run),
        patched(Patch.PARTIAL_RUN, lambda _: run_next_part),
    ):
        yield


def make_callable_with_run(_: Callable[..., Any]) -> Callable[..., Any]:
    """Replace ``Session.make_callable``: its callables call ``run``."""

    # The parameters have TensorFlow's names, because programs may pass them by name.
    def make_callable(
        session: Any,
        fetches: Any,
        feed_list: Any = None,
        accept_options: bool = False,  # noqa: ARG001
    ) -> Callable[..., Any]:
        def call(*values: Any, **options: Any) -> Any:
            feeds = dict(zip(feed_list or (), values, strict=True))
            return session.run(fetches, feeds, **options)

        return call

    return make_callable


def make_keras_callable_with_run(_: Callable[..., Any]) -> Callable[..., Any]:
    """Replace the private method that Keras calls in a graph: its callables call ``run``.

    Such a callable may connect two tensors. A separate run computes the first tensor, and the
    callable feeds its value to the second tensor.
    """

    def make_callable(session: Any, options: Any) -> Callable[..., list[Any]]:
        connections = options.tensor_connection
        sources = [connection.from_tensor for connection in connections]
        fed = [*options.feed, *(connection.to_tensor for connection in connections)]
        run_options = options.run_options if options.HasField("run_options") else None

        def call(*values: Any, run_metadata: Any = None) -> list[Any]:
            computed = session.run(sources) if sources else []
            feeds = dict(zip(fed, [*values, *computed], strict=True))
            fetches = [list(options.fetch), list(options.target)]
            fetched: list[Any] = session.run(fetches, feeds, run_options, run_metadata)[0]
            return fetched

        return call

    return make_callable


# The parameters have TensorFlow's names, because programs may pass them by name.
def begin_partial_run(_session: Any, fetches: Any, feeds: Any = None) -> dict[Any, Any]:  # noqa: ARG001
    """Replace ``Session.partial_run_setup``: the handle collects the feeds of all parts.

    TensorFlow's partial run executes every op that the available feeds allow. That may
    include a training step that only a later part fetches.
    """
    return {}


def run_next_part(
    session: Any, handle: dict[Any, Any], fetches: Any, feed_dict: Any = None
) -> Any:
    """Replace ``Session.partial_run``: run with the feeds of this part and all parts before it."""
    handle.update(feed_dict or {})
    return session.run(fetches, handle)


def with_soft_placement(written: Any) -> Any:
    """Change the configuration of a session for GPUs, so that it can run on the CPU."""
    config = tf1.ConfigProto()
    config.CopyFrom(written)
    config.allow_soft_placement = True
    config.graph_options.place_pruned_graph = True  # other ops need no CPU kernel
    config.gpu_options.visible_device_list = ""
    rewrites = config.graph_options.rewrite_options
    rewrites.cpu_layout_conversion = rewrites.NCHW_TO_NHWC
    return config


def zeros_for(tensor: tf.Tensor) -> Any:
    """Return zeros of the tensor's dtype and shape, with 1 for unknown dimensions.

    A string tensor has 0 for unknown dimensions. Supervisors wait until the list of uninitialized
    variables, a string tensor of unknown size, is empty.
    """
    unknown = 0 if tensor.dtype == tf.string else 1
    sizes = [unknown if size is None else size for size in static_shape(tensor.shape) or ()]
    dtype = tensor.dtype.as_numpy_dtype
    value = np.full(sizes, b"" if tensor.dtype == tf.string else 0, dtype)
    return value[()]  # makes a NumPy scalar of an array of rank 0


def pipeline_outputs(nodes: Iterable[Any], roots: Iterable[str]) -> list[str]:
    """Return the tensors that a step reads from input pipelines, in the order of creation.

    If one pipeline feeds another, such as a queue that prefetches, only the last one counts.
    ``roots`` are the names of the fetched ops or tensors of the step, and of its objectives.
    """
    by_name = {node.name: node for node in nodes}
    pipelines = {name for name, node in by_name.items() if node.op in PIPELINE_OUTPUTS}

    def computed_inputs(name: str) -> Iterator[str]:
        producers = map(producer_of, by_name[name].input)
        return (each for each in producers if each in by_name and each not in pipelines)

    read = {
        with_output(tensor)
        for name in walk(filter(by_name.__contains__, map(producer_of, roots)), computed_inputs)
        for tensor in by_name[name].input
        if producer_of(tensor) in pipelines and not tensor.startswith("^")
    }
    order = {name: number for number, name in enumerate(by_name)}
    return sorted(read, key=lambda tensor: (order[producer_of(tensor)], int(tensor.split(":")[1])))


def read_pipelines(
    run: Callable[..., list[Any]], session: Any, roots: Iterable[str], *, of_towers: bool = False
) -> Mapping[str, Any]:
    """Read the values that a step would get from its queues and iterators, by tensor name.

    Programs fill the pipelines before their first training step. The result is empty if the
    pipelines fail, or yield nothing within 10 s.

    Args:
        run: runs the session.
        session: the session.
        roots: as for `pipeline_outputs`.
        of_towers: whether to read only if two towers might take the same rows.
    """
    graph = session.graph
    names = pipeline_outputs(graph.as_graph_def().node, roots)
    tensors = [graph.get_tensor_by_name(name) for name in names]
    if not tensors or (of_towers and not _may_have_same_rows(tensors)):
        return {}
    try:
        with options_buffer(tf1.RunOptions(timeout_in_ms=_PIPELINE_LIMIT)) as options:
            values = run(session, None, [], tensors, {}, options, None)
    except tf.errors.OpError:
        return {}
    return dict(zip(names, values, strict=True))


def _may_have_same_rows(tensors: Iterable[tf.Tensor]) -> bool:
    """Whether two tensors may have the rows of two towers: both have the same dtype and shape.

    A tensor that is only cut, such as by `tf.split`, has the rows of all towers.
    """
    uncut = [
        tensor
        for tensor in tensors
        if not all(consumer.type in CUTS for consumer in tensor.consumers())
    ]
    return any(
        one.dtype.base_dtype == other.dtype.base_dtype
        and one.shape.is_compatible_with(other.shape)
        for one, other in combinations(uncut, 2)
    )
