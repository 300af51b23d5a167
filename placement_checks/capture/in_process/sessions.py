"""Watches the sessions of a program until its first training step, which is not run.

All that a session runs comes by one private method, also from hooked and monitored sessions;
callables and partial runs are made of such runs. What comes before the first step runs on the CPU,
softly: the GPUs need not exist.

Runs of sessions that are not the program's own: made up, of pipelines, on the CPU.

Pipelines: where the rows of a step come out of queues and iterators.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import numpy as np
import tensorflow as tf

from placement_checks.core.builder_result import ScalarLosses
from placement_checks.core.op_types import PIPELINE_OUTPUTS
from placement_checks.core.placement import producer_of
from placement_checks.core.program import Step
from placement_checks.core.user_code import users_frames
from placement_checks.graph.gradients import GradientNotes
from placement_checks.graph.op_origins import static_shape
from placement_checks.graph.train_step import RunAnalyzer, RunEffect
from placement_checks.tf.patching import Around
from placement_checks.tf.sessions import (
    around_runs,
    around_session_methods,
    around_sessions,
    options_buffer,
)


class Node(Protocol):
    """A node of a GraphDef."""

    @property
    def name(self) -> str: ...
    @property
    def op(self) -> str: ...
    @property
    def input(self) -> Sequence[str]: ...


def pipeline_outputs(nodes: Iterable[Node], roots: Iterable[str]) -> list[str]:
    """The tensors that some ops take from pipelines, in the order in which they were built.

    Of pipelines that follow each other, such as a queue that prefetches, those of the last.

    Args:
        nodes: of a graph.
        roots: the ops or tensors of a step, and what its gradients are taken of.
    """
    by_name = {node.name: node for node in nodes}
    todo = [name for name in map(producer_of, roots) if name in by_name]
    seen = set(todo)
    read = set()
    while todo:
        for tensor in by_name[todo.pop()].input:
            producer = producer_of(tensor)
            if producer in by_name and by_name[producer].op in PIPELINE_OUTPUTS:
                if not tensor.startswith("^"):
                    read.add(tensor if ":" in tensor else f"{tensor}:0")
            elif producer in by_name and producer not in seen:
                seen.add(producer)
                todo.append(producer)
    order = {name: number for number, name in enumerate(by_name)}
    return sorted(read, key=lambda tensor: (order[producer_of(tensor)], int(tensor.split(":")[1])))


_PIPELINE_LIMIT = 10_000  # milliseconds


def rows_of_pipelines(
    run: Callable[..., list[Any]], session: Any, roots: Iterable[str]
) -> Mapping[str, Any]:
    """What a step would take from queues and iterators, by the names of tensors.

    They are filled by now. Where they give nothing in time, or fail, nothing is known of the rows.
    """
    graph = session.graph
    names = pipeline_outputs(graph.as_graph_def().node, roots)
    if not names:
        return {}
    tensors = [graph.get_tensor_by_name(name) for name in names]
    try:
        with options_buffer(tf1.RunOptions(timeout_in_ms=_PIPELINE_LIMIT)) as options:
            values = run(session, None, [], tensors, {}, options, None)
    except tf.errors.OpError:
        return {}
    return dict(zip(names, values, strict=True))


def callable_of_run(_: Callable[..., Any]) -> Callable[..., Any]:
    """`make_callable`, with callables that call `run`."""

    # Programs may name its arguments.
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


# Programs may name its arguments.
def begin_partial_run(_session: Any, fetches: Any, feeds: Any = None) -> dict[Any, Any]:  # noqa: ARG001
    """A handle for `run_next_part`: what was fed so far.

    TensorFlow runs all that the feeds allow, also what is fetched by a later part, such as a step.
    """
    return {}


def run_next_part(
    session: Any, handle: dict[Any, Any], fetches: Any, feed_dict: Any = None
) -> Any:
    """What a part of a run gives, on what was fed to it and to the parts before."""
    handle.update(feed_dict or {})
    return session.run(fetches, handle)


def with_soft_placement(written: Any) -> Any:
    """The configuration with which a session for GPUs can run on the CPU."""
    config = tf1.ConfigProto()
    config.CopyFrom(written)
    config.allow_soft_placement = True
    config.gpu_options.visible_device_list = ""
    rewrites = config.graph_options.rewrite_options
    rewrites.cpu_layout_conversion = rewrites.NCHW_TO_NHWC
    return config


def zeros_for(tensor: tf.Tensor) -> Any:
    """A result of the right dtype and shape, all zeros; of an unknown dimension 1.

    Of texts none, where their number is not known: the names of variables without a value, which
    supervisors wait for.
    """
    unknown = 0 if tensor.dtype == tf.string else 1
    sizes = [unknown if size is None else size for size in static_shape(tensor.shape) or ()]
    dtype = tensor.dtype.as_numpy_dtype
    value = np.full(sizes, b"" if tensor.dtype == tf.string else 0, dtype)
    return value[()]  # a scalar is none of rank 0


tf1 = tf.compat.v1

_Fetched = tuple[tf.Graph, frozenset[tf.Operation]]  # what a run fetches of a graph
_MOST_STEPS = 20  # made up, while optimisers are left that have not run
_READING_LIMIT = 20.0  # seconds for all runs that only read the model


class Stopped(BaseException):
    """Ends a program at its first training step; it is no `Exception`, which programs catch."""


@dataclass(frozen=True, eq=False)
class SeenStep:
    """A training step that was about to run, or a run that keeps gradients for one.

    Attributes:
        graph: the session's graph.
        config: the session's configuration as the program wrote it.
        train_ops: what was fetched or run that changes variables.
        reported: the other tensors that were fetched.
        fed: what was fed, or would have come from a pipeline, by the names of tensors.
        updates: the ops by which trainable variables learn; none of a run that keeps gradients.
        called_at: the user's line that ran it; ``""`` where only libraries did.
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
        """The scalars of floats among what it reports."""
        return ScalarLosses(
            tensor
            for tensor in self.reported
            if tensor.dtype.is_floating and tensor.shape.rank == 0
        )


