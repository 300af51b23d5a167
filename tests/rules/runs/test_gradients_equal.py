from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import ANY

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.measurements import SHAPES, Problem, measurement, problem, runs, spread, trajectory
from support.snapshots import messages
from support.towers import gradient, program
from syrupy.assertion import SnapshotAssertion

from placement_checks import Finding, Placement, Verdict
from placement_checks.core.evidence import Evidence
from placement_checks.core.measurement import Measurement, Trajectory, Trial
from placement_checks.core.missing import Missing
from placement_checks.rules.runs.gradients_equal import GradientsEqual
from placement_checks.verification.policy import policy_errors

SPLIT = runs(6, 6)
TWICE = np.full(12, 2.0)
ONE = 2.0**-23  # eps of float32


def checked(
    numbers: Measurement, lines: Mapping[str, str] | None = None, **fields: Any
) -> Verdict:
    return GradientsEqual(**fields).judge(built(numbers, lines))


def built(numbers: Measurement, lines: Mapping[str, str] | None = None) -> Evidence:
    names = [*numbers.dtypes]
    return Evidence(program(variables=names, lines=lines or {}), measurement=numbers)


def batch(found: Mapping[str, Any], given: Problem | None = None, **more: Any) -> Trial:
    return (given or problem()).trial(found, SPLIT, **more)


def objects(verdict: Verdict) -> list[str]:
    assert verdict.state != "not-checked", verdict.reason
    return [finding.object for finding in verdict.findings]


def one(size: float = 1.0) -> dict[str, Any]:
    """A gradient of one number and its noise, as in a trial."""
    return {"w": np.array([size, size])}


def of_one(expected: float, found: Any, noise: float = 0.0) -> Trial:
    return Trial(4, (), one(expected), {"w": np.array([found, found])}, {"w": noise})


# States.


