from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.measurements import measurement, trajectory

from placement_checks.core.measurement import NO_STEPS, Array, Measurement, Trajectory, Trial
from placement_checks.core.missing import Missing
from placement_checks.numerics.comparing import Limits
from placement_checks.numerics.training_divergence import (
    Divergence,
    common_factor,
    compare_variables,
    compensated_factor,
    is_proportional,
    variables_with_stale_copies,
)

SGD = "ResourceApplyGradientDescent"
ADAM = "ResourceApplyAdam"
ONE = 2.0**-23  # eps of float32


def after(
    steps: Trajectory,
    *,
    optimizer: str = SGD,
    dtypes: Mapping[str, str] | None = None,
    **more: Any,
) -> tuple[dict[str, str], dict[str, Divergence]]:
    """Returns the states of equal variables, and the divergences of the others."""
    numbers = measurement(
        optimizers=frozenset([optimizer]),
        dtypes={**dict.fromkeys(steps.steps[0], "float32"), **(dtypes or {})},
        trajectory=steps,
    )
    equal, apart = compare_variables(numbers, steps, **more)
    assert len(equal) + len(apart) == len(steps.steps[0])
    return (
        {same.variable: same.state for same in equal},
        {divergence.difference.variable: divergence for divergence in apart},
    )


@pytest.mark.parametrize(("rows", "off", "states"), [(3, 100, {}), (2, 100, {"w": "equal"})])
def test_two_rows_do_not_show_the_noise(rows: int, off: float, states: dict[str, str]) -> None:
    steps = trained([[2.0, 3.0]], [[2.0, 3.0 * (1 + off * ONE)]])
    batch = Trial(rows, (), {}, {}, {})
    numbers = measurement(batch, dtypes={"w": "float32"}, trajectory=steps)

    equal, _ = compare_variables(numbers, steps)

    assert {same.variable: same.state for same in equal} == states


def trained(expected: Sequence[Any], found: Sequence[Any], start: Any = (1.0, 2.0)) -> Trajectory:
    """One variable w."""
    return trajectory(
        {"w": start}, {"w": expected}, {"w": found}, uncertain={"w": np.zeros_like(start)}
    )


@pytest.mark.parametrize(
    ("optimizers", "is_so"),
    [
        ([SGD], True),
        (["ApplyMomentum"], True),
        (["SGD"], True),
        (["ResourceApplyKerasMomentum", SGD], True),
        (["ResourceSparseApplyMomentum"], True),
        ([ADAM], False),
        ([SGD, ADAM], False),
        (["ResourceApplyRMSProp"], False),
        (["ResourceApplyAdagradV2"], False),
        (["ResourceApplyFtrl"], False),
        ([], False),
    ],
)
def test_optimizers_with_steps_proportional_to_the_gradient(
    optimizers: list[str], is_so: bool
) -> None:
    assert is_proportional(frozenset(optimizers)) == is_so


def test_equal_steps_do_not_differ() -> None:
    steps = trained([[2, 3], [4, 5], [6, 7]], [[2, 3], [4, 5], [6, 7]])

    assert after(steps) == ({"w": "equal"}, {})


def test_the_state_is_after_the_last_step() -> None:
    steps = trained([[2, 3], [4, 5], [6, 7]], [[2, 3], [4, 5], [6, 7 + 20 * ONE]])
    numbers = measurement(dtypes={"w": "float32"}, trajectory=steps)

    ((same,), apart) = compare_variables(numbers, steps)

    assert not apart
    assert same.error == pytest.approx(20 / 7, rel=1e-3)
    assert same.limit == pytest.approx(32)


def test_tolerance_and_noise_allow_more() -> None:
    steps = trajectory({"w": [1]}, {"w": [[1]]}, {"w": [[1 + 40 * ONE]]}, noise=2 * ONE)

    assert after(steps)[1]
    assert not after(steps, limits=Limits(41))[1]
    assert not after(steps, limits=Limits(32, 20))[1]


