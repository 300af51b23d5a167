from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from placement_checks.core.devices import Device
from placement_checks.core.evidence import Evidence
from placement_checks.core.facts import FactKind
from placement_checks.core.machines import Machine
from placement_checks.core.op_types import (
    CALLS,
    COLLECTIVE_GATHER,
    COLLECTIVE_REDUCE,
    CUT,
    FOR_PEOPLE,
    LOOPS,
    PASSES_HANDLE,
    SAVERS,
    SWITCHES,
    VARIABLES,
    holds_state,
)
from placement_checks.core.placement import Op, Placement, producer_of
from placement_checks.core.results import Finding, PathStep, Verdict
from placement_checks.rules.base import Rule, about, is_allowed, requested_device
from placement_checks.rules.requirements import Need
from placement_checks.util.text import join_and, plural


@dataclass(frozen=True)
class NoFallback(Rule):
    """No op that requests a GPU is placed on a CPU, or on another GPU because its GPU is missing.

    Soft placement moves such ops silently. Each finding states the reason: the op has no GPU
    kernel, its GPU kernel does not support the type, or the device does not exist. If further ops
    are bound to a moved op, by colocation or by a reference, the finding lists these ops.

    Ops that request a GPU which a setting of the program hides, such as CUDA_VISIBLE_DEVICES, are
    one finding for each GPU.

    Not findings: ops in an inner /cpu:0 scope; ops that only follow a variable or another resource
    that requests the host, such as its reads and its initialization test; strings, summaries,
    assertions, printed lines, savers, and ops that only these use; the switch of a predicate on
    the host; and an integer that a strategy copies to each replica, such as a counter of steps.

    `allow` lists op types, op names or patterns of names that may fall back.
    """

    name = "no-fallback"
    kind = "assigned"
    requires = frozenset({Need.ASSIGNED, Need.REQUESTED, Need.GPUS})
    states = FactKind.FALLEN
    intended = "these ops may run on other devices than requested"
    breaks_in_changes = True
    threads = (
        "tensorflow/tensorflow#29342: the effect of soft placement, and that it is invisible",
        "tensorflow/tensorflow#636: soft placement is on, but an op fails",
    )

    allow: tuple[str, ...] = ()

    def check(self, evidence: Evidence) -> Verdict:
        placement = evidence.placement
        asking = {kind[1:] for kind in placement.kinds if kind.requested.is_gpu}
        if not asking:
            return self.not_checked("no op requests a GPU")
        if not any(assigned for _, assigned in asking):
            return self.not_checked("no op that requests a GPU was placed")
        fallbacks = {pair for pair in asking if _fell_back(*pair, placement.machine)}
        fallen = {
            op.name: op
            for op in (placement.ops.values() if fallbacks else ())
            if (op.requested, op.assigned) in fallbacks
        }
        for name in host_only_ops(placement, fallen):
            del fallen[name]
        machine = placement.machine
        hidden: dict[Device, list[Op]] = defaultdict(list)
        for op in list(fallen.values()):
            if machine is not None and machine.hides(op.requested):
                del fallen[op.name]
                if not is_allowed(op, self.allow):
                    hidden[op.requested].append(op)
        groups: dict[str, list[Op]] = defaultdict(list)
        for op in fallen.values():
            if (leader := _leader(op, placement, fallen)) is not None:
                groups[leader].append(op)
        counters = _counters_of_replicas(placement)
        findings = [
            _finding(placement, placement.ops[name], group)
            for name, group in groups.items()
            if name not in counters and not is_allowed(placement.ops[name], self.allow)
        ]
        findings += [
            _hidden_gpu_finding(device, ops, machine)
            for device, ops in hidden.items()
            if machine is not None
        ]
        return self.verdict(findings)


def _counters_of_replicas(placement: Placement) -> frozenset[str]:
    """The copies of single integers that a strategy of TensorFlow creates on the GPUs.

    The program cannot request another device for them, and ops on them run on the host anyway.
    """
    strategy = placement.strategy
    if strategy is None or strategy.ranks:
        return frozenset()
    return frozenset(
        variable.name
        for variable in placement.variables
        if variable.name in strategy.copies
        and variable.shape == ()
        and variable.dtype.startswith(("int", "uint", "bool"))
    )


def _fell_back(requested: Device, assigned: Device | None, machine: Machine | None) -> bool:
    if assigned is None:
        return False
    if assigned.type == "CPU":
        return True
    return not assigned.matches(requested) and machine is not None and not machine.has(requested)


