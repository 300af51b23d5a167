from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from placement_checks.core.devices import Device
from placement_checks.core.evidence import Evidence
from placement_checks.core.facts import FactKind
from placement_checks.core.impact import Impact
from placement_checks.core.op_types import VARIABLES
from placement_checks.core.placement import (
    Op,
    Placement,
    Refusal,
    most_refusals,
    producer_of,
)
from placement_checks.core.results import Finding, PathStep, Verdict
from placement_checks.rules.base import Rule, about, requested_device
from placement_checks.rules.requirements import Need

_SUPPORTED = re.compile(r"\w+: (?:[A-Z_]+ )+")  # VariableV2: GPU CPU
_DEVICE = re.compile(r"'/\S+'")  # '/device:GPU:0', which differs between towers
_NODE = re.compile(r"\{\{(?:colocation_)?node (\S+?)\}\}")  # {{colocation_node step}}
_COLOCATED = re.compile(r"Cannot colocate nodes (\S+) and (\S+): (.*)")
_MEMBER = re.compile(r"  (\S+) \(\w+\).*")  # two spaces, then: step (VariableV2) /device:GPU:0

_SOFT = "allow soft placement (allow_soft_placement=True, --soft)"


@dataclass(frozen=True)
class Placeable(Rule):
    """The placer can place every op on the device that the program requests.

    Without soft placement TensorFlow refuses a graph if an op has no kernel for its requested
    device, requests a device that the machine lacks, or is bound to an op on another device. The
    finding quotes the placer's own reason. If ops are bound to a lookup in a variable on another
    device, such as the gradients of the lookup, the lookup is at fault. With soft placement
    TensorFlow refuses only ops that no device can run; no-fallback reports the ops that soft
    placement moves.
    """

    name = "placeable"
    kind = "assigned"
    impact = Impact.EXECUTION
    states = FactKind.UNPLACEABLE
    requires = frozenset({Need.PLACER})
    threads = (
        "tensorflow/tensorflow#2292: the MNIST tutorial pinned to a GPU is refused",
        "tensorflow/tensorflow#22476: a scalar summary under a GPU has no kernel there",
        "tensorflow/models#5522: a slot is refused since one op of its group has no GPU kernel",
    )

    def headline(self, findings: Sequence[Finding]) -> str:
        """Count the ops, since the message of the placer is long."""
        if len(findings) == 1:
            return ""
        first = findings[0]
        return (
            f"{len(findings)} ops cannot be placed, and no step runs: the first is {first.object} "
            f"({first.op})"
        )

    def check(self, evidence: Evidence) -> Verdict:
        placement = evidence.placement
        may_be_more = len(placement.refusals) >= most_refusals(placement.machine)
        return self.verdict(
            [_finding(placement, refusal) for refusal in placement.refusals],
            "the placer names one op at a time; further ops may fail" if may_be_more else None,
        )


def _finding(placement: Placement, refusal: Refusal) -> Finding:
    op = placement.ops.get(refusal.op)
    first, *rest = refusal.message.splitlines() or ["the placer gives no reason"]
    reason = _NODE.sub(r"\1", first).removeprefix(
        f"Cannot assign a device for operation {refusal.op}: "
    )
    what, at_fault, kind = reason, refusal.op, op.type if op else ""
    fix = _fix(placement, op, rest)
    colocated = _COLOCATED.fullmatch(reason)
    if colocated and (variable := _variable_of(placement, colocated[2])):
        at_fault, kind = colocated[2], placement.ops[colocated[2]].type
        what = (
            f"it is colocated with {at_fault} ({kind}), which belongs on the device of "
            f"{variable}: {colocated[3]}"
        )
        fix = (
            f"build the lookup in {variable} on the device of {variable}, such as "
            f"`with tf.device('/cpu:0'):`, or {_SOFT}"
        )
        reason = colocated[3]
    return Finding(
        **about(op or refusal.op or placement.program, "assigned"),
        ops=(at_fault,),
        placed=refusal.op,
        group_key=op.requested
        if op and placement.machine and not placement.machine.has(op.requested)
        else (kind, _DEVICE.sub("", reason)),
        path=tuple(
            PathStep(line.strip(), member[1] if member else "")
            for line in rest
            if (member := _MEMBER.fullmatch(line)) or _SUPPORTED.fullmatch(line)
        ),
        message=f"{refusal.op or 'the graph'} cannot be placed: {what}",
        devices=(op.requested,) if op else (),
        consequence="the session refuses the graph, and no step runs",
        fix=fix,
    )


def _variable_of(placement: Placement, lookup: str) -> str | None:
    """Return the variable that an op reads rows of; None if it is no such op."""
    inputs = placement.ops[lookup].inputs if lookup in placement.ops else ()
    source = producer_of(inputs[0]) if inputs else ""
    is_variable = source in placement.ops and placement.ops[source].type in VARIABLES
    return source if is_variable else None


def _fix(placement: Placement, op: Op | None, group: Sequence[str]) -> str:
    if op and placement.machine and placement.machine.lacks(op.requested):
        return placement.machine.fix_for(op.requested)
    if server := _task_without_gpu(placement, op, group):
        return (
            f"{server} has no GPU, but a device scope or device function adds a GPU to the "
            "requested device: "
            f"pass ps_device='/job:{server.job}/cpu:0' to replica_device_setter, or {_SOFT}"
        )
    if op and placement.machine and placement.machine.hides(op.requested):
        return (
            f"remove {placement.machine.hidden_by}, which hides {requested_device(op)} from the "
            "program"
        )
    if op and placement.machine and not placement.machine.has(op.requested):
        return (
            f"the machine ({placement.machine}) has no {requested_device(op)}: correct the index "
            "of the device, or add devices (--gpus, --machine)"
        )
    if placement.soft or op is None:
        return "request one device for all ops that share this variable or resource"
    if not op.requested.is_gpu:
        return f"request one device for all ops that are colocated with it, or {_SOFT}"
    return f"build it under `with tf.device('/cpu:0'):`, or {_SOFT}"


def _task_without_gpu(placement: Placement, op: Op | None, group: Sequence[str]) -> Device | None:
    """Return the task without GPUs on which an op, or an op bound to it, requests a GPU.

    If there is such a task, the index of the GPU is correct: the program merged the device of a
    worker into the device of a server. The result is None if there is no such task, or if no task
    has GPUs.
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
