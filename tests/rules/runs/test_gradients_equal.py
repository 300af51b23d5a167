from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import steps
from support.measurements import SHAPES, Problem, measurement, problem, runs, spread, trajectory
from support.towers import program
from support.verdicts import broken, kept, not_checked, verdicts

from placement_checks import Placement
from placement_checks.core.evidence import Evidence
from placement_checks.core.measurement import Measurement, Trajectory, Trial
from placement_checks.core.missing import Missing
from placement_checks.rules.runs.gradients_equal import GradientsEqual
from placement_checks.verification.policy import parse_policy

SPLIT = runs(6, 6)

TWICE = np.full(12, 2.0)

ONE = 2.0**-23  # eps of float32


def built(numbers: Measurement, lines: Mapping[str, str] | None = None) -> Evidence:
    names = [*numbers.dtypes]
    return Evidence(program(variables=names, lines=lines or {}), measurement=numbers)


def batch(found: Mapping[str, Any], given: Problem | None = None, **more: Any) -> Trial:
    return (given or problem()).trial(found, SPLIT, **more)


def one(size: float = 1.0) -> dict[str, Any]:
    """A gradient of one number and its noise, as in a trial."""
    return {"w": np.array([size, size])}


def of_one(expected: float, found: Any, noise: float = 0.0) -> Trial:
    return Trial(4, (), one(expected), {"w": np.array([found, found])}, {"w": noise})


def averaged(towers: int, scale: float = 1.0, *, twice: bool = False) -> Placement:
    """Towers that average their gradients. A loss is a mean, or the square of a mean."""
    made = steps.Program()
    w = made.variable("w", (3,))
    gradients = []
    for i in range(towers):
        with made.tower(i):
            x = made.placeholder("x", (None, 3), None if towers == 1 else i)
            loss = steps.mean(steps.square(steps.total(x * w.read(), 1)))
            gradients.append(made.gradient(loss * loss if twice else loss, w))
    made.train(w.descend(0.1, steps.add_n(gradients) * (scale / towers)))
    return made.placement()


def not_finite_in(where: str | None, *more: str, value: float = math.nan) -> Measurement:
    given = problem()
    found = {"b": np.full(6, value)}
    if more:
        found |= {name: given.times(TWICE)[name] for name in more}
    return measurement(batch(found, not_finite={"b": ("tower_1/Log", where)}))


def odd(times: Any, noise: float | None = None) -> Trial:
    """A batch of 13 rows."""
    given = problem(1, rows=13)
    trial = given.trial(given.times(times), per_tower=given.samples(runs(6, 6, 1)))
    return trial if noise is None else replace(trial, noise=dict.fromkeys(SHAPES, noise))


DROPPED = np.append(np.full(12, 13 / 12), 0)


def steps_of(*ends: float) -> Trajectory:
    """The weights of the program in three steps; the reference's are 1, 2 and 3."""
    names = [*"abcd"]
    expected = {name: [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]] for name in names}
    found = {name: [[1, 1], [2, 2], [end, end]] for name, end in zip("abcd", ends, strict=False)}
    trained = {name: [False, False] for name in names}
    return trajectory({name: [0.0, 0.0] for name in names}, expected, found, uncertain=trained)


def with_slot(factor: float) -> Trajectory:
    steps = steps_of()
    name, size = "a/Momentum", [5.0, 5.0]
    slot = trajectory({name: [0, 0]}, {name: [size] * 3}, {name: [np.multiply(size, factor)] * 3})
    both = [{**one, **other} for one, other in zip(steps.steps, slot.steps, strict=True)]
    return replace(steps, steps=both, owners={**steps.owners, name: "a"})


def loud(name: str, trial: Trial) -> Measurement:
    """The noise of one gradient is as large as the gradient."""
    noise = float(np.max(np.abs(trial.expected[name])))
    return measurement(replace(trial, noise={**trial.noise, name: noise}))


def five_noisy() -> Measurement:
    """Five of six gradients are noise."""
    names = [f"v{n}" for n in range(5)]
    values = {name: np.ones(2) for name in [*names, "w"]}
    return measurement(Trial(2, (), values, values, {**dict.fromkeys(names, 1.0), "w": 0.0}))


SKIPPED = Missing("comparison skipped: it would exceed the time limit")


