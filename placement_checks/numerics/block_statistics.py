"""What whole arrays tell in float64, read block by block: no copy of one is made.

The values of a model take many times what a machine can spare for copies.

The noise of what is measured: what another order of the rows does to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from placement_checks.core.measurement import Array

Values: TypeAlias = npt.NDArray[Any]
Indices: TypeAlias = npt.NDArray[np.intp]

BLOCK = (
    1 << 13
)  # elements: some blocks fit a core's cache, and are too short to wake BLAS's threads


def iterate_blocks(*arrays: Values) -> Iterator[list[Array]]:
    """Arrays of one size in float64, the same stretch of each at a time."""
    flat = [array.reshape(-1) for array in arrays]
    for begin in range(0, flat[0].size, BLOCK):
        yield [np.asarray(array[begin : begin + BLOCK], np.float64) for array in flat]


def largest_difference(values: Values, others: Values) -> float:
    """The largest absolute difference; NaN where there is one."""
    apart = [np.max(np.abs(other - value)) for value, other in iterate_blocks(values, others)]
    return float(np.max(apart, initial=0.0))


def least_squares_ratio(
    expected: Values, found: Values, among: Values | None = None
) -> float | None:
    """What expected values are best multiplied by to get those that are found.

    None where that tells nothing: all expected values are 0, or not all that are found are finite.

    Args:
        expected: some values.
        found: as many others.
        among: True for the elements that count; all by default.
    """
    size, is_finite = 0.0, True
    for value, other in _selected_blocks(expected, found, among):
        size = max(size, float(np.max(np.abs(value), initial=0.0)))
        is_finite = is_finite and bool(np.all(np.isfinite(other)))
    if not size or not is_finite:
        return None
    both = square = 0.0
    for value, other in _selected_blocks(expected, found, among):
        scaled = value / size
        both += float(np.sum(scaled * (other / size)))
        square += float(np.sum(scaled * scaled))
    return both / square


def _selected_blocks(
    expected: Values, found: Values, among: Values | None
) -> Iterator[list[Array]]:
    if among is None:
        yield from iterate_blocks(expected, found)
    else:
        for value, other, counts in iterate_blocks(expected, found, among):
            yield [value[counts != 0], other[counts != 0]]


def find_peaks(sizes: Iterable[Sequence[Array]], most: int) -> Indices:
    """Where some kinds of sizes, given block by block, are largest; NaN counts as the largest.

    One element a block, of as many blocks as ``most``, for each kind: the largest of all is there.
    """
    places, values = [], []
    for number, kinds in enumerate(sizes):
        at = [int(np.argmax(kind)) for kind in kinds]
        places.append([number * BLOCK + place for place in at])
        values.append([kind[place] for kind, place in zip(kinds, at, strict=True)])
    last = np.argsort(np.array(values), axis=0)[-most:]
    return np.unique(np.take_along_axis(np.array(places, np.intp), last, axis=0))


# An element whose gradient is not this many times its noise may take a step either way, under an
# optimiser that divides the gradient by its size.
_MIN_SIGNAL = 100


def measure_noise(
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
                uncertain[name] |= np.abs(gradient) <= np.float64(
                    _MIN_SIGNAL * noise_of_step[name]
                )
    return uncertain


def weighted_mean(
    samples: Iterable[tuple[Sequence[int], Mapping[str, Values]]], rows: int
) -> dict[str, Array]:
    """The mean over the rows of gradients that are means over some of them."""
    mean: dict[str, Array] = {}
    for part, gradients in samples:
        for name, gradient in gradients.items():
            mean[name] = mean.get(name, 0.0) + len(part) / rows * np.asarray(gradient, np.float64)
    return mean
