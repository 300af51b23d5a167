from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from placement_checks.analysis.gradient_flow import gradient_flow
from placement_checks.analysis.tower_analysis import analyse
from placement_checks.core.devices import Device
from placement_checks.core.evidence import Evidence
from placement_checks.core.placement import Placement
from placement_checks.core.results import Finding, Verdict
from placement_checks.rules.base import Rule, asked_for, built_at, steps
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
        known = analyse(placement)
        meetings = [op for op in _meetings(placement) if known.ops[op].assigned]
        if any(known.backward.ops) and not gradient_flow(placement).trained:
            return self.not_checked(
                known.updates.unknown or "no variable is updated by a gradient"
            )
        if not meetings:
            return self.not_checked("no op is seen to bring the gradients of the towers together")
        allowed = [Device.parse(name) for name in self._names()]
        findings = []
        for op in meetings:
            assigned = known.ops[op].assigned
            if assigned and not any(assigned.matches(each) for each in allowed):
                findings.append(self._finding(placement, op, assigned))
        return self.verdict(findings, f"in {plural(len(meetings), 'op')}")

    def _names(self) -> tuple[str, ...]:
        return (self.device,) if isinstance(self.device, str) else tuple(self.device)

    def _finding(self, placement: Placement, number: int, found: Device) -> Finding:
        known = analyse(placement)
        op = known.ops[number]
        met = known.towers_in(gradient_flow(placement).gradient_towers[number])
        towers = joined(known.towers[each] for each in met)
        expected = " or ".join(str(Device.parse(name)) for name in self._names())
        return Finding(
            object=op.name,
            op=op.type,
            evidence="assigned",
            expected=expected,
            found=found.short,
            where=placement.where(op.name),
            path=steps(placement, [number, *_sides(placement, number)]),
            message=f"{op.name} ({op.type}) brings the gradients of the towers on {towers} "
            f"together on {found.short}, not on {expected}; it asks for {asked_for(op)}"
            f"{built_at(placement, op.name)}",
            fix=f"average under tf.device('{self._names()[0]}'), from one list of gradients per "
            "tower",
        )


def _meetings(placement: Placement) -> Iterator[int]:
    """The ops on the way to an update in which the gradients of towers first meet."""
    known, given = analyse(placement), gradient_flow(placement)
    between = {
        op
        for updates in given.trained.values()
        for each in updates
        for op in given.ancestors(each)
    }
    for op in sorted(between):
        sides = [given.gradient_towers[each] & known.all_towers for each in _sides(placement, op)]
        union = 0
        for side in sides:
            union |= side
        if union and union not in sides:
            yield op


def _sides(placement: Placement, op: int) -> list[int]:
    """The gradients that an op takes."""
    known, near = analyse(placement), gradient_flow(placement).gradient_towers
    return [each for each in known.flow.inputs[op] if near[each] & known.gradient]
