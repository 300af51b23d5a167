"""What a program is fed where it does not say so, and the batch names its placeholders."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from placement_checks.core.errors import InputError
from placement_checks.core.op_types import PLACEHOLDERS
from placement_checks.core.placement import producer_of
from placement_checks.core.program import BatchFunction
from placement_checks.loading.users_code import users_code
from placement_checks.run.runnable import RunnableProgram


def with_inputs(
    program: RunnableProgram, make: BatchFunction | None, rows: int
) -> RunnableProgram:
    """The program, fed the whole batch if each key of that is the name of a placeholder in it."""
    if program.inputs or make is None:
        return program
    names = _keys(make, rows)
    ops = program.placement.ops
    if not names or not all(
        producer_of(name) in ops and ops[producer_of(name)].type in PLACEHOLDERS for name in names
    ):
        return program
    return replace(
        program, inputs=[{name: f"{producer_of(name)}:0" for name in names}], shared=True
    )


def _keys(make: BatchFunction, rows: int) -> list[str]:
    """The names of the arrays in a batch; none if there is no batch of so many rows."""
    try:
        with users_code("", "the batch function", None):
            return [str(name) for name in make(np.random.default_rng(0), rows)]
    except InputError:
        return []  # told where the batch is wanted in earnest
