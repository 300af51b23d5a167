"""What was measured by running a program and its reference. Needs numpy and no TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias, final

import numpy as np
import numpy.typing as npt

from placement_checks.core.missing import Missing

Array = npt.NDArray[np.float64]
Arrays = Mapping[str, npt.NDArray[np.float64]]
# Numbers of the elements of an array; None for all of them.
Elements: TypeAlias = "npt.NDArray[np.intp] | None"

# The distance from 1 to the next number (IEEE 754; bfloat16 has 7 bits of fraction).
EPS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}


class Sample(NamedTuple):
    """The gradients of the reference for some rows of a batch: those of each, by variable."""

    rows: tuple[int, ...]
    gradients: Arrays


@dataclass(frozen=True)
class Trial:
    """One batch, given to both programs with equal variables.

    All arrays are float64. Of a large gradient only some elements are kept: the largest, those
    that differ most, and others at random.

    Attributes:
        rows: of the batch.
        split: the rows of each tower, as the program is fed; empty where it splits the batch
            itself.
        expected, found: the gradients by variable, of the reference and of the program; those that
            one of them does not have are left out.
        noise: how far the gradients of the reference move if the rows are put in another order,
            the largest absolute difference.
        start: the values of the variables.
        per_tower: the reference's gradients on the rows of each tower.
        per_row: those on every row by itself; looked at only where something differs.
        shifted: those with the rows of one input moved against the others, by what was done.
        not_finite: the variables of the program whose gradient is NaN or infinite, each with the
            first op that yields such a value and its source line.
        elements: which elements are kept, by variable; all of those that are not named.
        ratios: of the found to the expected values, by least squares over all elements; None if
            there is none. Of variables that are not named all elements are kept.
    """

    rows: int
    split: Sequence[tuple[int, ...]]
    expected: Arrays = field(repr=False)
    found: Arrays = field(repr=False)
    noise: Mapping[str, float]
    start: Arrays = field(default_factory=dict, repr=False)
    per_tower: Sequence[Sample] = field(default=(), repr=False)
    per_row: Sequence[Sample] = field(default=(), repr=False)
    shifted: Mapping[str, Arrays] = field(default_factory=dict, repr=False)
    not_finite: Mapping[str, tuple[str, str | None]] = field(default_factory=dict)
    elements: Mapping[str, Elements] = field(default_factory=dict, repr=False)
    ratios: Mapping[str, float | None] = field(default_factory=dict)


class VariableStep(NamedTuple):
    """One variable after one step of both programs.

    Of a large one some elements are kept: the largest, those that change or differ most, and
    others at random.

    Attributes:
        start: its values before all steps.
        expected: those of the reference after this step.
        found: those of the program.
        moved: the changes of both in this step; of a large variable, of elements at random.
        noise: how far those of the reference move if the rows are put in another order.
        certain: the elements whose gradient is never so near to zero that its sign may be noise;
            None where that is not known.
        ratio: of all found values after the step to those expected, by least squares, over the
            certain elements; None if there is none.
    """

    start: Array
    expected: Array
    found: Array
    moved: tuple[Array, Array]
    noise: float
    certain: npt.NDArray[np.bool_] | None
    ratio: float | None


NO_STEPS: Final = Missing("no step was taken")


@final
@dataclass(frozen=True)
class Trajectory:
    """Some training steps of both programs, from equal variables, with equal batches.

    Attributes:
        steps: of each step, the variables of the reference that the program has, too.
        trained: the variables whose gradient the reference shows.
        after: one more batch after the last step, from the variables of the reference.
    """

    steps: Sequence[Mapping[str, VariableStep]] = field(repr=False)
    trained: frozenset[str]
    after: Trial | None = None


@final
@dataclass(frozen=True)
class Measurement:
    """What running a program and its reference gave.

    Attributes:
        reference: what the reference is called.
        devices: ``real`` or ``simulated``.
        towers: how many towers the program has.
        strategy: the class of the strategy that adds up their gradients; ``""`` without one.
        dtypes: of the variables, by name.
        precisions: the coarsest dtype in which the gradient of a variable is computed.
        trials: one or more batches; the gradients of each.
        scale: what the program's gradients were divided by, as it declares.
        trajectory: some steps.
        unread: variables whose gradient cannot be read, and why.
        missing: variables that get a gradient in one of the programs only: True if in the
            reference.
        changed: variables whose gradient is clipped, or else changed, before it is applied.
        races: variables whose value after a step hangs on a race in one of the programs, each with
            the variable that is read before or after its update.
        optimizers: the types of the ops that apply the gradients.
        updates: the op of the program that updates a variable, by variable.
        notes: what a reader should know.
        saved: the file that replays the case; ``""`` if nothing differed.
        saved_bytes: its size.
    """

    reference: str
    devices: str
    towers: int
    dtypes: Mapping[str, str]
    precisions: Mapping[str, str]
    trials: Sequence[Trial]
    scale: float = 1.0
    strategy: str = ""
    trajectory: Trajectory | Missing = NO_STEPS
    unread: Mapping[str, str] = field(default_factory=dict)
    missing: Mapping[str, bool] = field(default_factory=dict)
    changed: frozenset[str] = frozenset()
    races: Mapping[str, str] = field(default_factory=dict)
    optimizers: frozenset[str] = frozenset()
    updates: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
    saved: str = ""
    saved_bytes: int = 0


def largest(values: Array) -> float:
    """The largest absolute value; 0 for no values."""
    return float(np.max(np.abs(values), initial=0.0))
