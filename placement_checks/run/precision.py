"""What lies between the loss and a gradient: how precisely it is computed, and what changes it."""

from __future__ import annotations

from collections.abc import Iterator

from placement_checks.analysis.tower_analysis import analyse
from placement_checks.core.measurement import EPS
from placement_checks.core.op_types import (
    BRANCHES,
    COLLECTIVE_GATHER,
    COLLECTIVE_GATHER_V1,
    COLLECTIVE_REDUCE,
    COLLECTIVE_REDUCE_V1,
    LINEAR,
    NCCL_REDUCE,
)
from placement_checks.core.placement import producer_of
from placement_checks.run.runnable import RunnableProgram


def precisions(program: RunnableProgram) -> dict[str, str]:
    """The coarsest dtype in which the gradient of each variable is computed.

    That of the variable tells nothing where the model computes in another, as in mixed precision.
    """
    analysis = analyse(program.placement)
    names = sorted(EPS, key=EPS.__getitem__)
    coarsest = [0] * len(analysis.flow.names)
    for op, producers in enumerate(analysis.flow.inputs):
        own = [
            names.index(output.dtype)
            for output in (
                program.placement.details.outputs(analysis.flow.names[op])
                if analysis.backward.ops[op]
                else ()
            )
            if output.dtype in EPS
        ]
        coarsest[op] = max([*own, *(coarsest[producer] for producer in producers)], default=0)
    found = {}
    for variable, gradient in program.gradient_tensors.gradients.items():
        dtype = program.variables[variable]
        behind = names[coarsest[analysis.flow.number[producer_of(gradient.values)]]]
        found[variable] = max(dtype, behind, key=lambda name: EPS.get(name, 0.0))
    return found


# A strategy adds up what replicas have computed, or gives each the rows of all.
_ADDS_UP = LINEAR | {
    *(NCCL_REDUCE, COLLECTIVE_REDUCE, COLLECTIVE_GATHER),
    *(COLLECTIVE_REDUCE_V1, COLLECTIVE_GATHER_V1),
}


def changed(program: RunnableProgram) -> Iterator[str]:
    """The variables whose gradient is clipped, or else changed, before it is applied.

    What does not depend on gradients, such as the rows of a tower, only scales them, or chooses
    one of the branches of a condition.
    """
    analysis = analyse(program.placement)
    flow, backward = analysis.flow, analysis.backward.ops
    of_gradients = flow.masks([int(is_backward) for is_backward in backward])

    def changes(op: int) -> bool:
        if not of_gradients[op] or backward[op] or flow.types[op] in _ADDS_UP:
            return False
        # Its other inputs, and the ops of its branches, are between loss and update themselves.
        return flow.types[op] not in BRANCHES or bool(of_gradients[flow.inputs[op][0]])

    for variable, gradient in program.gradient_tensors.gradients.items():
        start = flow.number[producer_of(gradient.values)]
        if any(map(changes, flow.walk_back([start], lambda op: not backward[op]))):
            yield variable
