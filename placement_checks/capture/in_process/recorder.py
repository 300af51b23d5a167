"""What is noted while a program builds, and what it has built when it comes to train."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import tensorflow as tf

from placement_checks.capture.eager.calls import CallWatch, watching_calls
from placement_checks.capture.eager.cluster import coordinator_alone, workers_alone
from placement_checks.capture.eager.errors import explain_keras_error, explain_scope_error
from placement_checks.capture.eager.notes import TracingNotes, noting_traced
from placement_checks.capture.eager.reading import read_steps
from placement_checks.capture.in_process.fake_gpus import GpuQueries, fake_gpu_count
from placement_checks.capture.in_process.sessions import Stopped, Watch, watching
from placement_checks.core.cluster_spec import RecordedServer
from placement_checks.core.errors import InputError
from placement_checks.core.placement import Placement
from placement_checks.core.program import (
    AppliedGradient,
    InitialState,
    Program,
    Step,
)
from placement_checks.graph.gradients import (
    applied_in_graph,
    record_applied,
    record_gradients,
    replace_declared,
)
from placement_checks.graph.reading import GraphSource, from_live_graph, read_placement
from placement_checks.graph.train_step import initial_state, resolve_step_ops


class Built(NamedTuple):
    """What a program built.

    Attributes:
        source: its graph.
        requested: the devices that it requests.
        initial: how its variables get their first values.
        step: what it returned, or ran first.
        applied: the gradients that are applied.
        fed: what its first training step was fed; empty where none was seen.
        turns: how many different training steps it takes in turn.
        asked_for_gpus: whether it asked how many GPUs there are.
        notes: what a report says of its graph.
        worker: the task of a strategy over several that it is; None where it is of none.
        gradients_inside: where a traced step takes its gradients, if they are all inside of a
            loop or of another op; else ``""``.
    """

    source: GraphSource
    requested: Placement
    initial: InitialState
    step: Step
    applied: Sequence[AppliedGradient]
    fed: Mapping[str, Any]
    turns: int
    asked_for_gpus: bool
    notes: Sequence[str] = ()
    worker: RecordedServer | None = None
    gradients_inside: str = ""


class BuildRecorder:
    """What is noted while a program builds.

    Attributes:
        program: what builds; eager code is noted before it is known, as its module is imported.
        watch: what its sessions run.
        calls: which traced functions it calls.
        asked: by which calls it has asked how many GPUs there are.
        policy: what it has said that it does differently on purpose.
    """

    def __init__(
        self,
        program: Program,
        trains: Callable[[BuildRecorder], None],
        asked: GpuQueries,
        tracing: TracingNotes,
        servers: Sequence[RecordedServer] = (),
    ) -> None:
        self.program = program
        self.watch = Watch(tracing.gradients, lambda: trains(self))
        self.calls = CallWatch(tracing.gradients, tracing.strategies, lambda: trains(self))
        self.asked = asked
        self.policy: Mapping[str, Any] = {}
        self._trains = trains
        self._tracing = tracing
        self._servers = servers

    @property
    def has_step(self) -> bool:
        """Whether a training step was seen."""
        return bool(self.watch.steps or self.calls.steps)

    def train(self) -> None:
        """End it as its first training step would."""
        self._trains(self)

    def refused(self, error: InputError) -> InputError:
        """The error for code that raised, told by its cause where that is a strategy."""
        told = explain_scope_error(error, self._tracing, self.program.folder)
        return explain_keras_error(error) if told is error else told

    def trained(self) -> Built:
        """What was built when the first training step came.

        Raises:
            InputError: the graph is larger than 2 GB.
        """
        if self.watch.steps:
            assert self.watch.graph is not None
            return self.built(self.watch.graph, self.watch.step)
        name, folder = self.program.name, self.program.folder
        traced = read_steps(self.calls.steps, self._tracing, name, folder)
        return Built(
            traced.source,
            replace(read_placement(traced.source), soft=tf.config.get_soft_device_placement()),
            traced.initial,
            Step(policy=self.policy),
            traced.applied,
            traced.fed,
            traced.turns,
            bool(self.asked),
            traced.notes,
            self._servers[-1] if self._servers else None,
            traced.gradients_inside,
        )

    def built(self, graph: tf.Graph, step: Step) -> Built:
        """What was built in one graph.

        Raises:
            InputError: what it says of its step is wrong, or the graph is larger than 2 GB.
        """
        name, folder = self.program.name, self.program.folder
        source = from_live_graph(graph, name, folder, self._tracing.gradients.get(graph))
        source.step_ops = resolve_step_ops(step, source)
        placement = replace(read_placement(source), soft=step.soft)
        calls = replace_declared(self._tracing.applied, step.gradients or (), name)
        return Built(
            source,
            placement,
            initial_state(graph, placement.variables),
            step,
            applied_in_graph(calls, graph),
            self.watch.fed,
            max(1, len(self.watch.own_steps)),
            bool(self.asked),
        )


def stop_at_train_step(_building: BuildRecorder) -> None:
    """End what is built at its first training step."""
    raise Stopped


@contextlib.contextmanager
def record_build(
    program: Program, gpus: int, trains: Callable[[BuildRecorder], None], *, eager: bool = False
) -> Iterator[BuildRecorder]:
    """Note in this block what a program builds that finds so many GPUs.

    When it would train, ``trains`` is called.

    Args:
        program: what builds.
        gpus: how many GPUs it finds.
        trains: called in place of its first training step.
        eager: whether it may be eager code, for which logical CPUs stand in for the GPUs.
    """
    with (
        fake_gpu_count(gpus) as asked,
        record_gradients() as gradients,
        record_applied() as applied,
        noting_traced(eager=eager) as (variables, reductions, forward),
        workers_alone() as servers,
        coordinator_alone(gpus, servers),
    ):
        strategies: list[Any] = []
        tracing = TracingNotes(variables, gradients, applied, reductions, forward, strategies)
        building = BuildRecorder(program, trains, asked, tracing, servers)
        with watching(building.watch), watching_calls(building.calls):
            yield building