@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8"])
def test_counters_have_no_tolerance(dtype: str) -> None:
    steps = trajectory({"step": 0}, {"step": [1, 2, 10**7]}, {"step": [1, 2, 10**7 + 1]})

    equal, apart = after(steps, optimizer=ADAM, dtypes={"step": dtype})

    assert equal == {}
    assert (apart["step"].step, apart["step"].difference.error) == (3, math.inf)
    assert after(steps)[0] == {"step": "equal"}


def test_the_first_different_step() -> None:
    steps = trained([[2, 3], [4, 5], [6, 7]], [[2, 3], [4, 6], [6, 7]])

    _, apart = after(steps)

    assert apart["w"].step == 2
    assert apart["w"].difference.error == pytest.approx(1 / 5 / ONE)
    assert apart["w"].error == 0


def test_the_final_difference() -> None:
    """As a part of the largest distance, 5."""
    steps = trained([[2, 3], [4, 5], [6, 7]], [[2, 4], [4, 8], [6, 17]])

    assert after(steps)[1]["w"].error == pytest.approx(10 / 5)


def test_variables_that_the_reference_does_not_move() -> None:
    steps = trained([[1, 2], [1, 2]], [[1, 3], [1, 3]])

    divergence = after(steps)[1]["w"]

    assert (divergence.moved, divergence.error) == (None, math.inf)


@pytest.mark.parametrize(
    ("found", "moved"),
    [
        ([[3, 6], [0, 0]], 2),  # from 1 and 2 by 1 and 2
        ([[1.5, 3], [0, 0]], 0.5),
        ([[1, 2], [0, 0]], 0),
        ([[0, 0], [0, 0]], -1),
        ([[3, 5], [0, 0]], None),
        ([[2, 4], [5, 9]], 1.5),  # by 2 and 3.3
        ([[2, 4], [2, 4]], 0),
        ([[2, 4], [4, 8]], None),
    ],
)
def test_the_change_in_the_first_different_step(found: Sequence[Any], moved: float | None) -> None:
    steps = trained([[2, 4], [4, 4 + 10 / 3]], found)

    divergence = after(steps)[1]["w"]

    assert divergence.moved == (None if moved is None else pytest.approx(moved))


ways = st.lists(st.integers(-1000, 1000).filter(bool), min_size=2, max_size=6)


@given(ways, ways, st.floats(-100, 100).filter(lambda x: abs(x - 1) > 1e-2))
def test_each_step_is_compared_by_its_own_change(
    first: list[int], second: list[int], ratio: float
) -> None:
    """It is equal after the first step, and moves by this factor in the second."""
    size = min(len(first), len(second))
    start = np.ones(size)
    one = start + first[:size]
    way = np.array(second[:size])

    divergence = after(trained([one, one + way], [one, one + ratio * way], start))[1]["w"]

    assert divergence.step == 2
    assert divergence.moved == pytest.approx(ratio, abs=1e-6)


@pytest.mark.parametrize(
    ("found", "moved"),
    [([3, 3], 2), ([1, 1], 0), ([2, 5], None), ([2, 2], 0)],
)
def test_any_change_of_a_scalar_is_a_multiple(found: list[float], moved: float | None) -> None:
    """In the first step a multiple is meaningful, because the gradient is known."""
    steps = trained([2, 4], found, start=1)

    assert after(steps)[1]["w"].moved == (None if moved is None else pytest.approx(moved))


@pytest.mark.parametrize("optimizer", [SGD, ADAM])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_nonfinite_values_differ(optimizer: str, value: float) -> None:
    steps = trained([[2, 3], [4, 5]], [[2, 3], [4, value]])

    with np.errstate(invalid="ignore"):
        equal, apart = after(steps, optimizer=optimizer)

    assert equal == {}
    assert apart["w"].step == 2
    assert apart["w"].moved is None
    assert apart["w"].difference.ratio is None


# Slots, and declared scales.