def in_double(trial: Trial, precision: str = "float32") -> Measurement:
    """A variable of float64, whose gradient is computed with this precision."""
    return measurement(trial, dtypes={"w": "float64"}, precisions={"w": precision})


def almost_zero(off: float) -> Measurement:
    """A bias before a normalization has a zero gradient, off by eps of the other gradient."""
    expected, found = np.full(2, 1e-09), np.array([1e-09, off * ONE])
    ones = np.ones(2)
    noise = {"w": 0.0, "bias": 1e-09}
    return measurement(
        Trial(4, (), {"w": ones, "bias": expected}, {"w": ones, "bias": found}, noise)
    )


def infinite_and_dropped() -> Measurement:
    """A row is dropped, and one gradient is not finite.

    Each other variable has fewer elements than there are rows; together they have enough.
    """
    trial = odd(DROPPED)
    found = {**trial.found, "b": np.full(6, math.nan)}
    return measurement(replace(trial, found=found, per_tower=(), not_finite={"b": ("Log", None)}))


def in_slots(factor: float, **more: Any) -> Evidence:
    """Gradients and slots that are larger by factors, and equal weights."""
    numbers = measurement(
        batch(TWICE_AS_LARGE),
        trajectory=with_slot(factor),
        dtypes=dict.fromkeys([*"abcd", "a/Momentum"], "float32"),
        **more,
    )
    return Evidence(program(variables=[*"abcd"]), measurement=numbers)


def compensated(trial: Trial, *trials: Trial, **more: Any) -> Evidence:
    """Different gradients, and equal weights."""
    return built(measurement(trial, *trials, **{"trajectory": steps_of(), **more}))


NOTHING = {"v": np.ones(2), "w": np.zeros(2)}


TWICE_AS_LARGE = problem().times(TWICE)
ZERO = Problem({**problem().slopes, "d": 0 * problem().slopes["d"]}, problem().start)
ONE_TWICE = batch({"a": TWICE_AS_LARGE["a"]})
ONE_COARSE = measurement(ONE_TWICE, dtypes={**dict.fromkeys("acd", "float32"), "b": "bfloat16"})
HALVES = problem().times(spread([1, 0], SPLIT))
TWO_DIFFER = measurement(batch({name: HALVES[name] for name in "ac"}))
TWO_MISSING = measurement(batch({}), missing={"b": True, "c": False})
UNEVEN = "not tested with an uneven batch"


def off_by(eps: float) -> Trial:
    """The gradient of b is off by a number of eps of its largest value."""
    expected = problem().of(range(12))["b"]
    return batch({"b": expected + eps * ONE * np.max(np.abs(expected))})


