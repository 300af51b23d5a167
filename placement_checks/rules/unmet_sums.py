"""Findings on sums over replicas that some replicas never join."""

from __future__ import annotations

from collections.abc import Iterator

from placement_checks.analysis.collectives import Meeting, meetings
from placement_checks.core.devices import Device
from placement_checks.core.op_types import COLLECTIVE_REDUCE
from placement_checks.core.placement import Placement, Tensor
from placement_checks.core.results import Finding
from placement_checks.core.strategies import Strategy
from placement_checks.rules.base import request_of
from placement_checks.util.text import joined, plural


def unmet_sums(placement: Placement, strategy: Strategy) -> Iterator[Finding]:
    """A finding for each sum that waits for replicas which do not come, or brings other shapes.

    Nothing is told of a worker alone, whose sums the others join.
    """
    if not strategy.is_whole:
        return
    for meeting in meetings(placement):
        if len(meeting.members) < meeting.size:
            yield _waiting(placement, strategy, meeting)
        elif not meeting.is_complete:
            yield _unequal(placement, meeting)


def _waiting(placement: Placement, strategy: Strategy, meeting: Meeting) -> Finding:
    name, *_ = meeting.members
    devices = [placement.ops[member].requested for member in meeting.members]
    others = [device for device in strategy.replicas if not _among(device, devices)]
    come = joined(dict.fromkeys(device.short for device in devices))
    left = joined(device.short for device in others)
    return Finding(
        object=name,
        op=placement.ops[name].type,
        evidence="requested",
        expected=plural(meeting.size, "replica"),
        found=str(len(meeting.members)),
        ops=tuple(meeting.members),
        message=f"{_what(placement, name)} {name} waits for {plural(meeting.size, 'replica')}, "
        f"and only {come} {'joins' if len(meeting.members) == 1 else 'join'} it"
        + (f", not {left}" if left else ""),
        consequence="the step never ends",
        fix="let every worker take the same step; what only the chief does, it does with the "
        "result",
        alike=("waits", tuple(devices)),
    )


def _unequal(placement: Placement, meeting: Meeting) -> Finding:
    name, *_ = meeting.members
    brought = [
        f"{_told(value)} from {request_of(placement.ops[member])}"
        for member, value in zip(meeting.members, meeting.values, strict=True)
    ]
    return Finding(
        object=name,
        op=placement.ops[name].type,
        evidence="requested",
        expected="one shape",
        found=joined(brought),
        ops=tuple(meeting.members),
        message=f"{_what(placement, name)} {name} is given {joined(brought)}",
        consequence="the step fails, or never ends",
        fix="build the same model in every worker",
        alike="other shapes",
    )


def _among(replica: Device, devices: list[Device]) -> bool:
    return any(replica.matches(device) for device in devices)


def _what(placement: Placement, name: str) -> str:
    return "the sum" if placement.ops[name].type == COLLECTIVE_REDUCE else "the gathering"


def _told(value: Tensor | None) -> str:
    if value is None or value.shape is None:
        return "values of unknown shape"
    shape = ", ".join("?" if size is None else str(size) for size in value.shape)
    return f"{value.dtype} [{shape}]"
