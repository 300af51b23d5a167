from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from placement_checks.placement import VARIABLE_TYPES, Op, Placement, producer_of
from placement_checks.rules.base import Finding, Rule, Verdict, asked_for, built_at

_HANDLES = (
    "HandleOp",
    "Table",
    "TableV2",
    "Queue",
    "QueueV2",
    "Iterator",
    "IteratorV2",
    "StackV2",
)
_PASS_HANDLES = frozenset({"Identity", "Enter", "RefEnter", "Switch", "RefSwitch", "RefIdentity"})


@dataclass(frozen=True)
class NoFallback(Rule):
    """No op that asks for a GPU ends on a CPU, or on another GPU because its own does not exist.

    Soft placement moves such ops without a word. Each finding says why: the op has no GPU kernel,
    its GPU kernel does not take the type, or there is no such device. Ops that are bound to one
    that fell, by colocation or by a reference, are named with it.

    Not findings: ops of an inner /cpu:0 scope, and ops that only follow a variable or another
    resource to the host it was asked for, such as its reads and its initialisation test.

    `allow` lists op types or op names that may fall back.
    """

    name = "no-fallback"
    evidence = "assigned"

    allow: tuple[str, ...] = ()

    def check(self, placement: Placement) -> Verdict:
        if unplaced := self.unplaced(placement):
            return unplaced
        if not any(op.requested.is_gpu for op in placement.ops.values()):
            return self.not_checked("no op asks for a GPU")
        fallen = {
            op.name: op
            for op in placement.ops.values()
            if _fell(op, placement)
            and op.type not in self.allow
            and op.name not in self.allow
            and not _follows_to_host(op, placement)
        }
        bound: dict[str, list[Op]] = {}
        for op in fallen.values():
            leader = next(_leaders(op, fallen), None)
            bound.setdefault(leader or op.name, []).append(op)
        return self.verdict(
            [_finding(placement, fallen[name], group) for name, group in bound.items()]
        )


def _fell(op: Op, placement: Placement) -> bool:
    if not op.requested.is_gpu or op.assigned is None:
        return False
    lacking = placement.machine is not None and not placement.machine.has(op.requested)
    return op.assigned.type == "CPU" or (lacking and not op.assigned.matches(op.requested))


def _follows_to_host(op: Op, placement: Placement) -> bool:
    """Whether it takes a resource that was asked to be where this op ended."""
    return any(
        resource.requested.type is not None
        and not resource.requested.is_gpu
        and resource.assigned == op.assigned
        for resource in _resources(op, placement)
    )


def _resources(op: Op, placement: Placement) -> Iterator[Op]:
    """The variables, tables, queues and iterators that an op takes a handle or reference of."""
    todo = [op]
    seen = set()
    while todo:
        for source in todo.pop().inputs:
            producer = placement.ops.get(producer_of(source))
            if producer is None or producer.name in seen or source.startswith("^"):
                continue
            seen.add(producer.name)
            if producer.type in VARIABLE_TYPES or producer.type.endswith(_HANDLES):
                yield producer
            elif producer.type in _PASS_HANDLES:
                todo.append(producer)


def _leaders(op: Op, fallen: dict[str, Op]) -> Iterator[str]:
    """The fallen ops that ``op`` is bound to: its variable, or its colocation."""
    if op.type in VARIABLE_TYPES:
        return
    for name in [*op.colocated, *(producer_of(source) for source in op.inputs)]:
        leader = fallen.get(name)
        if leader and leader.name != op.name and leader.type in VARIABLE_TYPES:
            yield name


def _finding(placement: Placement, op: Op, group: list[Op]) -> Finding:
    others = [each for each in group if each is not op]
    with_it = f", and {len(others)} bound to it" if others else ""
    found = op.assigned.short if op.assigned else ""
    return Finding(
        object=op.name,
        op=op.type,
        evidence="assigned",
        expected=asked_for(op),
        found=found,
        where=placement.where(op.name),
        path=tuple(each.name for each in others),
        message=f"{op.name} ({op.type}) asks for {asked_for(op)} and ends on {found}{with_it}: "
        f"{op.why_not or 'the placer gives no reason'}{built_at(placement, op.name)}",
        cure="build it under /cpu:0 if it belongs there, so that the program says so; "
        "else give it a type or an op that has a GPU kernel, or a device that exists",
    )
