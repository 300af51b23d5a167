"""Two arrays: equal, different, or too noisy to tell.

Elements are not compared one by one: cancellation makes single ones of sound programs differ by
400,000 eps, whereas the largest difference over the largest value stays below 14 eps in towers of
a convolutional network, and below 28 in a scalar that cancels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

from placement_checks.numbers.measurement import EPS, Array, Trial

# Where less than this can be told, nothing is said: towers of 64 and 63 rows that are averaged
# without weights are wrong by 0.2 to 0.7 %.
_COARSEST = 0.01

State = Literal["equal", "differs", "noise", "blurred"]


class Difference(NamedTuple):
    """How two arrays differ.

    Attributes:
        variable: whose arrays they are.
        state: ``noise`` where the expected values are no larger than their own noise, ``blurred``
            where a difference of a hundredth could not be told.
        ratio: of the found to the expected values, by least squares; None for no such number.
        error: the largest difference, in eps of the largest expected value.
        limit: what it may be, in the same unit.
    """

    variable: str
    state: State
    ratio: float | None
    error: float
    limit: float

    def figures(self) -> dict[str, Any]:
        """For reports; None for what is no finite number."""
        return {
            key: None if isinstance(value, float) and not np.isfinite(value) else value
            for key, value in self._asdict().items()
        }


def difference(
    variable: str,
    expected: Array,
    found: Array,
    *,
    dtype: str,
    noise: float = 0.0,
    tolerance: float = 32.0,
    times_noise: float = 8.0,
    allowed: float = 0.0,
) -> Difference:
    """Compare two arrays of one shape.

    Args:
        variable: whose they are.
        expected: one of them.
        found: the other.
        dtype: of the variable, which gives the eps.
        noise: the largest absolute difference that means nothing.
        tolerance: the largest error that means nothing, in eps.
        times_noise: how many times the noise a difference must be to mean something.
        allowed: an absolute difference that means nothing.
    """
    eps = EPS.get(dtype, 0.0)  # integers are equal or not
    size = _largest(expected)
    unit = eps * size
    off = _largest(found - expected)
    sound = max(tolerance * unit, times_noise * noise, allowed)
    state: State
    if off > sound or not np.isfinite(off):
        state = "differs"
    elif size and times_noise * noise >= size:
        state = "noise"
    elif sound > _COARSEST * size and not allowed:
        state = "blurred"
    else:
        state = "equal"
    error, limit = (off / unit, sound / unit) if unit else (np.inf if off else 0.0, 0.0)
    return Difference(variable, state, _ratio(expected, found), float(error), float(limit))


def gradients(
    trial: Trial, dtypes: Mapping[str, str], *, tolerance: float = 32.0, times_noise: float = 8.0
) -> list[Difference]:
    """Compare the gradients of all variables on one batch.

    Args:
        trial: the batch.
        dtypes: of the variables, by name.
        tolerance: as for `difference`.
        times_noise: as for `difference`.
    """
    return [
        difference(
            name,
            expected,
            trial.found[name],
            dtype=dtypes[name],
            noise=trial.noise[name],
            tolerance=tolerance,
            times_noise=times_noise,
        )
        for name, expected in trial.expected.items()
    ]


def differing(trial: Trial, dtypes: Mapping[str, str]) -> set[str]:
    """The variables whose gradients differ on one batch."""
    return {each.variable for each in gradients(trial, dtypes) if each.state == "differs"}


def _largest(values: Array) -> float:
    return float(np.max(np.abs(values), initial=0.0))


def _ratio(expected: Array, found: Array) -> float | None:
    size = _largest(expected)
    if not size or not np.all(np.isfinite(found)):
        return None
    scaled = expected / size
    return float(np.vdot(scaled, found / size) / np.vdot(scaled, scaled))
