"""Losses: which tower each belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from placement_checks.analysis.data_flow import DataFlow
from placement_checks.core.placement import Placement, producer_of


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


def losses_of(
    placement: Placement, flow: DataFlow, at: Sequence[int], masks: Sequence[int], towers: int
) -> Losses:
    """The losses of each tower.

    Args:
        placement: names what gradients were taken of, or else the losses reported.
        flow: its edges.
        at: for each op the number of the tower on whose GPU it is asked to be, or -1.
        masks: for each op the towers that its value depends on, a bit each.
        towers: how many there are.
    """
    names = placement.step.objectives or placement.step.losses
    known = [flow.number[producer_of(name)] for name in names if producer_of(name) in flow.number]
    if not known:
        return Losses((), unknown="which ops are the losses is not known; " + _FIX)
    every = (1 << towers) - 1
    found: list[list[int]] = [[] for _ in range(towers)]
    without_home = []
    for loss in known:
        mask = masks[loss] & every
        if at[loss] >= 0:
            found[at[loss]].append(loss)
        elif mask.bit_count() == 1:
            found[mask.bit_length() - 1].append(loss)
        else:
            without_home.append(loss)
    missing = [tower for tower in found if not tower]
    if len(missing) == len(without_home) < towers:
        for tower, loss in zip(missing, without_home, strict=True):
            tower.append(loss)
    if all(found):
        return Losses(found)
    parts: list[list[int]] = [[] for _ in range(towers)]
    for loss in known:
        for part, number in _parts(loss, flow, at, masks, every):
            parts[number].append(part)
    if all(parts):
        return Losses(parts, joint=True)
    return Losses((), unknown="no loss is known for some of the towers; " + _FIX)


def _parts(
    loss: int, flow: DataFlow, at: Sequence[int], masks: Sequence[int], every: int
) -> list[tuple[int, int]]:
    """The last ops before ``loss`` that are one tower's, in the order of the inputs.

    Those on a tower's GPU; of a loss that is itself on one, those that depend on one tower only.
    """
    found: list[tuple[int, int]] = []
    seen = {loss}
    todo = [loss]
    for op in todo:
        for each in flow.inputs[op]:
            if each in seen:
                continue
            seen.add(each)
            mask = masks[each] & every
            if mask and at[loss] < 0 <= at[each]:
                found.append((each, at[each]))
            elif mask.bit_count() > 1:
                todo.append(each)
            elif mask:
                found.append((each, mask.bit_length() - 1))
    return found


_FIX = "verify the function that builds the graph, which may return them: {'loss': [one a tower]}"
