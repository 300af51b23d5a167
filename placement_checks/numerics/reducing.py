"""What is kept of the values of two programs: enough elements to compare and to explain them.

Whole arrays are compared as they come. Of large ones the elements that decide are kept: those that
are largest or differ most, so that what is said of the largest is exact, and others at random.
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

_PEAKS = 32  # elements of each kind that decide
_OF_GRADIENT = 4096  # elements; a fit of gradients has at most 128 unknowns
_OF_ALL_GRADIENTS = 1 << 18
_FEWEST_OF_GRADIENT = 512
_OF_STEP = 512


def select_elements(values: Values, elements: Elements) -> Array:
    """A copy of some elements, or of all, in float64."""
    return np.array(values if elements is None else values.reshape(-1)[elements], np.float64)


def select_all(arrays: Mapping[str, Values], elements: Mapping[str, Elements]) -> dict[str, Array]:
    """Copies of some elements of those arrays that are named."""
    return {name: select_elements(arrays[name], chosen) for name, chosen in elements.items()}


def build_trial(
    rows: int,
    split: Sequence[tuple[int, ...]],
    expected: Mapping[str, Values],
    found: Mapping[str, Values],
    noise: Mapping[str, float],
) -> Trial:
    """What is kept of the gradients of one batch, those that both programs have.

    Args:
        rows: of the batch.
        split: the rows of each tower, as `Trial.split`.
        expected: the gradients of the reference.
        found: those of the program.
        noise: how far those of the reference move if the rows are put in another order.
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
    """By which elements each gradient is compared and explained; None for all of them.

    Variables of one shape have the same elements, as one may have the gradient of another.
    """
    room = _OF_ALL_GRADIENTS // max(1, len(expected))
    most = max(_FEWEST_OF_GRADIENT, min(_OF_GRADIENT, room))
    elements: dict[str, Elements] = dict.fromkeys(expected)
    by_shape: dict[tuple[int, ...], list[str]] = {}
    for name, values in expected.items():
        if values.size > most:
            by_shape.setdefault(values.shape, []).append(name)
    for names in by_shape.values():
        each = max(1, _PEAKS // len(names))
        deciding = [
            find_peaks(_gradient_sizes(expected[name], found[name], ratios[name]), each)
            for name in names
        ]
        is_zero = np.logical_and.reduce(
            [(expected[name] == 0) & (found[name] == 0) for name in names]
        )
        chosen = _add_random(np.concatenate(deciding), is_zero.reshape(-1), most)
        elements |= dict.fromkeys(names, chosen)
    return elements


def _gradient_sizes(
    expected: Values, found: Values, ratio: float | None
) -> Iterator[Sequence[Array]]:
    for value, other in iterate_blocks(expected, found):
        yield np.abs(value), np.abs(other - value), np.abs(other - (ratio or 0.0) * value)


def _add_random(deciding: Indices, is_zero: npt.NDArray[np.bool_], most: int) -> Indices:
    """Elements, with others at random: zeros only where nothing else is left."""
    rng = np.random.default_rng(0)
    others = np.flatnonzero(~is_zero)
    number = min(most - deciding.size, others.size)
    found = np.union1d(deciding, rng.choice(others, max(0, number), replace=False))
    number = max(0, most - found.size) if number == others.size else 0
    return np.union1d(found, rng.choice(is_zero.size, number, replace=False))


def sample_elements(size: int) -> Elements:
    """By which elements of so many a change in one step is told, at random; None for all."""
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
    """What is kept of one variable after one step.

    Args:
        start: its values before all steps.
        expected: those of the reference after this step.
        found: those of the program.
        moved: the changes of both in this step, of the elements that `step_elements` names.
        noise: how far those of the reference move if the rows are put in another order.
        uncertain: the elements whose direction is rounding; it tells nothing of a slot that has
            another shape.
    """
    certain = None
    if uncertain is not None and uncertain.shape == start.shape:
        certain = ~uncertain
    elements = sample_elements(start.size)
    if elements is not None:
        deciding = find_peaks(_step_sizes(start, expected, found, certain), _PEAKS)
        elements = np.union1d(elements, deciding)
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
        # What is compared are certain elements; how far it is off at last is told of all.
        yield [*kinds, *(counts[0] * kind for kind in kinds[:2])] if counts else kinds
