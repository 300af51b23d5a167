"""The noise of what is measured: what another order of the rows does to it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from placement_checks.core.measurement import Array, Arrays, Sample, largest

# An element whose gradient is not this many times its noise may take a step either way, under an
# optimiser that divides the gradient by its size.
_CERTAIN = 100


def noise_of(values: Arrays, others: Sequence[Arrays]) -> dict[str, float]:
    """The largest difference of each array in other orders of the rows."""
    return {
        name: max(largest(other[name] - value) for other in others)
        for name, value in values.items()
    }


def uncertain_elements(orders: Sequence[Sequence[Arrays]]) -> dict[str, npt.NDArray[np.bool_]]:
    """The elements whose gradient, at some step, is not well above the noise of its variable."""
    first, *others = orders
    uncertain: dict[str, npt.NDArray[np.bool_]] = {}
    for number, gradients in enumerate(first):
        noise = noise_of(gradients, [other[number] for other in others])
        for name, gradient in gradients.items():
            is_small = (np.abs(gradient) <= _CERTAIN * noise[name]) & (noise[name] > 0)
            uncertain[name] = uncertain.get(name, np.zeros_like(is_small)) | is_small
    return uncertain


def mean_over(samples: Sequence[Sample], rows: int) -> dict[str, Array]:
    """The mean over the rows of gradients that are means over some of them."""
    return {
        name: np.sum(
            [len(sample.rows) / rows * sample.gradients[name] for sample in samples], axis=0
        )
        for name in samples[0].gradients
    }
