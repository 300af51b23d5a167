"""Records what a program builds, until it would take its first training step."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import tensorflow as tf

from placement_checks.capture.eager.calls import CallWatch, watch_calls
from placement_checks.capture.eager.cluster import simulate_coordinator, simulate_worker
from placement_checks.capture.eager.errors import explain_keras_error, explain_scope_error
from placement_checks.capture.eager.notes import TracingNotes, record_tracing
from placement_checks.capture.eager.reading import read_steps
from placement_checks.capture.in_process.fake_gpus import fake_gpu_count
from placement_checks.capture.in_process.sessions import SessionWatch, StopProgram, watch_sessions
from placement_checks.core.cluster_spec import RecordedServer
from placement_checks.core.errors import InputError
from placement_checks.core.program import CapturedProgram, Program, Step
from placement_checks.graph.gradients import (
    applied_in_graph,
    record_applied,
    record_gradients,
    replace_declared,
)
from placement_checks.graph.reading import from_live_graph
from placement_checks.graph.train_step import initial_state, resolve_step_ops


class BuildRecorder:
    """Records a program while it builds.

    Attributes:
        program: the program. Eager code is recorded before its module is imported; until then
            this is a placeholder.
        watch: the runs of its sessions.
        calls: the traced functions that it calls.
        gpu_queries: the functions by which it asked for GPUs.
        policy: the policy that its builder returned.
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
        self.calls = CallWatch(tracing.gradients, tracing.strategies, self.train)
        self.gpu_queries = gpu_queries
        self.policy: Mapping[str, Any] = {}
        self._gpus = gpus
        self._on_train_step = on_train_step
        self._tracing = tracing
        self._servers = servers

    @property
    def has_step(self) -> bool:
        """Whether the program came to a training step."""
        return bool(self.watch.steps or self.calls.steps)

    def train(self) -> None:
        """Do what happens in place of the first training step."""
        self._on_train_step(self)

    def explain(self, error: InputError) -> InputError:
        """Replace an error of the program's code by its cause, if the cause is a known one."""
        explained = explain_scope_error(error, self._tracing, self.program.folder)
        return explain_keras_error(error) if explained is error else explained

    def trained(self) -> CapturedProgram:
        """Return the program as built when its first training step came.

        Raises:
            InputError: the graph is larger than 2 GB.
        """
        if self.watch.steps:
            assert self.watch.graph is not None
            return self.built(self.watch.graph, self.watch.step)
        captured = read_steps(self.calls.steps, self._tracing, self.program, self._gpus)
        return replace(
            captured,
            soft=tf.config.get_soft_device_placement(),
            step=Step(policy=self.policy),
            asked_for_gpus=bool(self.gpu_queries),
            server=self._servers[-1] if self._servers else None,
            is_worker=bool(self._servers),
        )

    def built(self, graph: tf.Graph, step: Step) -> CapturedProgram:
        """Return the program as built in one graph.

        Raises:
            InputError: the step does not match the graph, or the graph is larger than 2 GB.
        """
        name, folder = self.program.name, self.program.folder
        source = from_live_graph(graph, name, folder, self._tracing.gradients.get(graph))
        calls = replace_declared(self._tracing.applied, step.gradients or (), name)
        return CapturedProgram(
            name=name,
            program=self.program,
            gpus=self._gpus,
            source=replace(source, step_ops=resolve_step_ops(step, source, name)),
            soft=step.soft,
            step=step,
            initial=initial_state(graph),
            applied=applied_in_graph(calls, graph),
            fed=self.watch.fed,
            turns=max(1, len(self.watch.own_steps)),
            asked_for_gpus=bool(self.gpu_queries),
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
    """Record the program that runs in this block.

    Args:
        program: the program.
        gpus: the number of GPUs that the program finds.
        on_train_step: called in place of the first training step.
        eager: whether the program may be eager code. Logical CPU devices must then simulate the
            GPUs.
    """
    with (
        fake_gpu_count(gpus) as gpu_queries,
        record_gradients() as gradients,
        record_applied() as applied,
        record_tracing(eager=eager) as (variables, reductions, forward),
        simulate_worker() as servers,
        simulate_coordinator(gpus, servers),
    ):
        strategies: list[Any] = []
        tracing = TracingNotes(variables, gradients, applied, reductions, forward, strategies)
        building = BuildRecorder(program, gpus, on_train_step, gpu_queries, tracing, servers)
        with watch_sessions(building.watch), watch_calls(building.calls):
            yield building
