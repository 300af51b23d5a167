"""What a program is fed where it does not say so, and the batch names its placeholders."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from placement_checks.core.errors import InputError
from placement_checks.core.op_types import PLACEHOLDERS
from placement_checks.core.placement import producer_of
from placement_checks.core.program import BatchFunction
from placement_checks.loading.users_code import users_code
from placement_checks.run.runnable import RunnableProgram

_COPY = re.compile(r"_\d+$")  # TensorFlow's ending of a name that is taken


def with_inputs(
    program: RunnableProgram, make: BatchFunction | None, rows: int
) -> RunnableProgram:
    """The program, fed the whole batch if each key of that is the name of a placeholder in it.

    The replicas of a strategy are fed their parts, if each has an argument of every such name.
    """
    if program.inputs or make is None:
        return program
    names = _keys(make, rows)
    ops = program.placement.ops
    of_replicas = [dict(_named(tensors)) for tensors in program.placement.step.inputs]
    if names and len(of_replicas) > 1 and all(set(names) <= each.keys() for each in of_replicas):
        return replace(
            program, inputs=[{name: each[name] for name in names} for each in of_replicas]
        )
    if not names or not all(
        producer_of(name) in ops and ops[producer_of(name)].type in PLACEHOLDERS for name in names
    ):
        return program
    return replace(
        program, inputs=[{name: f"{producer_of(name)}:0" for name in names}], shared=True
    )


def _named(tensors: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Tensors of one replica by the names of the arguments, which TensorFlow numbers."""
    for tensor in tensors:
        name = producer_of(tensor)
        yield _COPY.sub("", name), tensor if ":" in tensor else f"{tensor}:0"


def _keys(make: BatchFunction, rows: int) -> list[str]:
    """The names of the arrays in a batch; none if there is no batch of so many rows."""
    try:
        with users_code("", "the batch function", None):
            return [str(name) for name in make(np.random.default_rng(0), rows)]
    except InputError:
        return []  # told where the batch is wanted in earnest
