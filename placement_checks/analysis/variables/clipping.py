"""Clipping: of gradients of single towers, and by a norm of sparse ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from placement_checks.analysis.graph.updates import Update
from placement_checks.analysis.towers.analysis import TowerAnalysis, analyse
from placement_checks.analysis.variables.gradient_flow import GradientFlow, gradient_flow
from placement_checks.core.op_types import BOUNDS, SCALES, SUM_OF_SQUARES
from placement_checks.core.placement import Placement


class Clipped(NamedTuple):
    """A variable of which towers clip their own gradients.

    Attributes:
        variable: its name.
        op: the last op of the first of them that clips one.
        by_norm: whether the gradient is scaled by its own norm, and not bounded value by value.
    """

    variable: str
    op: int
    by_norm: bool


def clipped_alone(placement: Placement) -> Iterator[Clipped]:
    """The variables of which each tower clips its gradient by itself.

    It is bounded, or multiplied or divided by what is computed of gradients, such as their norm.
    Gradients of single rows, of which those of a tower are made, are others: they have a
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
                    yield Clipped(variable, op, analyse(placement).flow.types[op] not in BOUNDS)
                    break


def norms_of_slices(placement: Placement) -> list[str]:
    """The ops that take the norm of a sparse gradient, whose rows of one index are still apart.

    Its slices have another shape than every variable.
    """
    analysis = analyse(placement)
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
    """The ops on the way to an update that clip the gradient of one tower, after its bit.

    Where towers meet in the model, the gradients of each depend on all of them.
    """
    analysis = analyse(placement)
    for op in gradients.ancestors(update):
        of = gradients.gradient_towers[op]
        tower = of & analysis.all_towers
        alone = tower.bit_count() == 1 and of & analysis.gradient_bit
        kind = analysis.flow.types[op]
        if not alone or analysis.backward.ops[op] or op in analysis.flow.callers:
            continue
        if (kind in BOUNDS or (kind in SCALES and _by_own_size(analysis, op))) and any(
            output.shape == shape for output in placement.details.outputs(analysis.flow.names[op])
        ):
            yield tower, op


def _by_own_size(analysis: TowerAnalysis, op: int) -> bool:
    """Whether both factors are computed of gradients."""
    factors = analysis.flow.inputs[op]
    return len(factors) == 2 and all(
        analysis.towers_behind[factor] & analysis.gradient_bit for factor in factors
    )
