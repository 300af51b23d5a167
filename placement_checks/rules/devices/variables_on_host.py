from __future__ import annotations

from dataclasses import dataclass

from placement_checks.core.devices import Device
from placement_checks.core.errors import ConfigError
from placement_checks.core.evidence import Evidence
from placement_checks.core.machines import Machine
from placement_checks.core.missing import Missing
from placement_checks.core.op_types import RESOURCE_VARIABLES
from placement_checks.core.placement import Op, Placement
from placement_checks.core.results import Finding, Verdict
from placement_checks.rules.base import Rule, built_at, is_among, request_of
from placement_checks.rules.needs import Need
from placement_checks.util.text import plural

_DEVICE_FUNCTION = (
    "; a device function must send VarHandleOp there as well as Variable and VariableV2"
)


@dataclass(frozen=True)
class VariablesOnHost(Rule):
    """Every variable sits on the device named, /cpu:0 by default.

    Towers that share variables read them from the host; a variable on one GPU is copied from that
    GPU to all others in every step, and fills its memory. The usual causes are a variable made
    inside a tower's device scope, a layer that ignores the scope around it, and a device function
    that knows only the ref variable ops (Variable, VariableV2) and not VarHandleOp.

    A variable that asks for no device is a finding too, wherever it ends: the next machine may put
    it elsewhere. One that asks only for a job is judged by where it was put.

    `device` is a device or a list of allowed ones; a partial name such as /job:ps or /cpu:0
    matches any task. In a cluster /job:ps/cpu:0 says more than /cpu:0, which every task has.
    `allow` lists variables, or patterns such as table/part_*, that may sit anywhere.
    """

    name = "variables-on-host"
    kind = "assigned"
    requires = frozenset({Need.ASSIGNED})

    device: str | tuple[str, ...] = "/cpu:0"
    allow: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self._names() or not all(Device.parse(name) for name in self._names()):
            raise ConfigError("device", "names no device", "give one, such as /cpu:0")

    def check(self, evidence: Evidence) -> Verdict:
        placement = evidence.placement
        machine = placement.machine
        allowed = [Device.parse(name) for name in self._names()]
        if (
            machine is not None
            and not machine.gpus
            and (machine.is_local or _only_allowed_devices(machine, allowed))
        ):
            no_gpu = Missing(f"the machine ({machine}) has no GPU, so every op is on a CPU")
            of_log = Need.GPUS.missing(evidence)
            return self.without(no_gpu if of_log is None else of_log)
        ops = (placement.ops[variable.name] for variable in placement.variables)
        placed = [op for op in ops if op.assigned]
        if not placed:
            return self.not_checked(_why_none(placement))
        findings = []
        for op in placed:
            if op.assigned is None or is_among(op.name, self.allow):
                continue
            if not any(op.assigned.matches(device) for device in allowed):
                findings.append(self._misplaced(placement, op))
            elif not (op.requested or op.colocated or not placement.requested):
                findings.append(self._without_request(placement, op))
        unnamed = len(placement.variables) - len(placed)
        more = f", and {unnamed} that the log does not name" if unnamed else ""
        return self.verdict(findings, note=plural(len(placed), "variable") + more)

    def _names(self) -> tuple[str, ...]:
        return (self.device,) if isinstance(self.device, str) else tuple(self.device)

    def _expected(self) -> str:
        return " or ".join(str(Device.parse(name)) for name in self._names())

    def _misplaced(self, placement: Placement, op: Op) -> Finding:
        found = op.assigned.short if op.assigned else ""
        asks = "" if not placement.requested else f"; it asks for {request_of(op)}"
        return Finding(
            object=op.name,
            op=op.type,
            evidence="assigned",
            expected=self._expected(),
            found=found,
            where=placement.where(op.name),
            message=f"variable {op.name} sits on {found}, not on {self._expected()}{asks}"
            f"{built_at(placement, op.name)}",
            fix=self._fix(placement, op.type),
        )

    def _fix(self, placement: Placement, kind: str = "") -> str:
        wanted = Device.parse(self._names()[0])
        if placement.machine is not None and (lacking := placement.machine.lacks(wanted)):
            return f"the rule {lacking}; {placement.machine.fix_for(wanted)}"
        also = _DEVICE_FUNCTION if kind in RESOURCE_VARIABLES else ""
        return f"create it under tf.device('{self._names()[0]}'){also}"

    def _without_request(self, placement: Placement, op: Op) -> Finding:
        found = op.assigned.short if op.assigned else ""
        return Finding(
            object=op.name,
            op=op.type,
            evidence="requested",
            expected=self._expected(),
            found="no device",
            where=placement.where(op.name),
            message=f"variable {op.name} asks for no device; the placer chose {found} on this "
            f"machine and may choose another elsewhere{built_at(placement, op.name)}",
            fix=self._fix(placement),
        )


def _only_allowed_devices(machine: Machine, allowed: list[Device]) -> bool:
    """Whether a variable can only be where it is allowed to be."""
    return all(any(device.matches(name) for name in allowed) for device in machine.devices)


def _why_none(placement: Placement) -> str:
    """Why there is no variable to judge."""
    if placement.variables:
        by = "named in the log" if placement.placer == "log" else "placed"
        return f"none of the graph's variables is {by}"
    if not placement.requested and not any(op.type for op in placement.ops.values()):
        return "logs of TensorFlow before 0.12 have no op types; give the program with --graph"
    return "the log names no variable" if not placement.requested else "the graph has no variables"