def slots(*factors: float, of: str = "w") -> Trajectory:
    """w and its slots, which are multiplied by factors."""
    expected = {"w": [[2.0, 3.0]] * 3, **{f"w/{n}": [[1.0, 5.0]] * 3 for n in range(len(factors))}}
    found = {f"w/{n}": [np.array([1.0, 5.0]) * factor] * 3 for n, factor in enumerate(factors)}
    start = {name: [0.0, 0.0] for name in expected}
    return trajectory(start, expected, found, uncertain={of: [False, False]})


@pytest.mark.parametrize("optimizer", [SGD, ADAM])
@pytest.mark.parametrize("scale", [128.0, 0.5, -2.0])
def test_the_scale_that_is_declared_is_found_in_slots(optimizer: str, scale: float) -> None:
    """Once in the first moment, twice in the second, and not in the variable."""
    steps = slots(scale, scale**2, 1.0)

    assert after(steps, optimizer=optimizer, scale=scale)[1] == {}
    assert after(steps, optimizer=optimizer)[1].keys() == {"w/0", "w/1"}


@pytest.mark.parametrize("factor", [3.0, 8.0, 0.5])
def test_other_factors_on_slots_differ(factor: float) -> None:
    assert after(slots(factor), scale=2.0)[1].keys() == {"w/0"}


def test_the_nearest_scale_is_shown() -> None:
    divergence = after(slots(4.4), scale=2.0)[1]["w/0"]

    assert divergence.difference.ratio == pytest.approx(1.1)
    assert divergence.difference.error == pytest.approx(0.1 / ONE, rel=1e-5)


def test_the_noise_of_slots_is_scaled_too() -> None:
    """Eight times a noise of 1e-5, 128 times as large."""
    for off, is_equal in ((0.01, True), (0.011, False)):
        steps = trajectory(
            {"w": [0, 0], "w/m": [0, 0]},
            {"w": [[1, 1]], "w/m": [[1, 1]]},
            {"w/m": [[128, 128 + off]]},
            noise=1e-5,
            uncertain={"w": [False, False]},
        )
        assert (after(steps, scale=128.0)[1] == {}) == is_equal


def test_the_scale_is_not_found_in_the_variable_itself() -> None:
    steps = trained([[2, 3]], [[4, 6]])

    assert after(steps, scale=2.0)[1].keys() == {"w"}


def test_the_scale_is_found_in_slots_alone() -> None:
    """A variable without a trained variable, such as a statistic, must equal the reference."""
    assert after(slots(2.0, of="v"), scale=2.0)[1].keys() == {"w/0"}


# Optimizers that divide the gradient by its size.


def doubtful(found: Sequence[float], slot: Sequence[float] = (1, 1, 1)) -> Trajectory:
    return trajectory(
        {"w": [0, 0, 0], "w/m": [0, 0, 0]},
        {"w": [[1, 1, 1]] * 3, "w/m": [[1, 1, 1]] * 3},
        {"w": [found] * 3, "w/m": [slot] * 3},
        uncertain={"w": [False, True, False]},
    )


@pytest.mark.parametrize(
    ("steps", "adam", "descent"),
    [
        (doubtful([1, -1, 1]), set(), {"w"}),
        (doubtful([1, 1, 1], [1, -1, 1]), set(), {"w/m"}),
        (doubtful([-1, 1, 1]), {"w"}, {"w"}),
        (doubtful([-1, -1, 1], [1, 1, -1]), {"w", "w/m"}, {"w", "w/m"}),
        (doubtful([1, 1, 1]), set(), set()),
    ],
)
def test_elements_changed_by_rounding_only(
    steps: Trajectory, adam: set[str], descent: set[str]
) -> None:
    assert after(steps, optimizer=ADAM)[1].keys() == adam
    assert after(steps, optimizer=SGD)[1].keys() == descent


