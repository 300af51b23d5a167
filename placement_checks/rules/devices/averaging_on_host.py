from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from placement_checks.analysis.graph.updates import Update
from placement_checks.analysis.towers.analysis import analyze
from placement_checks.analysis.variables.gradient_flow import gradient_flow
from placement_checks.analysis.variables.layout import variable_layout
from placement_checks.core.devices import Device
from placement_checks.core.evidence import Evidence
from placement_checks.core.facts import FactKind
from placement_checks.core.ids import OpId
from placement_checks.core.op_types import AMONG_DEVICES
from placement_checks.core.placement import Placement
from placement_checks.core.results import Finding, Verdict
from placement_checks.rules.base import (
    Fields,
    Rule,
    about,
    device_names,
    devices_text,
    is_on,
    path_lines,
    requested_device,
    shared_device,
)
from placement_checks.rules.requirements import Need
from placement_checks.rules.source_lines import joining_ops
from placement_checks.util.text import plural, range_text


@dataclass(frozen=True)
class AveragingOnHost(Rule):
    """The gradients of the towers are combined on the declared device, /cpu:0 by default.

    If the GPU of one tower averages the gradients, all gradients travel to that GPU, which does
    this work in addition to its own, while the variables wait on the host.

    The rule judges the first ops that depend on gradients of several towers. If a program computes
    the gradients of one loss for all towers, TensorFlow adds them up in the backward pass, by
    default on the first tower's GPU.

    Sums that update only copies of mirrored variables are not judged: each GPU needs such a sum,
    on any device. If a model is split among GPUs, the gradients of a part may be added up on the
    GPU that has the part. Collective ops, such as NCCL's, combine gradients on no single device.

    `device` is a name or a list of names; a partial name such as /job:ps matches any task.
    """

    name = "averaging-on-host"
    kind = "assigned"
    requires = frozenset({Need.ASSIGNED, Need.TWO_TOWERS, Need.LOSSES_APART, Need.TRAINED})
    states = FactKind.AVERAGE_DEVICE
    intended = "gradients are averaged on this device, and all of them are copied to it"
    breaks_in_changes = True
    threads = ("tensorflow/models#2152: a review about the device of averages",)

    device: str | tuple[str, ...] = "/cpu:0"

    def __post_init__(self) -> None:
        devices_text(device_names(self.device))  # raises for a name that is not valid

    def check(self, evidence: Evidence) -> Verdict:
        placement = evidence.placement
        joining = _judged_ops(placement)
        if not joining:
            return self.not_checked(_no_op_reason(placement))
        names = device_names(self.device)
        findings = [
            self._finding(placement, op, assigned)
            for op in joining
            if (assigned := placement.by_number[op].assigned) and not is_on(assigned, names)
        ]
        if not findings and (no_gpus := Need.GPUS.missing(evidence)) is not None:
            return self.without(no_gpus)
        combine = "combines" if len(joining) == 1 else "combine"
        return self.verdict(findings, f"{plural(len(joining), 'op')} {combine} gradients")

    def intended_fields(self, evidence: Evidence, verdict: Verdict) -> Iterator[Fields]:
        """Yield the device that combines gradients."""
        yield from shared_device(evidence, verdict)

    def _finding(self, placement: Placement, number: OpId, assigned: Device) -> Finding:
        analysis = analyze(placement)
        op = placement.by_number[number]
        numbers = analysis.towers_in(gradient_flow(placement).gradient_towers[number])
        towers = range_text(str(analysis.towers[tower]) for tower in numbers)
        names = device_names(self.device)
        expected = devices_text(names)
        summary = (
            f"{op.name} ({op.type}) sits on {assigned.short}, not on {expected}, and "
            f"combines the gradients of the towers on {towers}"
        )
        return Finding(
            **about(op, "assigned"),
            placed=op.name,
            is_of_scope=True,
            group_key=(assigned, op.requested),
            path=path_lines(
                placement, [number, *gradient_flow(placement).gradient_inputs(number)]
            ),
            message=f"{summary}; it requests {requested_device(op)}",
            devices=(assigned,),
            consequence=f"these gradients travel to {assigned.short}, which combines them in "
            "addition to its other work",
            fix="compute a list of gradients per tower, and average the lists under "
            f"`with tf.device('{names[0]}'):`",
        )


def _judged_ops(placement: Placement) -> list[OpId]:
    """Return the ops that combine gradients on a single device.

    A sum on the GPU of the model part that it updates is left out.
    """
    layout, flow = variable_layout(placement), analyze(placement).flow
    by_device: dict[Device | None, list[Update]] = defaultdict(list)
    for variable, updates in gradient_flow(placement).trained.items():
        if variable not in layout.copies:
            by_device[layout.gpu_of.get(variable)] += updates
    return sorted(
        {
            op
            for device, updates in by_device.items()
            for op in joining_ops(placement, updates)
            if (assigned := placement.by_number[op].assigned)
            and not (device and assigned.matches(device))
            and flow.types[op] not in AMONG_DEVICES
        }
    )


def _no_op_reason(placement: Placement) -> str:
    if variable_layout(placement).mirrored:
        return (
            "each GPU applies the sum of the gradients to its own copy of the variables, and no "
            "single device combines them"
        )
    for collective in analyze(placement).flow.having(AMONG_DEVICES.__contains__):
        name = placement.by_number[collective].name
        return f"collective ops such as {name} combine the gradients on no single device"
    return "no op combines the gradients of the towers"
