from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import ANY

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.measurements import SHAPES, Problem, measurement, problem, runs, spread

from placement_checks.core.measurement import Array, Arrays, Sample, Trial
from placement_checks.core.mistakes import AVERAGE, Diagnosis
from placement_checks.numerics.comparing import differing_variables
from placement_checks.numerics.diagnosis import diagnose
from placement_checks.verification.policy import parse_policy

UNKNOWN = "no known mistake explains it"
UNEVEN = "the losses of the towers do not count equally; their factors, compared with one GPU: "
BY_SHARE = (
    "multiply the gradients of each tower by its share of the rows: "
    "placement_checks.average_gradients(tower_grads, weights=rows)"
)
SAME_SIGN = "give the losses of all towers the same sign"
ONCE = (
    "let the penalty count once: if gradients are averaged, add it to the loss of every tower; if "
    "they are added up, divide it by the number of towers"
)
FROZEN = "look for a stop_gradient, a mask, a list of variables or an index that excludes it"

SLOW = settings(deadline=None, max_examples=50)

SPLIT_OF_SIX = runs(3, 3)

seeds = st.integers(0, 2**32 - 1)
# The rows of 2, 3 or 4 towers.
splits = st.tuples(st.integers(2, 4), st.integers(2, 5)).map(
    lambda drawn: runs(*[drawn[1]] * drawn[0])
)
uneven = st.lists(st.integers(2, 6), min_size=2, max_size=4).map(lambda sizes: runs(*sizes))


def explained(trial: Trial, towers: int = 2, **more: Any) -> dict[str, Diagnosis]:
    """Returns the diagnoses of variables with different gradients."""
    numbers = measurement(trial, towers=towers, **more)
    off = differing_variables(trial, numbers.dtypes)
    return diagnose(numbers, trial, [name for name in trial.expected if name in off])


def common(trial: Trial, towers: int = 2, **more: Any) -> Diagnosis:
    """The one mistake that all variables share."""
    found = explained(trial, towers, **more)
    assert found.keys() == trial.expected.keys()
    (cause,) = set(found.values())
    return cause


def counted(
    times: Array, split: Sequence[tuple[int, ...]], seed: int = 0, *, is_sum: bool = False
) -> Trial:
    """Returns a batch with these weights of rows; each tower has the rows of a part."""
    given = problem(seed, len(times), is_sum=is_sum)
    return given.trial(given.times(times), split)


def tail(sizes: Sequence[int], times: Array, seed: int = 0, *, in_parts: bool = True) -> Trial:
    """The same with a batch that the program splits, as measured: the remaining rows come last."""
    given = problem(seed, len(times))
    parts = given.samples(runs(*sizes)) if in_parts else []
    return given.trial(given.times(times), per_tower=parts)


def test_without_variables_there_is_no_cause() -> None:
    trial = problem().trial({})

    assert diagnose(measurement(trial), trial, []) == {}


# One factor.


def test_a_sum_instead_of_the_mean() -> None:
    given = problem()
    cause = common(given.trial(given.times(np.full(12, 2.0)), runs(6, 6)))

    assert cause._replace(ratio=None) == Diagnosis(
        "the gradients of 2 towers are added up instead of averaged",
        f"average over towers before apply_gradients: {AVERAGE}; if the sum is "
        "intended, and the learning rate is divided by 2: --set gradients-equal.scale=2",
        mistake="sum",
        consequence=ANY,
    )
    assert cause.ratio == pytest.approx(2)


def test_an_extra_division_is_named() -> None:
    given = problem()
    cause = common(given.trial(given.times(np.full(12, 0.25)), runs(3, 3, 3, 3)), 4)

    assert cause._replace(ratio=None) == Diagnosis(
        "it is divided by the number of towers, 4, once too often",
        "divide the losses by the number of towers or take the mean of the gradients, not both; "
        "if the loss is a sum over rows, add up the gradients; if it is intended: --set "
        "gradients-equal.scale=0.25",
        mistake="divided",
        consequence=ANY,
    )
    assert cause.ratio == pytest.approx(1 / 4)


def test_a_factor_without_a_known_cause_is_reported() -> None:
    given = problem()
    cause = common(given.trial(given.times(np.full(12, 128.0)), runs(6, 6)))

    assert cause._replace(ratio=None) == Diagnosis(
        "the whole gradient is multiplied by one number",
        "remove the factor or, if it is a loss scale, divide by it before the gradients are "
        "applied: (gradient / 128, variable); if it is intended: --set gradients-equal.scale=128",
        mistake="scaled",
        consequence=ANY,
    )
    assert cause.ratio == pytest.approx(128)


factors = st.floats(0.01, 500) | st.floats(-500, -0.01)


@SLOW
@given(seeds, splits, factors | st.integers(2, 4).map(float), st.booleans())
def test_all_gradients_are_multiplied_by_one_number(
    seed: int, split: list[tuple[int, ...]], ratio: float, is_sum: bool
) -> None:
    """A sum over towers, a mean that is taken twice, or another factor, with any parts."""
    towers = len(split)
    rows = sum(map(len, split))
    assume(abs(ratio - 1) > 0.001)
    given = problem(seed, rows, is_sum=is_sum)
    trial = given.trial(given.times(np.full(rows, ratio)), split)

    for known in (trial, replace(trial, per_tower=[], per_row=[])):
        cause = common(known, towers)
        assert cause.ratio == pytest.approx(ratio, rel=1e-5)
        assert cause.shown == ()
        assert ("are added up" in cause.what) == (abs(ratio / towers - 1) <= 0.001)
        assert ("once too often" in cause.what) == (abs(ratio * towers - 1) <= 0.001)


def test_ratios_near_the_number_of_towers() -> None:
    """Fitted factors have rounding errors; a difference of one percent is another factor."""
    given = problem()
    for ratio, what in [
        (2.001, "the gradients of 2 towers are added up instead of averaged"),
        (2.02, "the whole gradient is multiplied by one number"),
        (0.5004, "it is divided by the number of towers, 2, once too often"),
        (0.51, "the whole gradient is multiplied by one number"),
        (-2.0, "the whole gradient is multiplied by one number"),
    ]:
        assert common(given.trial(given.times(np.full(12, ratio)), runs(6, 6))).what == what


def test_one_tower_has_no_sum_over_towers() -> None:
    given = problem()

    cause = common(given.trial(given.times(np.full(12, 0.5))), 1)

    assert cause.what == "the whole gradient is multiplied by one number"


