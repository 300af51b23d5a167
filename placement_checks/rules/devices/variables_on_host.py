from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from placement_checks.analysis.graph.analysis import is_local
from placement_checks.analysis.towers.analysis import analyze
from placement_checks.analysis.variables.roles import roles
from placement_checks.core.devices import Device
from placement_checks.core.errors import ConfigError
from placement_checks.core.evidence import Evidence
from placement_checks.core.facts import Fact, FactKind
from placement_checks.core.op_types import RESOURCE_VARIABLES
from placement_checks.core.placement import Op, Placement
from placement_checks.core.results import Finding, Verdict
from placement_checks.rules.base import (
    BEFORE_STEP,
    Fields,
    Rule,
    about,
    device_names,
    devices_text,
    is_on,
    matches_any,
    requested_device,
    shared_device,
)
from placement_checks.rules.requirements import Need
from placement_checks.rules.source_lines import blame_creation, device_line
from placement_checks.util.text import join_and, plural

_DEVICE_FUNCTION = (
    "; a device function must return this device for VarHandleOp too, not only for Variable and "
    "VariableV2"
)
_KINDS = "('VarHandleOp', 'Variable', 'VariableV2')"


@dataclass(frozen=True)
class VariablesOnHost(Rule):
    """Every variable sits on the declared device, /cpu:0 by default.

    Towers that share variables read them from the host. If a variable is on a GPU, every step
    copies it from that GPU to all other GPUs, and the variable takes memory of that GPU. The usual
    causes are a variable created inside a tower's device scope, a layer that ignores the scope
    around it, and a device function that knows only the ref variable ops (Variable, VariableV2)
    and not VarHandleOp.

    A variable that requests no device is a finding on any device, since the placer may choose
    another device on another machine. The exception is an int32 step counter, which TensorFlow
    updates only on the CPU. A variable that requests only a job is judged by its assigned device.

    The role of a variable (docs/roles.md) may allow a GPU as well. A copy of a mirrored variable,
    its slots and statistics, an accumulator and cached inputs may be on the GPU of their tower. A
    part of a model that is split among GPUs, such as an expert or the shard of a table, and its
    slots, may be on the only GPU that computes with it.

    A scalar that is created outside the scope of a strategy, such as the learning rate of an
    optimizer, may be on the GPU of a replica; created-in-scope reports trained variables.

    If get_variable creates separate variables for each tower and no sum of gradients makes them
    copies, variables-shared reports the root cause, and their devices follow from it. If no op
    requests a GPU and other GPUs are idle, no-idle-device reports the root cause.

    `device` is a device or a list of allowed devices; a partial name such as /job:ps or /cpu:0
    matches any task. In a cluster /job:ps/cpu:0 is more specific than /cpu:0, which every task
    has. `local` lists other devices for local variables, which are in neither of the collections
    TRAINABLE_VARIABLES and GLOBAL_VARIABLES. `allow` lists variables, or patterns such as
    table/part_*, that may be on any device.
    """

    name = "variables-on-host"
    kind = "assigned"
    requires = frozenset({Need.ASSIGNED})
    states = FactKind.VARIABLE_DEVICE
    intended = "variables are on this device, and other GPUs read them from it in each step"
    breaks_in_changes = True
    threads = (
        "tflearn/tflearn#459: variables sit on GPU 0 despite a CPU scope",
        "tensorflow/tensorflow#5390: the same with one of two versions of slim",
        "tensorflow/tensorflow#9517: layers have no argument for the device of variables",
    )

    device: str | tuple[str, ...] = "/cpu:0"
    allow: tuple[str, ...] = ()
    local: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        devices = device_names(self.device) or ("",)
        for field, names in (("device", devices), ("local", self.local)):
            if not all(map(Device.parse, names)):
                raise ConfigError(
                    field, "names no device", "name one, such as /cpu:0", is_predicate=True
                )

    def check(self, evidence: Evidence) -> Verdict:
        placement = evidence.placement
        machine, names = placement.machine, device_names(self.device)
        if (
            machine is not None
            and not machine.gpus
            and (machine.is_local or all(is_on(device, names) for device in machine.devices))
        ):
            if (log_of_cpus := Need.GPUS.missing(evidence)) is not None:
                return self.without(log_of_cpus)
            return self.not_checked(f"the machine ({machine}) has no GPU, so every op is on a CPU")
        ops = (placement.ops[variable.name] for variable in placement.variables)
        placed = [op for op in ops if op.assigned]
        if not placed:
            return self.not_checked(_no_variable_reason(placement))
        findings = []
        for op in placed:
            if op.assigned is None or matches_any(op.name, self.allow):
                continue
            is_local_variable = bool(self.local) and is_local(placement, op.name)
            setting = "local" if is_local_variable else "device"
            names = self.local if is_local_variable else device_names(self.device)
            if not is_on(op.assigned, names):
                of_role = _role_devices(placement, op.name, local=is_local_variable)
                names = (*names, *(device.short for device in of_role))
            if not is_on(op.assigned, names):
                findings.append(_misplaced(placement, op, names, setting))
            elif not (
                op.requested
                or op.colocated
                or not placement.requested
                or (op.assigned.type == "CPU" and roles(placement).stays_on_cpu(op.name))
            ):
                findings.append(_without_request(placement, op, names, setting))
        unnamed = len(placement.variables) - len(placed)
        more = f", and {unnamed} that the log does not name" if unnamed else ""
        return self.verdict(findings, note=plural(len(placed), "variable") + more)

    def intended_fields(self, evidence: Evidence, verdict: Verdict) -> Iterator[Fields]:
        """Yield the device of the variables."""
        yield from shared_device(evidence, verdict)

    def headline(self, findings: Sequence[Finding]) -> str:
        """Count the variables on each device."""
        places = Counter(finding.devices for finding in findings)
        if len(findings) == 1 or any(each.evidence != "assigned" for each in findings):
            return ""
        on = join_and(
            f"{devices[0].short} ({number})" if len(places) > 1 else devices[0].short
            for devices, number in places.items()
        )
        expected = devices_text(device_names(self.device))
        return f"{len(findings)} variables are on {on}, not on {expected}"