def host_only_ops(placement: Placement, ops: Mapping[str, Op]) -> frozenset[str]:
    """Return the ops that need no GPU.

    These are ops that yield text, save, restore, print or check; ops that only such ops use; the
    switch of a value on the host, such as a predicate; and integers that replicas exchange under a
    strategy (row numbers of sparse gradients, counts of replicas that have a batch), since few
    GPU kernels support integers. ``ops`` must be in creation order.
    """
    consumers: dict[str, list[Op]] = defaultdict(list)
    for op in placement.ops.values() if ops else ():
        for source in _data_inputs(op):
            if (name := producer_of(source)) in ops:
                consumers[name].append(op)
    found: set[str] = set()
    for op in reversed(list(ops.values())):
        users = consumers[op.name]
        outputs = placement.details.outputs(op.name)
        dtypes = {output.dtype for output in outputs}
        if (
            (users and all(user.name in found or _is_output(user) for user in users))
            or _is_output(op)
            or dtypes == {"string"}
            or _switches_on_host(placement, op)
            or (dtypes and dtypes <= {"int32", "int64"} and _is_exchanged(placement, op, users))
        ):
            found.add(op.name)
    return frozenset(found)


def _is_output(op: Op) -> bool:
    return op.type in FOR_PEOPLE or op.type in SAVERS


def _is_exchanged(placement: Placement, op: Op, users: Sequence[Op]) -> bool:
    """Return whether the value of an op is only gathered, or is a part of a sum over replicas."""
    if users and all(user.type == COLLECTIVE_GATHER for user in users):
        return True
    source = placement.ops.get(producer_of(op.inputs[0])) if op.type == CUT and op.inputs else None
    return source is not None and source.type == COLLECTIVE_REDUCE


def _switches_on_host(placement: Placement, op: Op) -> bool:
    """Return whether an op switches a value on the host that is not a variable."""
    if not (op.type in SWITCHES and op.fell_with_another and op.inputs):
        return False
    producer = placement.ops.get(producer_of(op.inputs[0]))
    return (
        producer is not None
        and producer.assigned == op.assigned
        and not producer.requested.is_gpu
        and producer.type not in VARIABLES
    )


def _leader(op: Op, placement: Placement, fallen: Mapping[str, Op]) -> str | None:
    """Return the op that made ``op`` fall back; ``op`` itself if it had its own reason.

    Variables are preferred to other ops, as users know their names. An op in a function body that
    uses no resource follows the call. The result is None if ``op`` followed a resource that
    requests the host.
    """
    if (
        op.fell_with_another
        and op.caller
        and not any(_is_resource(name, placement) for name in _data_inputs(op))
    ):
        while op.caller:  # the inputs of the outermost call decide its device
            op = placement.ops[op.caller]
        return op.name
    if not op.fell_with_another:
        return next((name for name in _bound_to(op, placement) if _leads(name, fallen)), op.name)
    leader = op.name
    seen = {op.name}
    todo = [op]
    while todo:
        for name in _bound_to(todo.pop(), placement):
            other = placement.ops.get(name)
            if other is None or name in seen:
                continue
            seen.add(name)
            if other.requested and not other.requested.is_gpu:
                return None
            if _leads(name, fallen):
                return name
            if name in fallen and not other.fell_with_another:
                leader = name
            todo.append(other)
    return leader


def _leads(name: str, fallen: Mapping[str, Op]) -> bool:
    """Return whether an op is a variable that fell back on its own, so that its users follow."""
    return name in fallen and fallen[name].type in VARIABLES and not fallen[name].fell_with_another


def _bound_to(op: Op, placement: Placement) -> Iterator[str]:
    """Yield the ops that must be on the device of ``op``: its colocation group and resources."""
    yield from op.colocated
    for name in (op.name, *op.colocated):
        yield from placement.colocations.get(name, ())
    for source in _data_inputs(op):
        name = producer_of(source)
        producer = placement.ops.get(name)
        if _is_resource(source, placement) or (producer and producer.type in PASSES_HANDLE):
            yield name
        elif producer and producer.type in LOOPS:  # its n-th output is its n-th input
            number = int(source.partition(":")[2] or 0)
            yield from (producer_of(name) for name in producer.inputs[number : number + 1])


def _data_inputs(op: Op) -> Iterator[str]:
    return (source for source in op.inputs if not source.startswith("^"))


def _is_resource(source: str, placement: Placement) -> bool:
    producer = placement.ops.get(producer_of(source))
    return producer is not None and holds_state(producer.type)