def test_nearly_all_rows_of_one_tower_are_no_sum() -> None:
    given = problem()

    cause = common(given.trial(given.times(np.full(12, 1.0005))), 1)

    assert cause.what == "the whole gradient is multiplied by one number"


@pytest.mark.parametrize(
    ("ratio", "expected"),
    [
        (2.000004, "2"),
        (0.2500004, "0.25"),
        (1 / 3, "0.3333333333333333"),
        (-1 / 3, "-0.3333333333333333"),
    ],
)
def test_the_scale_to_declare_is_a_whole_number_or_its_inverse(
    ratio: float, expected: str
) -> None:
    """The ratio is rounded in float32."""
    given = problem()

    scale = common(given.trial(given.times(np.full(12, ratio)))).fix.rpartition("scale=")[2]

    assert scale == expected


@pytest.mark.parametrize("ratio", [1.37, 0.73])
def test_another_scale_to_declare_has_nine_digits(ratio: float) -> None:
    given = problem()

    scale = common(given.trial(given.times(np.full(12, ratio)))).fix.rpartition("scale=")[2]

    assert float(scale) == pytest.approx(ratio, rel=1e-6)
    assert len(scale.replace(".", "").lstrip("0")) <= 9


def test_two_numbers_show_a_factor() -> None:
    given = problem(shapes={"pair": (2,)})

    cause = common(given.trial(given.times(np.full(12, 1.37)), runs(6, 6)))

    assert cause.what == "the whole gradient is multiplied by one number"


def test_clipping_is_found_without_the_rows_of_towers() -> None:
    """The program splits the batch in an unknown way."""
    given = problem()
    trial = replace(given.trial(given.times(np.full(12, 0.9))), per_tower=[], per_row=[])

    assert common(trial, changed=frozenset("a")) == CHANGED


@pytest.mark.parametrize("coarse", [True, False])
def test_coarse_and_noisy_variables_share_the_cause_of_others(coarse: bool) -> None:
    """A scalar alone could not be diagnosed."""
    given = problem(shapes={**SHAPES, "scale": ()})
    split = runs(6, 6)
    half = given.times(spread([1, 0], split))
    off = 0.002 * abs(float(given.of(range(12))["scale"]))
    trial = given.trial({**half, "scale": half["scale"] + off}, split)
    more: dict[str, Any] = {}
    if coarse:
        more["precisions"] = {**dict.fromkeys(half, "float32"), "scale": "bfloat16"}
    else:
        trial = replace(trial, noise={**trial.noise, "scale": off})

    found = explained(trial, **more)

    assert (
        found["scale"].what
        == "tower 1 contributes nothing to it, as if the variable were frozen there"
    )


def test_the_scale_that_is_declared_counts() -> None:
    given = problem()

    cause = common(given.trial(given.times(np.full(12, 2.0)), runs(6, 6)), scale=128.0)

    assert cause.fix.endswith("--set gradients-equal.scale=256")


@pytest.mark.parametrize(
    "ratio",
    [
        2.0,
        0.25,
        1024.0,
        1 / 3,
        -1 / 7,
        2**15,
        0.123456789,
        123456.789,
    ],
)
def test_the_scale_to_declare_makes_the_gradients_equal(ratio: float) -> None:
    given = problem()
    trial = given.trial(given.times(np.full(12, ratio)), runs(6, 6))

    cause = common(trial)

    scale = float(cause.fix.rpartition("gradients-equal.scale=")[2])
    assert not parse_policy({"gradients-equal": {"scale": scale}})[1]
    declared = replace(
        trial, found={name: gradient / scale for name, gradient in trial.found.items()}
    )
    assert explained(declared) == {}


def test_a_gradient_of_zeros() -> None:
    """A scale of 0 cannot be declared, so the fix offers no scale."""
    given = problem()

    assert common(given.trial(given.times(np.zeros(12)), runs(6, 6))) == Diagnosis(
        "it is zero",
        "look for a stop_gradient, a mask, or a loss that does not depend on the variables",
        mistake="zero",
        consequence=ANY,
    )


# Towers.


@pytest.mark.parametrize(
    ("tower", "towers", "what"),
    [
        (0, 2, "tower 0 count: the gradients of the other tower are lost"),
        (1, 2, "tower 1, the last, count: the gradients of the other tower are lost"),
        (0, 3, "tower 0 count: the gradients of the other towers are lost"),
        (1, 3, "tower 1 count: the gradients of the other towers are lost"),
        (2, 3, "tower 2, the last, count: the gradients of the other towers are lost"),
    ],
)
def test_only_one_tower_counts(tower: int, towers: int, what: str) -> None:
    split = runs(*[4] * towers)
    weights = [0.0] * towers
    weights[tower] = towers

    cause = common(counted(spread(weights, split), split), towers)

    assert cause.what == f"only the rows of {what}, or computed on the same rows"
    assert cause.fix == (
        "take the mean over the gradients of all towers, each computed on its own rows"
    )
    assert cause.ratio is None
    rows = f"rows {4 * tower} to {4 * tower + 3} count {towers} times"
    assert rows in cause.shown
    assert set(cause.shown) - {rows} <= {
        "rows 0 to 3 count 0 times",
        "rows 4 to 7 count 0 times",
        "rows 8 to 11 count 0 times",
        "rows 0 to 7 count 0 times",
        "rows 4 to 11 count 0 times",
    }


@SLOW
@given(seeds, splits, st.data())
def test_only_one_of_some_towers_counts(
    seed: int, split: list[tuple[int, ...]], data: st.DataObject
) -> None:
    towers = len(split)
    tower = data.draw(st.integers(0, towers - 1))
    times = spread([towers if k == tower else 0 for k in range(towers)], split)

    what = common(counted(times, split, seed), towers).what

    assert f"only the rows of tower {tower}" in what
    assert (", the last," in what) == (tower == towers - 1)


@pytest.mark.parametrize(
    ("weights", "who"),
    [
        ([1, 0], "tower 1 contributes"),
        ([0, 1], "tower 0 contributes"),
        ([1, 0, 1], "tower 1 contributes"),
        ([1.5, 0, 1.5], "tower 1 contributes"),
        ([1, 0, 0], "towers 1 and 2 contribute"),
        ([0, 1, 0, 0], "towers 0, 2 and 3 contribute"),
        ([2, 0, 1, 1], "tower 1 contributes"),
    ],
)
def test_lost_towers(weights: list[float], who: str) -> None:
    """The mean is over the remaining towers, or over all."""
    split = runs(*[3] * len(weights))

    cause = common(counted(spread(weights, split), split), len(weights))

    assert cause.what == f"{who} nothing to it, as if the variable were frozen there"
    assert cause.fix == FROZEN


