"""Possible measurements of a program and its reference: synthetic losses over rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import accumulate
from typing import Any

import numpy as np

from placement_checks.core.measurement import (
    Array,
    Arrays,
    Measurement,
    Sample,
    Trajectory,
    Trial,
    VariableStep,
)
from placement_checks.numerics.sampling import build_variable_step

SHAPES: Mapping[str, tuple[int, ...]] = {"a": (3, 4), "b": (6,), "c": (4, 3), "d": (3, 4)}


@dataclass(frozen=True)
class Problem:
    """A loss with a known gradient for each row. Gradients are added up in float32, row by row.

    Attributes:
        slopes: the gradients of each row, by variable.
        start: the initial values of the variables.
        is_sum: whether the loss is the sum over rows, not their mean.
    """

    slopes: Arrays = field(repr=False)
    start: Arrays = field(repr=False)
    is_sum: bool = False

    @property
    def rows(self) -> int:
        return len(next(iter(self.slopes.values())))

    def of(self, rows: Sequence[int]) -> dict[str, Array]:
        """The gradients of the reference on some rows, in this order."""
        size = 1 if self.is_sum else len(rows)
        return {
            name: _float32(reduce(np.add, slope[list(rows)].astype(np.float32)) / size)
            for name, slope in self.slopes.items()
        }

    def times(self, times: Sequence[float] | Array) -> dict[str, Array]:
        """The gradients of a program that weights each row by a factor."""
        counted = {name: (slope.T * times).T for name, slope in self.slopes.items()}
        return Problem(counted, self.start, self.is_sum).of(range(self.rows))

    def samples(self, parts: Sequence[tuple[int, ...]]) -> list[Sample]:
        return [Sample(part, self.of(part)) for part in parts]

    def trial(self, found: Arrays, split: Sequence[tuple[int, ...]] = (), **more: Any) -> Trial:
        """A batch of all rows; `found` replaces the results of the reference."""
        expected = self.of(range(self.rows))
        rng = np.random.default_rng(0)
        others = [self.of(rng.permutation(self.rows).tolist()) for _ in range(3)]
        values: dict[str, Any] = {
            "noise": {
                name: max(float(np.max(np.abs(other[name] - value))) for other in others)
                for name, value in expected.items()
            },
            "start": self.start,
            "per_tower": self.samples(split),
            "per_row": self.samples([(row,) for row in range(self.rows)]),
        }
        return Trial(self.rows, split, expected, {**expected, **found}, **{**values, **more})


def problem(
    seed: int = 0,
    rows: int = 12,
    shapes: Mapping[str, tuple[int, ...]] = SHAPES,
    *,
    is_sum: bool = False,
) -> Problem:
    """Random gradients, much larger for some variables than for others."""
    rng = np.random.default_rng(seed)
    return Problem(
        {
            name: _float32(10 ** rng.uniform(-3, 3) * rng.normal(0.5, 1, (rows, *shape)))
            for name, shape in shapes.items()
        },
        {name: _float32(rng.normal(0, 0.3, shape)) for name, shape in shapes.items()},
        is_sum,
    )


def runs(*sizes: int) -> list[tuple[int, ...]]:
    """Parts of consecutive rows with the given sizes."""
    ends = list(accumulate(sizes))
    return [tuple(range(end - size, end)) for end, size in zip(ends, sizes, strict=True)]


def spread(values: Sequence[float], split: Sequence[tuple[int, ...]]) -> Array:
    """The value of each part, repeated for its rows."""
    return np.concatenate(
        [np.full(len(part), value) for part, value in zip(split, values, strict=True)]
    )


def measurement(*trials: Trial, **more: Any) -> Measurement:
    """A measurement of two towers in float32 that are trained by gradient descent."""
    names = dict.fromkeys(name for trial in trials for name in trial.expected)
    values: dict[str, Any] = {
        "reference": "train.py:single",
        "devices": "simulated",
        "towers": 2,
        "dtypes": dict.fromkeys(names, "float32"),
        "trials": trials,
        "optimizers": frozenset({"ResourceApplyGradientDescent"}),
    }
    values |= more
    return Measurement(**{"precisions": values["dtypes"], **values})


def trajectory(
    start: Mapping[str, Any],
    expected: Mapping[str, Sequence[Any]],
    found: Mapping[str, Sequence[Any]],
    *,
    noise: float = 0.0,
    uncertain: Mapping[str, Any] | None = None,
    after: Trial | None = None,
) -> Trajectory:
    """The values of each variable after each step, as the given arrays.

    Variables missing in `found` have the expected values. Variables in `uncertain` are trained;
    the names of their slots begin with theirs.
    """
    steps = range(len(next(iter(expected.values()))))

    trained = {name: np.asarray(value, np.bool_) for name, value in (uncertain or {}).items()}

    owners = {
        name: owner for name in expected for owner in trained if f"{name}/".startswith(f"{owner}/")
    }

    def variable_step(name: str, number: int) -> VariableStep:
        values = [
            [np.asarray(value, np.float64) for value in (start[name], *steps_of)]
            for steps_of in (expected[name], found.get(name, expected[name]))
        ]
        return build_variable_step(
            values[0][0],
            values[0][number + 1],
            values[1][number + 1],
            moved=(
                values[0][number + 1] - values[0][number],
                values[1][number + 1] - values[1][number],
            ),
            noise=noise,
            uncertain=trained.get(owners.get(name, "")),
        )

    return Trajectory(
        [{name: variable_step(name, number) for name in expected} for number in steps],
        frozenset(trained),
        after,
        owners,
    )


def displaced(original: Trajectory, **by: float) -> Trajectory:
    """The same steps; the given numbers are added to some variables in each step."""

    def shifted(step: VariableStep, by: float) -> VariableStep:
        return build_variable_step(
            step.start + by,
            step.expected + by,
            step.found + by,
            moved=step.moved,
            noise=step.noise,
            uncertain=None if step.certain is None else ~step.certain,
        )

    return replace(
        original,
        steps=[
            {name: shifted(step, by.get(name, 0.0)) for name, step in variables.items()}
            for variables in original.steps
        ],
    )


def _float32(values: Any) -> Array:
    return np.asarray(values, np.float32).astype(np.float64)
