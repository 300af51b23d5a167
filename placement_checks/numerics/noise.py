"""The noise of what is measured: what another order of the rows does to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from placement_checks.core.measurement import Array
from placement_checks.numerics.blocks import Values, largest_difference

# An element whose gradient is not this many times its noise may take a step either way, under an
# optimiser that divides the gradient by its size.
_CERTAIN = 100


def noise_of(
    values: Mapping[str, Values], others: Iterable[Mapping[str, Values]]
) -> dict[str, float]:
    """The largest difference of each array in other orders of the rows, taken as they come."""
    noise = dict.fromkeys(values, 0.0)
    for other in others:
        add_noise(noise, values, other)
    return noise


def add_noise(
    noise: dict[str, float], values: Mapping[str, Values], other: Mapping[str, Values]
) -> None:
    """Add another order of the rows to a noise, of the variables that are in both."""
    for name in values.keys() & other.keys():
        noise[name] = max(noise[name], largest_difference(values[name], other[name]))


def uncertain_elements(
    gradients: Sequence[Mapping[str, Values]], noise: Sequence[Mapping[str, float]]
) -> dict[str, npt.NDArray[np.bool_]]:
    """The elements whose gradient, at some step, is not well above the noise of its variable."""
    uncertain = {name: np.zeros(value.shape, np.bool_) for name, value in gradients[0].items()}
    for of_step, noise_of_step in zip(gradients, noise, strict=True):
        for name, gradient in of_step.items():
            if noise_of_step[name] > 0:
                uncertain[name] |= np.abs(gradient) <= np.float64(_CERTAIN * noise_of_step[name])
    return uncertain


def mean_over(
    samples: Iterable[tuple[Sequence[int], Mapping[str, Values]]], rows: int
) -> dict[str, Array]:
    """The mean over the rows of gradients that are means over some of them."""
    mean: dict[str, Array] = {}
    for part, gradients in samples:
        for name, gradient in gradients.items():
            mean[name] = mean.get(name, 0.0) + len(part) / rows * np.asarray(gradient, np.float64)
    return mean
