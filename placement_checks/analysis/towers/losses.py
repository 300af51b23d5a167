"""Losses: to which tower each belongs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from placement_checks.analysis.graph.data_flow import DataFlow


class Losses(NamedTuple):
    """The losses of the towers.

    Attributes:
        of: for each tower its losses, as ops, in the order in which gradients were taken of them.
        joint: whether gradients are taken of one loss of all towers; ``of`` are then its parts,
            the last ops that are one tower's.
        unknown: why they are not known; ``""`` where they are.
    """

    of: Sequence[Sequence[int]]
    joint: bool = False
    unknown: str = ""


def tower_losses(
    losses: Sequence[int],
    flow: DataFlow,
    tower_of: Sequence[int],
    towers_behind: Sequence[int],
    towers: int,
) -> Losses:
    """The losses of each tower.

    Args:
        losses: the loss ops of the program.
        flow: its edges.
        tower_of: for each op the number of the tower on whose GPU it is asked to be, or -1.
        towers_behind: for each op the towers that its value depends on, a bit each.
        towers: how many there are.
    """
    if not losses:
        return Losses((), unknown="which ops are the losses is not known; " + _FIX)
    all_towers = (1 << towers) - 1
    by_tower = _by_tower(losses, tower_of, towers_behind, towers)
    if all(by_tower):
        return Losses(by_tower)
    parts: list[list[int]] = [[] for _ in range(towers)]
    for loss in losses:
        for part, number in _parts(loss, flow, tower_of, towers_behind, all_towers):
            parts[number].append(part)
    if all(parts):
        return Losses(parts, joint=True)
    return Losses((), unknown="no loss is known for some of the towers; " + _FIX)


def _by_tower(
    losses: Sequence[int], tower_of: Sequence[int], towers_behind: Sequence[int], towers: int
) -> list[list[int]]:
    """The losses of each tower; those of none in turn, if as many towers have no other."""
    all_towers = (1 << towers) - 1
    by_tower: list[list[int]] = [[] for _ in range(towers)]
    of_no_tower = []
    for loss in losses:
        mask = towers_behind[loss] & all_towers
        if tower_of[loss] >= 0:
            by_tower[tower_of[loss]].append(loss)
        elif mask.bit_count() == 1:
            by_tower[mask.bit_length() - 1].append(loss)
        else:
            of_no_tower.append(loss)
    missing = [of_tower for of_tower in by_tower if not of_tower]
    if len(missing) == len(of_no_tower) < towers:
        for of_tower, loss in zip(missing, of_no_tower, strict=True):
            of_tower.append(loss)
    return by_tower


def _parts(
    loss: int,
    flow: DataFlow,
    tower_of: Sequence[int],
    towers_behind: Sequence[int],
    all_towers: int,
) -> list[tuple[int, int]]:
    """The last ops before ``loss`` that are one tower's, in the order of the inputs.

    Those on a tower's GPU; of a loss that is itself on one, those that depend on one tower only.
    """
    found: list[tuple[int, int]] = []
    seen = {loss}
    todo = [loss]
    for op in todo:
        for source in flow.inputs[op]:
            if source in seen:
                continue
            seen.add(source)
            mask = towers_behind[source] & all_towers
            if mask and tower_of[loss] < 0 <= tower_of[source]:
                found.append((source, tower_of[source]))
            elif mask.bit_count() > 1:
                todo.append(source)
            elif mask:
                found.append((source, mask.bit_length() - 1))
    return found


_FIX = (
    "verify the function that builds the graph, which can return them: {'loss': [one per tower]}"
)