CASES = {
    **{
        f"{count} towers": kept(
            built(measurement(problem().trial({}, runs(*[12 // count] * count)), towers=count))
        )
        for count in (2, 12)
    },
    "all gradients are twice as large": broken(
        built(
            measurement(batch(TWICE_AS_LARGE), updates={"a": "update/a"}),
            {"update/a": "main.py:40 net.py:3", "b": "main.py:9"},
        )
    ),
    "the gradient of one variable is only the first tower's": broken(
        built(
            measurement(batch({"c": problem().times(spread([1, 0], SPLIT))["c"]})),
            {"c": "main.py:9"},
        )
    ),
    **{
        f"all gradients, {mistake}": broken(
            built(measurement(batch(problem().times(times)), towers=towers))
        )
        for mistake, times, towers in (
            ("divided", np.full(12, 0.25), 4),
            ("scaled", np.full(12, 128.0), 2),
            ("of the first tower", spread([2, 0], SPLIT), 2),
            ("of the last tower", spread([0, 2], SPLIT), 2),
            ("of unequal towers", spread([1.5, 0.5], SPLIT), 2),
        )
    },
    "one gradient is off by 12.34 eps": kept(built(measurement(off_by(12.34)))),
    **{
        f"one gradient is off by 9 eps in the {which} batch": kept(built(measurement(*trials)))
        for which, trials in {
            "first": (off_by(9), batch({})),
            "second": (batch({}), off_by(9)),
        }.items()
    },
    "one variable": kept(built(measurement(of_one(1, 1)))),
    "no run": not_checked(Evidence(program(), measurement=Missing("no reference is given"))),
    "the only gradient is noise": not_checked(
        built(measurement(of_one(1e-09, 3e-09, noise=1e-08)))
    ),
    "one gradient is noise": kept(built(loud("b", batch({"b": -problem().of(range(12))["b"]})))),
    "five gradients are noise": kept(built(five_noisy())),
    "a gradient is zero in both": kept(
        built(
            measurement(
                batch(
                    {},
                    Problem({**problem().slopes, "b": 0 * problem().slopes["b"]}, problem().start),
                )
            )
        )
    ),
    "the only gradient is zero in both": not_checked(built(measurement(of_one(0, 0)))),
    "a gradient is zero in the reference": broken(built(measurement(of_one(0, 1)))),
    "a difference without a known mistake": broken(
        Evidence(
            averaged(2),
            reference=averaged(1, 2.0),
            measurement=measurement(of_one(0.0, 1.0)),
        )
    ),
    "no run, and the graphs prove that losses are averaged": not_checked(
        Evidence(averaged(2), reference=averaged(1), measurement=SKIPPED)
    ),
    "no run, and the graphs prove nothing": not_checked(
        Evidence(averaged(2, twice=True), reference=averaged(1, twice=True), measurement=SKIPPED)
    ),
    **{
        f"gradients in {dtype}": not_checked(built(measurement(of_one(1, 1), dtypes={"w": dtype})))
        for dtype in ("bfloat16", "float16")
    },
    "one of four gradients in bfloat16, and another differs": broken(built(ONE_COARSE)),
    "one of four gradients in bfloat16, and another that differs is allowed": not_checked(
        built(ONE_COARSE), allow=("a",)
    ),
    # A model with float32 variables computes in bfloat16.
    "gradients in bfloat16 of variables in float32, and one is twice as large": broken(
        built(measurement(ONE_TWICE, precisions=dict.fromkeys(SHAPES, "bfloat16")))
    ),
    "gradients in bfloat16 of variables in float32": not_checked(
        built(measurement(batch({}), precisions=dict.fromkeys(SHAPES, "bfloat16")))
    ),
    "a gradient in float32 of a variable in float64": kept(
        built(in_double(of_one(1, 1 + 20 * ONE)))
    ),
    "a gradient in float64 of a variable in float64": broken(
        built(in_double(of_one(1, 1 + 20 * ONE), "float64"))
    ),
    "a gradient in float32 of a variable in float64 that differs": broken(
        built(in_double(of_one(1, 1 + 40 * ONE)))
    ),
    **{
        f"a gradient of zero, off by {off} eps of the other": expected(built(almost_zero(off)))
        for off, expected in ((31, kept), (33, broken))
    },
    "variables without a readable gradient": kept(
        built(measurement(batch({}), unreadable={"u": "it is computed in a loop", "v": "another"}))
    ),
    "no gradient can be read": not_checked(
        built(
            measurement(
                Trial(4, (), {}, {}, {}),
                dtypes={"w": "float32"},
                unreadable={"w": "it is in a loop"},
            )
        )
    ),
    "no gradient was measured": not_checked(
        built(measurement(Trial(4, (), {}, {}, {}), dtypes={"w": "float32"}))
    ),
    "a note of the run": kept(built(measurement(batch({}), notes=[UNEVEN]))),
    "a note of the run, and all gradients differ": broken(
        built(measurement(batch(problem().times(spread([1, 0], SPLIT))), notes=[UNEVEN]))
    ),
    "missing in the towers": broken(
        built(
            measurement(batch({}), missing={"b": True}, updates={"b": "update/b"}),
            {"b": "main.py:9 net.py:3", "update/b": "main.py:40 net.py:5"},
        )
    ),
    "missing in the reference": broken(built(measurement(batch({}), missing={"b": False}))),
    "one gradient is missing, and another differs": broken(
        built(
            measurement(
                batch({"a": problem().times(spread([1, 0], SPLIT))["a"]}), missing={"b": True}
            )
        )
    ),
    "two gradients are missing, and one is allowed": broken(built(TWO_MISSING), allow=("b",)),
    "two gradients are missing, and both are allowed": kept(built(TWO_MISSING), allow=("b", "c")),
    "a gradient is not finite": broken(built(not_finite_in("net.py:12"), {"b": "main.py:9"})),
    "a gradient is not finite, and the line is unknown": broken(built(not_finite_in(None))),
    "a gradient is not finite, and another differs": broken(built(not_finite_in(None, "a"))),
    "a dropped row, and a gradient that is not finite": broken(built(infinite_and_dropped())),
    "a gradient is infinite": broken(built(not_finite_in(None, value=math.inf))),
    "an odd batch, and a row is dropped": broken(built(measurement(batch({}), odd(DROPPED)))),
    "an odd batch": kept(built(measurement(batch({}), odd(np.ones(13))))),
    "an odd batch with a dropped row, and the first batch differs": broken(
        built(measurement(batch(problem().times(spread([1, 0], SPLIT))), odd(DROPPED)))
    ),
    # The first batch is equal within its noise.
    **{
        f"in the second batch, a gradient {what}": broken(
            built(measurement(of_one(1, 1 + 60 * ONE, noise=10 * ONE), second))
        )
        for what, second in {
            "is not finite": replace(of_one(1, math.nan), not_finite={"w": ("Log", None)}),
            "differs": of_one(1, 1 + 50 * ONE),
        }.items()
    },
    **{
        f"off by 50 eps, with noise of 5: {fields}": expected(
            built(measurement(of_one(1, 1 + 50 * ONE, noise=5 * ONE))), **fields
        )
        for fields, expected in (
            ({}, broken),
            ({"tolerance": 51}, kept),
            ({"noise": 11}, kept),
            ({"tolerance": 40, "noise": 9}, broken),
        )
    },
    **{
        f"two gradients differ, allowed: {allow}": broken(built(TWO_DIFFER), allow=allow)
        for allow in ((), ("a",), ("A", "c*"))
    },
    "two gradients differ, and both are allowed": kept(built(TWO_DIFFER), allow=("[ac]",)),
    "all gradients are allowed": not_checked(built(measurement(batch({}))), allow=("?",)),
    "a factor of all gradients but an allowed one": broken(
        built(measurement(batch({**TWICE_AS_LARGE, "d": problem().of(range(12))["d"]}))),
        allow=("d",),
    ),
    "gradients are twice as large, and weights are equal": kept(
        built(measurement(batch(TWICE_AS_LARGE), trajectory=steps_of()))
    ),
    **{
        f"gradients are twice as large, slots {factor} times, and weights are equal": expected(
            in_slots(factor, optimizers=frozenset({"ResourceApplyMomentum"}))
        )
        for factor, expected in ((1.0, kept), (2.0, kept), (3.0, broken))
    },
    # The gradients were already divided by 4, and are still twice as large.
    "the factor in slots includes the declared one": kept(in_slots(8.0, scale=4.0)),
    **{
        f"gradients are twice as large, and weights are equal by {optimizers or 'none'}": broken(
            compensated(batch(TWICE_AS_LARGE), optimizers=frozenset(optimizers))
        )
        for optimizers in (
            ["ResourceApplyAdam"],
            ["ResourceApplyGradientDescent", "ResourceApplyAdam"],
            [],
        )
    },
    "gradients are twice as large, and no step was taken": broken(
        built(measurement(batch(TWICE_AS_LARGE), trajectory=None))
    ),
    "gradients are twice as large, and weights differ": broken(
        built(measurement(batch(TWICE_AS_LARGE), trajectory=steps_of(3.5)))
    ),
    "gradients of the first tower, and weights are equal": broken(
        built(measurement(batch(problem().times(spread([1, 0], SPLIT))), trajectory=steps_of()))
    ),
    # The weights are equal, but only one variable's gradient is.
    "three of four gradients are twice as large, and weights are equal": broken(
        built(
            measurement(
                batch({name: problem().times(TWICE)[name] for name in "abc"}),
                trajectory=steps_of(),
            )
        )
    ),
    "gradients have two factors, and weights are equal": broken(
        built(
            measurement(
                batch({**problem().times(TWICE), "d": problem().times(np.full(12, 3.0))["d"]}),
                trajectory=steps_of(),
            )
        )
    ),
    "gradients are twice as large, one is zero, and weights are equal": kept(
        compensated(ZERO.trial(ZERO.times(TWICE), SPLIT))
    ),
    # The gradients of the program were divided by the declared factor before the comparison.
    **{
        f"gradients are {factor} times as large, a scale of 2 is declared": kept(
            compensated(batch(problem().times(np.full(12, factor))), scale=2.0)
        )
        for factor in (0.5, 2.0)
    },
    # An example is the gradient of a bias before batch normalization.
    "gradients are twice as large, one is noise, and weights are equal": kept(
        built(replace(loud("d", batch(TWICE_AS_LARGE)), trajectory=steps_of()))
    ),
    # The steps use batches like the first; they prove nothing about the odd batch.
    "only the odd batch has a factor, and weights are equal": broken(
        compensated(batch({}), odd(np.full(13, 2.0)))
    ),
    "both batches have a factor, and weights are equal": kept(
        compensated(batch(TWICE_AS_LARGE), odd(np.full(13, 2.0)))
    ),
    "both batches have a factor, the odd one drops a row, and weights are equal": broken(
        built(measurement(batch(TWICE_AS_LARGE), odd(2 * DROPPED), trajectory=steps_of()))
    ),
    "gradients are twice as large, one is missing, and weights are equal": broken(
        built(measurement(batch(TWICE_AS_LARGE), trajectory=steps_of(), missing={"d": True}))
    ),
    "one of four gradients is not finite": broken(
        built(
            measurement(
                replace(batch({"b": np.full(6, math.nan)}), not_finite={"b": ("Log", None)})
            )
        )
    ),
    "one gradient is noise, and the other is zero": not_checked(
        built(measurement(Trial(2, (), NOTHING, NOTHING, {"v": 1.0, "w": 0.0})))
    ),
}

test_verdicts = verdicts(GradientsEqual, CASES)


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 2**32 - 1), st.sets(st.sampled_from("abcd")))
def test_only_different_gradients_are_found(seed: int, wrong: set[str]) -> None:
    given = problem(seed)
    off = given.times(spread([1.5, 0.5], SPLIT))

    graph = built(measurement(batch({name: off[name] for name in wrong}, given)))
    verdict = GradientsEqual().judge(graph)

    assert [finding.object for finding in verdict.findings] == sorted(wrong)
    assert {
        figure["variable"] for figure in verdict.figures if figure["state"] == "differs"
    } == wrong
    assert str(verdict.note).startswith(f"{len(wrong)} of 4 variables" if wrong else "4 variables")


@pytest.mark.parametrize(
    ("values", "errors"),
    [
        ({}, []),
        ({"tolerance": 0.5, "noise": 1, "seconds": 600, "scale": -2.0, "rows": 0}, []),
        ({"shares": [3, 1], "statistics": "tower", "allow": "bn/*", "rows": 64}, []),
        ({"tolerance": 0}, ["tolerance: 0 is not above 0; give a positive number"]),
        ({"noise": -1.5}, ["noise: -1.5 is not above 0; give a positive number"]),
        ({"seconds": 0}, ["seconds: 0 is not above 0; give a positive number"]),
        (
            {"scale": 0},
            ["scale: 0 leaves no gradient; give the number that multiplies all gradients"],
        ),
        ({"rows": -1}, ["rows: -1 is below 0; give a number of rows"]),
        ({"shares": [2, 0]}, ["shares: a tower gets no rows; give whole numbers above 0"]),
        (
            {"shares": [2, 1.5]},
            ["shares: [2, 1.5] does not fit; give a list of whole numbers, such as [3, 1]"],
        ),
        ({"shares": 2}, ["shares: 2 does not fit; give a list of whole numbers, such as [3, 1]"]),
        ({"statistics": "towers"}, ["statistics: 'towers' does not fit; give 'batch' or 'tower'"]),
        ({"tolerance": "32"}, ["tolerance: '32' does not fit; give a number"]),
        ({"rows": 1.5}, ["rows: 1.5 does not fit; give a whole number"]),
        ({"scale": True}, ["scale: True does not fit; give a number"]),
        *(
            ({field: value}, [f"{field}: {value} does not fit; give a number"])
            for field in ("tolerance", "noise", "scale", "seconds")
            for value in (math.nan, math.inf, -math.inf)
        ),
    ],
)
def test_policy_errors_name_the_wrong_fields(
    values: Mapping[str, Any], errors: Sequence[str]
) -> None:
    found = [str(error) for error in parse_policy({"gradients-equal": values})[1]]

    assert found == [f"gradients-equal.{error}" for error in errors]


@pytest.mark.parametrize("field", ["tolerance", "scale", "rows"])
def test_infinite_settings_are_refused(field: str) -> None:
    assert parse_policy({"gradients-equal": {field: 10**400}})[1]
