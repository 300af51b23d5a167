"""Losses: the tower of each loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from placement_checks.analysis.graph.data_flow import DataFlow
from placement_checks.core.missing import Missing

_FIX = (
    "verify the function that builds the graph, which can return them: {'loss': [one per tower]}"
)


class Losses(NamedTuple):
    """The losses of the towers.

    Attributes:
        by_tower: for each tower its losses, as ops.
        joint: whether one loss trains all towers. ``by_tower`` then holds the parts of this loss:
            the last ops before it that belong to one tower.
        unknown: why the losses are unknown; None if they are known.
    """

    by_tower: Sequence[Sequence[int]]
    joint: bool = False
    unknown: Missing | None = None


def tower_losses(
    losses: Sequence[int],
    flow: DataFlow,
    tower_of: Sequence[int],
    towers_behind: Sequence[int],
    towers: int,
) -> Losses:
    """Find the losses of each tower.

    Args:
        losses: the loss ops of the program.
        flow: the edges of the program.
        tower_of: for each op the number of the tower that it works for, or -1.
        towers_behind: for each op a bit mask of the towers that its value depends on.
        towers: the number of towers.
    """
    if not losses:
        return Losses((), unknown=Missing("the losses are unknown", _FIX))
    all_towers = (1 << towers) - 1
    by_tower: list[list[int]] = [[] for _ in range(towers)]
    joint = []
    for loss in losses:
        mask = towers_behind[loss] & all_towers
        if tower_of[loss] >= 0:
            by_tower[tower_of[loss]].append(loss)
        elif mask.bit_count() == 1:
            by_tower[mask.bit_length() - 1].append(loss)
        else:
            joint.append(loss)
    missing = [of_tower for of_tower in by_tower if not of_tower]
    if len(missing) == len(joint) < towers:
        # Each remaining loss belongs to one remaining tower, in this order.
        for of_tower, loss in zip(missing, joint, strict=True):
            of_tower.append(loss)
    if all(by_tower):
        return Losses(by_tower)
    parts: list[list[int]] = [[] for _ in range(towers)]
    for loss in losses:
        for part, number in _parts(loss, flow, tower_of, towers_behind, all_towers):
            parts[number].append(part)
    if all(parts):
        return Losses(parts, joint=True)
    return Losses((), unknown=Missing("the losses of some towers are unknown", _FIX))


def _parts(
    loss: int,
    flow: DataFlow,
    tower_of: Sequence[int],
    towers_behind: Sequence[int],
    all_towers: int,
) -> list[tuple[int, int]]:
    """Return the last ops before ``loss`` that belong to one tower, each with the tower.

    These are ops that work for a tower. If the loss itself works for a tower, they are ops that
    depend on one tower only.
    """

    def tower(op: int) -> int:
        mask = towers_behind[op] & all_towers
        if mask and tower_of[loss] < 0 <= tower_of[op]:
            return tower_of[op]
        return mask.bit_length() - 1 if mask.bit_count() == 1 else -1

    def is_end(op: int) -> bool:
        return op != loss and (tower(op) >= 0 or not towers_behind[op] & all_towers)

    ops = sorted(flow.reachable([loss], until=is_end) - {loss})
    return [(op, tower(op)) for op in ops if tower(op) >= 0]
