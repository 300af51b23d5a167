"""Clipping: gradients that each tower clips alone, and norms of sparse gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from placement_checks.analysis.graph.updates import Update
from placement_checks.analysis.towers.analysis import TowerAnalysis, analyze
from placement_checks.analysis.variables.gradient_flow import GradientFlow, gradient_flow
from placement_checks.core.op_types import BOUNDS, SCALES, SUM_OF_SQUARES
from placement_checks.core.placement import Placement


class ClippedGradient(NamedTuple):
    """The gradient of a variable that each tower clips before gradients are added up.

    Attributes:
        variable: the name of the variable.
        op: the last op that clips it on the first tower where it is clipped.
        by_norm: whether the gradient is scaled by its own norm, instead of bounded elementwise.
    """

    variable: str
    op: int
    by_norm: bool


def clipped_per_tower(placement: Placement) -> Iterator[ClippedGradient]:
    """Yield the gradients that each tower clips before gradients are added up.

    An op clips if it bounds a gradient, or scales it by a value computed from gradients, such as
    their norm. Clipping the gradients of single rows does not count: such gradients have one
    dimension more than the variable.
    """
    gradients = gradient_flow(placement)
    shapes = {variable.name: variable.shape for variable in placement.variables}
    for variable, updates in gradients.trained.items():
        for update in updates:
            if gradients.towers(update).bit_count() > 1:
                clips = list(_clips(placement, gradients, update, shapes[variable]))
                if clips:
                    first = min(tower for tower, _ in clips)
                    op = max(op for tower, op in clips if tower == first)
                    by_norm = analyze(placement).flow.types[op] not in BOUNDS
                    yield ClippedGradient(variable, op, by_norm)
                    break


def norms_of_slices(placement: Placement) -> list[str]:
    """Return the ops that take the norm of a sparse gradient with duplicate indices.

    The slices of such a gradient do not have the shape of any variable.
    """
    analysis = analyze(placement)
    flow = analysis.flow
    shapes = {variable.shape for variable in placement.variables}
    return [
        flow.names[op]
        for op, kind in enumerate(flow.types)
        if kind == SUM_OF_SQUARES
        and analysis.towers_behind[op] & analysis.gradient_bit
        and all(
            output.shape is not None and output.shape not in shapes
            for source in flow.inputs[op]
            for output in placement.details.outputs(flow.names[source])
        )
    ]


def _clips(
    placement: Placement, gradients: GradientFlow, update: Update, shape: object
) -> Iterator[tuple[int, int]]:
    """Yield each op before an update that clips one tower's gradient, after the tower's bit.

    `GradientFlow.gradient_towers` determines the tower. If towers share values in the model, each
    gradient depends on all towers, but only one tower computes it.
    """
    analysis = analyze(placement)
    for op in gradients.ancestors(update):
        mask = gradients.gradient_towers[op]
        tower = mask & analysis.all_towers
        is_of_one = tower.bit_count() == 1 and mask & analysis.gradient_bit
        kind = analysis.flow.types[op]
        if not is_of_one or analysis.backward.ops[op] or op in analysis.flow.callers:
            continue
        if (kind in BOUNDS or (kind in SCALES and _is_scaled_by_gradients(analysis, op))) and any(
            output.shape == shape for output in placement.details.outputs(analysis.flow.names[op])
        ):
            yield tower, op


def _is_scaled_by_gradients(analysis: TowerAnalysis, op: int) -> bool:
    factors = analysis.flow.inputs[op]
    return len(factors) == 2 and all(
        analysis.towers_behind[factor] & analysis.gradient_bit for factor in factors
    )