def test_a_lost_tower_is_known_by_its_rows() -> None:
    split = runs(4, 4, 4)

    cause = common(counted(spread([1, 0, 1], split), split), 3)

    assert cause.shown == (
        "rows 0 to 3 count 1 times",
        "rows 4 to 7 count 0 times",
        "rows 8 to 11 count 1 times",
    )


@SLOW
@given(seeds, splits, st.booleans(), st.data())
def test_towers_are_lost_in_means_and_in_sums(
    seed: int, split: list[tuple[int, ...]], is_sum: bool, data: st.DataObject
) -> None:
    towers = len(split)
    lost = data.draw(st.sets(st.integers(0, towers - 1), min_size=1, max_size=towers - 1))
    times = spread([k not in lost for k in range(towers)], split)

    cause = common(counted(times, split, seed, is_sum=is_sum), towers)

    assert " nothing to it, as if the variable were frozen there" in cause.what
    numbers = cause.what.partition(",")[0] if len(lost) < 3 else cause.what
    assert [k for k in range(towers) if str(k) in numbers] == sorted(lost)


def test_towers_with_unequal_weights() -> None:
    split = runs(6, 6)

    cause = common(counted(spread([1.5, 0.5], split), split))

    assert cause == Diagnosis(
        f"{UNEVEN}1.5 on tower 0 and 0.5 on tower 1",
        f"{BY_SHARE}; if the towers are intended for parts of different size: "
        "--set 'gradients-equal.shares=[3, 1]'",
        ("rows 0 to 5 count 1.5 times", "rows 6 to 11 count 0.5 times"),
        mistake="weights",
        consequence=ANY,
    )


@SLOW
@given(
    seeds,
    splits.flatmap(
        lambda split: st.tuples(
            st.just(split),
            st.lists(st.integers(1, 4), min_size=len(split), max_size=len(split)),
        )
    ),
    st.booleans(),
)
def test_the_shares_to_declare_are_the_weights(
    seed: int, weighted: tuple[list[tuple[int, ...]], list[int]], is_sum: bool
) -> None:
    split, shares = weighted
    shares = [1, *shares[1:]]
    assume(len(set(shares)) > 1)
    towers = len(split)
    times = spread([share * towers / sum(shares) for share in shares], split)

    cause = common(counted(times, split, seed, is_sum=is_sum), towers)

    assert cause.what.startswith(UNEVEN)
    assert cause.fix.endswith(f"--set 'gradients-equal.shares={shares}'")


@pytest.mark.parametrize(
    ("weights", "shares"),
    [([0.8, 1.2], [2, 3]), ([1.5, 0.9, 0.6], [5, 3, 2]), ([10 / 9, 8 / 9], [5, 4])],
)
def test_shares_to_declare_are_whole_numbers(weights: list[float], shares: list[int]) -> None:
    split = runs(*[5] * len(weights))

    cause = common(counted(spread(weights, split), split), len(weights))

    assert cause.fix.endswith(f"--set 'gradients-equal.shares={shares}'")


@pytest.mark.parametrize("ratio", [1.004, 1.37])
def test_shares_to_declare_make_the_gradients_equal(ratio: float) -> None:
    split = runs(6, 6)
    weights = [2 / (1 + ratio), 2 * ratio / (1 + ratio)]

    cause = common(counted(spread(weights, split), split))

    assert cause.what.startswith(UNEVEN)
    assert cause.fix == BY_SHARE


@pytest.mark.parametrize("weights", [[3.0, -1.0], [-1.0, -2.0], [1.0, 1.0, -1.0]])
def test_negative_weights_have_no_shares_to_declare(weights: list[float]) -> None:
    split = runs(*[4] * len(weights))

    cause = common(counted(spread(weights, split), split), len(weights))

    assert cause.what.startswith(UNEVEN)
    has_one_sign = max(weights) < 0
    assert cause.fix == (BY_SHARE if has_one_sign else SAME_SIGN)


@SLOW
@given(seeds, uneven)
def test_unweighted_declared_parts_of_unequal_size(
    seed: int, split: list[tuple[int, ...]]
) -> None:
    """The mean of each part has the same weight, which is right for parts of equal size only."""
    towers, rows = len(split), sum(map(len, split))
    assume(len(set(map(len, split))) > 1)
    times = spread([rows / towers / len(part) for part in split], split)

    cause = common(counted(times, split, seed), towers)

    assert cause.what.startswith(UNEVEN)
    assert cause.fix.endswith(f"gradients-equal.shares={[1] * towers}'")


def test_a_tower_that_replaces_a_lost_tower() -> None:
    split = runs(4, 4, 4)

    cause = common(counted(spread([3, 1, 0], split), split), 3)

    assert cause.what == "tower 2 contributes nothing to it, as if the variable were frozen there"


def test_a_tower_that_loses_one_of_its_rows_is_not_lost() -> None:
    split = runs(6, 6)
    times = np.append(np.zeros(1), np.ones(11))

    assert common(counted(times, split)).what.startswith(UNEVEN)


def test_shares_may_be_far_apart() -> None:
    split = runs(6, 6)

    cause = common(counted(spread([13 / 7, 1 / 7], split), split))

    assert cause.fix.endswith("gradients-equal.shares=[13, 1]'")


def test_rows_of_a_tower_need_not_follow_each_other() -> None:
    split = [tuple(range(0, 12, 2)), tuple(range(1, 12, 2))]
    given = problem()
    times = np.tile([2.0, 0.0], 6)

    cause = common(given.trial(given.times(times), split))

    assert cause.what.startswith("only the rows of tower 0 count")
    assert cause.shown[:2] == ("row 0 counts 2 times", "row 1 counts 0 times")


# Batches that the program itself splits.


@pytest.mark.parametrize("in_parts", [True, False])
def test_the_last_row_is_dropped(in_parts: bool) -> None:
    times = np.append(np.full(12, 13 / 12), 0)

    cause = common(tail([6, 6, 1], times, in_parts=in_parts))

    assert cause == Diagnosis(
        "in a batch of 13 rows, which 2 towers cannot share evenly, the last row is ignored",
        "give the remaining rows to a tower, and weight the towers by their rows; or, if the "
        "number of rows is a multiple of 2 in all batches: --set gradients-equal.rows=12",
        ("rows 0 to 11 count 1.083 times", "row 12 counts 0 times"),
        mistake="tail",
        consequence=ANY,
    )