class Watch:
    """What is seen of a program's sessions.

    Args:
        notes: what is noted of the gradients that are taken, by graph.
        ended: called when no further step is expected; it does not return.

    Attributes:
        steps: the distinct training steps, in the order in which they came.
        sessions: how many were opened.
        runs: how many runs there were.
        servers: the addresses that sessions were opened on, which are not connected to.
        graphs: the graphs that something was run of.
        has_kept_gradients: whether a run that does not train has, as those do whose gradients a
            later one applies.
        accumulations: the distinct runs that did, which were executed; those whose gradients a
            step applies are among the steps too.
    """

    def __init__(self, notes: Mapping[tf.Graph, GradientNotes], ended: Callable[[], None]) -> None:
        self.steps: list[SeenStep] = []
        self.sessions = 0
        self.runs = 0
        self.servers: list[str] = []
        self.graphs: dict[tf.Graph, RunAnalyzer] = {}
        self.has_kept_gradients = False
        self.accumulations: list[SeenStep] = []
        self._accumulated: set[_Fetched] = set()
        self._initializations: set[_Fetched] = set()
        self._notes = notes
        self._ended = ended
        self._configs: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
        self._remote: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
        self._made_up_steps = 0
        self._seconds_of_reading = 0.0
        self._lock = threading.RLock()

    @property
    def graph(self) -> tf.Graph | None:
        """The graph that is trained; None where no step was seen."""
        return self.steps[0].graph if self.steps else None

    @property
    def own_steps(self) -> Sequence[SeenStep]:
        """The steps of that graph; those of another are those of another program."""
        return [step for step in self.steps if step.graph is self.graph]

    @property
    def step(self) -> Step:
        """All steps that were seen of one graph, as one: those of a GAN take turns."""
        return Step(
            train_op=[op for step in self.own_steps for op in step.train_ops],
            loss=ScalarLosses(loss for step in self.own_steps for loss in step.losses),
            config=self.own_steps[0].config,
        )

    @property
    def fed(self) -> Mapping[str, Any]:
        """What these steps were fed, by the names of tensors."""
        return {name: value for step in self.own_steps for name, value in step.fed.items()}

    @property
    def never_run(self) -> set[tf.Operation]:
        """The ops of optimisers in the graphs of the steps that none of the steps has run."""
        return {
            op
            for graph in {step.graph for step in self.steps}
            for op in self.graphs[graph].optimizer_ops() - self._updates
        }

    @property
    def _updates(self) -> frozenset[tf.Operation]:
        return frozenset[tf.Operation]().union(*(step.updates for step in self.steps))

    def open(self, original: Callable[..., None]) -> Callable[..., None]:
        """The constructor of sessions, which opens none on a server."""

        def opened(session: Any, target: Any = "", graph: Any = None, config: Any = None) -> None:
            written = tf1.ConfigProto() if config is None else config
            original(session, "", graph, with_soft_placement(written))
            self.sessions += 1
            self._configs[session] = written
            if target:
                self._remote[session] = target
                self.servers.append(tf.compat.as_text(target))

        return opened

    def run(self, original: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
        """What all runs end in, which executes no training step."""

        def ran(
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
            run = self._run_of(session.graph, fetched)
            trains = bool(run.updates) and not self._initializes(session.graph, run, fetched)
            if trains:
                self._note(session, run, fetched, feeds, original)
            elif run.keeps_gradients:
                self._note_accumulation(session, run, fetched, feeds)
            if trains or session in self._remote:
                return list(map(zeros_for, fetches))
            only_reads = run.reads and not run.changes and not targets
            if only_reads and options is None:
                return self._read(execute, metadata) or list(map(zeros_for, fetches))
            return execute(options, metadata)

        return ran

    def _run_of(self, graph: tf.Graph, fetched: Iterable[tf.Operation | tf.Tensor]) -> RunEffect:
        with self._lock:
            self.runs += 1
            if graph not in self.graphs:
                self.graphs[graph] = RunAnalyzer(graph, self._notes[graph])
            run = self.graphs[graph].run_of(map(op_of, fetched))
            self.has_kept_gradients |= run.keeps_gradients and not run.updates
            return run

    def _initializes(
        self, graph: tf.Graph, run: RunEffect, fetched: Iterable[tf.Operation | tf.Tensor]
    ) -> bool:
        """Whether a run initializes variables by a batch, which happens once, unlike a step."""
        if not run.may_initialize:
            return False
        key = graph, frozenset(map(op_of, fetched))
        with self._lock:
            is_first = key not in self._initializations
            self._initializations.add(key)
            return is_first

    def _note_accumulation(
        self,
        session: Any,
        run: RunEffect,
        fetched: Sequence[tf.Operation | tf.Tensor],
        feeds: Mapping[Any, Any],
    ) -> None:
        """Note a run that keeps gradients for a later one."""
        key = session.graph, frozenset(map(op_of, fetched))
        with self._lock:
            if key not in self._accumulated:
                self._accumulated.add(key)
                runs = self.graphs[session.graph]
                step = self._step(session, runs, run, fetched, _arrays(feeds))
                self.accumulations.append(step)

    def _note(
        self,
        session: Any,
        run: RunEffect,
        fetched: Sequence[tf.Operation | tf.Tensor],
        feeds: Mapping[Any, Any],
        execute: Callable[..., list[Any]],
    ) -> None:
        """Note a training step, which may be the last one."""
        rows: Mapping[str, Any] = {}
        if run.updates - self._updates and session not in self._remote:
            roots = [item.name for item in fetched] + self._notes[session.graph].objectives
            rows = rows_of_pipelines(execute, session, roots)  # while other threads fill them
        with self._lock:
            runs = self.graphs[session.graph]
            if run.updates - self._updates:
                if run.skips_gradients:  # its gradients are those that other runs have kept
                    self.steps += [
                        each
                        for each in self.accumulations
                        if each.graph is session.graph and each not in self.steps
                    ]
                fed = {**rows, **_arrays(feeds)}
                self.steps.append(self._step(session, runs, run, fetched, fed))
            self._made_up_steps += 1
            if self._made_up_steps > _MOST_STEPS or not runs.optimizer_ops() - self._updates:
                self._ended()

    def _step(
        self,
        session: Any,
        runs: RunAnalyzer,
        run: RunEffect,
        fetched: Sequence[tf.Operation | tf.Tensor],
        fed: Mapping[str, Any],
    ) -> SeenStep:
        # Hooks fetch counters and updates of statistics beside the train op.
        changes = [runs.run_of([op_of(item)]).changes for item in fetched]
        frames = users_frames(traceback.extract_stack(), None)
        return SeenStep(
            session.graph,
            self._configs[session],
            [item for item, is_changing in zip(fetched, changes, strict=True) if is_changing],
            [
                item
                for item, is_changing in zip(fetched, changes, strict=True)
                if not is_changing and isinstance(item, tf.Tensor)
            ],
            fed,
            run.updates,
            str(frames[-1]) if frames else "",
        )

    def _read(self, execute: Callable[..., list[Any]], metadata: Any) -> list[Any] | None:
        """What a run gives that only reads the model; None if it takes too long.

        Programs paint pictures or evaluate before they train, on CPUs much slower than on GPUs.
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


def _arrays(feeds: Mapping[Any, Any]) -> Mapping[str, Any]:
    """What is fed, by the names of tensors."""
    return {feed.deref().name: np.array(value) for feed, value in feeds.items()}


@contextlib.contextmanager
def watching(watch: Watch) -> Iterator[None]:
    """Watch all sessions in this block."""
    others: Mapping[str, Around] = {
        "make_callable": callable_of_run,
        "partial_run_setup": lambda _: begin_partial_run,
        "partial_run": lambda _: run_next_part,
    }
    with around_sessions(watch.open), around_runs(watch.run), around_session_methods(others):
        yield


def op_of(item: tf.Operation | tf.Tensor) -> tf.Operation:
    """An op itself, or the one that a tensor comes from."""
    return item.op if isinstance(item, tf.Tensor) else item
