"""The objectives of a program's variables, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from placement_checks.analysis.variables.gradient_flow import gradient_flow
from placement_checks.analysis.variables.layout import variable_layout
from placement_checks.analysis.variables.tower_terms import ops_of_losses
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
    return read_objectives(
        placement,
        gradient_flow(placement).trained,
        towers=ops_of_losses(placement),
        copies=variable_layout(placement).first_copies,
    )
