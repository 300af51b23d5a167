"""Find gradients that are clipped, or otherwise changed, between the backward pass and the update.

Clipping is not linear: the mean of the clipped gradients of towers differs from the clipped mean.
So if the reference computes on the rows of each tower, its gradients must be averaged at the place
where the program averages: `raw_gradients` are averaged before they are clipped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from placement_checks.analysis.towers.analysis import analyze
from placement_checks.analysis.variables.gradient_flow import gradient_flow
from placement_checks.core.ids import OpId
from placement_checks.core.op_types import BRANCHES, GATHERERS, LINEAR, REDUCTIONS
from placement_checks.core.placement import producer_of
from placement_checks.run.runnable import RunnableProgram

# Ops that add up the gradients of replicas, or gather the rows of sparse gradients.
_SUMS = LINEAR | REDUCTIONS | GATHERERS


def clipped_gradients(program: RunnableProgram) -> Mapping[str, Sequence[OpId]]:
    """Return the ops that clip or otherwise change the gradient of each variable.

    Linear ops, conditions of branches, and factors that do not depend on gradients, such as the
    number of a tower's rows, do not count as changes. Variables without such an op are left out.
    """
    analysis = analyze(program.placement)
    flow, backward = analysis.flow, analysis.backward.ops
    depends_on_gradients = flow.propagate([int(is_backward) for is_backward in backward])

    def changes(op: OpId) -> bool:
        if not depends_on_gradients[op] or backward[op] or flow.types[op] in _SUMS:
            return False
        # The walk visits the ops inside of a branch, and its other inputs, separately.
        return flow.types[op] not in BRANCHES or bool(depends_on_gradients[flow.inputs[op][0]])

    clipped = {}
    for variable, gradient in program.gradients.by_variable.items():
        start = flow.number[producer_of(gradient.values)]
        if ops := list(filter(changes, flow.reachable([start], until=backward.__getitem__))):
            clipped[variable] = ops
    return clipped


def where_clipped(program: RunnableProgram) -> Literal["", "towers", "average", "both"]:
    """Return whether the program clips gradients in its towers, or their average, or both."""
    towers = gradient_flow(program.placement).gradient_towers
    all_towers = analyze(program.placement).all_towers
    clips = [op for ops in clipped_gradients(program).values() for op in ops]
    in_towers = {(towers[op] & all_towers).bit_count() == 1 for op in clips}
    if len(in_towers) > 1:
        return "both"
    return "" if not clips else "towers" if in_towers == {True} else "average"


def raw_gradients(program: RunnableProgram) -> list[str]:
    """Return the results of the backward pass that the clipped gradients are computed from.

    Returns:
        Names of tensors of a floating dtype. Empty if no gradient is clipped, or if a clipped
        gradient is sparse: its rows are different rows of the variable in each tower.
    """
    placement, analysis = program.placement, analyze(program.placement)
    flow, backward = analysis.flow, analysis.backward.ops
    gradients = [program.gradients.by_variable[name] for name in clipped_gradients(program)]
    if any(gradient.indices for gradient in gradients):
        return []
    starts = [flow.number[producer_of(gradient.values)] for gradient in gradients]
    tensors = {
        name: program.graph.get_tensor_by_name(name if ":" in name else f"{name}:0")
        for op in flow.reachable(starts, until=backward.__getitem__)
        if not backward[op]
        for source, name in zip(flow.inputs[op], placement.by_number[op].inputs, strict=False)
        if backward[source]
    }
    if not all(tensor.dtype.is_floating for tensor in tensors.values()):
        return []
    return [tensor.name for tensor in tensors.values()]
