"""Two arrays: equal, different, or too noisy to tell.

Elements are not compared one by one: cancellation makes single ones of sound programs differ by
400,000 eps, whereas the largest difference over the largest value stays below 14 eps in towers of
a convolutional network, and below 28 in a scalar that cancels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np

from placement_checks.core.measurement import EPS, Array, Trial, largest
from placement_checks.numerics.block_statistics import least_squares_ratio

# Where a difference of this size would not show, nothing is said: towers of 64 and 63 rows that
# are averaged without weights are wrong by 0.2 to 0.7 %.
REQUIRED_RESOLUTION = 0.01

# Two rows have one other order, and what it changes may by chance be next to nothing: sums over
# 131,072 pixels of two pictures came out by up to 95 eps apart, and their order showed 4 to 114.
_TIMES_ON_TWO_ROWS = 16.0

State = Literal["equal", "differs", "noise", "too-coarse"]


def scale_tolerance(rows: int, tolerance: float) -> float:
    """The largest error that means nothing, in eps, on so many rows."""
    return tolerance * (_TIMES_ON_TWO_ROWS if rows <= 2 else 1.0)


class Difference(NamedTuple):
    """How two arrays differ.

    Attributes:
        variable: whose arrays they are.
        state: a difference of a hundredth could not be told from their noise (``noise``), or in
            their dtype (``too-coarse``).
        ratio: of the found to the expected values, by least squares; None if there is none.
        error: the largest difference, in eps of the largest expected value.
        limit: what it may be, in the same unit.
    """

    variable: str
    state: State
    ratio: float | None
    error: float
    limit: float

    def figures(self) -> dict[str, Any]:
        """For reports; None for what is NaN or infinite."""
        return {
            key: None if isinstance(value, float) and not np.isfinite(value) else value
            for key, value in self._asdict().items()
        }


def compare_arrays(
    variable: str,
    expected: Array,
    found: Array,
    *,
    dtype: str,
    noise: float = 0.0,
    tolerance: float = 32.0,
    times_noise: float = 8.0,
    allowed: float = 0.0,
    zero: float = 0.0,
) -> Difference:
    """Compare two arrays of one shape.

    Args:
        variable: whose they are.
        expected: one of them.
        found: the other.
        dtype: in which they were computed, which gives the eps.
        noise: the largest absolute difference that means nothing.
        tolerance: the largest error that means nothing, in eps.
        times_noise: how many times the noise a difference must be to mean something.
        allowed: an absolute difference that means nothing.
        zero: what rounding may make of an array that is zero in truth, as one is whose values are
            no larger than an eighth of it.
    """
    eps = EPS.get(dtype, 0.0)  # integers are equal or not
    size = largest(expected)
    unit = eps * size
    error = largest(found - expected)
    noisy = bool(eps) and (times_noise * noise >= REQUIRED_RESOLUTION * size or size <= zero / 8)
    limit = max(tolerance * unit, times_noise * noise, allowed, zero if noisy else 0.0)
    state: State
    if error > limit or not np.isfinite(error):
        state = "differs"
    elif size and tolerance * eps > REQUIRED_RESOLUTION:
        state = "too-coarse"
    elif noisy and max(size, error):
        state = "noise"
    else:
        state = "equal"
    return Difference(
        variable,
        state,
        least_squares_ratio(expected, found),
        float(_in_units(error, unit)),
        float(limit / unit if unit else 0.0),
    )


def _in_units(error: float, unit: float) -> float:
    if not np.isfinite(error):
        return np.nan
    if unit:
        return error / unit
    return np.inf if error else 0.0


def compare_gradients(
    trial: Trial,
    precisions: Mapping[str, str],
    *,
    tolerance: float = 32.0,
    times_noise: float = 8.0,
) -> list[Difference]:
    """Compare the gradients of all variables on one batch.

    One that is zero in truth, such as that of a bias before a normalisation, is what rounding
    makes of larger ones: at most 3 eps of the largest gradient in 14 random models, whose smallest
    real one was 3,000 eps.

    Args:
        trial: the batch.
        precisions: the dtypes in which they are computed, by variable.
        tolerance: as for `difference`, and in eps of the largest gradient, for zeros.
        times_noise: as for `difference`.
    """
    largest_gradient = max(map(largest, trial.expected.values()), default=0.0)
    compared = [
        compare_arrays(
            name,
            expected,
            trial.found[name],
            dtype=precisions[name],
            noise=trial.noise[name],
            tolerance=scale_tolerance(trial.rows, tolerance),
            times_noise=times_noise,
            zero=tolerance * EPS.get(precisions[name], 0.0) * largest_gradient,
        )
        for name, expected in trial.expected.items()
    ]
    return [one._replace(ratio=trial.ratios.get(one.variable, one.ratio)) for one in compared]


def divide_gradients(trial: Trial, factor: float) -> Trial:
    """The same batch with the gradients of the program divided by a number."""
    return replace(
        trial,
        found={name: found / factor for name, found in trial.found.items()},
        ratios={name: ratio and ratio / factor for name, ratio in trial.ratios.items()},
    )


def differing_variables(trial: Trial, precisions: Mapping[str, str]) -> set[str]:
    """The variables whose gradients differ on one batch."""
    compared = compare_gradients(trial, precisions)
    return {gradient.variable for gradient in compared if gradient.state == "differs"}
