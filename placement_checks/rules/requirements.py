"""What rules need of the evidence, and the reasons for not checking them where it is missing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum, auto

from placement_checks.analysis.towers.analysis import analyse
from placement_checks.analysis.variables.mixed_losses import mixed_losses
from placement_checks.core.evidence import NO_REFERENCE, Evidence
from placement_checks.core.missing import Missing, NotApplicable


class Need(Enum):
    """What a rule needs, in the order in which reasons are given."""

    PLACER = auto()  # the placer's own answer: devices, or the ops it refuses
    ASSIGNED = auto()  # the device of every op
    REQUESTED = auto()  # what ops request and read, which a log does not say
    GPUS = auto()  # any evidence but a log of a machine without GPUs
    VARIABLES = auto()
    CLUSTER = auto()  # tasks, and not one host
    TWO_TOWERS = auto()  # and so REQUESTED and VARIABLES
    LOSSES = auto()  # of each tower its own
    LOSSES_APART = auto()  # none of which contains another tower's
    SESSION_CONFIG = auto()
    MEASUREMENT = auto()
    TRAJECTORY = auto()  # some steps of the measurement
    TRACE = auto()

    def missing(self, evidence: Evidence) -> Missing | None:
        """Why the evidence lacks what a rule needs; None if it does not."""
        return _MISSING[self](evidence)


def _missing(part: object) -> Missing | None:
    """A part of the evidence, if it is missing."""
    return part if isinstance(part, Missing) else None


def _placer(evidence: Evidence) -> Missing | None:
    placement = evidence.placement
    if not placement.refusals and isinstance(placement.assigned, Missing):
        return placement.assigned
    if evidence.placer != "log":
        return None
    return Missing(
        "a log has what was placed, not what the placer would refuse; verify the program"
    )


def _gpus(evidence: Evidence) -> Missing | None:
    if evidence.placer != "log" or (evidence.machine and evidence.machine.gpus):
        return None
    return Missing(
        "the log comes from a machine without GPUs, on which every op is on a CPU whatever it "
        "asks for; verify the program itself, on GPUs that need not exist"
    )


def _variables(evidence: Evidence) -> Missing | None:
    return None if evidence.variables else Missing("the graph has no variables")


def _cluster(evidence: Evidence) -> Missing | None:
    if evidence.machine is None or evidence.machine.is_local:
        return Missing("the machine is one host, without parameter servers")
    return None


def _two_towers(evidence: Evidence) -> Missing | None:
    for need in (Need.REQUESTED, Need.VARIABLES):
        if (missing := need.missing(evidence)) is not None:
            return missing
    placement = evidence.placement
    towers = analyse(placement).towers
    if len(towers) > 1:
        return None
    if not towers:
        return Missing(
            "no op that requests a GPU reads a variable, so there are no towers; build each "
            "under its own tf.device('/gpu:0'), tf.device('/gpu:1') …"
        )
    batches = analyse(placement).micro_batches
    if batches > 1:
        return NotApplicable(
            f"there is one tower, on {towers[0]}: {batches} copies of the model run on the same "
            "devices, as micro-batches do"
        )
    losses = len(analyse(placement).loss_ops)
    if losses > 1:
        return Missing(
            f"the towers cannot be told apart: there are {losses} losses, and all ops that "
            f"read variables on a GPU request {towers[0]}"
        )
    return NotApplicable(f"there is one tower, on {towers[0]}")


def _losses(evidence: Evidence) -> Missing | None:
    unknown = analyse(evidence.placement).losses.unknown
    return Missing(unknown) if unknown else None


def _losses_apart(evidence: Evidence) -> Missing | None:
    mixed = mixed_losses(evidence.placement)
    if not mixed:
        return None
    tower = analyse(evidence.placement).towers[mixed[0].tower]
    return Missing(
        f"the loss of the tower on {tower} contains another tower's; fix losses-apart first"
    )


def _is_log(evidence: Evidence) -> bool:
    """Whether there is a log alone, and no program that printed it."""
    return evidence.placer == "log" and not evidence.program


def _session_config(evidence: Evidence) -> Missing | None:
    if evidence.placement.step.session is not None:
        return None
    if _is_log(evidence):
        return Missing("a log does not say how the session is configured")
    if evidence.placement.step.traced:
        return Missing(
            "the step is a tf.function, which no session runs; what it takes of the GPUs' memory "
            "is set by tf.config.experimental.set_memory_growth"
        )
    return Missing(
        "no session configuration is known; return it from the function that builds the graph: "
        "{'config': config}"
    )


def _of_run(evidence: Evidence, part: object) -> Missing | None:
    """What running gave, if it is missing; a log alone has nothing that a reference would help."""
    if part is NO_REFERENCE and _is_log(evidence):
        return Missing("a log cannot be run; verify the program that printed it")
    return _missing(part)


def _trajectory(evidence: Evidence) -> Missing | None:
    measurement = evidence.measurement
    if not measurement:
        return _of_run(evidence, measurement)
    return _missing(measurement.trajectory)


_MISSING: Mapping[Need, Callable[[Evidence], Missing | None]] = {
    Need.PLACER: _placer,
    Need.ASSIGNED: lambda evidence: _missing(evidence.placement.assigned),
    Need.REQUESTED: lambda evidence: _missing(evidence.placement.requested),
    Need.GPUS: _gpus,
    Need.VARIABLES: _variables,
    Need.CLUSTER: _cluster,
    Need.TWO_TOWERS: _two_towers,
    Need.LOSSES: _losses,
    Need.LOSSES_APART: _losses_apart,
    Need.SESSION_CONFIG: _session_config,
    Need.MEASUREMENT: lambda evidence: _of_run(evidence, evidence.measurement),
    Need.TRAJECTORY: _trajectory,
    Need.TRACE: lambda evidence: _of_run(evidence, evidence.trace),
}
