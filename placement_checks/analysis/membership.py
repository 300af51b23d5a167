"""Membership: which tower each op works for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from placement_checks.analysis.backward import Backward
from placement_checks.analysis.data_flow import DataFlow
from placement_checks.analysis.towers import Tower
from placement_checks.core.devices import Device
from placement_checks.core.op_types import VARIABLES
from placement_checks.core.placement import Placement


def tower_of_ops(
    placement: Placement,
    flow: DataFlow,
    backward: Backward,
    homes: Sequence[Device | None],
    towers: Sequence[Tower],
) -> Sequence[int]:
    """For each op the number of the tower that it works for, or -1.

    That is the tower at its home. An op that asks for no device goes with what it is colocated
    with, a backward op with its forward op, wherever they were put. The gradient of what towers
    share belongs to the tower from whose loss it comes.
    """
    numbers = {device: number for number, tower in enumerate(towers) for device in tower.devices}
    found = [-1 if home is None else numbers.get(home, -1) for home in homes]
    _follow_colocation(placement, flow, backward, found)
    _follow_forward(placement, flow, backward, homes, found)
    _follow_takers(placement, flow, backward, homes, found)
    return found


def _follow_colocation(
    placement: Placement, flow: DataFlow, backward: Backward, found: list[int]
) -> None:
    """Let forward ops that ask for no device go with the op that they are bound to."""
    for here, op in enumerate(placement.by_number):
        if op.colocated and op.requested.type is None and not backward.ops[here]:
            numbers = map(flow.number.get, op.colocated)
            found[here] = next(
                (found[other] for other in numbers if other is not None and other < here), -1
            )


def _follow_forward(
    placement: Placement,
    flow: DataFlow,
    backward: Backward,
    homes: Sequence[Device | None],
    found: list[int],
) -> None:
    """Let backward ops go with their forward op, or else with whose gradients they take."""
    for op, (forward, _) in backward.forward.items():
        if found[forward] >= 0:
            found[op] = found[forward]
        elif _is_shared(placement, homes, forward):
            found[op] = _only(found[source] for source in flow.inputs[op] if backward.ops[source])


def _follow_takers(
    placement: Placement,
    flow: DataFlow,
    backward: Backward,
    homes: Sequence[Device | None],
    found: list[int],
) -> None:
    """Let backward ops that are made beside something else go with the ops that take them.

    Zeros and shapes, beside a variable, and what the gradient of something shared is made of.
    """
    for op in reversed(list(backward.numbers())):
        forward, _ = backward.forward.get(op, (None, ""))
        if forward is None or flow.types[forward] in VARIABLES:
            is_aside = found[op] >= 0
        else:
            is_aside = found[op] < 0 and _is_shared(placement, homes, forward)
        if is_aside:
            takers = (found[taker] for taker in flow.consumers[op] if backward.ops[taker])
            taker = _only(takers)
            found[op] = taker if taker >= 0 else found[op]


def _is_shared(placement: Placement, homes: Sequence[Device | None], op: int) -> bool:
    """Whether it asks for a GPU and works for several."""
    return homes[op] is None and placement.by_number[op].requested.is_gpu


def _only(towers: Iterable[int]) -> int:
    """The one tower among some; -1 if there is none, or more than one."""
    different = {tower for tower in towers if tower >= 0}
    return different.pop() if len(different) == 1 else -1
