from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from placement_checks.core.devices import Device
from placement_checks.core.evidence import Evidence
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
from placement_checks.core.results import Finding, Verdict
from placement_checks.rules.base import Rule, is_allowed, requested_device
from placement_checks.rules.requirements import Need


def host_only_ops(placement: Placement, ops: Mapping[str, Op]) -> frozenset[str]:
    """Those of some ops that nobody wants on a GPU.

    They yield text, write or test for people, save or restore, or only such ops take their
    values. So does the switch of a value that is on the host itself, such as a predicate. Nor the
    whole numbers that a strategy lets replicas tell each other, which have few kernels on GPUs: of
    the rows of a sparse gradient, which go from GPU to GPU themselves, and of the replicas that
    have a batch.

    Args:
        placement: the program.
        ops: the ops asked about, by name, in the order of building.
    """
    takers: dict[str, list[str]] = defaultdict(list)
    for op in placement.ops.values() if ops else ():
        for source in op.inputs:
            if source[0] != "^" and (name := producer_of(source)) in ops:
                takers[name].append(op.name)
    found: set[str] = set()
    for op in reversed(list(ops.values())):
        only_for_those = bool(takers[op.name]) and all(
            taker in found or _is_for_people(placement.ops[taker]) for taker in takers[op.name]
        )
        if (
            only_for_those
            or _is_for_people(op)
            or _is_text(placement, op)
            or _switches_on_host(placement, op)
            or _numbers_rows(placement, op, takers[op.name])
            or _is_of_a_count(placement, op)
        ):
            found.add(op.name)
    return frozenset(found)


def _is_for_people(op: Op) -> bool:
    return op.type in FOR_PEOPLE or op.type in SAVERS


def _is_text(placement: Placement, op: Op) -> bool:
    """Whether all that an op yields is text."""
    outputs = placement.details.outputs(op.name)
    return bool(outputs) and all(output.dtype == "string" for output in outputs)


def _numbers_rows(placement: Placement, op: Op, takers: Sequence[str]) -> bool:
    """Whether all that it yields are whole numbers, which are only joined with other replicas'."""
    return (
        bool(takers)
        and _is_whole_numbers(placement, op)
        and all(placement.ops[taker].type == COLLECTIVE_GATHER for taker in takers)
    )


def _is_of_a_count(placement: Placement, op: Op) -> bool:
    """Whether it cuts up whole numbers that a strategy has joined to add them up at once."""
    source = placement.ops.get(producer_of(op.inputs[0])) if op.type == CUT and op.inputs else None
    return (
        source is not None
        and source.type == COLLECTIVE_REDUCE
        and _is_whole_numbers(placement, op)
    )


def _is_whole_numbers(placement: Placement, op: Op) -> bool:
    outputs = placement.details.outputs(op.name)
    return bool(outputs) and all(output.dtype in ("int32", "int64") for output in outputs)


def _switches_on_host(placement: Placement, op: Op) -> bool:
    """Whether it is a switch of a value that was asked for on the host, not of a variable."""
    if op.type not in SWITCHES or not op.fell_with_another or not op.inputs:
        return False
    producer = placement.ops.get(producer_of(op.inputs[0]))
    return (
        producer is not None
        and producer.assigned == op.assigned
        and not producer.requested.is_gpu
        and producer.type not in VARIABLES
    )


@dataclass(frozen=True)
class NoFallback(Rule):
    """No op that asks for a GPU ends on a CPU, or on another GPU because its own does not exist.

    Soft placement moves such ops silently. Each finding says why: the op has no GPU kernel,
    its GPU kernel does not support the type, or there is no such device. Ops that are bound to one
    that fell, by colocation or by a reference, are named with it.

    Not findings: ops of an inner /cpu:0 scope, and ops that only follow a variable or another
    resource to the host it was asked for, such as its reads and its initialization test; strings,
    summaries, assertions, printed lines, savers, and what only these take; the switch of a
    predicate that is on the host.

    `allow` lists op types, op names or patterns of names that may fall back.
    """

    name = "no-fallback"
    kind = "assigned"
    requires = frozenset({Need.ASSIGNED, Need.REQUESTED, Need.GPUS})
    explained_by = ("placeable",)

    allow: tuple[str, ...] = ()

    def check(self, evidence: Evidence) -> Verdict:
        placement = evidence.placement
        asking = {kind[1:] for kind in placement.kinds if kind.requested.is_gpu}
        if not asking:
            return self.not_checked("no op asks for a GPU")
        if not any(assigned for _, assigned in asking):
            return self.not_checked("no op that asks for a GPU was placed")
        fell = {pair for pair in asking if _fell(*pair, placement.machine)}
        fallen = {
            op.name: op
            for op in (placement.ops.values() if fell else ())
            if (op.requested, op.assigned) in fell
        }
        beside = host_only_ops(placement, fallen)
        for name in beside:
            del fallen[name]
        groups: dict[str, list[Op]] = {}
        for op in fallen.values():
            leader = _leader(op, placement, fallen)
            if leader is not None:
                groups.setdefault(leader, []).append(op)
        findings = [
            _finding(placement, placement.ops[name], group)
            for name, group in groups.items()
            if not is_allowed(placement.ops[name], self.allow)
        ]
        return self.verdict(list(_of_one_scope(placement, findings)))


