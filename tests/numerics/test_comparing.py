from __future__ import annotations

import json
import math
from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.measurements import measurement, problem

from placement_checks.core.measurement import Array, Trial
from placement_checks.numerics.comparing import (
    Difference,
    Limits,
    compare_arrays,
    compare_gradients,
    differing_variables,
)

EPS = {
    "float64": float(np.finfo(np.float64).eps),
    "float32": float(np.finfo(np.float32).eps),
    "float16": float(np.finfo(np.float16).eps),
    "bfloat16": 1 / 128,
}
ONE = 2.0**-23  # eps of float32

sizes = st.integers(1, 2**24).map(lambda n: n / 2**12)
values = st.just(0.0) | sizes | sizes.map(lambda x: -x)
pairs = st.lists(st.tuples(values, values), max_size=8)
faults = st.sampled_from([0.0, 0.0, 2.0**-20, 0.25, 3.0])


def compare(expected: Any, found: Any, dtype: str = "float32", **more: Any) -> Difference:
    return compare_arrays(
        "w", np.asarray(expected, np.float64), np.asarray(found, np.float64), dtype=dtype, **more
    )


def arrays(pairs: Sequence[tuple[float, float]]) -> tuple[Array, Array]:
    expected, found = np.array(pairs, np.float64).reshape(-1, 2).T
    return expected, found


@given(pairs, st.sampled_from([*EPS, "int64"]), faults, faults, st.integers(-30, 30))
def test_only_the_relation_of_two_arrays_counts(
    pairs: list[tuple[float, float]], dtype: str, noise: float, allowed: float, power: int
) -> None:
    expected, found = arrays(pairs)
    by = 2.0**power

    assert compare(
        expected * by, found * by, dtype, noise=noise * by, allowed=allowed * by
    ) == compare(expected, found, dtype, noise=noise, allowed=allowed)


@given(pairs, st.sampled_from(["float32", "float64", "int32"]))
def test_equal_arrays_are_equal(pairs: list[tuple[float, float]], dtype: str) -> None:
    expected, _ = arrays(pairs)

    result = compare(expected, expected, dtype)

    assert (result.state, result.error) == ("equal", 0.0)
    assert result.ratio == (pytest.approx(1) if np.any(expected) else None)


@given(pairs, faults, st.randoms())
def test_the_order_of_elements_does_not_matter(
    pairs: list[tuple[float, float]], noise: float, random: Random
) -> None:
    shuffled = random.sample(pairs, len(pairs))

    one, other = (compare(*arrays(order), noise=noise) for order in (pairs, shuffled))

    assert one._replace(ratio=None) == other._replace(ratio=None)
    assert other.ratio == (None if one.ratio is None else pytest.approx(one.ratio))


@given(pairs, st.sampled_from([*EPS]))
def test_error_is_the_largest_difference_in_eps_of_the_largest_expected_value(
    pairs: list[tuple[float, float]], dtype: str
) -> None:
    largest = max((abs(expected) for expected, _ in pairs), default=0)
    assume(largest)
    off = max(abs(found - expected) for expected, found in pairs)

    result = compare(*arrays(pairs), dtype)

    assert result.error == pytest.approx(off / largest / EPS[dtype])
    assert result.limit == pytest.approx(32)


@given(pairs, faults, faults, st.sampled_from([1.0, 32.0, 1e6]), st.sampled_from([1.0, 8.0]))
def test_differences_above_all_tolerances(
    pairs: list[tuple[float, float]],
    noise: float,
    allowed: float,
    tolerance: float,
    times_noise: float,
) -> None:
    expected, found = arrays(pairs)
    off = max((abs(a - b) for a, b in pairs), default=0)
    rounding = tolerance * ONE * max((abs(a) for a, _ in pairs), default=0)

    limits = Limits(tolerance, times_noise)
    result = compare(expected, found, noise=noise, allowed=allowed, limits=limits)

    assert (result.state == "differs") == all(
        off > limit for limit in (rounding, noise * times_noise, allowed)
    )
    assert (result.error > result.limit) == (
        result.state == "differs" and bool(np.any(expected))
    ) or (not np.any(expected))