def test_a_slot_of_another_shape_is_compared_whole() -> None:
    steps = trajectory(
        {"w": [0, 0], "w/power": [1.0]},
        {"w": [[1, 1]], "w/power": [[0.9]]},
        {"w/power": [[0.5]]},
        uncertain={"w": [True, True]},
    )

    assert after(steps, optimizer=ADAM)[1].keys() == {"w/power"}


def test_adam_may_differ_if_all_elements_are_uncertain() -> None:
    steps = trajectory(
        {"w": [0, 0]}, {"w": [[1, 1]]}, {"w": [[5, 5]]}, uncertain={"w": [True, True]}
    )

    assert after(steps, optimizer=ADAM) == ({"w": "equal"}, {})
    assert after(steps)[1].keys() == {"w"}


@pytest.mark.parametrize(
    ("off", "adam", "descent"), [(0, [], []), (0.019, [], ["w"]), (0.021, ["w"], ["w"])]
)
def test_a_fiftieth_of_the_distance_is_no_difference_with_adam(
    off: float, adam: list[str], descent: list[str]
) -> None:
    """The limit is relative to the largest distance of an element from its start, not to the
    values."""
    steps = trained([[100.5, 101], [101, 102]], [[100.5, 101], [101 + 2 * off, 102]], [100, 100])

    assert list(after(steps, optimizer=ADAM)[1]) == adam
    assert list(after(steps, optimizer=SGD)[1]) == descent


def test_the_allowed_drift_grows_with_the_distance() -> None:
    """0.03 is more than a fiftieth of the distance after the first step, and less after the
    second."""
    early = trained([[1, 1], [2, 2]], [[1.03, 1], [2.03, 2]], [0, 0])
    late = trained([[1, 1], [2, 2]], [[1, 1], [2.03, 2]], [0, 0])

    assert after(early, optimizer=ADAM)[1]["w"].step == 1
    assert after(late, optimizer=ADAM)[1] == {}


def test_integers_have_no_drift() -> None:
    steps = trajectory({"step": 0}, {"step": [100, 200]}, {"step": [100, 201]})

    assert list(after(steps, optimizer=ADAM, dtypes={"step": "int64"})[1]) == ["step"]
    assert list(after(steps, optimizer=ADAM, dtypes={"step": "float32"})[1]) == []


def test_the_allowed_drift_of_a_slot_is_scaled() -> None:
    for off, is_equal in ((2.5, True), (2.6, False)):
        steps = trajectory(
            {"w": [0, 0], "w/m": [0, 0]},
            {"w": [[1, 1]], "w/m": [[1, 1]]},
            {"w/m": [[128, 128 + off]]},
            uncertain={"w": [False, False]},
        )
        assert (after(steps, optimizer=ADAM, scale=128.0)[1] == {}) == is_equal


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 2**32 - 1), st.integers(2, 4), st.floats(0.01, 1))
def test_descent_by_hand(seed: int, towers: int, rate: float) -> None:
    """Least squares: the mean over towers equals the mean over rows; their sum and half the rate
    do not."""
    rng = np.random.default_rng(seed)
    x = rng.normal(0, 1, (4 * towers, 3)).astype(np.float32)
    y = rng.normal(0, 1, 4 * towers).astype(np.float32)
    start = rng.normal(0, 1, 3).astype(np.float32)

    def slope(w: Any, rows: slice) -> Any:
        return x[rows].T @ (x[rows] @ w - y[rows]) / np.float32(len(y[rows]))

    def steps(parts: Sequence[slice], by: float) -> list[Any]:
        w, all_steps = start, []
        for _ in range(3):
            mean = sum(slope(w, rows) for rows in parts) / np.float32(len(parts))
            w = (w - np.float32(by) * mean).astype(np.float32)
            all_steps.append(w)
        return all_steps

    parts = [slice(4 * k, 4 * k + 4) for k in range(towers)]
    expected = steps([slice(None)], rate / 10)
    turned = steps([slice(None, None, -1)], rate / 10)
    noise = max(float(np.max(np.abs(a - b))) for a, b in zip(expected, turned, strict=True))

    def apart(found: Sequence[Array]) -> dict[str, Divergence]:
        given = {"w": np.zeros(3)}
        return after(
            trajectory({"w": start}, {"w": expected}, {"w": found}, noise=noise, uncertain=given)
        )[1]

    assert apart(steps(parts, rate / 10)) == {}
    divergence = apart(steps(parts, rate / 20))["w"]
    assert divergence.step == 1
    assert divergence.moved == pytest.approx(0.5, rel=1e-3)
    divergence = apart(steps(parts[:1], rate / 10))["w"]
    assert divergence.step == 1
    assert divergence.moved is None


