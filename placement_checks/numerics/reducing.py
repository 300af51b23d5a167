"""Select enough elements of large arrays to compare two programs and to explain differences.

Whole arrays are read once and not stored. The largest elements and the elements that differ most
are selected, so that the largest error is exact. The other selected elements are random.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from placement_checks.core.measurement import Array, Elements, Trial, VariableStep
from placement_checks.numerics.block_statistics import (
    Indices,
    Values,
    find_peaks,
    iterate_blocks,
    least_squares_ratio,
)

_PEAKS = 32  # elements of each kind: largest, or with the largest difference
# Elements of one gradient, and of all. A fit of gradients has at most 128 unknowns.
_MIN_OF_GRADIENT, _MAX_OF_GRADIENT = 512, 4096
_MAX_OF_ALL_GRADIENTS = 1 << 18
_OF_STEP = 512  # random elements of a variable after a step


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

    Args:
        rows: the number of rows in the batch.
        split: the rows of each tower, as `Trial.split`.
        expected: the gradients of the reference.
        found: the gradients of the program.
        noise: how much the gradients of the reference differ in other orders of the rows.
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
    most = max(_MIN_OF_GRADIENT, min(_MAX_OF_GRADIENT, budget))
    elements: dict[str, Elements] = dict.fromkeys(expected)
    by_shape: dict[tuple[int, ...], list[str]] = {}
    for name, values in expected.items():
        if values.size > most:
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
        chosen = _add_random(np.concatenate(largest), is_zero.reshape(-1), most)
        elements |= dict.fromkeys(names, chosen)
    return elements


def _gradient_sizes(
    expected: Values, found: Values, ratio: float | None
) -> Iterator[Sequence[Array]]:
    for value, other in iterate_blocks(expected, found):
        yield np.abs(value), np.abs(other - value), np.abs(other - (ratio or 0.0) * value)


def _add_random(indices: Indices, is_zero: npt.NDArray[np.bool_], most: int) -> Indices:
    """Add random elements up to ``most``; add zeros only if no other elements are left."""
    rng = np.random.default_rng(0)
    others = np.flatnonzero(~is_zero)
    number = min(most - indices.size, others.size)
    found = np.union1d(indices, rng.choice(others, max(0, number), replace=False))
    number = max(0, most - found.size) if number == others.size else 0
    return np.union1d(found, rng.choice(is_zero.size, number, replace=False))


def sample_elements(size: int) -> Elements:
    """Return random elements of an array to follow over all steps; None for all elements."""
    if size <= _OF_STEP:
        return None
    return np.random.default_rng(0).choice(size, _OF_STEP, replace=False)


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

    Args:
        start: its values before all steps.
        expected: the values of the reference after this step.
        found: the values of the program after this step.
        moved: the changes of both in this step, for the elements of `sample_elements`.
        noise: how much the values of the reference differ in other orders of the rows.
        uncertain: True for elements with a direction that rounding decides; ignored for slots of
            another shape than their variable.
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
        # Certain elements are compared, but the final error is reported for all.
        yield [*kinds, *(counts[0] * kind for kind in kinds[:2])] if counts else kinds