@given(pairs.filter(lambda pairs: any(expected for expected, _ in pairs)))
def test_the_ratio_is_the_best_fit(pairs: list[tuple[float, float]]) -> None:
    expected, found = arrays(pairs)

    ratio = compare(expected, found).ratio

    assert ratio is not None
    left = np.sum((found - ratio * expected) ** 2)
    scale = float(np.sum(expected**2) + np.sum(found**2))
    for other in (ratio * 1.01 + 0.01, ratio * 0.99 - 0.01):
        assert left <= np.sum((found - other * expected) ** 2) + 1e-9 * scale


@pytest.mark.parametrize(
    ("off", "more", "state"),
    [
        (32, {}, "equal"),
        (33, {}, "differs"),
        (-33, {}, "differs"),
        (3, {"limits": Limits(2)}, "differs"),
        (100, {"limits": Limits(100)}, "equal"),
        (80, {"noise": 10 * ONE}, "equal"),
        (81, {"noise": 10 * ONE}, "differs"),
        (81, {"noise": 10 * ONE, "limits": Limits(32, 9)}, "equal"),
        (5, {"noise": ONE / 8}, "equal"),
        (90, {"allowed": 90 * ONE}, "equal"),
        (91, {"allowed": 90 * ONE}, "differs"),
    ],
)
def test_states_at_the_tolerances(off: int, more: dict[str, Any], state: str) -> None:
    """The small element is off by multiples of the eps of the large one."""
    assert compare([1, 2**-12], [1, 2**-12 + off * ONE], **more).state == state


@pytest.mark.parametrize(
    ("noise", "times_noise", "state"),
    [
        (0.24, 8, "noise"),
        (0.1249, 8, "noise"),
        (0.00126, 8, "noise"),
        (0.0012, 8, "equal"),
        (0.0, 8, "equal"),
        (0.00126, 4, "equal"),
        (0.0026, 4, "noise"),
    ],
)
def test_noise_that_hides_one_percent(noise: float, times_noise: float, state: str) -> None:
    """The noise times this factor is a hundredth of the value, or more."""
    values = [1.0, 0.5]

    assert compare(values, values, noise=noise, limits=Limits(32, times_noise)).state == state


def test_a_type_is_too_coarse_whatever_the_noise() -> None:
    assert compare([1.0], [1.0], "bfloat16", noise=1.0).state == "too-coarse"
    assert compare([1.0], [1.0], "int32", noise=1.0).state == "equal"


def test_noise_hides_smaller_differences() -> None:
    assert compare([1e-9, -1e-9], [-3e-9, 1e-9], noise=2e-9).state == "noise"
    assert compare([1e-9, -1e-9], [-3e-8, 1e-9], noise=2e-9).state == "differs"


@pytest.mark.parametrize(
    ("dtype", "state"),
    [
        ("float16", "too-coarse"),
        ("bfloat16", "too-coarse"),
        ("float32", "equal"),
        ("float64", "equal"),
    ],
)
def test_types_too_coarse_for_one_percent(dtype: str, state: str) -> None:
    assert compare([1.0], [1.0], dtype).state == state
    assert compare([1.0], [1.5], dtype).state == "differs"
    assert compare([1.0], [1.0], dtype, limits=Limits(1e-4)).state == "equal"


