"""The recorded form of a built program, which a child process sends to its parent."""

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
    """A built program as plain values, without TensorFlow's live objects.

    `Built` is the form of it with live objects.

    Attributes:
        graph_def: the serialized ``GraphDef``.
        collections: the names of variables by collection.
        origin: source lines, shapes and forward ops of the ops.
        step_ops: the ops of the training step.
        strategy: the strategy that the graph was traced for; None without one.
        initial: how the variables are initialized.
        applied: the gradients that optimizers apply.
        fed: the values that were fed to the first training step.
        turns: the number of different training steps that the program alternates between.
        inputs: the inputs that the builder returned: names of placeholders by names of arrays.
        policy: the policy that the builder returned.
        notes: remarks for the report.
        soft: whether soft placement is allowed.
        asked_for_gpus: whether the program asked for the number of GPUs.
        gradients_inside: a sentence that names the loop or op containing all gradients of a
            traced step; ``""`` if other gradients exist.
        server: the server that the program created as a task of a cluster; None without one.
        is_worker: whether its strategy covers several such tasks.
        on_one_host: for several workers, the same program on one host with the GPUs of all
            workers, where its numbers can be compared; None for a program of one task.
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
    def from_built(
        built: Built, notes: Sequence[str], server: RecordedServer | None
    ) -> RecordedProgram:
        """Record a program that was built in this process."""
        source, placement = built.source, built.requested
        return RecordedProgram(
            graph_def=source.graph_def.SerializeToString(),
            collections=source.collections,
            origin=RecordedOrigin.from_details(placement.details, placement.ops),
            step_ops=source.step_ops,
            strategy=source.strategy,
            initial=built.initial,
            applied=built.applied,
            fed=built.fed,
            turns=built.turns,
            inputs=_input_names(built.step.inputs),
            policy=built.step.policy,
            notes=notes,
            soft=placement.soft,
            asked_for_gpus=built.asked_for_gpus,
            gradients_inside=built.gradients_inside,
            server=built.worker or server,
            is_worker=built.worker is not None,
        )

    @property
    def step(self) -> Step:
        """The fields of the step that do not refer to TensorFlow's live objects."""
        return Step(inputs=self.inputs, config=self.step_ops.session, policy=self.policy)

    def machine(self, gpus: int) -> Machine | None:
        """The cluster of its server, if each worker has ``gpus`` GPUs; None without a cluster."""
        if self.server is None or self.server.is_alone:
            return None
        machine = Machine.of_cluster(self.server.cluster, gpus)
        return replace(machine, stated_master=(self.server.job, self.server.task))

    def source(self, name: str) -> GraphSource:
        """Return the graph, for example to place it."""
        graph_def = graph_pb2.GraphDef.FromString(self.graph_def)
        return GraphSource(
            name, graph_def, self.collections, self.origin, self.step_ops, self.strategy
        )


def _input_names(inputs: Any) -> Any:
    """Replace the tensors in the inputs that a builder returned by their names."""
    if isinstance(inputs, Mapping):
        return {str(key): getattr(value, "name", value) for key, value in inputs.items()}
    return inputs and list(map(_input_names, inputs))