def _role_devices(placement: Placement, variable: str, *, local: bool) -> Sequence[Device]:
    """Return the GPUs that the strategy or the role of a variable allows in addition."""
    strategy = placement.strategy
    if strategy is not None and (device := strategy.device_of(variable)) is not None:
        return (device,)
    if strategy is not None and variable in strategy.outside:
        is_scalar = analyze(placement).shapes[variable] == ()
        if is_scalar:
            return strategy.replicas
    return roles(placement)[variable].devices if placement.requested and not local else ()


def _misplaced(placement: Placement, op: Op, names: Sequence[str], setting: str) -> Finding:
    assert op.assigned is not None
    found = op.assigned.short
    readers = analyze(placement).reads_by_site.readers.get(op.name, ())
    request = ""
    if placement.requested:
        request = f"; it requests {requested_device(op)}"
        if op.colocated:
            request = f"; it is colocated with {op.colocated[0]}"
    return Finding(
        **about(op, "assigned"),
        placed=_decided_by(op),
        against=tuple(map(analyze(placement).flow.names.__getitem__, readers)),
        frames=() if placement.strategy is None else blame_creation(placement, op.name),
        group_key=(op.assigned.job, op.assigned.type),
        message=f"variable {op.name} sits on {found}, not on {devices_text(names)}{request}",
        devices=(op.assigned,),
        consequence=_consequence(placement, op),
        fix=_fix(placement, op, names[0], setting),
        may_follow=_causes(placement, op),
    )


def _fix(placement: Placement, op: Op, name: str, setting: str) -> str:
    wanted = Device.parse(name)
    if placement.machine is not None and (lacking := placement.machine.lacking(wanted)):
        fix = placement.machine.fix_for(wanted)
        return f"variables-on-host.{setting} is {name}, but {lacking}; {fix}"
    strategy = placement.strategy
    if strategy is not None and op.name not in strategy.outside:
        is_central = "CentralStorage" in strategy.name
        devices = (placement.ops[each.name].assigned for each in placement.variables)
        if is_central and any(device and device.matches(wanted) for device in devices):
            return f"create it {BEFORE_STEP}"  # a replica has created it
        which = f", parameter_device='{name}'" if is_central else ""
        return f"let the strategy keep it there: {strategy.name}(gpus{which})"
    if strategy is not None and "CentralStorage" not in strategy.name:
        return "create it under `with strategy.scope():`"
    decided = device_line(placement, _decided_by(op))
    if decided is not None and decided.function:
        named = "" if decided.function.startswith("<") else f" {decided.function}"
        return (
            f"let the device function{named} return '{name}' for every type of variable op: "
            f"op.type in {_KINDS}"
        )
    # If the line is unknown, the cause may be a device function written for ref variables. Eager
    # code has no device functions.
    asks = op.requested or not placement.requested
    may_be_function = decided is None and asks and not op.colocated and not placement.step.traced
    also = _DEVICE_FUNCTION if may_be_function and op.type in RESOURCE_VARIABLES else ""
    return f"create it under `with tf.device('{name}'):`{also}"


def _without_request(placement: Placement, op: Op, names: Sequence[str], setting: str) -> Finding:
    found = op.assigned.short if op.assigned else ""
    return Finding(
        **about(op),
        message=f"variable {op.name} requests no device; the placer chose {found} on this "
        f"machine and may choose another device on other machines",
        devices=(op.assigned,) if op.assigned else (),
        fix=_fix(placement, op, names[0], setting),
        may_follow=_causes(placement, op),
    )


def _causes(placement: Placement, op: Op) -> tuple[Fact, ...]:
    """Return the facts on other objects that explain the device of a variable.

    A variable is on a GPU because of an idle GPU if no op of the program requests a GPU. Separate
    variables of each tower explain no device: shared variables need the host, too.
    """
    is_on_gpu = op.assigned is not None and op.assigned.is_gpu
    asks = not placement.requested or any(kind.requested.is_gpu for kind in placement.kinds)
    return (Fact(FactKind.IDLE),) if is_on_gpu and not asks else ()


def _decided_by(op: Op) -> str:
    """Return the op that decides the device of a variable, such as the variable of a slot."""
    return op.colocated[0] if op.colocated else op.name


def _consequence(placement: Placement, op: Op) -> str:
    """Return the cost of a variable on a GPU, if other GPUs read it."""
    if op.assigned is None or not op.assigned.is_gpu or not placement.requested:
        return ""
    readers = analyze(placement).reads_by_site.readers.get(op.name, ())
    gpus = {placement.by_number[reader].assigned for reader in readers}
    others = sum(device is not None and device.is_gpu for device in gpus - {op.assigned})
    if not others:
        return ""
    return (
        f"it takes memory of {op.assigned.short}, and every step copies it to "
        f"{plural(others, 'other GPU')}"
    )


def _no_variable_reason(placement: Placement) -> str:
    if placement.variables:
        state = "in the log" if placement.placer == "log" else "placed"
        return f"no variable of the graph is {state}"
    if not placement.requested and not any(op.type for op in placement.ops.values()):
        return "logs of TensorFlow before 0.12 have no op types; pass the program with --graph"
    return "the log names no variable" if not placement.requested else "the graph has no variables"
