"""The objectives of a program's variables, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from placement_checks.analysis.towers.analysis import analyze
from placement_checks.analysis.variables.gradient_flow import gradient_flow
from placement_checks.analysis.variables.layout import variable_layout
from placement_checks.core.ids import OpId, TowerIndex
from placement_checks.core.placement import Placement
from placement_checks.step.objective import LonePenalty, read_objectives


def objectives(placement: Placement) -> Mapping[str, str]:
    """Return the loss terms that the update of each variable minimizes, computed once.

    `step.objective.read_objectives` describes the texts.
    """
    return placement.cached(_read)[0]


def lone_penalties(placement: Placement) -> Sequence[LonePenalty]:
    """Return the penalties that one tower alone adds, although gradients are averaged."""
    return placement.cached(_read)[1]


def _read(placement: Placement) -> tuple[Mapping[str, str], Sequence[LonePenalty]]:
    if not placement.step.gradient_calls:
        return {}, ()
    analysis = analyze(placement)
    flow = analysis.flow

    def names_of(tower: TowerIndex) -> set[str]:
        """The ops that the losses of a tower are computed from, but no op of another tower."""

        def is_of_another(op: OpId) -> bool:
            return analysis.tower_of[op] not in (None, tower)

        ops = flow.reachable(analysis.losses.by_tower[tower], until=is_of_another)
        return {flow.names[op] for op in ops if not is_of_another(op)}

    return read_objectives(
        placement,
        gradient_flow(placement).trained,
        towers=[names_of(tower) for tower, _ in analysis.losses.items()],
        copies={
            name: min(group.copies.values(), key=flow.number.__getitem__)
            for name, group in variable_layout(placement).copies.items()
        },
    )