def _finding(placement: Placement, op: Op, group: list[Op]) -> Finding:
    """Return the finding on ``op`` and the ops that followed it.

    If ``op`` is a call, possibly only ops in its body fell back.
    """
    followers = [follower.name for follower in group if follower.name != op.name]
    count = len(followers)
    itself = count < len(group)
    first = op if itself else group[0]
    requested = requested_device(first)
    found = first.assigned.short if first.assigned else ""
    if itself:
        what = f"{op.name} ({op.type}) requests {requested} and ends on {found}"
        if followers:
            what += f", with {plural(count, 'op')} that must be on the same device"
    else:
        what = (
            f"op {first.name} in the body of {op.name} ({op.type}) requests {requested} and ends"
            if count == 1
            else f"{count} ops in the body of {op.name} ({op.type}) request {requested} and end"
        )
        what += f" on {found}"
    return Finding(
        **about(op, "assigned"),
        placed=first.name,
        group_key=(first.fallback_reason, found, itself),
        path=tuple(PathStep(follower, follower) for follower in followers),
        devices=tuple(filter(None, (first.requested, first.assigned))),
        message=f"{what}: {_reason(first, placement, are_several=not itself and count > 1)}",
        consequence=_consequence(first, placement),
        fix=_fix(op, placement),
    )


def _hidden_gpu_finding(device: Device, ops: Sequence[Op], machine: Machine) -> Finding:
    """Return the finding on the ops that request a GPU hidden by a setting of the program."""
    elsewhere = sorted({op.assigned for op in ops if op.assigned})
    found = join_and(each.short for each in elsewhere)
    does = "does" if len(elsewhere) == 1 else "do"
    several = len(ops) > 1
    return Finding(
        **about(device.short, "assigned"),
        devices=(device, *elsewhere),
        message=f"{plural(len(ops), 'op')} {'request' if several else 'requests'} {device.short} "
        f"and {'end' if several else 'ends'} on {found}: {machine.hidden_by} hides it from the "
        "program",
        consequence=f"{found} {does} the work of {device.short}",
        fix=f"remove {machine.hidden_by}",
    )


def _reason(op: Op, placement: Placement, *, are_several: bool) -> str:
    """Return why one op or several ops fell back; name the op that decided the device."""
    if not op.fell_with_another:
        return op.fallback_reason or "the placer gives no reason"
    if are_several:
        return "they are colocated with ops, or use ops, that must be on this device"
    for name in _bound_to(op, placement):
        other = placement.ops.get(name)
        if other is not None and other is not op and other.assigned == op.assigned:
            colocated = name in op.colocated or name in placement.colocations.get(op.name, ())
            why = "with which it is colocated" if colocated else "which it uses"
            return f"it must be on the device of {name}, {why}"
    return op.fallback_reason


def _lacks_device(op: Op, placement: Placement) -> bool:
    return placement.machine is not None and not placement.machine.has(op.requested)


def _consequence(op: Op, placement: Placement) -> str:
    if op.assigned is None:
        return ""
    there, lacks_device = op.assigned.short, _lacks_device(op, placement)
    if lacks_device and op.assigned.is_gpu:
        asked = (kind.requested for kind in placement.kinds)
        busy = any(device.is_gpu and op.assigned.matches(device) for device in asked)
        more = ", in addition to its own work" if busy else ""
        return f"{there} does the work of {op.requested}{more}"
    if lacks_device or op.caller:
        return f"{there} does the work of a GPU"
    if op.type in VARIABLES:
        return f"it stays on {there}, and every step copies it to each GPU that reads it"
    return f"every step copies its inputs from the GPU to {there}, and its value back"


def _fix(op: Op, placement: Placement) -> str:
    if _lacks_device(op, placement):
        task = Device(op.requested.job, op.requested.replica, op.requested.task)
        gpus = Device(task.job, task.replica, task.task, "GPU")
        machine = placement.machine
        if machine and op.requested.is_gpu and machine.has(task) and not machine.has(gpus):
            return (
                "request the CPU of this task, which has no GPU, or state its GPUs with --machine "
                "or --gpus"
            )
        return (
            "correct the index, which starts at 0: `with tf.device(f'/gpu:{i}'):`; or set --gpus "
            "to the number of GPUs that the program names"
        )
    if op.type in CALLS:
        return (
            "read the variables before the loop, the branch or the function, and pass their "
            "values: tf.identity(variable)"
        )
    return (
        "if it belongs on the CPU, build it under `with tf.device('/cpu:0'):`; otherwise use a "
        "dtype or an op that has a GPU kernel"
    )