@SLOW
@given(seeds, st.integers(2, 4), st.integers(2, 5), st.booleans(), st.data())
def test_dropped_remaining_rows_are_named(
    seed: int, towers: int, size: int, in_parts: bool, data: st.DataObject
) -> None:
    """The mean is over the rows that are left, or over all."""
    left = data.draw(st.integers(1, towers - 1))
    kept = towers * size
    by = data.draw(st.sampled_from([1.0, (kept + left) / kept]))
    times = np.append(np.full(kept, by), np.zeros(left))

    # Parts of equal size, as measured; the rest may be a single row.
    cause = common(tail([*[size] * towers, left], times, seed, in_parts=in_parts), towers)

    rows = "row is" if left == 1 else f"{left} rows are"
    assert cause.what == (
        f"in a batch of {kept + left} rows, which {towers} towers cannot share evenly, the last "
        f"{rows} ignored"
    )
    assert f"the number of rows is a multiple of {towers} in" in cause.fix
    assert cause.fix.endswith(f"gradients-equal.rows={kept}")


def test_a_dropped_row_with_weighted_towers() -> None:
    times = np.array([1.5] * 4 + [1.2] * 4 + [0])

    cause = common(tail([5, 4], times))

    assert (
        cause.what
        == "in a batch of 9 rows, which 2 towers cannot share evenly, the last row is ignored"
    )


@pytest.mark.parametrize(
    ("sizes", "towers"),
    [
        pytest.param([(3, 2.0), (3, 2.0), (6, 1.0)], 2, id="more than there are"),
        pytest.param([(4, 1.0 / 0.6), (8, 0.5)], 3, id="of no whole number of rows"),
        pytest.param([(5, 2.0), (7, 4 / 7)], 3, id="that do not make up their rows"),
        pytest.param([(4, 1.5), (4, 0.0), (4, 1.5)], 2, id="one with weight 0"),
    ],
)
def test_row_weights_that_no_towers_explain(sizes: list[tuple[int, float]], towers: int) -> None:
    times = np.concatenate([np.full(rows, value) for rows, value in sizes])

    assert common(tail([], times, in_parts=False), towers).what == "rows do not count equally"


def test_as_many_rows_as_towers_are_not_remaining_rows() -> None:
    times = np.append(np.full(10, 1.2), np.zeros(2))

    assert common(tail([6, 6], times)).what == "rows do not count equally"


def test_unweighted_unequal_parts() -> None:
    split = runs(7, 6)

    cause = common(tail([6, 6, 1], spread([13 / 14, 13 / 12], split)))

    assert cause == Diagnosis(
        "towers of 7 and 6 rows are averaged as if they were equal",
        "weight each tower by its rows, n_i / n: placement_checks.average_gradients(tower_grads, "
        "weights=rows)",
        ("rows 0 to 6 count 0.9286 times", "rows 7 to 12 count 1.083 times"),
        mistake="sizes",
        consequence=ANY,
    )


@SLOW
@given(
    seeds,
    st.lists(st.integers(2, 8), min_size=2, max_size=4, unique=True),
    st.booleans(),
)
def test_unweighted_towers_of_unequal_size(seed: int, sizes: list[int], in_parts: bool) -> None:
    rows, towers = sum(sizes), len(sizes)
    times = spread([rows / towers / size for size in sizes], runs(*sizes))

    size = rows // towers
    cut = [size] * towers + ([rows % towers] if rows % towers else [])
    cause = common(tail(cut, times, seed, in_parts=in_parts), towers)

    *first, last = map(str, sizes)
    assert cause.what == (
        f"towers of {', '.join(first)} and {last} rows are averaged as if they were equal"
    )