def test_a_type_that_is_too_coarse_is_reported() -> None:
    steps = trained([[1, 2], [1, 2]], [[1, 2], [1, 2]])

    assert after(steps, dtypes={"w": "bfloat16"})[0] == {"w": "too-coarse"}


# Gradients that explain the steps.


def batch(found: Mapping[str, float], noisy: Sequence[str] = ()) -> Trial:
    """Returns a batch with these multiples of the reference's gradients."""
    return Trial(
        4,
        (),
        dict.fromkeys(found, np.array([1.0, -2.0])),
        {name: ratio * np.array([1.0, -2.0]) for name, ratio in found.items()},
        {name: float(name in noisy) for name in found},
    )


def walked(*trials: Trial, trajectory: Trajectory | Missing, **more: Any) -> Measurement:
    names = [*trajectory.steps[0]] if trajectory else ["w", "v"]
    return measurement(
        *trials, **{"trajectory": trajectory, "dtypes": dict.fromkeys(names, "float32"), **more}
    )


def both(found: Mapping[str, Sequence[Any]], after: Trial | None = None) -> Trajectory:
    """w and v are trained, and w has a slot. Variables missing in `found` are equal."""
    names = ("w", "v", "w/Momentum")
    return trajectory(
        {name: [0, 0] for name in names},
        {name: [[1, 2], [2, 4], [3, 6]] for name in names},
        found,
        uncertain={"w": [False, False], "v": [False, False]},
        after=after,
    )


@pytest.mark.parametrize(
    ("noisy", "left", "apart"),
    [
        ("", ["v"], {"w", "w/Momentum"}),
        ("w", ["v"], set()),
        ("v", [], {"w", "w/Momentum"}),
        ("wv", [], set()),
    ],
)
def test_variables_that_follow_rounding_errors(
    noisy: str, left: list[str], apart: set[str]
) -> None:
    steps = both({"w": [[5, 5]] * 3, "w/Momentum": [[7, 7]] * 3})
    sound = batch({"w": 1, "v": 1})

    for trials in (
        [batch({"w": 1, "v": 1}, noisy)],
        [sound, batch({"w": 1, "v": 1}, noisy)],
    ):
        equal, departed = compare_variables(walked(*trials, trajectory=steps), steps)
        assert [same.variable for same in equal] == left
        assert {divergence.difference.variable for divergence in departed} == apart


@pytest.mark.parametrize(
    ("precision", "off", "state"),
    [
        ("float32", 31, "equal"),
        ("float32", 33, "differs"),
        ("float64", 1, "differs"),
        ("bfloat16", 33, "too-coarse"),
    ],
)
def test_gradients_may_be_coarser_than_the_variables(
    precision: str, off: float, state: str
) -> None:
    """The tolerance is relative to the distance, 6, not to the value of the float64 variables,
    600."""
    steps = trained(
        [[600 + 1, 2], [600 + 6, 2]], [[600 + 1, 2], [600 + 6 * (1 + off * ONE), 2]], (600, 2)
    )
    numbers = walked(trajectory=steps, dtypes={"w": "float64"}, precisions={"w": precision})

    equal, apart = compare_variables(numbers, steps)

    assert [
        difference.state for difference in (*equal, *(other.difference for other in apart))
    ] == [state]