def test_the_tolerance_is_exact() -> None:
    assert compare([1.0], [1.0], allowed=0.5).state == "equal"


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8", "bool"])
def test_integers_have_no_tolerance(dtype: str) -> None:
    assert compare([10**7], [10**7], dtype) == ("w", "equal", 1.0, 0.0, 0.0)
    result = compare([10**7], [10**7 + 1], dtype)
    assert (result.state, result.error, result.limit) == ("differs", math.inf, 0.0)
    assert compare([1e7], [1e7 + 1]).state == "equal"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "more", [{}, {"noise": 100.0}, {"allowed": 100.0}, {"limits": Limits(1e9)}]
)
@pytest.mark.parametrize("expected", [[1.0, 2.0], [0.0, 0.0]])
def test_nonfinite_values_differ(
    value: float, more: dict[str, Any], expected: list[float]
) -> None:
    result = compare(expected, [expected[0], value], **more)

    assert result.state == "differs"
    assert result.ratio is None
    assert result.figures()["error"] is None


def test_zero_equals_only_zero() -> None:
    assert compare([0, 0], [0, 0]) == ("w", "equal", None, 0.0, 0.0)
    result = compare([0, 0], [0, 1e-30])
    assert (result.state, result.ratio, result.error) == ("differs", None, math.inf)


def test_a_zero_that_is_noise_in_other_row_orders() -> None:
    """Rows that cancel exactly in one order, but not in another."""
    assert compare([0, 0], [0, 1e-9], noise=1e-9).state == "noise"
    assert compare([0, 0], [0, 9e-9], noise=1e-9).state == "differs"
    assert compare([0, 0], [0, 0], noise=1e-9).state == "equal"


@pytest.mark.parametrize(
    ("expected", "noise", "state"),
    [
        (2e-6, 2e-7, "noise"),
        (2e-6, 2.6e-9, "noise"),
        (2e-6, 2e-9, "differs"),
        (0.0, 1e-30, "noise"),
        (2e-6, 0.0, "differs"),
        (1e-6, 0.0, "noise"),
    ],
)
def test_rounded_zeros_are_recognized_by_their_noise(
    expected: float, noise: float, state: str
) -> None:
    """Off by 1e-5, more than eight times the noise; without noise, tiny values count as zero."""
    values = [expected, expected], [expected, expected + 1e-5]

    assert compare(*values, noise=noise).state == "differs"
    assert compare(*values, noise=noise, zero=1.1e-5).state == state
    assert compare(*values, noise=noise, zero=0.9e-5).state == "differs"


def test_empty_arrays_are_equal() -> None:
    assert compare([], []) == ("w", "equal", None, 0.0, 0.0)
    assert compare(np.zeros((0, 3)), np.zeros((0, 3))).state == "equal"


anything = st.floats(width=32)


@given(st.lists(st.tuples(anything, anything), max_size=4), st.sampled_from([*EPS, "int8"]))
def test_figures_are_valid_json(pairs: list[tuple[float, float]], dtype: str) -> None:
    with np.errstate(all="ignore"):
        result = compare(*arrays(pairs), dtype)

    figures = result.figures()

    assert json.loads(json.dumps(figures, allow_nan=False)) == figures
    assert figures.keys() == set(Difference._fields)
    for key, value in figures.items():
        kept = getattr(result, key)
        assert value == kept or (value is None and not math.isfinite(kept))


def trial(**found: float) -> Trial:
    """Each variable is 1, with a noise of 1e-5."""
    expected = dict.fromkeys(found, np.ones(2))
    return Trial(
        4,
        (),
        expected,
        {name: np.array([1.0, value]) for name, value in found.items()},
        dict.fromkeys(found, 1e-5),
    )


def test_gradients_of_all_variables() -> None:
    found = compare_gradients(
        trial(a=1.0, b=1 + 7e-5, c=2.0, d=1 + 7e-5), {**dict.fromkeys("abc", "float32"), "d": "x"}
    )

    assert [(gradient.variable, gradient.state) for gradient in found] == [
        ("a", "equal"),
        ("b", "equal"),
        ("c", "differs"),
        ("d", "equal"),
    ]
    assert found[1].limit == pytest.approx(8e-5 / ONE)
    assert found[1].error == pytest.approx(7e-5 / ONE)
    assert found[2].ratio == pytest.approx(1.5)
    assert (found[3].error, found[3].limit) == (math.inf, 0.0)


