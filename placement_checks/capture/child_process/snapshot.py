"""A program that another process has built, as values that can be sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tensorflow.core.framework import graph_pb2

from placement_checks.capture.in_process.recorder import Built
from placement_checks.core.cluster_spec import RecordedServer
from placement_checks.core.machines import Machine
from placement_checks.core.placement import StepOps
from placement_checks.core.program import AppliedGradient, InitialState, Step
from placement_checks.core.strategies import Strategy
from placement_checks.graph.op_origins import RecordedOrigin
from placement_checks.graph.reading import GraphSource
from placement_checks.util.resources import gc_paused


@dataclass(frozen=True)
class RecordedProgram:
    """What is known of a built program, without TensorFlow's objects.

    Attributes:
        graph_def: its serialised ``GraphDef``.
        collections: names of variables by collection.
        origin: what is known of its ops beside.
        step_ops: what is known of its training step.
        strategy: the strategy that made it for several replicas; None where none is known to.
        initial: how its variables get their first values.
        applied: the gradients that are applied.
        fed: what its first training step was fed.
        turns: how many different training steps it takes in turn.
        inputs: the names of placeholders by the names of arrays, as the program returned them.
        policy: what it does differently on purpose.
        notes: what its report says beside the rules.
        soft: whether it may be placed softly.
        asked_for_gpus: whether it asked how many GPUs there are.
        gradients_inside: where a traced step takes its gradients, if they are all inside of a
            loop or of another op; else ``""``.
        server: the server of a cluster that it made; None where it made none.
        is_worker: whether its strategy is one over several such tasks.
        on_one_host: the same on one host that has the GPUs of all these tasks, where numbers are
            compared; None for a program of one task.
    """

    graph_def: bytes
    collections: Mapping[str, Sequence[str]]
    origin: RecordedOrigin
    step_ops: StepOps
    strategy: Strategy | None
    initial: InitialState
    applied: Sequence[AppliedGradient]
    fed: Mapping[str, Any]
    turns: int
    inputs: Any
    policy: Mapping[str, Mapping[str, Any]]
    notes: Sequence[str]
    soft: bool
    asked_for_gpus: bool
    gradients_inside: str
    server: RecordedServer | None
    is_worker: bool = False
    on_one_host: RecordedProgram | None = None

    @staticmethod
    @gc_paused()
    def of(built: Built, notes: Sequence[str], server: RecordedServer | None) -> RecordedProgram:
        """Record a program that was built in this process."""
        source, placement = built.source, built.requested
        return RecordedProgram(
            source.graph_def.SerializeToString(),
            source.collections,
            RecordedOrigin.from_details(placement.details, placement.ops),
            source.step_ops,
            source.strategy,
            built.initial,
            built.applied,
            built.fed,
            built.turns,
            _names(built.step.inputs),
            built.step.policy,
            notes,
            placement.soft,
            built.asked_for_gpus,
            built.gradients_inside,
            built.worker or server,
            built.worker is not None,
        )

    @property
    def step(self) -> Step:
        """What was returned or run, as far as it matters outside of the graph."""
        return Step(inputs=self.inputs, config=self.step_ops.session, policy=self.policy)

    def machine(self, gpus: int) -> Machine | None:
        """The cluster that it made a server of, whose workers have so many GPUs."""
        if self.server is None or self.server.is_alone:
            return None
        machine = Machine.of_cluster(self.server.cluster, gpus)
        return replace(machine, stated_master=(self.server.job, self.server.task))

    def source(self, name: str) -> GraphSource:
        """Its graph, to be placed."""
        graph_def = graph_pb2.GraphDef.FromString(self.graph_def)
        return GraphSource(
            name, graph_def, self.collections, self.origin, self.step_ops, self.strategy
        )


def _names(inputs: Any) -> Any:
    """The inputs that a program returned, with the names of tensors for the tensors."""
    if isinstance(inputs, Mapping):
        return {str(key): getattr(value, "name", value) for key, value in inputs.items()}
    return inputs and list(map(_names, inputs))
