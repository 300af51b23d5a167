from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from placement_checks.analysis.graph.updates import Update
from placement_checks.analysis.towers.analysis import analyse
from placement_checks.analysis.variables.gradient_flow import gradient_flow
from placement_checks.analysis.variables.layout import unshared, variable_layout
from placement_checks.core.devices import Device
from placement_checks.core.evidence import Evidence
from placement_checks.core.op_types import AMONG_DEVICES
from placement_checks.core.placement import Placement
from placement_checks.core.results import Finding, Verdict
from placement_checks.rules.base import Rule, device_line, path_lines, requested_device
from placement_checks.rules.requirements import Need
from placement_checks.rules.source_lines import joining_ops
from placement_checks.util.text import plural, range_text


@dataclass(frozen=True)
class AveragingOnHost(Rule):
    """The gradients of the towers are brought together on the device named.

    Averaged on one tower's GPU, all gradients travel to it and that GPU does the work of all,
    while the variables wait on the host.

    Gradients are brought together by the ops that first depend on more than one tower's. Where
    the gradients are taken of one loss of all towers, TensorFlow adds them up in the backward
    pass, on the first tower's GPU unless told otherwise.

    Sums that only copies of mirrored variables take are not judged: each GPU needs one, wherever
    it is made. The gradients of a part of a split model may be added up on the GPU that has the
    part. Collective ops, such as those of NCCL, bring gradients together on no device.

    `device` is a name or a list of names; a partial one such as /job:ps matches any task.
    """

    name = "averaging-on-host"
    kind = "assigned"
    requires = frozenset({Need.ASSIGNED, Need.TWO_TOWERS, Need.LOSSES_APART})
    explained_by = ("no-fallback",)

    device: str | tuple[str, ...] = "/cpu:0"

    def __post_init__(self) -> None:
        for name in self._names():
            Device.parse(name)

    def check(self, evidence: Evidence) -> Verdict:
        placement = evidence.placement
        analysis = analyse(placement)
        joining = list(_judged(placement))
        if any(analysis.backward.ops) and not gradient_flow(placement).trained:
            return self.not_checked(
                analysis.updates.unknown or "no variable is updated by a gradient"
            )
        if not joining:
            return self.not_checked(_why_none(placement))
        allowed = [Device.parse(name) for name in self._names()]
        findings = []
        for op in joining:
            assigned = placement.by_number[op].assigned
            if assigned and not any(assigned.matches(device) for device in allowed):
                findings.append(self._finding(placement, op, assigned))
        if not findings and (of_log := Need.GPUS.missing(evidence)) is not None:
            return self.without(of_log)
        bring = "brings" if len(joining) == 1 else "bring"
        return self.verdict(findings, f"{plural(len(joining), 'op')} {bring} gradients together")

    def _names(self) -> tuple[str, ...]:
        return (self.device,) if isinstance(self.device, str) else tuple(self.device)

    def _finding(self, placement: Placement, number: int, assigned: Device) -> Finding:
        analysis = analyse(placement)
        op = placement.by_number[number]
        numbers = analysis.towers_in(gradient_flow(placement).gradient_towers[number])
        towers = range_text(str(analysis.towers[tower]) for tower in numbers)
        expected = " or ".join(str(Device.parse(name)) for name in self._names())
        return Finding(
            object=op.name,
            op=op.type,
            evidence="assigned",
            expected=expected,
            found=assigned.short,
            placed=op.name,
            at=device_line(placement, op.name),
            alike=(assigned, op.requested),
            path=path_lines(
                placement, [number, *gradient_flow(placement).gradient_inputs(number)]
            ),
            message=f"{op.name} ({op.type}) brings the gradients of the towers on {towers} "
            f"together on {assigned.short}, not on {expected}; it asks for {requested_device(op)}",
            consequence=f"all gradients travel to {assigned.short}, which adds them up on top of "
            "what else it computes",
            fix=f"average under `with tf.device('{self._names()[0]}'):`, from one list of "
            "gradients per tower",
            follows="variables-shared" if _is_for_unshared(placement, number) else None,
        )


def _judged(placement: Placement) -> Iterator[int]:
    """The ops that bring gradients together, of which each is on a device of its own."""
    copies, flow = variable_layout(placement).copies, analyse(placement).flow
    by_device: dict[Device | None, list[Update]] = defaultdict(list)
    for variable, updates in gradient_flow(placement).trained.items():
        if variable not in copies:
            by_device[variable_layout(placement).gpu_of.get(variable)] += updates
    judged: set[int] = set()
    for device, updates in by_device.items():
        for op in joining_ops(placement, updates):
            assigned = placement.by_number[op].assigned
            at_part = assigned is not None and device is not None and assigned.matches(device)
            if assigned and not at_part and flow.types[op] not in AMONG_DEVICES:
                judged.add(op)
    yield from sorted(judged)


def _is_for_unshared(placement: Placement, op: int) -> bool:
    """Whether a sum is on the GPU of the tower whose own variables alone it updates."""
    gradients, assigned = gradient_flow(placement), placement.by_number[op].assigned
    return all(
        unshared(placement).is_on_own_tower(variable, assigned)
        for variable, updates in gradients.trained.items()
        if any(op in gradients.ancestors(update) for update in updates)
    )


def _why_none(placement: Placement) -> str:
    """Why there is no op to judge."""
    if variable_layout(placement).mirrored:
        return (
            "each GPU applies the sum of the gradients to its own copy of the variables, and no "
            "one device brings them together"
        )
    collective = next(iter(analyse(placement).flow.having(AMONG_DEVICES.__contains__)), None)
    if collective is not None:
        name = placement.by_number[collective].name
        return f"collective ops such as {name} bring the gradients together, on no device alone"
    return "no op that brings the gradients of the towers together was found"
