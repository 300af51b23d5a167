from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from placement_checks.devices import Device
from placement_checks.placement import VARIABLE_TYPES, Placement
from placement_checks.rules.base import Finding, Rule, Verdict

_NO_COMPUTATION = VARIABLE_TYPES | {
    "Assign",
    "AssignVariableOp",
    "Const",
    "Identity",
    "IdentityN",
    "IsVariableInitialized",
    "NoOp",
    "Placeholder",
    "PlaceholderWithDefault",
    "ReadVariableOp",
    "VarIsInitializedOp",
}


@dataclass(frozen=True)
class NoIdleDevice(Rule):
    """Every GPU of the machine computes.

    A GPU on which only constants, placeholders, variables and copies sit does nothing in a step:
    the towers were all built for another one, or nothing was pinned and everything went to GPU 0.

    `idle` lists the GPUs that may do nothing; a partial name such as /job:evaluator matches any of
    its devices.
    """

    name = "no-idle-device"
    evidence = "assigned"

    idle: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in self.idle:
            Device.parse(name)

    def check(self, placement: Placement) -> Verdict:
        if unplaced := self.unplaced(placement):
            return unplaced
        gpus = placement.machine.gpus if placement.machine else ()
        excused = [Device.parse(name) for name in self.idle]
        gpus = tuple(gpu for gpu in gpus if not any(gpu.matches(each) for each in excused))
        if not gpus:
            return self.not_checked("no GPU of the machine has to compute")
        work = Counter(
            op.assigned
            for op in placement.ops.values()
            if op.assigned and op.type not in _NO_COMPUTATION
        )
        note = ", ".join(f"{gpu.short} computes with {_ops(work[gpu])}" for gpu in gpus[:8])
        more = f" and {len(gpus) - 8} more GPUs" if len(gpus) > 8 else ""
        busiest = max(gpus, key=lambda gpu: work[gpu])
        findings = [self._finding(gpu, busiest, work) for gpu in gpus if not work[gpu]]
        if placement.unlisted and not findings:
            return self.not_checked(placement.unlisted)
        return self.verdict(findings, note + more)

    def _finding(self, gpu: Device, busiest: Device, work: Counter[Device]) -> Finding:
        elsewhere = (
            f"{busiest.short} has {work[busiest]}" if work[busiest] else "no GPU computes at all"
        )
        return Finding(
            object=gpu.short,
            op="",
            evidence="assigned",
            expected="ops that compute",
            found="none",
            message=f"{gpu.short} computes nothing, {elsewhere}",
            cure=f"build a tower under tf.device('{gpu.short}'), or say how many GPUs the program "
            "is meant for (--gpus)",
        )


def _ops(number: int) -> str:
    return f"{number} op{'' if number == 1 else 's'}"
