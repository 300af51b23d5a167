from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from placement_checks.analysis.gradient_flow import gradient_flow
from placement_checks.analysis.tower_analysis import analyse
from placement_checks.core.devices import Device
from placement_checks.core.evidence import Evidence
from placement_checks.core.placement import Placement
from placement_checks.core.results import Finding, Verdict
from placement_checks.rules.base import Rule, built_at, request_of, steps
from placement_checks.rules.needs import Need
from placement_checks.util.text import joined, plural


@dataclass(frozen=True)
class AveragingOnHost(Rule):
    """The gradients of the towers are brought together on the device named.

    Averaged on one tower's GPU, all gradients travel to it and that GPU does the work of all,
    while the variables wait on the host.

    Gradients are brought together by the ops that first depend on more than one tower's. Where
    the gradients are taken of one loss of all towers, TensorFlow adds them up in the backward
    pass, on the first tower's GPU unless told otherwise.

    `device` is a name or a list of names; a partial one such as /job:ps matches any task.
    """

    name = "averaging-on-host"
    kind = "assigned"
    requires = frozenset({Need.ASSIGNED, Need.TWO_TOWERS, Need.LOSSES_APART})

    device: str | tuple[str, ...] = "/cpu:0"

    def __post_init__(self) -> None:
        for name in self._names():
            Device.parse(name)

    def check(self, evidence: Evidence) -> Verdict:
        placement = evidence.placement
        analysis = analyse(placement)
        joining = [op for op in _joining_ops(placement) if placement.by_number[op].assigned]
        if any(analysis.backward.ops) and not gradient_flow(placement).trained:
            return self.not_checked(
                analysis.updates.unknown or "no variable is updated by a gradient"
            )
        if not joining:
            return self.not_checked(
                "no op that brings the gradients of the towers together was found"
            )
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
        towers = joined(analysis.towers[tower] for tower in numbers)
        expected = " or ".join(str(Device.parse(name)) for name in self._names())
        return Finding(
            object=op.name,
            op=op.type,
            evidence="assigned",
            expected=expected,
            found=assigned.short,
            where=placement.where(op.name),
            path=steps(placement, [number, *gradient_flow(placement).taken(number)]),
            message=f"{op.name} ({op.type}) brings the gradients of the towers on {towers} "
            f"together on {assigned.short}, not on {expected}; it asks for {request_of(op)}"
            f"{built_at(placement, op.name)}",
            fix=f"average under tf.device('{self._names()[0]}'), from one list of gradients per "
            "tower",
        )


def _joining_ops(placement: Placement) -> Iterator[int]:
    """The ops on the way to an update that first take the gradients of more than one tower."""
    analysis, gradients = analyse(placement), gradient_flow(placement)
    between = {
        op
        for updates in gradients.trained.values()
        for update in updates
        for op in gradients.ancestors(update)
    }
    for op in sorted(between):
        taken = [
            gradients.gradient_towers[gradient] & analysis.all_towers
            for gradient in gradients.taken(op)
        ]
        towers = 0
        for bits in taken:
            towers |= bits
        if towers and towers not in taken:
            yield op