def test_the_coarsest_gradient_sets_the_tolerance_of_a_step() -> None:
    """One of two trained variables has a bfloat16 gradient."""
    steps = trajectory(
        {"w": [1.0], "v": [1.0]},
        {"w": [[2.0]], "v": [[2.0]]},
        {"w": [[2.001]]},
        uncertain={"w": [False], "v": [False]},
    )
    numbers = measurement(trajectory=steps, dtypes=dict.fromkeys("wv", "float32"))

    def apart(**precisions: str) -> list[str]:
        _, found = compare_variables(replace(numbers, precisions=precisions), steps, Limits(0.5))
        return [divergence.difference.variable for divergence in found]

    assert apart(w="float32", v="float32") == ["w"]
    assert apart(w="float32", v="bfloat16") == []
    assert apart() == ["w"]


def test_gradients_that_are_too_coarse_check_no_weight() -> None:
    steps = trajectory(
        {"w": [0, 0], "mean": 0, "step": 0},
        {"w": [[1, 1]], "mean": [1], "step": [1]},
        {},
        uncertain={"w": [False, False]},
    )
    dtypes = {"w": "float32", "mean": "float32", "step": "int64"}
    numbers = walked(trajectory=steps, dtypes=dtypes, precisions={"w": "float16"})

    equal, _ = compare_variables(numbers, steps)

    assert {same.variable: same.state for same in equal} == {
        "w": "too-coarse",
        "mean": "too-coarse",
        "step": "equal",
    }


@pytest.mark.parametrize(
    ("first", "late", "expected"),
    [
        ({"w": 1, "v": 1}, {"w": 1, "v": 1}, set()),
        ({"w": 1, "v": 1}, {"w": 1, "v": 1.01}, {"v"}),
        ({"w": 1, "v": 1}, {"w": 3, "v": 0}, {"w", "v"}),
        ({"w": 2, "v": 1}, {"w": 2, "v": 2}, {"v"}),
        ({"w": 2, "v": 2}, {"w": 3, "v": 3}, set()),
        ({"w": 2, "v": 1}, {"w": 1, "v": 1}, set()),
        ({"w": 1, "v": 1}, None, set()),
    ],
)
def test_gradients_that_differ_after_the_steps_alone(
    first: Mapping[str, float], late: Mapping[str, float] | None, expected: set[str]
) -> None:
    steps = both({}, after=batch(late) if late else None)

    assert variables_with_stale_copies(walked(batch(first), trajectory=steps)) == expected


def test_without_steps_nothing_is_stale() -> None:
    numbers = walked(batch({"w": 2, "v": 2}), trajectory=NO_STEPS)

    assert variables_with_stale_copies(numbers) == set()
    assert compensated_factor(numbers) == 1


def test_noise_after_the_steps_is_not_stale() -> None:
    late = batch({"w": 3, "v": 1}, noisy="w")

    assert (
        variables_with_stale_copies(walked(batch({"w": 1, "v": 1}), trajectory=both({}, late)))
        == set()
    )


@pytest.mark.parametrize(("precision", "expected"), [("float32", {"v"}), ("bfloat16", set())])
def test_gradients_too_coarse_to_compare_are_not_known_to_be_equal(
    precision: str, expected: set[str]
) -> None:
    """In bfloat16, a difference of 1 % does not show, and neither does its cause."""
    steps = both({}, after=batch({"w": 1, "v": 1.5}))
    precisions = {"w": "float32", "v": precision}

    numbers = walked(batch({"w": 1, "v": 1}), trajectory=steps, precisions=precisions)

    assert variables_with_stale_copies(numbers) == expected


@pytest.mark.parametrize(
    ("precise", "coarse", "factor"), [(2, 2.01, 2), (2, 1.01, 1), (1, 1.01, 1), (2.01, 2, 2.01)]
)
def test_the_ratio_of_a_coarse_gradient_is_rounded(
    precise: float, coarse: float, factor: float
) -> None:
    trial = batch({"w": coarse, "v": precise})

    found = common_factor(trial, {"w": "bfloat16", "v": "float32"})
    assert found == pytest.approx(factor)