@SLOW
@given(seeds, st.lists(st.integers(2, 6), min_size=3, max_size=4), st.booleans())
def test_adjacent_parts_of_one_size_are_separate_towers(
    seed: int, sizes: list[int], in_parts: bool
) -> None:
    assume(len(set(sizes)) > 1)
    rows, towers = sum(sizes), len(sizes)
    times = spread([rows / towers / size for size in sizes], runs(*sizes))
    cut = [rows // towers] * towers + ([rows % towers] if rows % towers else [])

    cause = common(tail(cut, times, seed, in_parts=in_parts), towers)

    *first, last = map(str, sizes)
    assert cause.what == (
        f"towers of {', '.join(first)} and {last} rows are averaged as if they were equal"
    )


def test_towers_of_a_batch_that_the_program_splits() -> None:
    """The rows of each tower are known if the towers have equal sizes."""
    split = runs(6, 6)

    assert common(tail([6, 6], spread([2, 0], split))).what == (
        "only the rows of tower 0 count: the gradients of the other tower are lost, or computed "
        "on the same rows"
    )
    assert common(tail([6, 6], spread([1.5, 0.5], split))).fix.endswith("shares=[3, 1]'")


@pytest.mark.parametrize(
    ("sizes", "expected"), [([5, 4, 4], "5, 4 and 4"), ([4, 4, 3, 3], "4, 4, 3 and 3")]
)
def test_towers_as_array_split_cuts_them(sizes: list[int], expected: str) -> None:
    rows, towers = sum(sizes), len(sizes)
    times = spread([rows / towers / size for size in sizes], runs(*sizes))
    size = rows // towers

    cause = common(tail([size] * towers + [rows % towers], times), towers)

    assert cause.what == f"towers of {expected} rows are averaged as if they were equal"


@pytest.mark.parametrize("is_sum", [False, True])
def test_rows_with_other_weights(is_sum: bool) -> None:
    given = problem(rows=13, is_sum=is_sum)

    cause = common(given.trial(given.times(spread([1, 3, 1], runs(3, 2, 8)))))

    assert cause == Diagnosis(
        "rows do not count equally",
        "assign every row to exactly one tower, and weight the towers by their rows",
        (
            "rows 0 to 2 count 1 times",
            "rows 3 to 4 count 3 times",
            "rows 5 to 12 count 1 times",
        ),
        mistake="rows",
        consequence=ANY,
    )


def test_other_weights_for_all_rows_explain_nothing() -> None:
    given = problem(rows=12)
    times = 1 + np.arange(12) / 4

    assert common(given.trial(given.times(times), per_tower=[])).what == UNKNOWN


def test_more_parts_than_towers_and_a_tail_explain_nothing() -> None:
    given = problem(rows=12)
    times = spread([1, 2, 1, 2], runs(3, 3, 3, 3))

    assert common(given.trial(given.times(times), per_tower=[])).what == UNKNOWN
    assert (
        common(given.trial(given.times(times), per_tower=[]), 3).what
        == "rows do not count equally"
    )


def test_more_rows_than_elements_explain_nothing() -> None:
    """Any gradient is then a weighted sum of the rows' gradients."""
    given = problem(rows=12, shapes={"a": (3, 2)})
    times = np.append(np.full(10, 1.2), np.zeros(2))

    assert common(given.trial(given.times(times), per_tower=[])).what == UNKNOWN


def test_similar_rows_explain_nothing() -> None:
    """No fit can distinguish rows with nearly the same gradient."""
    given = problem(rows=6)
    first = {name: np.repeat(gradient[:1], 6, axis=0) for name, gradient in given.slopes.items()}
    alike = Problem(first, given.start)
    trial = alike.trial(
        {name: 1.7 * gradient**2 for name, gradient in alike.of([0]).items()}, runs(3, 3)
    )

    assert {cause.what for cause in explained(trial).values()} == {UNKNOWN}


def test_two_towers_of_three_on_the_same_rows_explain_nothing() -> None:
    """The weight of each of them is undetermined."""
    given = problem(rows=9)
    twins = {
        name: np.concatenate([gradient[:3], gradient[3:6], gradient[3:6]])
        for name, gradient in given.slopes.items()
    }
    split = runs(3, 3, 3)
    alike = Problem(twins, given.start)

    trial = alike.trial(alike.times(spread([1.4, 0.3, 0.7], split)), split)

    assert common(trial, 3).what == UNKNOWN


def test_similar_towers_explain_nothing() -> None:
    """A small gradient would be fitted by a huge multiple of the towers' difference."""
    given = problem(rows=6)
    nearly = Problem(
        {name: gradient[:1] + 1e-6 * gradient for name, gradient in given.slopes.items()},
        given.start,
    )
    one, other = (nearly.of(rows) for rows in SPLIT_OF_SIX)
    found = {
        name: gradient + 3000 * (one[name] - other[name])
        for name, gradient in nearly.of(range(6)).items()
    }

    assert common(nearly.trial(found, SPLIT_OF_SIX)).what == UNKNOWN


# Labels, pairs, penalties.


def moved(given: Problem) -> Problem:
    """The same rows with other labels."""
    other = problem(99, given.rows)
    return Problem({name: slope[::-1] for name, slope in other.slopes.items()}, given.start)


def test_labels_of_other_rows() -> None:
    given = problem()
    labels, images = (moved(given).of(rows) for rows in (range(12), range(11)))
    ways = {"the rows of 'x' moved by 1": images, "the rows of 'y' moved by 6": labels}

    cause = common(given.trial(labels, runs(6, 6), shifted=ways))

    assert cause == Diagnosis(
        "it is the reference's gradient with the rows of 'y' moved by 6",
        "take the same rows of all inputs, in the same order: an example and its label are in the "
        "same row",
        mistake="moved",
        consequence=ANY,
    )


@SLOW
@given(seeds, splits, st.integers(1, 5))
def test_labels_of_other_rows_of_any_batch(
    seed: int, split: list[tuple[int, ...]], by: int
) -> None:
    """The gradient of a row is the product of its input and its error, or the error alone."""
    rows = sum(map(len, split))
    rng = np.random.default_rng(seed)
    x, y = rng.normal(0, 1, (rows, 6)), rng.normal(0, 1, (rows, 4))

    def of(labels: Array) -> Problem:
        slopes = {"w": x[:, :, None] * labels[:, None, :], "b": labels}
        return Problem(slopes, {"w": np.ones((6, 4)), "b": np.ones(4)})

    given = of(y)
    ways = {f"moved by {k}": of(np.roll(y, k, axis=0)).of(range(rows)) for k in (by, -by)}
    assume(by % rows and 2 * by % rows)
    trial = given.trial(ways[f"moved by {-by}"], split, shifted=ways)

    found = explained(trial, len(split))

    assert found.keys() == {"w"}  # the mean error is the same
    assert found["w"].what == f"it is the reference's gradient with moved by {-by}"


def test_exchanged_gradients() -> None:
    given = problem()
    expected = given.of(range(12))
    swapped = {"a": expected["d"], "d": expected["a"]}

    found = explained(given.trial(swapped, runs(6, 6)))

    assert found == {
        own: Diagnosis(
            f"it is the gradient of {other}: gradients and variables are paired wrongly",
            "keep each gradient with its variable; lists that are joined with zip must have the "
            "same entries in the same order",
            mistake="paired",
            consequence=ANY,
        )
        for own, other in (("a", "d"), ("d", "a"))
    }


@SLOW
@given(seeds, st.permutations("abcdef"))
def test_wrongly_paired_gradients(seed: int, order: Sequence[str]) -> None:
    assert diagnosed_pairs(seed, order, alike=True) == {
        own: other for own, other in zip("abcdef", order, strict=True) if own != other
    }


def test_wrongly_paired_gradients_of_different_sizes() -> None:
    """The gradients of e and b are about a thousand times as large as a's."""
    assert diagnosed_pairs(15692638, "ebcdaf", alike=False) == {"a": "e", "e": "a"}


def diagnosed_pairs(seed: int, order: Sequence[str], *, alike: bool) -> dict[str, str]:
    """Returns the diagnosed source of each gradient; `alike` scales all to equal size."""
    given = problem(seed, 8, {**dict.fromkeys("abcdef", (2, 3)), "g": (6,)})
    if alike:
        sized = {
            name: gradient / np.max(np.abs(gradient)) for name, gradient in given.slopes.items()
        }
        given = Problem(sized, given.start)
    expected = given.of(range(8))
    swapped = {own: expected[other] for own, other in zip("abcdef", order, strict=True)}
    found = explained(given.trial(swapped, runs(4, 4)))
    return {
        own: cause.what.removeprefix("it is the gradient of ").partition(":")[0]
        for own, cause in found.items()
    }


def test_a_pair_is_more_likely_than_two_factors() -> None:
    """The gradient of one scalar may be a multiple of another's."""
    pair = Problem({"s": np.full((4, 1), 1.0), "t": np.full((4, 1), 2.0)}, {})

    found = explained(pair.trial({"s": np.array([2.0]), "t": np.array([1.0])}, runs(2, 2)))

    assert found["s"].what.startswith("it is the gradient of t:")
    assert found["t"].what.startswith("it is the gradient of s:")


def test_a_pair_is_found_within_the_noise() -> None:
    given = problem()
    d = given.of(range(12))["d"]
    off = 1e-4 * float(np.max(np.abs(d)))
    trial = given.trial({"a": d + off}, runs(6, 6))

    assert explained(trial)["a"].what == UNKNOWN
    noisy = replace(trial, noise={**trial.noise, "d": off})
    assert explained(noisy)["a"].what.startswith("it is the gradient of d:")


def test_a_slightly_closer_gradient_is_not_a_pair() -> None:
    """Two variables with nearly equal gradients."""
    given = problem(shapes={"a": (3, 4), "z": (3, 4)})
    rng = np.random.default_rng(3)
    a = given.of(range(12))["a"] / np.max(np.abs(given.of(range(12))["a"]))
    off = 1e-3 * rng.choice([-1, 1], a.shape)
    trial = replace(
        given.trial({}, runs(6, 6)),
        expected={"a": a, "z": a + 1.3 * off},
        found={"a": a + off, "z": a + 1.3 * off},
        noise={"a": 0.0, "z": 5e-5},
    )

    assert explained(trial)["a"].what == UNKNOWN


def test_a_lost_gradient_is_not_paired_with_an_untrained_variable() -> None:
    """One variable is frozen.

    Another variable has a gradient of zero, which does not explain it.
    """
    given = problem()
    expected = given.of(range(12))
    trial = given.trial({"a": 0 * expected["a"], "b": expected["b"] ** 2})
    zero = replace(
        trial,
        expected={**trial.expected, "d": 0 * expected["d"]},
        found={**trial.found, "d": 0 * expected["d"]},
    )

    assert explained(zero)["a"].what == "it is zero"


def test_paired_gradients_have_one_shape() -> None:
    """a is 3 by 4 and c 4 by 3: no optimizer takes the gradient of the other."""
    given = problem()
    reshaped = given.of(range(12))["c"].reshape(3, 4)

    assert explained(given.trial({"a": reshaped}))["a"].what == UNKNOWN


def test_a_far_too_large_gradient_is_not_matched_by_size() -> None:
    given = problem(shapes={"a": (3, 4), "b": (3, 4)})
    sizes = {"a": 1e-6, "b": 1.0}
    small = Problem(
        {
            name: sizes[name] / np.ptp(gradient) * gradient
            for name, gradient in given.slopes.items()
        },
        given.start,
    )
    other = np.random.default_rng(1).normal(0, 1, (3, 4))

    assert explained(small.trial({"a": other}))["a"].what == UNKNOWN


def penalized(times: float, towers: int = 2) -> dict[str, Diagnosis]:
    given = problem(rows=4 * towers)
    expected = given.of(range(given.rows))
    off = {name: times * given.start[name] for name in ("a", "b")}
    split = runs(*[4] * towers)
    return explained(
        given.trial({name: expected[name] + off[name] for name in off}, split), towers
    )


def test_a_penalty_that_counts_in_every_tower() -> None:
    found = penalized(0.25, towers=3)

    assert found == dict.fromkeys(
        ["a", "b"],
        Diagnosis(
            "the penalty counts more than once, perhaps in each of the 3 towers",
            ONCE,
            ("found - expected = 0.25 x the variable",),
            mistake="repeated penalty",
            consequence=ANY,
        ),
    )


def test_a_missing_penalty() -> None:
    assert penalized(-0.25)["a"] == Diagnosis(
        "the penalty counts less than once, or not at all",
        "if gradients are averaged, add the full penalty to the loss of every tower; if they are "
        "added up, add it to the loss of one tower, undivided",
        ("expected - found = 0.25 x the variable",),
        mistake="too small penalty",
        consequence=ANY,
    )


@SLOW
@given(seeds, splits, st.floats(0.01, 2), st.booleans())
def test_penalties_of_any_size(
    seed: int, split: list[tuple[int, ...]], decay: float, added: bool
) -> None:
    """The penalty is as large as the gradient, or one percent of it."""
    given = problem(seed, sum(map(len, split)))
    expected = given.of(range(given.rows))
    size = np.max(np.abs(expected["a"])) / np.max(np.abs(given.start["a"]))
    times = decay * size * (1 if added else -1)

    (cause,) = explained(
        given.trial({"a": expected["a"] + times * given.start["a"]}, split), len(split)
    ).values()

    assert ("more than once" in cause.what) == added
    assert ("less than once" in cause.what) != added
    (line,) = cause.shown
    assert float(line.split()[4]) == pytest.approx(abs(times), rel=1e-2, abs=1e-4)


def test_a_constant_added_to_equal_weights_is_no_penalty() -> None:
    """It may be any constant."""
    given = problem()
    ones = {name: np.ones(shape) for name, shape in SHAPES.items()}
    found = {"a": given.of(range(12))["a"] + np.ptp(given.of(range(12))["a"])}

    for start in (ones, {"a": np.zeros((3, 4))}, {}, {"a": given.start["a"][:2]}):
        assert explained(given.trial(found, start=start))["a"].what == UNKNOWN


# Gradients that are no sums over rows.


def by_tower(seed: int, split: list[tuple[int, ...]]) -> Trial:
    """Returns a batch with the mean over towers of gradients that are no sums over rows."""
    given = problem(seed, sum(map(len, split)))
    whole = given.trial({}, split)

    def with_statistics(gradients: Arrays) -> dict[str, Array]:
        return {
            name: (gradient / np.sqrt(np.mean(gradient**2))).astype(np.float32).astype(np.float64)
            for name, gradient in gradients.items()
        }

    def on(samples: Sequence[Sample]) -> list[Sample]:
        return [Sample(sample.rows, with_statistics(sample.gradients)) for sample in samples]

    parts = on(whole.per_tower)
    found = {
        name: np.sum([len(part.rows) / given.rows * part.gradients[name] for part in parts], 0)
        for name in given.slopes
    }
    return replace(
        whole,
        expected=with_statistics(whole.expected),
        found=found,
        per_tower=parts,
        per_row=on(whole.per_row),
    )


def test_statistics_of_each_towers_rows() -> None:
    assert common(by_tower(0, runs(6, 6))) == Diagnosis(
        "it is the mean over towers of the reference's gradients on each tower's rows alone: "
        "batch statistics, as in batch normalization, are taken over a tower's rows",
        "compute the batch statistics over the rows of all towers; if statistics per tower are "
        "intended: --set gradients-equal.statistics=tower",
        mistake="statistics",
        consequence=ANY,
    )


def by_counts(seed: int, split: Sequence[tuple[int, ...]], counts: Array, share: Array) -> Trial:
    """Towers that divide by counts of their own, which the reference adds up first."""
    given = problem(seed, sum(map(len, split)))
    parts = given.samples(split)

    def weighted(weights: Array) -> dict[str, Array]:
        return {
            name: np.sum(
                [
                    weight * part.gradients[name]
                    for weight, part in zip(weights, parts, strict=True)
                ],
                axis=0,
            )
            for name in given.slopes
        }

    return replace(given.trial(weighted(share), split), expected=weighted(counts / np.sum(counts)))


def test_towers_that_divide_by_counts_of_their_own() -> None:
    """For example, the number of tokens. A declaration of statistics would hide the mistake."""
    trial = by_counts(0, runs(6, 6), np.array([1.0, 3.0]), np.array([0.5, 0.5]))

    assert common(trial) == Diagnosis(
        "each tower divides its loss by its own count, such as its number of tokens, and one GPU "
        "by the count of the whole batch",
        "divide by the count of all towers, or weight the towers by their counts: "
        "placement_checks.average_gradients(tower_grads, weights=counts)",
        ("rows 0 to 5 count 2 times", "rows 6 to 11 count 0.6667 times"),
        mistake="counts",
        consequence="an example counts more in a tower with a small count than in the others",
    )


@SLOW
@given(seeds, uneven, st.lists(st.integers(1, 9), min_size=4, max_size=4), st.booleans())
def test_counts_of_towers_that_rows_do_not_explain(
    seed: int, split: list[tuple[int, ...]], counts: list[int], by_rows: bool
) -> None:
    """Whether the towers are averaged as if equal, or by their rows."""
    towers = len(split)
    rows = np.array([len(part) for part in split])
    times = np.array(counts[:towers])
    share = rows / np.sum(rows) if by_rows else np.full(towers, 1 / towers)
    assume(np.max(np.abs(times / np.sum(times) - rows / np.sum(rows))) > 0.05)
    assume(np.max(np.abs(times / np.sum(times) - share)) > 0.05)

    causes = explained(by_counts(seed, split, times, share), towers)

    assert {cause.mistake for cause in causes.values()} == {"counts"}
    assert not any("--set" in cause.fix for cause in causes.values())


def test_clipped_gradients_do_not_show_counts() -> None:
    trial = by_counts(0, runs(6, 6), np.array([1.0, 3.0]), np.array([0.5, 0.5]))

    assert common(trial, changed=frozenset("a")).mistake == "changed in towers"


def test_gradients_clipped_in_each_tower() -> None:
    assert common(by_tower(0, runs(6, 6)), changed=frozenset("a")) == Diagnosis(
        "each tower changes its gradients, by clipping for example, before their mean is taken; "
        "the reference changes the mean",
        "clip the averaged gradients, after the loop over towers; if it is intended: --set "
        "gradients-equal.statistics=tower",
        mistake="changed in towers",
        consequence=ANY,
    )


@SLOW
@given(seeds, uneven, st.booleans())
def test_gradients_equal_on_each_towers_rows(
    seed: int, split: list[tuple[int, ...]], changed: bool
) -> None:
    towers = len(split)

    cause = common(
        by_tower(seed, split), towers, changed=frozenset("abcd") if changed else frozenset()
    )

    assert cause.fix.count("gradients-equal.statistics=tower") == 1
    assert ("clip" in cause.what) == changed


CHANGED = Diagnosis(
    "it is clipped or otherwise changed in another way than in the reference",
    "average the gradients first, then change them once, exactly as the reference does, and undo "
    "a loss scale before that",
    mistake="changed",
    consequence=ANY,
)


@pytest.mark.parametrize("weights", [(0.4, 1.2), (0.9, 0.9), (2, 0.5), (1.4, 0.6)])
def test_clipped_gradients_do_not_show_weights(weights: tuple[float, float]) -> None:
    split = runs(6, 6)
    batch = counted(spread(weights, split), split)

    assert common(batch, changed=frozenset("a")) == CHANGED
    assert "clipped" not in common(batch).what


@pytest.mark.parametrize("weights", [(2, 0), (2, 2), (0.5, 0.5)])
def test_clipped_gradients_of_one_tower_or_a_multiple(
    weights: tuple[float, float],
) -> None:
    split = runs(6, 6)
    batch = counted(spread(weights, split), split)

    assert common(batch, changed=frozenset("a")) == common(batch)


def test_only_different_gradients_are_checked_for_changes() -> None:
    assert "clip" not in common(by_tower(0, runs(6, 6)), changed=frozenset("z")).what


@SLOW
@given(seeds, splits)
def test_unexplained_differences_have_no_cause(seed: int, split: list[tuple[int, ...]]) -> None:
    given = problem(seed, sum(map(len, split)))
    rng = np.random.default_rng(seed + 1)
    found = {name: rng.normal(0, 1, shape) for name, shape in SHAPES.items()}
    ways = {"moved": moved(given).of(range(given.rows))}

    assert common(given.trial(found, split, shifted=ways), len(split)) == Diagnosis(
        UNKNOWN,
        "compare how both programs compute it; if the difference is intended: "
        "--set gradients-equal.allow=VARIABLE",
        mistake="unexplained",
    )


@pytest.mark.parametrize("parts", [True, False])
def test_a_small_difference_is_not_explained_by_an_equal_mean(parts: bool) -> None:
    """The difference is a hundred eps; the mean over the parts equals the reference."""
    given = problem()
    rng = np.random.default_rng(1)
    found = {
        name: gradient
        + 100 * 2.0**-23 * np.max(np.abs(gradient)) * rng.uniform(-1, 1, gradient.shape)
        for name, gradient in given.of(range(12)).items()
    }
    trial = given.trial(found, runs(6, 6) if parts else ())
    assert len(differing_variables(trial, dict.fromkeys(SHAPES, "float32"))) == 4

    assert common(trial).what == UNKNOWN


def test_a_ratio_near_one_is_not_statistics_of_towers() -> None:
    given = problem()

    trial = given.trial(given.times(np.full(12, 1.00005)), runs(6, 6))

    assert "statistics" not in common(trial).what


# Several variables.


def test_one_mistake_has_one_cause() -> None:
    split = runs(6, 6)
    found = explained(counted(spread([2, 0], split), split))

    assert len({id(cause) for cause in found.values()}) == 1


@SLOW
@given(seeds, splits, st.sets(st.sampled_from("abcd"), min_size=1, max_size=3))
def test_equal_gradients_have_no_diagnosis(
    seed: int, split: list[tuple[int, ...]], wrong: set[str]
) -> None:
    """The mistake of the other variables is diagnosed without these."""
    given = problem(seed, sum(map(len, split)))
    times = spread([len(split), *[0] * (len(split) - 1)], split)
    frozen = given.times(times)

    found = explained(given.trial({name: frozen[name] for name in wrong}, split), len(split))

    assert found.keys() == wrong
    assert all(cause.what.startswith("only the rows of tower 0") for cause in found.values())


def test_each_variable_has_its_own_mistake() -> None:
    given = problem()
    split = runs(6, 6)
    expected = given.of(range(12))
    wrong: Mapping[str, Array] = {
        "a": given.times(np.full(12, 2.0))["a"],
        "b": given.times(spread([1, 0], split))["b"],
        "c": expected["c"] + 3 * given.start["c"],
        "d": expected["a"],
    }

    found = explained(given.trial(wrong, split))

    assert {name: cause.what.partition(":")[0] for name, cause in found.items()} == {
        "a": "the gradients of 2 towers are added up instead of averaged",
        "b": "tower 1 contributes nothing to it, as if the variable were frozen there",
        "c": "the penalty counts more than once, perhaps in each of the 2 towers",
        "d": "it is the gradient of a",
    }


def test_rows_of_single_variables() -> None:
    """A fit of 13 rows needs more elements: 14 are enough, 12 are not."""
    shapes = {"a": (3, 4), "e": (14,)}
    given = problem(rows=13, shapes=shapes)
    wrong = {
        "a": given.times(np.append(np.full(12, 13 / 12), 0))["a"],
        "e": given.times(spread([1, 3, 1], runs(3, 2, 8)))["e"],
    }

    found = explained(given.trial(wrong))

    assert found["a"].what == UNKNOWN
    assert found["e"].what == "rows do not count equally"


# One element.


@pytest.mark.parametrize(
    ("ratio", "what"),
    [
        (2.0, "the gradients of 2 towers are added up instead of averaged"),
        (0.5, "it is divided by the number of towers, 2, once too often"),
        (128.0, "the whole gradient is multiplied by one number"),
        (-3.0, "the whole gradient is multiplied by one number"),
        (1 / 128, "the whole gradient is multiplied by one number"),
        (1.37, UNKNOWN),
        (0.73, UNKNOWN),
        (2.7, UNKNOWN),
        (1 / 2.7, UNKNOWN),
        (-1.0, UNKNOWN),
    ],
)
def test_a_scalar_is_a_multiple_of_any_scalar(ratio: float, what: str) -> None:
    """So only integer factors are evidence."""
    given = problem(shapes={"scale": ()})

    cause = common(given.trial(given.times(np.full(12, ratio)), runs(6, 6)))

    assert cause.what == what


def test_a_scalar_among_other_variables() -> None:
    """The mistake shows in the other variables."""
    given = problem(shapes={**SHAPES, "scale": ()})
    split = runs(6, 6)

    found = explained(given.trial(given.times(spread([1, 0], split)), split))

    assert found.keys() == {*SHAPES, "scale"}
    assert len(set(found.values())) == 1


def test_a_scalar_that_becomes_zero() -> None:
    given = problem(shapes={"scale": ()})

    cause = common(given.trial({"scale": np.zeros(())}, runs(6, 6)))

    assert cause.what


# Gradients of nearly zero.


def test_a_zero_reference_has_no_known_cause() -> None:
    given = problem()
    zero = Problem({name: 0 * gradient for name, gradient in given.slopes.items()}, given.start)

    assert common(zero.trial(given.of(range(12)), runs(6, 6))).what == UNKNOWN


@SLOW
@given(seeds, st.sampled_from([2, 3]), st.floats(1e-3, 1e3))
def test_variables_of_any_size(seed: int, towers: int, size: float) -> None:
    given = problem(seed, 12)
    sized = Problem(
        {name: size * gradient for name, gradient in given.slopes.items()}, given.start
    )
    split = runs(*[12 // towers] * towers)
    times = spread([towers, *[0] * (towers - 1)], split)

    assert (
        "only the rows of tower 0" in common(sized.trial(sized.times(times), split), towers).what
    )


def test_noise_widens_the_tolerance() -> None:
    """The reference differs as much in another order of its rows."""
    given = problem()
    split = runs(6, 6)
    rng = np.random.default_rng(1)
    half = given.times(spread([1, 0], split))
    noise = {name: 1e-4 * float(np.max(np.abs(gradient))) for name, gradient in half.items()}
    too_coarse = {
        name: gradient + noise[name] * rng.uniform(-1, 1, gradient.shape)
        for name, gradient in half.items()
    }

    assert common(given.trial(too_coarse, split)).what == UNKNOWN
    cause = common(given.trial(too_coarse, split, noise=noise))
    assert cause.what.startswith("tower 1 contributes nothing to it")


def test_float64_is_fitted_as_its_eps_allows() -> None:
    """A penalty of about 1e-6 of the gradient is a finding in float64 only."""
    given = problem(rows=8)
    expected = given.of(range(8))
    times = 1e-6 * np.max(np.abs(expected["a"]))
    trial = given.trial(
        {"a": expected["a"] + times * given.start["a"]}, noise=dict.fromkeys(SHAPES, 0.0)
    )

    found = explained(trial, dtypes=dict.fromkeys(SHAPES, "float64"))

    assert list(found) == ["a"]
    assert found["a"].mistake == "repeated penalty"


def test_under_a_strategy_each_replica_must_have_its_part_of_the_mean() -> None:
    given = problem()

    def found(ratio: float, split: Sequence[tuple[int, ...]]) -> Diagnosis:
        trial = given.trial(given.times(np.full(12, ratio)), split)
        return common(trial, strategy="MirroredStrategy")

    own, whole, less = found(2, runs(6, 6)), found(2, ()), found(0.5, runs(6, 6))

    assert own.what == "the gradients of 2 replicas are added up instead of averaged"
    assert own.fix.startswith(
        "divide the loss by the number of rows of all replicas: "
        "tf.nn.compute_average_loss(losses, global_batch_size=…); if the program does so already"
    )
    assert whole.what.endswith("of one replica, or each replica reads the rows of all")
    assert "strategy.experimental_distribute_dataset(dataset); if the sum" in whole.fix
    assert less.what == "it is divided by the number of replicas, 2, once too often"
    assert less.fix.startswith("divide the loss by the rows of all replicas alone, as")


def test_under_a_strategy_a_penalty_is_given_in_parts() -> None:
    given = problem(rows=8)
    expected = given.of(range(8))
    found = {**expected, "a": expected["a"] + 0.25 * given.start["a"]}

    cause = explained(given.trial(found, runs(4, 4)), strategy="MirroredStrategy")["a"]

    assert "perhaps in each of the 2 replicas" in cause.what
    assert cause.fix == "give each replica its part: tf.nn.scale_regularization_loss(penalty)"