@pytest.mark.parametrize("count", [2, 3, 4])
def test_kept(count: int, snapshot: SnapshotAssertion) -> None:
    numbers = measurement(problem().trial({}, runs(*[12 // count] * count)), towers=count)

    verdict = checked(numbers)

    assert verdict == Verdict(
        "gradients-equal",
        "kept",
        "executed",
        findings=(),
        note=ANY,
        figures=verdict.figures,
    )
    assert messages(verdict) == snapshot
    assert [(figure["variable"], figure["state"]) for figure in verdict.figures] == [
        (name, "equal") for name in "abcd"
    ]


def test_broken(snapshot: SnapshotAssertion) -> None:
    numbers = measurement(batch(problem().times(TWICE)), updates={"a": "update/a"})

    verdict = checked(numbers, {"update/a": "main.py:40 net.py:3", "b": "main.py:9"})

    assert (verdict.state, verdict.evidence) == ("broken", "executed")
    assert objects(verdict) == [*"abcd"]
    assert verdict.findings[0] == Finding(
        object="a",
        op="VarHandleOp",
        evidence="executed",
        expected="the reference's gradient",
        found="2 times the reference's gradient, with a relative difference of 8.4e+06 eps",
        frames=("main.py:40", "net.py:3"),
        path=(),
        message=ANY,
        consequence=ANY,
        fix=ANY,
    )
    assert verdict.findings[1].where == "main.py:9"
    assert messages(verdict) == snapshot


def test_the_path_shows_the_mistake(snapshot: SnapshotAssertion) -> None:
    given = problem()
    numbers = measurement(batch({"c": given.times(spread([1, 0], SPLIT))["c"]}))

    (finding,) = checked(numbers, {"c": "main.py:9"}).findings

    assert messages(finding) == snapshot
    assert finding.path == ("rows 0 to 5 count 1 times", "rows 6 to 11 count 0 times")
    assert "with a relative difference of" in finding.found


@pytest.mark.parametrize(
    ("times", "towers"),
    [
        pytest.param(np.full(12, 0.25), 4, id="divided"),
        pytest.param(np.full(12, 128.0), 2, id="scaled"),
        pytest.param(spread([2, 0], SPLIT), 2, id="the first tower"),
        pytest.param(spread([0, 2], SPLIT), 2, id="the last tower"),
        pytest.param(spread([1.5, 0.5], SPLIT), 2, id="unequal towers"),
    ],
)
def test_mistakes_of_all_variables(times: Any, towers: int, snapshot: SnapshotAssertion) -> None:
    given = problem()

    verdict = checked(measurement(batch(given.times(times)), towers=towers))

    assert objects(verdict) == [*"abcd"]
    assert messages(verdict) == snapshot


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 2**32 - 1), st.sets(st.sampled_from("abcd")))
def test_only_different_gradients_are_found(seed: int, wrong: set[str]) -> None:
    given = problem(seed)
    off = given.times(spread([1.5, 0.5], SPLIT))

    verdict = checked(measurement(batch({name: off[name] for name in wrong}, given)))

    assert objects(verdict) == sorted(wrong)
    assert {
        figure["variable"] for figure in verdict.figures if figure["state"] == "differs"
    } == wrong
    assert str(verdict.note).startswith(f"{len(wrong)} of 4 variables" if wrong else "4 variables")


def test_the_worst_is_in_the_note(snapshot: SnapshotAssertion) -> None:
    given = problem()
    expected = given.of(range(12))
    found = {"b": expected["b"] + 12.34 * ONE * np.max(np.abs(expected["b"]))}

    verdict = checked(measurement(batch(found)))

    assert messages(verdict) == snapshot


def test_kept_by_one_variable(snapshot: SnapshotAssertion) -> None:
    numbers = measurement(of_one(1, 1))

    assert messages(checked(numbers)) == snapshot


# Not checked, and notes.


def test_not_checked_without_numbers() -> None:
    graph = Evidence(program(), measurement=Missing("no reference is given"))

    assert GradientsEqual().judge(graph) == Verdict(
        "gradients-equal", "not-checked", None, "no reference is given"
    )


def test_not_checked_where_all_is_noise(snapshot: SnapshotAssertion) -> None:
    numbers = measurement(of_one(1e-9, 3e-9, noise=1e-8))

    verdict = checked(numbers)

    assert verdict.state == "not-checked"
    assert messages(verdict) == snapshot
    (figure,) = verdict.figures
    assert figure["state"] == "noise"


def test_kept_where_only_some_is_noise(snapshot: SnapshotAssertion) -> None:
    given = problem()
    trial = batch({"b": -given.of(range(12))["b"]})
    loud = replace(trial, noise={**trial.noise, "b": float(np.max(np.abs(trial.expected["b"])))})

    verdict = checked(measurement(loud))

    assert (verdict.state, verdict.findings) == ("kept", ())
    assert messages(verdict) == snapshot


def test_many_names_are_cut(snapshot: SnapshotAssertion) -> None:
    names = [f"v{n}" for n in range(5)]
    trial = Trial(
        2,
        (),
        {name: np.ones(2) for name in [*names, "w"]},
        {name: np.ones(2) for name in [*names, "w"]},
        {**dict.fromkeys(names, 1.0), "w": 0.0},
    )

    assert messages(checked(measurement(trial))) == snapshot


def test_kept_where_a_gradient_is_zero_in_both(snapshot: SnapshotAssertion) -> None:
    given = problem()
    zero = Problem({**given.slopes, "b": 0 * given.slopes["b"]}, given.start)

    verdict = checked(measurement(batch({}, zero)))

    assert verdict.state == "kept"
    assert messages(verdict) == snapshot


def test_not_checked_where_every_gradient_is_zero(snapshot: SnapshotAssertion) -> None:
    verdict = checked(measurement(of_one(0, 0)))

    assert verdict.state == "not-checked"
    assert messages(verdict) == snapshot


def test_zero_in_the_reference_alone(snapshot: SnapshotAssertion) -> None:
    (finding,) = checked(measurement(of_one(0, 1))).findings

    assert messages(finding) == snapshot
    assert finding.found == "not zero"


def averaged(gpus: Sequence[int], share: float, name: str = "w") -> Placement:
    """Towers whose losses and gradients are known."""
    losses = {f"tower_{i}/loss:0": [gradient(i, name)] for i in gpus}
    return program(
        gpus=gpus, variables=[name], values={"share": share}, step={"gradients": losses}
    )


def test_an_unexplained_difference_shows_both_objectives() -> None:
    numbers = measurement(of_one(0.0, 1.0))
    evidence = Evidence(averaged([0, 1], 0.5), reference=averaged([0], 2.0), measurement=numbers)

    (finding,) = GradientsEqual().judge(evidence).findings

    assert "no known mistake explains it" in finding.message
    assert list(finding.path[:2]) == [
        "its update minimizes 1/2 mean on each of 2 towers",
        "in the reference, it minimizes 2 mean",
    ]


@pytest.mark.parametrize(
    ("share", "note"),
    [
        (0.5, "gradients-averaged compares the graphs alone, without rows and values"),
        (None, None),
    ],
)
def test_without_a_run_the_note_states_what_the_graphs_prove(
    share: float | None, note: str | None
) -> None:
    skipped = Missing("comparison skipped: it would exceed the time limit")
    many = averaged([0, 1], 0.5) if share else program()

    verdict = GradientsEqual().judge(
        Evidence(many, reference=averaged([0], 1.0), measurement=skipped)
    )

    assert (verdict.state, verdict.reason, verdict.note) == ("not-checked", str(skipped), note)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_not_checked_where_gradients_are_too_coarse(
    dtype: str, snapshot: SnapshotAssertion
) -> None:
    numbers = measurement(of_one(1, 1), dtypes={"w": dtype})

    verdict = checked(numbers)

    assert verdict == Verdict(
        "gradients-equal",
        "not-checked",
        None,
        ANY,
        note=ANY,
        figures=verdict.figures,
    )
    assert messages(verdict) == snapshot
    assert [figure["state"] for figure in verdict.figures] == ["too-coarse"]


def test_some_are_too_coarse_and_others_differ(snapshot: SnapshotAssertion) -> None:
    given = problem()
    trial = batch({"a": given.times(TWICE)["a"]})
    numbers = measurement(trial, dtypes={**dict.fromkeys("acd", "float32"), "b": "bfloat16"})

    assert objects(checked(numbers)) == ["a"]
    assert messages(checked(numbers, allow=("a",))) == snapshot


def test_variables_are_finer_than_their_gradients(snapshot: SnapshotAssertion) -> None:
    """A model with float32 variables computes in bfloat16."""
    trial = batch({"a": problem().times(TWICE)["a"]})
    numbers = measurement(trial, precisions=dict.fromkeys(SHAPES, "bfloat16"))

    assert objects(checked(numbers)) == ["a"]
    verdict = checked(replace(numbers, trials=[batch({})]))
    assert verdict.state == "not-checked"
    assert messages(verdict) == snapshot


def test_the_eps_is_of_the_gradients_type() -> None:
    """Float64 variables with gradients that are computed in float32."""
    trial = of_one(1, 1 + 20 * ONE)
    numbers = measurement(trial, dtypes={"w": "float64"}, precisions={"w": "float32"})

    verdict = checked(numbers)

    assert verdict.state == "kept"
    assert verdict.figures[0]["error"] == 20
    assert objects(checked(replace(numbers, precisions=numbers.dtypes))) == ["w"]
    assert objects(checked(replace(numbers, trials=[of_one(1, 1 + 40 * ONE)]))) == ["w"]


@pytest.mark.parametrize(("off", "state"), [(31, "kept"), (33, "broken")])
def test_zeros_are_rounded_as_the_largest_gradient_is(off: float, state: str) -> None:
    """A bias before a normalization has a zero gradient, in eps of the other's."""
    trial = Trial(
        4,
        (),
        {"w": np.ones(2), "bias": np.full(2, 1e-9)},
        {"w": np.ones(2), "bias": np.array([1e-9, off * ONE])},
        {"w": 0.0, "bias": 1e-9},
    )

    verdict = checked(measurement(trial))

    assert verdict.state == state
    assert objects(verdict) == (["bias"] if off > 32 else [])
    states = {figure["variable"]: figure["state"] for figure in verdict.figures}
    assert states["bias"] == ("noise" if state == "kept" else "differs")


def test_variables_without_a_readable_gradient(snapshot: SnapshotAssertion) -> None:
    unreadable = {"u": "it is computed in a loop", "v": "another"}

    verdict = checked(measurement(batch({}), unreadable=unreadable))

    assert verdict.state == "kept"
    assert messages(verdict) == snapshot


def test_no_gradient_can_be_read(snapshot: SnapshotAssertion) -> None:
    trial = Trial(4, (), {}, {}, {})
    numbers = measurement(trial, dtypes={"w": "float32"}, unreadable={"w": "it is in a loop"})

    verdict = checked(numbers)

    assert verdict.state == "not-checked"
    assert messages(verdict) == snapshot


def test_not_checked_without_a_variable(snapshot: SnapshotAssertion) -> None:
    verdict = checked(measurement(Trial(4, (), {}, {}, {}), dtypes={"w": "float32"}))

    assert verdict.state == "not-checked"
    assert messages(verdict) == snapshot


def test_the_notes_of_the_run_are_kept(snapshot: SnapshotAssertion) -> None:
    numbers = measurement(batch({}), notes=["not tested with an uneven batch"])

    assert messages(checked(numbers)) == snapshot
    broken = replace(numbers, trials=[batch(problem().times(spread([1, 0], SPLIT)))])
    assert messages(checked(broken)) == snapshot
    assert list(numbers.notes) == ["not tested with an uneven batch"]


# Gradients that one program lacks.


def test_missing_in_the_towers(snapshot: SnapshotAssertion) -> None:
    numbers = measurement(batch({}), missing={"b": True}, updates={"b": "update/b"})

    verdict = checked(numbers, {"b": "main.py:9 net.py:3", "update/b": "main.py:40 net.py:5"})

    assert messages(verdict) == snapshot
    assert verdict.findings == [
        Finding(
            object="b",
            op="VarHandleOp",
            evidence="executed",
            expected="the reference's gradient",
            found="no gradient",
            frames=("main.py:40", "net.py:5"),
            message=ANY,
            consequence=ANY,
            fix=ANY,
        )
    ]


def test_missing_in_the_reference(snapshot: SnapshotAssertion) -> None:
    (finding,) = checked(measurement(batch({}), missing={"b": False})).findings

    assert (finding.object, finding.expected, finding.found) == ("b", "no gradient", "a gradient")
    assert messages(finding) == snapshot


def test_missing_gradients_are_found_next_to_different_ones() -> None:
    given = problem()
    trial = batch({"a": given.times(spread([1, 0], SPLIT))["a"]})

    assert objects(checked(measurement(trial, missing={"b": True}))) == ["b", "a"]


def test_missing_gradients_can_be_allowed() -> None:
    numbers = measurement(batch({}), missing={"b": True, "c": False})

    assert objects(checked(numbers, allow=("b",))) == ["c"]
    assert objects(checked(numbers, allow=("b", "c"))) == []


# Gradients that are NaN or infinite.


def not_finite_in(where: str | None, *more: str, value: float = math.nan) -> Measurement:
    given = problem()
    found = {"b": np.full(6, value)}
    if more:
        found |= {name: given.times(TWICE)[name] for name in more}
    return measurement(batch(found, not_finite={"b": ("tower_1/Log", where)}))


def test_broken_by_a_gradient_that_is_not_finite(snapshot: SnapshotAssertion) -> None:
    verdict = checked(not_finite_in("net.py:12"), {"b": "main.py:9"})

    assert verdict.findings == [
        Finding(
            object="b",
            op="VarHandleOp",
            evidence="executed",
            expected="the reference's gradient",
            found="NaN or infinite",
            frames=("main.py:9",),
            path=("tower_1/Log",),
            message=ANY,
            consequence=ANY,
            fix=ANY,
        )
    ]
    assert messages(verdict) == snapshot
    assert [figure["error"] for figure in verdict.figures if figure["variable"] == "b"] == [None]


def test_not_finite_from_an_unknown_line(snapshot: SnapshotAssertion) -> None:
    (finding,) = checked(not_finite_in(None)).findings

    assert finding.path == ("tower_1/Log",)
    assert messages(finding) == snapshot


def test_not_finite_next_to_others(snapshot: SnapshotAssertion) -> None:
    verdict = checked(not_finite_in(None, "a"))

    assert objects(verdict) == ["a", "b"]
    assert messages(verdict) == snapshot


def test_infinite_gradients_do_not_hide_a_mistake_of_the_others(
    snapshot: SnapshotAssertion,
) -> None:
    """Each other variable has fewer elements than there are rows; together they have enough."""
    trial = odd(DROPPED)
    found = {**trial.found, "b": np.full(6, math.nan)}
    trial = replace(trial, found=found, per_tower=(), not_finite={"b": ("Log", None)})

    verdict = checked(measurement(trial))

    assert sorted(objects(verdict)) == [*"abcd"]
    assert messages(verdict) == snapshot


def test_infinity_is_not_finite() -> None:
    (finding,) = checked(not_finite_in(None, value=math.inf)).findings

    assert finding.found == "NaN or infinite"


# Several batches.


def odd(times: Any, noise: float | None = None) -> Trial:
    """A batch of 13 rows."""
    given = problem(1, rows=13)
    trial = given.trial(given.times(times), per_tower=given.samples(runs(6, 6, 1)))
    return trial if noise is None else replace(trial, noise=dict.fromkeys(SHAPES, noise))


DROPPED = np.append(np.full(12, 13 / 12), 0)


def test_the_odd_batch_is_judged_too(snapshot: SnapshotAssertion) -> None:
    verdict = checked(measurement(batch({}), odd(DROPPED)))

    assert objects(verdict) == [*"abcd"]
    assert messages(verdict) == snapshot
    assert {figure["state"] for figure in verdict.figures} == {"differs"}
    assert checked(measurement(batch({}), odd(np.ones(13)))).state == "kept"


def test_the_odd_batch_repeats_no_finding(snapshot: SnapshotAssertion) -> None:
    first = batch(problem().times(spread([1, 0], SPLIT)))

    verdict = checked(measurement(first, odd(DROPPED)))

    assert objects(verdict) == [*"abcd"]
    assert messages(verdict) == snapshot


def test_the_figures_are_the_worst_of_all_batches() -> None:
    given = problem()
    expected = given.of(range(12))
    little = batch({"b": expected["b"] + 9 * ONE * np.max(np.abs(expected["b"]))})

    for trials in ([little, batch({})], [batch({}), little]):
        verdict = checked(measurement(*trials))
        errors = {figure["variable"]: round(figure["error"]) for figure in verdict.figures}
        assert errors == {"a": 0, "b": 9, "c": 0, "d": 0}


@pytest.mark.parametrize(
    "second",
    [
        replace(of_one(1, math.nan), not_finite={"w": ("Log", None)}),
        of_one(1, 1 + 50 * ONE),
    ],
)
def test_the_count_is_the_number_of_findings(second: Trial) -> None:
    """The first batch is equal within its noise."""
    first = of_one(1, 1 + 60 * ONE, noise=10 * ONE)

    verdict = checked(measurement(first, second))

    assert objects(verdict) == ["w"]
    assert str(verdict.note).startswith("1 of 1 ")
    assert [figure["state"] for figure in verdict.figures] == ["differs"]


# Declared differences.


def test_tolerance_and_noise() -> None:
    numbers = measurement(of_one(1, 1 + 50 * ONE, noise=5 * ONE))

    assert objects(checked(numbers)) == ["w"]
    assert objects(checked(numbers, tolerance=51)) == []
    assert objects(checked(numbers, noise=11)) == []
    assert objects(checked(numbers, tolerance=40, noise=9)) == ["w"]


@pytest.mark.parametrize(
    ("allow", "left", "looked_at"),
    [
        ((), "ac", "abcd"),
        (("a",), "c", "bcd"),
        (("A", "c*"), "a", "abd"),
        (("[ac]",), "", "bd"),
    ],
)
def test_variables_that_are_left_out(allow: tuple[str, ...], left: str, looked_at: str) -> None:
    wrong = problem().times(spread([1, 0], SPLIT))
    numbers = measurement(batch({name: wrong[name] for name in "ac"}))

    verdict = checked(numbers, allow=allow)

    assert objects(verdict) == [*left]
    assert [figure["variable"] for figure in verdict.figures] == [*looked_at]


def test_all_are_left_out(snapshot: SnapshotAssertion) -> None:
    verdict = checked(measurement(batch({})), allow=("?",))

    assert verdict.state == "not-checked"
    assert messages(verdict) == snapshot


def test_an_allowed_variable_does_not_hide_a_mistake_of_the_others(
    snapshot: SnapshotAssertion,
) -> None:
    given = problem()
    found = {**given.times(TWICE), "d": given.of(range(12))["d"]}

    verdict = checked(measurement(batch(found)), allow=("d",))

    assert objects(verdict) == [*"abc"]
    assert messages(verdict) == snapshot


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
        (
            {"rows": -1},
            ["rows: -1 is below 0; give a number of rows"],
        ),
        (
            {"shares": [2, 0]},
            ["shares: a tower gets no rows; give whole numbers above 0"],
        ),
        (
            {"shares": [2, 1.5]},
            ["shares: [2, 1.5] does not fit; give a list of whole numbers, such as [3, 1]"],
        ),
        ({"shares": 2}, ["shares: 2 does not fit; give a list of whole numbers, such as [3, 1]"]),
        (
            {"statistics": "towers"},
            ["statistics: 'towers' does not fit; give 'batch' or 'tower'"],
        ),
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
    found = [str(error) for error in policy_errors({"gradients-equal": values})]

    assert found == [f"gradients-equal.{error}" for error in errors]


@pytest.mark.parametrize("field", ["tolerance", "scale", "rows"])
def test_infinite_settings_are_refused(field: str) -> None:
    assert policy_errors({"gradients-equal": {field: 10**400}})


# A factor that the learning rate compensates for.


def steps_of(*ends: float) -> Trajectory:
    """The weights of the program in three steps; the reference's are 1, 2 and 3."""
    names = [*"abcd"]
    expected = {name: [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]] for name in names}
    found = {name: [[1, 1], [2, 2], [end, end]] for name, end in zip("abcd", ends, strict=False)}
    trained = {name: [False, False] for name in names}
    return trajectory({name: [0.0, 0.0] for name in names}, expected, found, uncertain=trained)


def test_the_learning_rate_compensates_for_a_factor(snapshot: SnapshotAssertion) -> None:
    numbers = measurement(batch(problem().times(TWICE)), trajectory=steps_of())

    verdict = checked(numbers)

    assert (verdict.state, verdict.findings) == ("kept", ())
    assert messages(verdict) == snapshot
    assert [figure["ratio"] for figure in verdict.figures] == pytest.approx([2] * 4)


def with_slot(factor: float) -> Trajectory:
    steps = steps_of()
    name, size = "a/Momentum", [5.0, 5.0]
    slot = trajectory({name: [0, 0]}, {name: [size] * 3}, {name: [np.multiply(size, factor)] * 3})
    both = [{**one, **other} for one, other in zip(steps.steps, slot.steps, strict=True)]
    return replace(steps, steps=both, owners={**steps.owners, name: "a"})


@pytest.mark.parametrize(("factor", "state"), [(1.0, "kept"), (2.0, "kept"), (3.0, "broken")])
def test_the_factor_may_be_in_the_slots(factor: float, state: str) -> None:
    numbers = measurement(
        batch(problem().times(TWICE)),
        trajectory=with_slot(factor),
        optimizers=frozenset({"ResourceApplyMomentum"}),
        dtypes=dict.fromkeys([*"abcd", "a/Momentum"], "float32"),
    )

    assert (
        GradientsEqual().judge(Evidence(program(variables=[*"abcd"]), measurement=numbers)).state
        == state
    )


def test_the_factor_in_slots_includes_the_declared_one(
    snapshot: SnapshotAssertion,
) -> None:
    """The gradients were already divided by 4, and are still twice as large."""
    numbers = measurement(
        batch(problem().times(TWICE)),
        trajectory=with_slot(8.0),
        scale=4.0,
        dtypes=dict.fromkeys([*"abcd", "a/Momentum"], "float32"),
    )

    verdict = GradientsEqual().judge(Evidence(program(variables=[*"abcd"]), measurement=numbers))

    assert verdict.state == "kept"
    assert messages(verdict) == snapshot


@pytest.mark.parametrize(
    "optimizers",
    [{"ResourceApplyAdam"}, {"ResourceApplyGradientDescent", "ResourceApplyAdam"}, set()],
)
def test_equal_weights_prove_nothing_under_adam(optimizers: set[str]) -> None:
    numbers = measurement(
        batch(problem().times(TWICE)), trajectory=steps_of(), optimizers=frozenset(optimizers)
    )

    verdict = checked(numbers)

    assert objects(verdict) == [*"abcd"]


@pytest.mark.parametrize(
    ("times", "trajectory"),
    [
        pytest.param(TWICE, None, id="no step was taken"),
        pytest.param(TWICE, steps_of(3.5), id="the weights differ"),
        pytest.param(spread([1, 0], SPLIT), steps_of(), id="no factor"),
    ],
)
def test_no_compensation(times: Any, trajectory: Trajectory | Missing) -> None:
    numbers = measurement(batch(problem().times(times)), trajectory=trajectory)

    assert objects(checked(numbers)) == [*"abcd"]


def test_no_compensation_if_only_some_gradients_differ() -> None:
    """The weights are equal, but only one variable's gradient is."""
    wrong = problem().times(TWICE)
    numbers = measurement(batch({name: wrong[name] for name in "abc"}), trajectory=steps_of())

    assert objects(checked(numbers)) == ["a", "b", "c"]


def test_no_compensation_for_two_factors() -> None:
    given = problem()
    found = {**given.times(TWICE), "d": given.times(np.full(12, 3.0))["d"]}

    verdict = checked(measurement(batch(found), trajectory=steps_of()))

    assert objects(verdict) == [*"abcd"]


def test_zeros_have_no_factor(snapshot: SnapshotAssertion) -> None:
    given = problem()
    zero = Problem({**given.slopes, "d": 0 * given.slopes["d"]}, given.start)
    trial = zero.trial(zero.times(TWICE), SPLIT)

    verdict = checked(measurement(trial, trajectory=steps_of()))

    assert (verdict.state, verdict.findings) == ("kept", ())
    assert messages(verdict) == snapshot


@pytest.mark.parametrize(
    ("divided", "note"),
    [
        (
            0.5,
            "all gradients equal the reference's, although gradients-equal.scale declares 2 times",
        ),
        (
            2.0,
            "all gradients are 4 times the reference's, and the learning rate compensates for it: "
            "the weights are equal after 3 steps",
        ),
    ],
)
def test_the_note_on_a_factor_includes_the_declared_one(divided: float, note: str) -> None:
    """The gradients of the program were divided by the declared factor before the comparison."""
    given = problem()
    trial = given.trial(given.times(np.full(given.rows, divided)), SPLIT)

    verdict = checked(measurement(trial, trajectory=steps_of(), scale=2.0))

    assert verdict.state == "kept"
    assert note in (verdict.note or "")


def test_noise_has_no_factor() -> None:
    """An example is the gradient of a bias before batch normalization."""
    given = problem()
    trial = given.trial(given.times(TWICE), SPLIT)
    loud = replace(trial, noise={**trial.noise, "d": float(np.max(np.abs(trial.expected["d"])))})

    assert checked(measurement(loud, trajectory=steps_of())).state == "kept"


def test_the_learning_rate_compensates_for_the_factor_of_the_first_batch() -> None:
    """The steps use batches like the first; they prove nothing about the odd batch."""
    twice = odd(np.full(13, 2.0))
    numbers = measurement(batch({}), twice, trajectory=steps_of())

    verdict = checked(numbers)

    assert objects(verdict) == [*"abcd"]
    both = replace(numbers, trials=[batch(problem().times(TWICE)), twice])
    assert checked(both).state == "kept"


def test_the_learning_rate_compensates_for_no_other_mistake_in_the_odd_batch() -> None:
    given = problem()
    numbers = measurement(batch(given.times(TWICE)), odd(2 * DROPPED), trajectory=steps_of())

    assert objects(checked(numbers)) == [*"abcd"]


def test_missing_gradients_are_found_despite_a_compensated_factor(
    snapshot: SnapshotAssertion,
) -> None:
    numbers = measurement(
        batch(problem().times(TWICE)), trajectory=steps_of(), missing={"d": True}
    )

    verdict = checked(numbers)

    assert [finding.found for finding in verdict.findings] == ["no gradient"]
    assert messages(verdict) == snapshot


def test_figures_are_plain() -> None:
    trial = replace(batch({"b": np.full(6, math.nan)}), not_finite={"b": ("Log", None)})

    figures = checked(measurement(trial)).figures

    assert json.loads(json.dumps(figures, allow_nan=False)) == figures
    assert [figure["variable"] for figure in figures] == [*"abcd"]


def test_every_reason_for_an_empty_comparison_is_in_the_note(snapshot: SnapshotAssertion) -> None:
    values = {"v": np.ones(2), "w": np.zeros(2)}
    trial = Trial(2, (), values, values, {"v": 1.0, "w": 0.0})

    verdict = checked(measurement(trial))

    assert verdict.state == "not-checked"
    assert messages(verdict) == snapshot
