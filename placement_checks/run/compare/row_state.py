"""Variables with a part for each row of a batch, such as the state of a recurrent network.

The reference has one variable for all rows, and the program has a copy with the rows of each
tower. So their shapes differ, and each copy gets its part of the reference's value.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from placement_checks.core.errors import CannotRun
from placement_checks.core.measurement import Arrays
from placement_checks.core.op_types import is_update
from placement_checks.core.placement import producer_of
from placement_checks.run.runnable import RunnableProgram
from placement_checks.run.session import ProgramSession

Shape = tuple[int | None, ...]


def with_other_shapes(program: RunnableProgram, values: Arrays) -> frozenset[str]:
    """Return the variables of a program that cannot take the value of the same name."""
    shapes = _shapes(program)
    return frozenset(
        name
        for name, value in values.items()
        if name in shapes and not _fits(value.shape, shapes[name])
    )


def values_of_towers(program: RunnableProgram, values: Arrays) -> Arrays:
    """Return the values that the variables of a program get from the reference.

    If the copies of a variable share its rows, each copy gets its part. Values of another shape
    are left out: the program then keeps its own.
    """
    others = with_other_shapes(program, values)
    found = {name: value for name, value in values.items() if name not in others}
    for name in others:
        found |= _parts(program, name, values[name])
    return found


def check_state_equal(towers: ProgramSession, values: Arrays) -> None:
    """Check that the program and the reference start with equal values, if the step reads them.

    Args:
        towers: the session of the program, with its initial values.
        values: the initial values of the reference.

    Raises:
        CannotRun: a variable has another shape in the reference, so it cannot get its value.
    """
    program = towers.program
    names = [
        name
        for name in sorted(with_other_shapes(program, values))
        if not _parts(program, name, values[name]) and _is_read(program, name)
    ]
    own = towers.values() if names else {}
    for name in names:
        # Equal elements, such as zeros, are the same state for any number of rows.
        elements = np.concatenate([values[name].ravel(), own[name].ravel()])
        if np.any(elements != elements[:1]):
            raise CannotRun(
                f"the step reads {name}, which has the shape {[*own[name].shape]} in "
                f"{program.name} and {[*values[name].shape]} in the reference"
                f"{program.built_at(name)}; so both programs cannot start with the same values",
                "let its initial values be equal, such as zeros, or give it one shape",
            )


def _parts(
    program: RunnableProgram, name: str, value: npt.NDArray[Any]
) -> dict[str, npt.NDArray[Any]]:
    """Return the part of each copy of a variable; empty if the copies do not share the rows.

    The parts are cut along the only axis of another length than in the whole.
    """
    strategy, shapes = program.placement.strategy, _shapes(program)
    copies = strategy.copies.items() if strategy else ()
    ordered = sorted((copy.replica, each) for each, copy in copies if copy.first == name)
    names = [each for _, each in ordered]
    if len(names) < 2 or any(len(shapes[each]) != value.ndim for each in names):
        return {}
    axes = [axis for axis, size in enumerate(value.shape) if shapes[name][axis] != size]
    if len(axes) != 1:
        return {}
    sizes = [shapes[each][axes[0]] or 0 for each in names]
    if sum(sizes) != value.shape[axes[0]]:
        return {}
    parts = np.split(value, np.cumsum(sizes)[:-1].tolist(), axis=axes[0])
    return dict(zip(names, parts, strict=True))


def _is_read(program: RunnableProgram, variable: str) -> bool:
    """Whether a step reads a variable, instead of only assigning it."""
    ops = program.placement.ops
    step = [*program.gradients.tensors, *program.placement.step.train_op]
    return any(
        variable in map(producer_of, ops[name].inputs) and not is_update(ops[name].type)
        for name in program.ancestors(step, ())
    )


def _shapes(program: RunnableProgram) -> dict[str, Shape]:
    """Return the shapes of the variables of a program, if their rank is known."""
    return {
        variable.name: tuple(variable.shape)
        for variable in program.placement.variables
        if variable.shape is not None
    }


def _fits(value: Shape, shape: Shape) -> bool:
    return len(value) == len(shape) and all(
        size is None or size == own for size, own in zip(shape, value, strict=True)
    )
