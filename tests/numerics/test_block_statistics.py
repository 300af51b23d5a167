"""Statistics of whole arrays, which are read block by block."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement_checks.numerics.sampling import (
    BLOCK,
    find_peaks,
    iterate_blocks,
    largest_difference,
    least_squares_ratio,
)

sizes = st.sampled_from([1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 3 * BLOCK + 5])
seeds = st.integers(0, 2**32 - 1)


def two(seed: int, size: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=size).astype(np.float32), rng.normal(size=size).astype(np.float32)


@settings(deadline=None, max_examples=50)
@given(seeds, sizes)
def test_blocks_give_the_results_of_whole_arrays(seed: int, size: int) -> None:
    one, other = two(seed, size)
    wide = one.astype(np.float64), other.astype(np.float64)

    assert largest_difference(one, other) == np.max(np.abs(wide[0] - wide[1]))
    assert least_squares_ratio(one, other) == pytest.approx(
        np.vdot(*wide) / np.vdot(wide[0], wide[0]), rel=1e-9, abs=1e-9
    )


@settings(deadline=None, max_examples=50)
@given(seeds, sizes, st.integers(1, 40))
def test_the_peaks_contain_the_largest_element(seed: int, size: int, most: int) -> None:
    one, other = two(seed, size)

    found = find_peaks(([np.abs(a), b] for a, b in iterate_blocks(one, other)), most)

    assert {np.argmax(np.abs(one)), np.argmax(other)} <= set(found.tolist())
    assert len(found) <= 2 * min(most, -(-size // BLOCK))


@pytest.mark.parametrize("at", [0, BLOCK - 1, BLOCK, 3 * BLOCK - 1])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_nonfinite_values_are_found(at: int, value: float) -> None:
    one, other = two(0, 3 * BLOCK)
    other[at] = value

    assert not np.isfinite(largest_difference(one, other))
    assert least_squares_ratio(one, other) is None
    assert at in find_peaks(([np.abs(a)] for (a,) in iterate_blocks(other)), 1)
    among = np.arange(other.size) != at
    assert least_squares_ratio(one, other, among) is not None


def test_arrays_of_any_shape_and_dtype() -> None:
    values = np.arange(6).reshape(2, 3)

    assert largest_difference(values, values.astype(ml_dtypes.bfloat16)) == 0
    assert largest_difference(values[:, ::2], np.broadcast_to(1.0, (2, 2))) == 4
    assert largest_difference(np.array(2), np.array(5)) == 3
    assert largest_difference(np.zeros(0), np.zeros(0)) == 0
    assert least_squares_ratio(values, -2 * values) == pytest.approx(-2)
    assert least_squares_ratio(np.zeros(3), np.ones(3)) is None
    assert least_squares_ratio(np.zeros(0), np.zeros(0)) is None


@pytest.mark.parametrize("size", [1e-300, 1e300])
def test_squares_above_the_float_range(size: float) -> None:
    assert least_squares_ratio(np.array([size, 0]), np.array([2 * size, 0])) == pytest.approx(2)


def test_masked_elements_do_not_count() -> None:
    expected, found = np.array([1.0, 1.0, 9.0]), np.array([2.0, 2.0, 0.0])

    assert least_squares_ratio(expected, found, np.array([True, True, False])) == 2
    assert least_squares_ratio(expected, found, np.zeros(3, np.bool_)) is None