EQUAL_SLOT = {"w/Momentum": [[2, 4], [4, 8], [6, 12]]}
DEPARTED = {"v": [[1, 2], [2, 4], [3, 7]]}


@pytest.mark.parametrize(
    ("ratios", "noisy", "found", "factor"),
    [
        pytest.param({"w": 2, "v": 2}, "", {}, 2, id="all"),
        pytest.param({"w": 0.25, "v": 0.25}, "", {}, 0.25, id="a part"),
        pytest.param({"w": -2, "v": -2}, "", {}, -2, id="below 0"),
        pytest.param({"w": 2, "v": 2}, "", EQUAL_SLOT, 2, id="in a slot"),
        pytest.param({"w": 2, "v": -1}, "v", {}, 2, id="one is noise"),
        pytest.param({"w": 2, "v": -1}, "v", DEPARTED, 2, id="its weights are, too"),
        pytest.param({"w": 2, "v": 2}, "wv", {}, 1, id="all is noise"),
        pytest.param({"w": 2, "v": 2}, "", DEPARTED, 1, id="weights depart"),
        pytest.param({"w": 2, "v": 1}, "", {}, 1, id="one is equal"),
        pytest.param({"w": 2, "v": 3}, "", {}, 1, id="two factors"),
        pytest.param({"w": 1, "v": 1}, "", {}, 1, id="equal"),
    ],
)
def test_a_factor_that_the_rate_compensates_for(
    ratios: Mapping[str, float], noisy: str, found: Mapping[str, Any], factor: float
) -> None:
    numbers = walked(batch(ratios, noisy), trajectory=both(found))

    assert compensated_factor(numbers) == pytest.approx(factor)


@pytest.mark.parametrize("moved", [0.0, 1e-8])
def test_weights_that_do_not_move_show_no_factor(moved: float) -> None:
    """A rate of 0 compensates nothing: it hides mistakes that later steps will show."""
    steps = trajectory(
        {name: [1.0, 1.0] for name in ("w", "v")},
        {name: [[1 + moved * step] * 2 for step in (1, 2, 3)] for name in ("w", "v")},
        {},
        uncertain={"w": [False, False], "v": [False, False]},
    )
    numbers = walked(batch({"w": 2, "v": 2}), trajectory=steps)

    assert compensated_factor(numbers) == 1


def test_weights_that_are_not_compared_show_no_factor() -> None:
    trials = batch({"w": 2, "v": 2})

    assert compensated_factor(walked(trials, trajectory=both({}), races={"w": "v"})) == 2
    races = {"w": "v", "v": "w"}
    assert compensated_factor(walked(trials, trajectory=both({}), races=races)) == 1


def test_rounding_is_not_a_factor() -> None:
    assert (
        compensated_factor(walked(batch({"w": 1.000001, "v": 1.000001}), trajectory=both({}))) == 1
    )


@pytest.mark.parametrize("optimizers", [[ADAM], [SGD, ADAM], []])
def test_equal_weights_show_no_factor_under_adam(optimizers: list[str]) -> None:
    numbers = walked(
        batch({"w": 2, "v": 2}), trajectory=both({}), optimizers=frozenset(optimizers)
    )

    assert compensated_factor(numbers) == 1


def test_slots_show_a_factor_in_addition_to_the_declared_one() -> None:
    """The gradients were divided by the declared 4; the slots have the factor 8."""
    steps = both({"w/Momentum": [[8, 16], [16, 32], [24, 48]]})
    numbers = walked(batch({"w": 2, "v": 2}), trajectory=steps, scale=4.0)

    assert compensated_factor(numbers) == 2
    assert compensated_factor(walked(batch({"w": 2, "v": 2}), trajectory=steps)) == 1
