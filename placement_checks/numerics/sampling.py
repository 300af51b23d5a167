"""Reduce large arrays to a ratio, a noise, and enough elements to explain differences.

Whole arrays are read once, block by block in float64, and not stored, because a machine may have
no memory for copies of all values of a model. The noise is the effect of perturbations: another
order of the rows, and changes of the weights by a few eps. The largest elements and the elements
that differ most are selected, so that the largest error is exact. The other selected elements are
random.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from placement_checks.core.measurement import Array, Elements, Trial, VariableStep

Values: TypeAlias = npt.NDArray[Any]
Indices: TypeAlias = npt.NDArray[np.intp]

# Elements of a block. Several blocks fit into a core's cache; BLAS starts no threads for a block.
BLOCK = 1 << 13
# Some optimizers divide the gradient by its size. Noise may then decide the direction in which an
# element moves, if its gradient is less than this number times the noise.
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

    ``among`` is True for the elements that count; by default all count. The factor is None if all
    expected values are 0, or some found values are not finite.
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


def find_peaks(sizes: Iterable[Sequence[Array]], limit: int) -> Indices:
    """Return the indices of large elements; NaN counts as the largest.

    ``sizes`` yields the arrays of each block: one array for each kind of size. For each kind, the
    ``limit`` blocks with the largest values are chosen, and the index of the largest element of
    each is returned. So the index of the largest element of the whole array is included.
    """
    indices, values = [], []
    for number, kinds in enumerate(sizes):
        at = [int(np.argmax(kind)) for kind in kinds]
        indices.append([number * BLOCK + index for index in at])
        values.append([kind[index] for kind, index in zip(kinds, at, strict=True)])
    last = np.argsort(np.array(values), axis=0)[-limit:]
    return np.unique(np.take_along_axis(np.array(indices, np.intp), last, axis=0))


def measure_noise(
    values: Mapping[str, Values], others: Iterable[Mapping[str, Values]]
) -> dict[str, float]:
    """Return the largest difference of each array from its values in perturbed runs."""
    noise = dict.fromkeys(values, 0.0)
    for other in others:
        add_noise(noise, values, other)
    return noise


def add_noise(
    noise: dict[str, float], values: Mapping[str, Values], other: Mapping[str, Values]
) -> None:
    """Update the noise with some values, ``other``, of a perturbed run."""
    for name in values.keys() & other.keys():
        noise[name] = max(noise[name], largest_difference(values[name], other[name]))


def uncertain_elements(
    gradients: Sequence[Mapping[str, Values]], noise: Sequence[Mapping[str, float]]
) -> dict[str, npt.NDArray[np.bool_]]:
    """Return masks of the elements with a gradient near the variable's noise in some step."""
    uncertain = {name: np.zeros(value.shape, np.bool_) for name, value in gradients[0].items()}
    for of_step, noise_of_step in zip(gradients, noise, strict=True):
        for name, gradient in of_step.items():
            if noise_of_step[name] > 0:
                limit = np.float64(_MIN_SIGNAL * noise_of_step[name])
                uncertain[name] |= np.abs(gradient) <= limit
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


_PEAKS = 32  # elements of each kind: largest, or with the largest difference
# Selected elements of one gradient, and of all gradients. A fit has at most 128 unknowns.
_MIN_OF_GRADIENT, _MAX_OF_GRADIENT = 512, 4096
_MAX_OF_ALL_GRADIENTS = 1 << 18
_RANDOM_OF_STEP = 512  # random elements of a variable after a step


def select_elements(values: Values, elements: Elements) -> Array:
    """Return a copy of the elements in float64; None selects all."""
    return np.array(values if elements is None else values.reshape(-1)[elements], np.float64)


def select_all(arrays: Mapping[str, Values], elements: Mapping[str, Elements]) -> dict[str, Array]:
    """Return copies of the selected elements of each named array."""
    return {name: select_elements(arrays[name], chosen) for name, chosen in elements.items()}


def build_trial(
    rows: int,
    split: Sequence[tuple[int, ...]],
    expected: Mapping[str, Values],
    found: Mapping[str, Values],
    noise: Mapping[str, float],
) -> Trial:
    """Select elements of the gradients on one batch, for variables that both programs have.

    The arguments are attributes of `Trial`, but whole arrays instead of selected elements.
    """
    expected = {name: value for name, value in expected.items() if name in found}
    ratios = {name: least_squares_ratio(value, found[name]) for name, value in expected.items()}
    elements = _gradient_elements(expected, found, ratios)
    return Trial(
        rows,
        split,
        select_all(expected, elements),
        select_all(found, elements),
        noise,
        elements=elements,
        ratios=ratios,
    )