def test_gradients_are_compared_as_declared() -> None:
    dtypes = {"b": "float32"}
    batch = trial(b=1 + 7e-5)

    (gradient,) = compare_gradients(batch, dtypes, Limits(32, 6))
    assert gradient.state == "differs"
    (gradient,) = compare_gradients(batch, dtypes, Limits(700, 6))
    assert gradient.state == "equal"


@pytest.mark.parametrize(
    ("rows", "off", "state"),
    [(3, 31, "equal"), (3, 33, "differs"), (2, 511, "equal"), (2, 513, "differs")],
)
def test_two_rows_do_not_show_the_noise(rows: int, off: float, state: str) -> None:
    expected, found = {"b": np.ones(2)}, {"b": np.array([1.0, 1 + off * ONE])}

    (gradient,) = compare_gradients(Trial(rows, (), expected, found, {"b": 0.0}), {"b": "float32"})

    assert gradient.state == state


@pytest.mark.parametrize(
    ("off", "more", "dtype", "state"),
    [
        (31, {}, "float32", "noise"),
        (33, {}, "float32", "differs"),
        (33, {"limits": Limits(34)}, "float32", "noise"),
        (31, {"limits": Limits(30)}, "float32", "differs"),
        (31, {}, "float64", "differs"),
    ],
)
def test_zeros_are_rounded_as_the_largest_gradient_is(
    off: float, more: dict[str, Any], dtype: str, state: str
) -> None:
    """In eps of the largest gradient: a bias before a normalization, in two runs."""
    expected = {"bias": np.full(2, 1e-9), "w": np.array([-1000.0, 1.0]), "v": np.ones(2)}
    bias = np.array([1e-9, 1000 * off * ONE])
    batch = Trial(4, (), expected, {**expected, "bias": bias}, {"bias": 1e-9, "w": 0.0, "v": 0.0})
    dtypes = {"bias": dtype, "w": "float32", "v": "float32"}

    states = {
        gradient.variable: gradient.state for gradient in compare_gradients(batch, dtypes, **more)
    }

    assert states == {"bias": state, "w": "equal", "v": "equal"}
    quiet = Trial(4, (), expected, batch.found, dict.fromkeys(expected, 0.0))
    states = {
        gradient.variable: gradient.state for gradient in compare_gradients(quiet, dtypes, **more)
    }
    assert states["bias"] == state  # close to zero with any noise


def test_each_variable_is_compared_in_its_own_eps() -> None:
    batch = problem().trial({})
    off = {name: value * (1 + 1e-9) for name, value in batch.expected.items()}
    numbers = measurement(problem().trial(off))

    assert differing_variables(numbers.trials[0], numbers.precisions) == set()
    quiet = Trial(12, (), batch.expected, off, dict.fromkeys("abcd", 0.0))
    assert differing_variables(quiet, {**numbers.precisions, "b": "float64"}) == {"b"}


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 2**32 - 1), st.integers(2, 24), st.sampled_from([2, 3, 4]), st.booleans())
def test_sound_towers_do_not_differ(seed: int, rows: int, towers: int, is_sum: bool) -> None:
    """The reference's rows, added up tower by tower."""
    given = problem(seed, rows, is_sum=is_sum)
    parts = [given.of(range(tower, rows, towers)) for tower in range(towers) if tower < rows]
    share = [1.0 if is_sum else len(range(k, rows, towers)) / rows for k in range(len(parts))]
    found = {
        name: np.asarray(
            sum(np.float32(w * part[name]) for w, part in zip(share, parts, strict=True)),
            np.float32,
        ).astype(np.float64)
        for name in given.slopes
    }

    assert differing_variables(given.trial(found), dict.fromkeys(given.slopes, "float32")) == set()
