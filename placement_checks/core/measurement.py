"""Measurements from runs of a program and its reference. Needs numpy, and no TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias, final

import numpy as np
import numpy.typing as npt

from placement_checks.core.devices import RunDevices
from placement_checks.core.missing import Missing

Array = npt.NDArray[np.float64]
Arrays = Mapping[str, npt.NDArray[Any]]
# Indices of elements of a flattened array; None for all elements.
Elements: TypeAlias = "npt.NDArray[np.intp] | None"

# The distance from 1 to the next number (IEEE 754; bfloat16 has 7 bits of fraction).
EPS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}


class Sample(NamedTuple):
    """Gradients of the reference, by variable, for some rows of a batch."""

    rows: tuple[int, ...]
    gradients: Arrays


class RowMixing(NamedTuple):
    """How the losses of a reference combine the rows of a batch, otherwise than by a sum.

    Ops are described with their types, names and source lines.
    """

    statistic: str = ""  # the first op that computes or uses batch statistics; `""` if none does
    # The first other op that combines rows, such as a division by a number of tokens; `""` if the
    # losses are sums over rows, apart from batch statistics.
    op: str = ""
    op_type: str = ""  # the type of this op


@dataclass(frozen=True)
class Trial:
    """The gradients of both programs for one batch and equal variables.

    Arrays are float64. Large gradients are sampled: the largest elements, the elements that differ
    most, and random ones.

    Attributes:
        rows: the number of rows in the batch.
        split: the rows that are fed to each tower; empty if the program splits the batch itself.
        expected, found: for each variable, the gradients of the reference and of the program.
            Variables with a gradient in only one of the programs are left out.
        noise: for each variable, the largest absolute change of the reference's gradient in
            perturbed runs.
        start: the values of the variables.
        per_tower: the reference's gradients on the rows of each tower. Computed only if gradients
            differ.
        per_row: the reference's gradients on single rows. Computed only if gradients differ.
        shifted: for each shift of the rows of one input against the other inputs, by its
            description, the reference's gradients on the shifted rows.
        not_finite: for each variable with a NaN or infinite gradient, the first op that produces
            such a value, and its source line.
        elements: for each sampled variable, the indices of the elements.
        ratios: for each sampled variable, the ratio of found to expected values, by least squares
            over all elements; None if it is undefined.
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

    Large variables are sampled: the largest elements, the elements that change or differ most, and
    random ones.
    """

    start: Array  # the values before all steps
    expected: Array  # the values of the reference after this step
    found: Array  # the values of the program after this step
    # The changes of both programs in this step; random elements of a large variable.
    moved: tuple[Array, Array]
    noise: float  # the change of the reference's values in perturbed runs
    # A mask of elements with a gradient that is never so close to zero that its sign may be noise;
    # None if unknown.
    certain: npt.NDArray[np.bool_] | None
    # The ratio of found to expected values by least squares over all certain elements; None if it
    # is undefined.
    ratio: float | None


NO_STEPS: Final = Missing("no step was taken")


@final
@dataclass(frozen=True)
class Trajectory:
    """Training steps of both programs, from equal variables, with equal batches.

    Attributes:
        steps: for each step, the variables that both programs have.
        trained: the variables with a known gradient in the reference.
        after: the gradients for one more batch after the last step, from the reference's
            variables.
        owners: for each variable, the trained variable that it belongs to: the variable itself,
            the original of a copy, or the owner of a slot.
    """

    steps: Sequence[Mapping[str, VariableStep]] = field(repr=False)
    trained: frozenset[str]
    after: Trial | None = None
    owners: Mapping[str, str] = field(default_factory=dict, repr=False)


@final
@dataclass(frozen=True)
class Measurement:
    """The results of running a program and its reference."""

    reference: str  # the name of the reference
    devices: RunDevices
    towers: int  # the number of towers of the program
    dtypes: Mapping[str, str]  # the dtype of each variable
    # For each variable, the coarsest dtype in the computation of its gradient.
    precisions: Mapping[str, str]
    trials: Sequence[Trial]  # the gradients for one or more batches
    scale: float = 1.0  # the number that the program's gradients were divided by, as it declares
    strategy: str = ""  # the class of the strategy that sums gradients; `""` without one
    trajectory: Trajectory | Missing = NO_STEPS  # some training steps
    # For each variable with an unreadable gradient, the reason.
    unreadable: Mapping[str, str] = field(default_factory=dict)
    # Variables that get a gradient in only one program; True if it is the reference.
    missing: Mapping[str, bool] = field(default_factory=dict)
    # Variables with a gradient that is clipped, or otherwise changed, before it is applied.
    changed: frozenset[str] = frozenset()
    # For each variable whose value depends on a race, the variable that is read before or after
    # its update.
    races: Mapping[str, str] = field(default_factory=dict)
    # For each variable, the other variables whose gradients a step applies before it computes this
    # variable's gradient, if there are any.
    earlier: Mapping[str, frozenset[str]] = field(default_factory=dict)
    optimizers: frozenset[str] = frozenset()  # the types of the ops that apply the gradients
    # For each variable, the op of the program that updates it.
    updates: Mapping[str, str] = field(default_factory=dict)
    # Why the reference computed on the rows of each tower alone; `""` if it computed on all rows
    # at once, as the program for one GPU does.
    own_rows: str = ""
    # How the reference combines rows, if gradients differ and this could be observed.
    mixing: RowMixing | None = None
    notes: Sequence[str] = ()  # notes for readers
    saved: str = ""  # the file with the saved case; `""` if nothing differed
    saved_bytes: int = 0  # the size of that file


def largest(values: Array) -> float:
    """The largest absolute value; 0 for an empty array."""
    return float(np.max(np.abs(values), initial=0.0))