def _gradient_elements(
    expected: Mapping[str, Values], found: Mapping[str, Values], ratios: Mapping[str, float | None]
) -> dict[str, Elements]:
    """Return the selected elements of each gradient; None for all.

    For variables of equal shape, the same elements are selected, because the program may have
    swapped their gradients.
    """
    budget = _MAX_OF_ALL_GRADIENTS // max(1, len(expected))
    limit = max(_MIN_OF_GRADIENT, min(_MAX_OF_GRADIENT, budget))
    elements: dict[str, Elements] = dict.fromkeys(expected)
    by_shape: dict[tuple[int, ...], list[str]] = {}
    for name, values in expected.items():
        if values.size > limit:
            by_shape.setdefault(values.shape, []).append(name)
    for names in by_shape.values():
        each = max(1, _PEAKS // len(names))
        largest = [
            find_peaks(_gradient_sizes(expected[name], found[name], ratios[name]), each)
            for name in names
        ]
        is_zero = np.logical_and.reduce(
            [(expected[name] == 0) & (found[name] == 0) for name in names]
        )
        chosen = _add_random(np.concatenate(largest), is_zero.reshape(-1), limit)
        elements |= dict.fromkeys(names, chosen)
    return elements


def _gradient_sizes(
    expected: Values, found: Values, ratio: float | None
) -> Iterator[Sequence[Array]]:
    for value, other in iterate_blocks(expected, found):
        yield np.abs(value), np.abs(other - value), np.abs(other - (ratio or 0.0) * value)


def _add_random(indices: Indices, is_zero: npt.NDArray[np.bool_], limit: int) -> Indices:
    """Add random elements up to ``limit``; add zeros only if no other elements are left."""
    rng = np.random.default_rng(0)
    others = np.flatnonzero(~is_zero)
    number = min(limit - indices.size, others.size)
    found = np.union1d(indices, rng.choice(others, max(0, number), replace=False))
    number = max(0, limit - found.size) if number == others.size else 0
    return np.union1d(found, rng.choice(is_zero.size, number, replace=False))


def sample_elements(size: int) -> Elements:
    """Return random elements of an array to follow over all steps; None for all elements."""
    if size <= _RANDOM_OF_STEP:
        return None
    return np.random.default_rng(0).choice(size, _RANDOM_OF_STEP, replace=False)


def build_variable_step(
    start: Values,
    expected: Values,
    found: Values,
    *,
    moved: tuple[Array, Array],
    noise: float,
    uncertain: npt.NDArray[np.bool_] | None,
) -> VariableStep:
    """Select elements of one variable after one step.

    The arguments are attributes of `VariableStep`, but whole arrays. Only ``moved`` has the
    elements of `sample_elements`. ``uncertain`` masks the elements that rounding may move in
    either direction. The mask is ignored for a slot that does not have the shape of its variable.
    """
    certain = None
    if uncertain is not None and uncertain.shape == start.shape:
        certain = ~uncertain
    elements = sample_elements(start.size)
    if elements is not None:
        largest = find_peaks(_step_sizes(start, expected, found, certain), _PEAKS)
        elements = np.union1d(elements, largest)
    return VariableStep(
        start=select_elements(start, elements),
        expected=select_elements(expected, elements),
        found=select_elements(found, elements),
        moved=moved,
        noise=noise,
        certain=None if certain is None else select_elements(certain, elements) != 0,
        ratio=least_squares_ratio(expected, found, certain),
    )


def _step_sizes(
    start: Values, expected: Values, found: Values, certain: Values | None
) -> Iterator[Sequence[Array]]:
    arrays = (start, expected, found) if certain is None else (start, expected, found, certain)
    for before, value, other, *counts in iterate_blocks(*arrays):
        kinds = [np.abs(value), np.abs(other - value), np.abs(value - before)]
        # Only certain elements are compared, but the last error is reported for all elements.
        yield [*kinds, *(counts[0] * kind for kind in kinds[:2])] if counts else kinds