def _fell(requested: Device, assigned: Device | None, machine: Machine | None) -> bool:
    """Whether an op that asks for a GPU did not get it."""
    if assigned is None:
        return False
    if assigned.type == "CPU":
        return True
    if assigned.matches(requested) or machine is None:
        return False
    return not machine.has(requested)


def _leader(op: Op, placement: Placement, fallen: Mapping[str, Op]) -> str | None:
    """The op that ``op`` followed: one that fell for a reason of its own, else ``op`` itself.

    A variable comes before other ops, as it is what the user knows. An op of a function's body
    that takes no resource is where the call is.

    None where it followed a resource to the host that the resource requests.
    """
    if (
        op.fell_with_another
        and op.caller
        and not any(_is_resource(name, placement) for name in _data_inputs(op))
    ):
        return _outermost(op, placement)
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


def _outermost(op: Op, placement: Placement) -> str:
    """The outermost call: its inputs decide where it is."""
    while op.caller:
        op = placement.ops[op.caller]
    return op.name


def _leads(name: str, fallen: Mapping[str, Op]) -> bool:
    """Whether it is a variable that fell for a reason of its own: so do the ops that take it."""
    return name in fallen and fallen[name].type in VARIABLES and not fallen[name].fell_with_another


def _bound_to(op: Op, placement: Placement) -> Iterator[str]:
    """What must be where ``op`` is: its colocation group, and the resources it takes."""
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
    """The inputs of ``op``, control edges left out."""
    return (source for source in op.inputs if not source.startswith("^"))


def _is_resource(source: str, placement: Placement) -> bool:
    """Whether an input is a variable, a table, a queue or the like."""
    producer = placement.ops.get(producer_of(source))
    return producer is not None and holds_state(producer.type)


def _finding(placement: Placement, op: Op, group: list[Op]) -> Finding:
    """The finding on ``op`` and what followed it; of a call, only the body may have fallen."""
    followers = [follower for follower in group if follower.name != op.name]
    itself = len(followers) < len(group)
    fell = op if itself else group[0]
    found = fell.assigned.short if fell.assigned else ""
    if itself:
        with_it = f", and {len(followers)} bound to it" if followers else ""
        what = (
            f"{op.name} ({op.type}) asks for {requested_device(fell)} and ends on {found}{with_it}"
        )
    else:
        ops = "an op" if len(followers) == 1 else f"{len(followers)} ops"
        what = (
            f"{ops} in the body of {op.name} ({op.type}), requested on {requested_device(fell)}, "
            f"end{'s' if len(followers) == 1 else ''} on {found}"
        )
    return Finding(
        object=op.name,
        op=op.type,
        evidence="assigned",
        expected=requested_device(fell),
        found=found,
        placed=fell.name,
        alike=(fell.fallback_reason, found, itself),
        path=tuple(follower.name for follower in followers),
        message=f"{what}: {fell.fallback_reason or 'the placer gives no reason'}",
        consequence=_consequence(fell, placement),
        fix=_fix(op, placement),
    )


def _of_one_scope(placement: Placement, findings: Sequence[Finding]) -> Iterator[Finding]:
    """The findings, those that a library made among the user's under the scope of the others."""
    known: dict[Hashable, str] = {}
    for finding in findings:
        if finding.placed and placement.details.device_line(finding.placed) is not None:
            known.setdefault(finding.alike, finding.placed)
    for finding in findings:
        of_library = finding.placed and placement.details.device_line(finding.placed) is None
        yield replace(finding, placed=known.get(finding.alike)) if of_library else finding


def _is_lacking(op: Op, placement: Placement) -> bool:
    """Whether it fell because there is no such device."""
    return placement.machine is not None and not placement.machine.has(op.requested)


def _consequence(op: Op, placement: Placement) -> str:
    if op.assigned is None:
        return ""
    there = op.assigned.short
    if _is_lacking(op, placement) and op.assigned.is_gpu:
        asked = (kind.requested for kind in placement.kinds)
        busy = any(device.is_gpu and op.assigned.matches(device) for device in asked)
        more = ", beside what is meant for itself" if busy else ""
        return f"{there} computes what is meant for {op.requested}{more}"
    if _is_lacking(op, placement) or op.caller:
        return f"{there} computes what is meant for a GPU"
    if op.type in VARIABLES:
        return f"it is kept on {there}, and copied to each GPU that reads it, in every step"
    return f"its inputs leave the GPU for {there}, and its value goes back, in every step"


def _fix(op: Op, placement: Placement) -> str:
    if _is_lacking(op, placement):
        return (
            "correct the index, GPUs count from 0: `with tf.device(f'/gpu:{i}'):`; or give as "
            "many GPUs as the program names (--gpus)"
        )
    if op.type in CALLS:
        return "read the variables before and pass their values: tf.identity(variable)"
    return (
        "build it under `with tf.device('/cpu:0'):` if it belongs there, so that the program says "
        "so; else use a type or an op that has a GPU kernel"
    )
