"""Find gradients that are clipped, or otherwise changed, between the backward pass and the update.

Clipping is not linear: the mean of the clipped gradients of towers differs from the clipped mean.
So if the reference computes on the rows of each tower, its gradients must be averaged at the place
where the program averages: `raw_gradients` are averaged before they are clipped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from placement_checks.analysis.variables.step_changes import step_changes, towers_of_clip
from placement_checks.run.runnable import RunnableProgram
from placement_checks.step.changes import Clip


def clipped_gradients(program: RunnableProgram) -> Mapping[str, Sequence[Clip]]:
    """Return the ops that clip or otherwise change the gradient of each variable.

    Linear ops, conditions of branches, and factors that do not depend on gradients, such as the
    number of a tower's rows, do not count as changes. Variables without such an op are left out.
    """
    changes = step_changes(program.placement)
    found = {
        variable: list(changes.clips(changes.value(gradient.values.removesuffix(":0"))))
        for variable, gradient in program.gradients.by_variable.items()
    }
    return {variable: clips for variable, clips in found.items() if clips}


def where_clipped(program: RunnableProgram) -> Literal["", "towers", "average", "both"]:
    """Return whether the program clips gradients in its towers, or their average, or both."""
    clips = [clip for clips in clipped_gradients(program).values() for clip in clips]
    towers = [towers_of_clip(program.placement, clip) for clip in clips]
    in_towers = {each.bit_count() == 1 for each in towers}
    if len(in_towers) > 1:
        return "both"
    return "" if not clips else "towers" if in_towers == {True} else "average"


def raw_gradients(program: RunnableProgram) -> list[str]:
    """Return the results of the backward pass that the clipped gradients are computed from.

    Returns:
        Names of tensors of a floating dtype. Empty if no gradient is clipped, or if a clipped
        gradient is sparse: its rows are different rows of the variable in each tower.
    """
    gradients = [program.gradients.by_variable[name] for name in clipped_gradients(program)]
    if any(gradient.indices for gradient in gradients):
        return []
    changes = step_changes(program.placement)
    forms = [changes.value(gradient.values.removesuffix(":0")) for gradient in gradients]
    tensors = list(map(program.graph.get_tensor_by_name, changes.gradients_in(forms)))
    if not all(tensor.dtype.is_floating for tensor in tensors):
        return []
    return [tensor.name for tensor in tensors]
