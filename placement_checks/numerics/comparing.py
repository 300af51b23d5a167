"""Compare two arrays: they are equal, different, or too noisy to decide.

Elements are not compared one by one: because of cancellation, single elements of correct programs
differ by up to 400,000 eps. The largest difference divided by the largest value stays below 14 eps
in towers of a convolutional network, and below 28 eps in a scalar with cancellation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np

from placement_checks.core.measurement import EPS, Array, Trial, largest
from placement_checks.numerics.sampling import least_squares_ratio

# A comparison that cannot show a relative difference of this size is inconclusive. Towers of 64
# and 63 rows that are averaged without weights are wrong by 0.2 to 0.7 %.
REQUIRED_RESOLUTION = 0.01

# Two rows have only one other order, and a sum that depends little on weights has almost no noise
# in perturbed runs: sums over 131,072 pixels of two images differed by up to 95 eps, and the other
# order showed 4 to 114 eps.
_TIMES_ON_TWO_ROWS = 16.0

State = Literal["equal", "differs", "noise", "too-coarse"]


class Limits(NamedTuple):
    """The largest errors of equal arrays."""

    tolerance: float = 32.0  # in eps of the largest expected value
    times_noise: float = 8.0  # as a multiple of the noise

    def on_rows(self, rows: int) -> Limits:
        """Return the limits for a batch with this number of rows."""
        return self._replace(tolerance=self.tolerance * (_TIMES_ON_TWO_ROWS if rows <= 2 else 1.0))


DEFAULT_LIMITS = Limits()


class Difference(NamedTuple):
    """How two arrays differ."""

    variable: str  # the variable that the arrays belong to
    # `equal` or `differs`; `noise` or `too-coarse` if the noise or the dtype would hide a relative
    # difference of 0.01.
    state: State
    ratio: float | None  # the ratio of found to expected values by least squares, if it is defined
    error: float  # the largest difference, in eps of the largest expected value
    limit: float  # the largest error of equal arrays, in the same unit

    def figures(self) -> dict[str, Any]:
        """Return the attributes for reports, with None for NaN and infinite numbers."""
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
    limits: Limits = DEFAULT_LIMITS,
    allowed: float = 0.0,
    zero: float = 0.0,
) -> Difference:
    """Compare two arrays of one shape.

    Args:
        variable: the variable that the arrays belong to.
        expected: the values of the reference.
        found: the values of the program.
        dtype: the dtype of the computation, which gives the eps.
        noise: the largest absolute difference in perturbed runs.
        limits: the largest errors of equal arrays.
        allowed: an absolute difference that equal arrays may have in any case.
        zero: the largest value that rounding may yield instead of zero. If all expected values are
            below an eighth of this value, they count as zero.
    """
    eps = EPS.get(dtype, 0.0)  # integers are equal or not
    size = largest(expected)
    unit = eps * size
    error = largest(found - expected)
    noise *= limits.times_noise
    noisy = bool(eps) and (noise >= REQUIRED_RESOLUTION * size or size <= zero / 8)
    limit = max(limits.tolerance * unit, noise, allowed, zero if noisy else 0.0)
    state: State
    if error > limit or not np.isfinite(error):
        state = "differs"
    elif size and limits.tolerance * eps > REQUIRED_RESOLUTION:
        state = "too-coarse"
    elif noisy and max(size, error):
        state = "noise"
    else:
        state = "equal"
    units = error / unit if unit else np.inf if error else 0.0
    return Difference(
        variable,
        state,
        least_squares_ratio(expected, found),
        float(units if np.isfinite(error) else np.nan),
        float(limit / unit if unit else 0.0),
    )


def compare_gradients(
    trial: Trial, precisions: Mapping[str, str], limits: Limits = DEFAULT_LIMITS
) -> list[Difference]:
    """Compare the gradients of all variables on one batch.

    A gradient that is exactly zero, for example of a bias before a normalization, is computed as
    the rounding error of larger gradients: at most 3 eps of the largest gradient in 14 random
    models; the smallest gradient that is not zero was 3,000 eps.

    Args:
        trial: the batch.
        precisions: the dtypes of the computation, by variable.
        limits: the largest errors of equal arrays; for zeros, in eps of the largest gradient.
    """
    largest_gradient = max(map(largest, trial.expected.values()), default=0.0)
    compared = [
        compare_arrays(
            name,
            expected,
            trial.found[name],
            dtype=precisions[name],
            noise=trial.noise[name],
            limits=limits.on_rows(trial.rows),
            zero=limits.tolerance * EPS.get(precisions[name], 0.0) * largest_gradient,
        )
        for name, expected in trial.expected.items()
    ]
    return [one._replace(ratio=trial.ratios.get(one.variable, one.ratio)) for one in compared]


def divide_gradients(trial: Trial, factor: float) -> Trial:
    """Return a copy of the trial with the gradients of the program divided by a number."""
    return replace(
        trial,
        found={name: found / factor for name, found in trial.found.items()},
        ratios={name: ratio and ratio / factor for name, ratio in trial.ratios.items()},
    )


def differing_variables(
    trial: Trial, precisions: Mapping[str, str], limits: Limits = DEFAULT_LIMITS
) -> set[str]:
    """Return the variables with different gradients on one batch."""
    compared = compare_gradients(trial, precisions, limits)
    return {gradient.variable for gradient in compared if gradient.state == "differs"}
