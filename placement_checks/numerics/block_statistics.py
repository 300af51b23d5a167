"""Statistics of whole arrays in float64, and the noise of measured values.

Arrays are read block by block, because a machine may have no memory for copies of all values of a
model. The noise is the effect of another order of the rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from placement_checks.core.measurement import Array

Values: TypeAlias = npt.NDArray[Any]
Indices: TypeAlias = npt.NDArray[np.intp]

# Elements of a block: some blocks fit into a core's cache, and BLAS starts no threads for one.
BLOCK = 1 << 13
# Under an optimizer that divides the gradient by its size, noise decides the direction of elements
# with a gradient below this many times the noise.
_MIN_SIGNAL = 100


def iterate_blocks(*arrays: Values) -> Iterator[list[Array]]:
    """Yield corresponding blocks of arrays of equal size, in float64."""
    flat = [array.reshape(-1) for array in arrays]
    for begin in range(0, flat[0].size, BLOCK):
        yield [np.asarray(array[begin : begin + BLOCK], np.float64) for array in flat]


def largest_difference(values: Values, others: Values) -> float:
    """Return the largest absolute difference; NaN if a value is NaN."""
    largest = [np.max(np.abs(other - value)) for value, other in iterate_blocks(values, others)]
    return float(np.max(largest, initial=0.0))


def least_squares_ratio(
    expected: Values, found: Values, among: Values | None = None
) -> float | None:
    """Return the factor between expected and found values, by least squares.

    Args:
        expected: the expected values.
        found: the found values, equally many.
        among: True for the elements that count; all by default.

    Returns:
        The factor; None if all expected values are 0, or some found values are not finite.
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
    """Return the indices of large elements; NaN counts as the largest.

    For each kind of size, each of the ``most`` blocks with the largest values contributes its
    largest element. So the largest element of all is included.

    Args:
        sizes: for each block, the sizes of its elements, one array for each kind.
        most: the number of elements for each kind.
    """
    indices, values = [], []
    for number, kinds in enumerate(sizes):
        at = [int(np.argmax(kind)) for kind in kinds]
        indices.append([number * BLOCK + index for index in at])
        values.append([kind[index] for kind, index in zip(kinds, at, strict=True)])
    last = np.argsort(np.array(values), axis=0)[-most:]
    return np.unique(np.take_along_axis(np.array(indices, np.intp), last, axis=0))


def measure_noise(
    values: Mapping[str, Values], others: Iterable[Mapping[str, Values]]
) -> dict[str, float]:
    """Return how much each array differs, at most, from its values in other orders of the rows."""
    noise = dict.fromkeys(values, 0.0)
    for other in others:
        add_noise(noise, values, other)
    return noise


def add_noise(
    noise: dict[str, float], values: Mapping[str, Values], other: Mapping[str, Values]
) -> None:
    """Update the noise with values in another order of the rows; arrays may be missing there."""
    for name in values.keys() & other.keys():
        noise[name] = max(noise[name], largest_difference(values[name], other[name]))


def uncertain_elements(
    gradients: Sequence[Mapping[str, Values]], noise: Sequence[Mapping[str, float]]
) -> dict[str, npt.NDArray[np.bool_]]:
    """Return masks of elements with a gradient near the variable's noise, at any step."""
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
    """Combine gradients that are means over parts of the rows into the mean over all rows."""
    mean: dict[str, Array] = {}
    for part, gradients in samples:
        for name, gradient in gradients.items():
            mean[name] = mean.get(name, 0.0) + len(part) / rows * np.asarray(gradient, np.float64)
    return mean
