"""Selected elements of large arrays lead to the same findings as whole arrays."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.measurements import measurement, problem, runs, spread

from placement_checks.core.measurement import Sample, Trial
from placement_checks.core.mistakes import Diagnosis
from placement_checks.numerics.comparing import (
    compare_gradients,
    differing_variables,
    divide_gradients,
)
from placement_checks.numerics.diagnosis import diagnose
from placement_checks.numerics.sampling import (
    build_trial,
    build_variable_step,
    sample_elements,
    select_all,
)

SHAPES = {"a": (40, 300), "b": (40, 300), "c": (7,), "d": (200, 90)}
SPLIT = runs(6, 6)


def both(found: dict[str, Any], seed: int = 0) -> tuple[Trial, Trial]:
    """A batch with all elements, and the same with some."""
    given = problem(seed, 12, SHAPES)
    whole = given.trial(found, SPLIT)
    some = build_trial(12, SPLIT, whole.expected, whole.found, whole.noise)

    def samples(of: Any) -> list[Sample]:
        return [Sample(each.rows, select_all(each.gradients, some.elements)) for each in of]

    return whole, replace(
        some,
        start=select_all(given.start, some.elements),
        per_tower=samples(whole.per_tower),
        per_row=samples(whole.per_row),
    )


def causes(trial: Trial) -> dict[str, Diagnosis]:
    numbers = measurement(trial)
    return diagnose(numbers, trial, sorted(differing_variables(trial, numbers.dtypes)))


def test_some_elements_of_a_large_gradient_are_selected() -> None:
    whole, some = both({})

    sizes = {name: value.size for name, value in some.expected.items()}
    assert sizes.pop("c") == 7
    assert all(4000 < size <= 4096 for size in sizes.values())  # some are drawn twice
    assert some.elements["a"] is some.elements["b"]
    assert some.elements["c"] is None
    for name, elements in some.elements.items():
        kept = whole.expected[name] if elements is None else whole.expected[name].flat[elements]
        assert np.array_equal(some.expected[name], kept)


@pytest.mark.parametrize("names", [100, 1000])
def test_fewer_elements_of_many_gradients_are_selected(names: int) -> None:
    values = {f"v{number}": np.ones((70, 60 + number % 50)) for number in range(names)}

    trial = build_trial(4, (), values, values, dict.fromkeys(values, 0.0))

    assert 490 * names <= sum(value.size for value in trial.expected.values()) <= 700_000


@pytest.mark.parametrize("seed", range(5))
def test_reduced_gradients_have_the_figures_of_all(seed: int) -> None:
    given = problem(seed, 12, SHAPES)
    rng = np.random.default_rng(seed)
    found = given.of(rng.permutation(12).tolist())
    found["b"] = found["b"] * 1.3
    found["d"].flat[rng.integers(18000)] += 1e-3 * np.max(np.abs(found["d"]))
    whole, some = both(found, seed)
    dtypes = dict.fromkeys(SHAPES, "float32")

    assert compare_gradients(some, dtypes) == compare_gradients(whole, dtypes)
    assert differing_variables(some, dtypes) == {"b", "d"}


def test_a_nonfinite_element_is_selected() -> None:
    found = problem(0, 12, SHAPES).of(range(12))
    found["d"][123, 45] = np.nan

    _, some = both(found)

    assert np.isnan(some.found["d"]).sum() == 1
    assert compare_gradients(some, dict.fromkeys(SHAPES, "float32"))[3].ratio is None


@pytest.mark.parametrize(
    "times",
    [
        np.full(12, 2.0),
        np.full(12, 1.37),
        spread([1, 0], SPLIT),
        spread([1.5, 0.5], SPLIT),
        np.r_[np.ones(11), 0.0],
        np.zeros(12),
    ],
)
def test_reduced_gradients_have_the_cause_of_all(times: Any) -> None:
    whole, some = both(problem(0, 12, SHAPES).times(times))

    found, expected = causes(some), causes(whole)

    assert found.keys() == expected.keys() == SHAPES.keys()
    for name, cause in expected.items():
        assert found[name]._replace(ratio=None, fix="") == cause._replace(ratio=None, fix="")
        assert found[name].ratio == (cause.ratio and pytest.approx(cause.ratio))


def test_a_gradient_of_another_variable_is_named() -> None:
    given = problem(0, 12, SHAPES)
    mean = given.of(range(12))

    whole, some = both({"a": mean["b"], "b": mean["a"]})

    assert causes(some) == causes(whole)
    assert causes(some)["a"].what.startswith("it is the gradient of b")


def test_a_penalty_is_diagnosed() -> None:
    given = problem(0, 12, SHAPES)
    mean = given.of(range(12))

    _, some = both({"d": mean["d"] + 0.25 * given.start["d"]})

    assert causes(some)["d"].mistake == "repeated penalty"


def test_few_wrong_rows_of_a_large_gradient_are_no_factor() -> None:
    """One in a thousand is hardly found at random."""
    mean = problem(0, 12, SHAPES).of(range(12))
    found = 2 * mean["d"]
    found[17, :18] = 0

    whole, some = both({"d": found})

    assert causes(some)["d"].what == causes(whole)["d"].what == "no known mistake explains it"


def test_nonzero_elements_are_selected() -> None:
    """For example, a batch uses some rows of a table."""
    slopes = np.zeros((12, 1000, 100))
    slopes[range(12), range(100, 112)] = np.random.default_rng(0).normal(size=(12, 100))
    given = replace(problem(0, 12, {}), slopes={"table": slopes}, start={})
    found = given.times(spread([2, 0], SPLIT))
    whole = given.trial(found, SPLIT)

    some = build_trial(12, SPLIT, whole.expected, whole.found, whole.noise)

    assert np.count_nonzero(some.expected["table"]) == 1200
    assert 4000 < some.expected["table"].size <= 4096


def test_a_factor_that_the_rate_compensates_for() -> None:
    given = problem(0, 12, SHAPES)
    whole, some = both(given.times(np.full(12, 2.0)))
    dtypes = dict.fromkeys(SHAPES, "float32")

    halves = compare_gradients(divide_gradients(some, 2), dtypes)

    assert halves == compare_gradients(divide_gradients(whole, 2), dtypes)
    assert {half.state for half in halves} == {"equal"}
    assert [half.ratio for half in halves] == pytest.approx([1] * 4)


@pytest.mark.parametrize("size", [1, 512, 513, 5000, 40000])
@pytest.mark.parametrize("half", [False, True])
def test_a_reduced_step_has_the_largest_difference(size: int, half: bool) -> None:
    rng = np.random.default_rng(size)
    start, expected = rng.normal(size=(2, size)).astype(np.float32)
    found = (expected + rng.normal(0, 1e-3, size)).astype(np.float32)
    is_certain = np.arange(size) % 2 == 0 if half else np.ones(size, np.bool_)
    step = build_variable_step(
        start,
        expected,
        found,
        moved=(np.zeros(1), np.zeros(1)),
        noise=0.0,
        uncertain=~is_certain if half else None,
    )
    kept = np.ones(step.start.size, np.bool_) if step.certain is None else step.certain
    start, expected, found = (values.astype(np.float64) for values in (start, expected, found))

    assert (step.start.size == size) == (size <= 512)
    assert step.start.size <= 512 + 5 * 32
    for one, other in (
        (step.expected - step.start, expected - start),
        (step.found - step.expected, found - expected),
        (step.expected[kept], expected[is_certain]),
        ((step.found - step.expected)[kept], (found - expected)[is_certain]),
    ):
        assert np.max(np.abs(one)) == np.max(np.abs(other))
    square = np.vdot(expected[is_certain], expected[is_certain])
    assert step.ratio == pytest.approx(np.vdot(expected[is_certain], found[is_certain]) / square)


def test_every_step_keeps_the_same_elements() -> None:
    assert sample_elements(512) is None
    some, again = (sample_elements(100_000) for _ in range(2))
    assert some is not None
    assert again is not None
    assert len(set(some.tolist())) == 512
    assert some.tolist() == again.tolist()


def test_whole_arrays_are_not_copied() -> None:
    """Neither of a step nor of gradients; a mask of zeros and its indices are smaller."""
    size = 2_000_000
    start, expected, found = (np.full(size, value, np.float32) for value in (1, 2, 3))
    names = dict.fromkeys("w", 0.0)

    def peak_of(reduce: Any) -> float:
        tracemalloc.start()
        reduce()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak / size

    moved = np.zeros(1), np.zeros(1)
    assert (
        peak_of(
            lambda: build_variable_step(
                start, expected, found, moved=moved, noise=0.0, uncertain=None
            )
        )
        < 1.5
    )
    assert peak_of(lambda: build_trial(4, (), {"w": expected}, {"w": found}, names)) < 12
