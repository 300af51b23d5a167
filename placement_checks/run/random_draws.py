"""What the random ops behind losses and gradients draw, such as those of dropout."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from placement_checks.core.op_types import RANDOM
from placement_checks.run.preconditions import ancestors, gradient_tensors
from placement_checks.run.runnable import RunnableProgram
from placement_checks.run.session import ProgramSession


def drawn(program: RunnableProgram, seconds: float) -> dict[str, npt.NDArray[Any]]:
    """What they draw in one run with what the program was fed, by the names of tensors.

    Those in loops, branches that are not taken and bodies of functions are left out: they cannot
    be fed.

    Args:
        program: what was fed is known of it.
        seconds: that one run may take.
    """
    ops = program.placement.ops
    # Also those of a tower whose gradients are lost.
    roots = [*gradient_tensors(program), *program.placement.step.objectives]
    behind = ancestors(program, roots, program.built.fed)
    names = [
        output.name
        for name in behind
        if ops[name].type in RANDOM and not ops[name].caller
        for output in program.graph.get_operation_by_name(name).outputs
    ]
    if not names:
        return {}
    with ProgramSession(program, seconds) as session:
        session.begin({})
        values = session.fetched(names, program.built.fed)
    return {
        name: np.asarray(value)
        for name, value in zip(names, values, strict=True)
        if value is not None
    }
