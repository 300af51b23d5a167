from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace

from placement_checks.core.devices import Device
from placement_checks.core.evidence import Evidence
from placement_checks.core.placement import MAX_REFUSALS, Op, Placement, Refusal
from placement_checks.core.results import Finding, Verdict
from placement_checks.rules.base import Rule, requested_device
from placement_checks.rules.requirements import Need

_SUPPORTED = re.compile(r"\w+: (?:[A-Z_]+ )+")  # VariableV2: GPU CPU
_DEVICE = re.compile(r"'/\S+'")  # '/device:GPU:0', which a tower has another of
_MEMBER = re.compile(r"  (\S+) \(\w+\).*")  # two spaces, then: step (VariableV2) /device:GPU:0


@dataclass(frozen=True)
class Placeable(Rule):
    """The placer can place every op where the program asks for it.

    Without soft placement TensorFlow refuses a graph with an op that has no kernel for the device
    it is pinned to, that asks for a device the machine lacks, or that is bound to an op elsewhere.
    The reason given is the placer's own. With soft placement only what cannot be placed anywhere
    is refused; what was moved then is reported by no-fallback.
    """

    name = "placeable"
    kind = "assigned"
    requires = frozenset({Need.PLACER})

    def check(self, evidence: Evidence) -> Verdict:
        placement = evidence.placement
        may_be_more = len(placement.refusals) >= MAX_REFUSALS
        return self.verdict(
            [_finding(placement, refusal) for refusal in placement.refusals],
            "the placer names one op at a time, and there may be more" if may_be_more else None,
        )


def _finding(placement: Placement, refusal: Refusal) -> Finding:
    op = placement.ops.get(refusal.op)
    requested = requested_device(op) if op else "?"
    first, *rest = refusal.message.splitlines() or ["the placer gives no reason"]
    reason = first.removeprefix(f"Cannot assign a device for operation {refusal.op}: ")
    return Finding(
        object=refusal.op or placement.program,
        op=op.type if op else "",
        evidence="assigned",
        expected=requested,
        found="refused by the placer",
        ops=(refusal.op,),
        placed=refusal.op,
        alike=_kind(placement, op, reason),
        path=tuple(_group(rest)),
        message=f"{refusal.op or 'the graph'} cannot be placed: {reason}",
        consequence="the session refuses the graph, and no step runs",
        fix=_fix(placement, op, rest),
    )


def _kind(placement: Placement, op: Op | None, reason: str) -> Hashable:
    """Why an op was refused: a device that is not there, or else the placer's reason and type."""
    if op and placement.machine and not placement.machine.has(op.requested):
        return op.requested
    return op.type if op else "", _DEVICE.sub("", reason)


def _group(lines: Sequence[str]) -> Iterator[str]:
    """What the placer says of the colocation group: supported devices by type, and members."""
    for line in lines:
        if _SUPPORTED.fullmatch(line) or _MEMBER.fullmatch(line):
            yield line.strip()


def _fix(placement: Placement, op: Op | None, group: Sequence[str]) -> str:
    if op and placement.machine and placement.machine.lacks(op.requested):
        return placement.machine.fix_for(op.requested)
    if server := _task_without_gpu(placement, op, group):
        return (
            f"{server} has no GPU, and a device scope or device function around it names one: "
            f"give replica_device_setter ps_device='/job:{server.job}/cpu:0', or allow soft "
            "placement (allow_soft_placement=True, --soft)"
        )
    if op and placement.machine and not placement.machine.has(op.requested):
        return (
            f"{placement.machine} has no {requested_device(op)}: correct the index, or give more "
            "devices (--gpus, --machine)"
        )
    if placement.soft or op is None:
        return "ask for one device for all ops that share this variable or resource"
    soft = "or allow soft placement (allow_soft_placement=True, --soft)"
    if not op.requested.is_gpu:
        return f"let all ops that are bound to it ask for one device, {soft}"
    return f"build it under `with tf.device('/cpu:0'):`, {soft}"


def _task_without_gpu(placement: Placement, op: Op | None, group: Sequence[str]) -> Device | None:
    """The task without GPUs whose GPU an op, or one bound to it, requests, where others have some.

    The index is not wrong then: the device of a worker was merged into that of a server.
    """
    machine = placement.machine
    if machine is None or not machine.gpus or placement.soft:
        return None
    bound = (placement.ops.get(match[1]) for line in group if (match := _MEMBER.fullmatch(line)))
    for member in (op, *bound):
        if member and member.requested.is_gpu and member.requested.job:
            task = member.requested.task_device
            if not machine.lacks(task) and not machine.has(replace(task, type="GPU")):
                return task
    return None
