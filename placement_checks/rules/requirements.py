"""The parts of the evidence that rules require, and the reasons for their absence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum, auto

from placement_checks.analysis.towers.analysis import analyze
from placement_checks.analysis.variables.gradient_flow import gradient_flow
from placement_checks.analysis.variables.mixed_losses import mixed_losses
from placement_checks.core.evidence import NO_REFERENCE, Evidence
from placement_checks.core.missing import Missing, NotApplicable


class Need(Enum):
    """A part of the evidence. If several parts are missing, the first one here is the reason."""

    PLACER = auto()  # the placer's answer: assigned devices, or the ops that it refuses
    ASSIGNED = auto()  # assigned devices
    REQUESTED = auto()  # requested devices and inputs of ops, which a log does not contain
    GPUS = auto()  # any evidence except a log of a machine without GPUs
    VARIABLES = auto()
    CLUSTER = auto()  # a machine with several tasks
    TWO_TOWERS = auto()  # includes REQUESTED and VARIABLES
    LOSSES = auto()  # a loss for each tower
    LOSSES_APART = auto()  # no loss contains the loss of another tower
    TRAINED = auto()  # a variable that a gradient updates
    REPLICAS = auto()  # several replicas of a strategy, or ranks of Horovod
    SESSION_CONFIG = auto()
    ROWS = auto()  # values that the first step reads from input pipelines; never missing
    SINGLE_GPU = auto()  # the same program, built for one GPU
    REFERENCE = auto()
    MEASUREMENT = auto()
    TRAJECTORY = auto()  # several training steps in the measurement
    TRACE = auto()

    def missing(self, evidence: Evidence) -> Missing | None:
        """Return why the evidence lacks this part; None if it has it."""
        return _MISSING[self](evidence)


def _if_missing(part: object) -> Missing | None:
    return part if isinstance(part, Missing) else None


def _placer(evidence: Evidence) -> Missing | None:
    placement = evidence.placement
    if not placement.refusals and isinstance(placement.assigned, Missing):
        return placement.assigned
    if evidence.placer != "log":
        return None
    return Missing(
        "a log lists the ops that were placed, not the ops that the placer refuses",
        "run placement-checks verify on the program",
    )


def _gpus(evidence: Evidence) -> Missing | None:
    if evidence.placer != "log" or (evidence.machine and evidence.machine.gpus):
        return None
    return Missing(
        "the log comes from a machine without GPUs, where every op is on a CPU",
        "run placement-checks verify on the program, which needs no GPU",
    )


def _cluster(evidence: Evidence) -> Missing | None:
    if evidence.machine is None or evidence.machine.is_local:
        return Missing("the machine is one host, without parameter servers")
    return None


_ONE_DEVICE_EACH = (
    "build each tower under its own device: tf.device('/gpu:0'), tf.device('/gpu:1') …"
)


def _two_towers(evidence: Evidence) -> Missing | None:
    for need in (Need.REQUESTED, Need.VARIABLES):
        if (missing := need.missing(evidence)) is not None:
            return missing
    analysis = analyze(evidence.placement)
    towers = analysis.towers
    if len(towers) > 1:
        return None
    if not towers:
        return Missing(
            "no op that requests a GPU reads a variable, so there are no towers",
            _ONE_DEVICE_EACH,
        )
    if analysis.micro_batches > 1:
        return NotApplicable(
            f"there is one tower, on {towers[0]}: {analysis.micro_batches} copies of the model "
            "run on the same devices, as micro-batches do"
        )
    if len(analysis.loss_ops) > 1:
        return Missing(
            f"there are {len(analysis.loss_ops)} losses, but all ops that read variables on a GPU "
            f"request {towers[0]}, so it is unknown which ops belong to which tower",
            _ONE_DEVICE_EACH,
        )
    return NotApplicable(f"there is one tower, on {towers[0]}")


def no_gradients(
    evidence: Evidence, otherwise: str = "the graph computes no gradients"
) -> Missing:
    """The reason why a graph has no gradients: a traced step may take all of them in one op."""
    inside = evidence.program.gradients_inside if evidence.program else ""
    return Missing(inside or otherwise)


def _losses(evidence: Evidence) -> Missing | None:
    unknown = analyze(evidence.placement).losses.unknown
    if unknown is not None and evidence.program and evidence.program.gradients_inside:
        return no_gradients(evidence)
    return unknown


def _losses_apart(evidence: Evidence) -> Missing | None:
    mixed = mixed_losses(evidence.placement).all
    if not mixed:
        return None
    tower = analyze(evidence.placement).towers[mixed[0].tower]
    return Missing(
        f"the loss of the tower on {tower} contains the loss of another tower",
        "fix losses-apart first",
    )


def _trained(evidence: Evidence) -> Missing | None:
    if gradient_flow(evidence.placement).trained:
        return None
    analysis = analyze(evidence.placement)
    if not any(analysis.backward.ops):
        return no_gradients(evidence)
    if analysis.updates.missing is not None:
        return analysis.updates.missing
    return Missing("no variable that towers read is updated by a gradient")


def _replicas(evidence: Evidence) -> Missing | None:
    strategy = evidence.placement.strategy
    if strategy is None:
        return Missing("no tf.distribute strategy is known")
    if len(strategy.replicas) == 1:
        return NotApplicable(f"there is one replica, on {strategy.replicas[0].short}")
    return None


def _is_log(evidence: Evidence) -> bool:
    """Return whether the evidence is a log without the program that printed it."""
    return evidence.placer == "log" and not evidence.program


def _session_config(evidence: Evidence) -> Missing | None:
    if evidence.placement.step.session is not None:
        return None
    if _is_log(evidence):
        return Missing("a log does not contain the session configuration")
    if evidence.placement.step.traced:
        return Missing(
            "the step is a tf.function, which runs without a session",
            "tf.config.experimental.set_memory_growth controls its use of GPU memory",
        )
    return Missing(
        "no session configuration is known",
        "return it from the function that builds the graph: {'config': config}",
    )


def _if_run_missing(evidence: Evidence, part: object) -> Missing | None:
    """Return why a result of running the program is missing.

    A log without its program cannot be run even with a reference, so the reason does not ask for a
    reference.
    """
    if part is NO_REFERENCE and _is_log(evidence):
        return Missing(
            "a log cannot be run", "run placement-checks verify on the program that printed it"
        )
    return _if_missing(part)


def _trajectory(evidence: Evidence) -> Missing | None:
    measurement = evidence.measurement
    if not measurement:
        return _if_run_missing(evidence, measurement)
    return _if_missing(measurement.trajectory)


_MISSING: Mapping[Need, Callable[[Evidence], Missing | None]] = {
    Need.PLACER: _placer,
    Need.ASSIGNED: lambda evidence: _if_missing(evidence.placement.assigned),
    Need.REQUESTED: lambda evidence: _if_missing(evidence.placement.requested),
    Need.GPUS: _gpus,
    Need.VARIABLES: lambda evidence: (
        None if evidence.variables else Missing("the graph has no variables")
    ),
    Need.CLUSTER: _cluster,
    Need.TWO_TOWERS: _two_towers,
    Need.LOSSES: _losses,
    Need.LOSSES_APART: _losses_apart,
    Need.TRAINED: _trained,
    Need.REPLICAS: _replicas,
    Need.SESSION_CONFIG: _session_config,
    Need.ROWS: lambda _: None,
    Need.SINGLE_GPU: lambda evidence: _if_missing(evidence.single_gpu),
    Need.REFERENCE: lambda evidence: _if_missing(evidence.reference),
    Need.MEASUREMENT: lambda evidence: _if_run_missing(evidence, evidence.measurement),
    Need.TRAJECTORY: _trajectory,
    Need.TRACE: lambda evidence: _if_run_missing(evidence, evidence.trace),
}
