from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import ANY

import numpy as np
import pytest
from support.measurements import displaced, measurement, trajectory
from support.snapshots import messages
from support.towers import host, program
from syrupy.assertion import SnapshotAssertion

from placement_checks import Device, Finding, Verdict
from placement_checks.core.evidence import Evidence
from placement_checks.core.measurement import Measurement, Trajectory, Trial
from placement_checks.core.missing import Missing
from placement_checks.core.strategies import Copy, Strategy
from placement_checks.rules.runs.weights_equal import WeightsEqual
from placement_checks.verification.policy import policy_errors

# The values of w and v after three steps from 0.
STEPS = [[1.0, 2.0], [2.0, 4.0], [3.0, 6.0]]
START = [0.0, 0.0]


def steps(found: Mapping[str, Sequence[Any]], **more: Any) -> Trajectory:
    """A trajectory of w and v, which are trained, a slot of w, and a counter."""
    slot = [[5.0, 1.0], [4.0, 2.0], [3.0, 3.0]]
    return trajectory(
        {"w": START, "v": START, "w/Momentum": START, "step": 0},
        {"w": STEPS, "v": STEPS, "w/Momentum": slot, "step": [1, 2, 3]},
        found,
        uncertain={"w": [False, False], "v": [False, False]},
        **more,
    )


def batch(wrong: Sequence[str] = (), noisy: Sequence[str] = (), by: float = 2) -> Trial:
    """A batch; the gradients of the variables in `wrong` differ."""
    return Trial(
        4,
        (),
        dict.fromkeys("wv", np.ones(2)),
        {name: np.ones(2) * (by if name in wrong else 1) for name in "wv"},
        {name: float(name in noisy) for name in "wv"},
    )


def ran(trained: Trajectory | Missing, wrong: Sequence[str] = (), **more: Any) -> Measurement:
    """A measurement; the gradients of the variables in `wrong` differ."""
    dtypes = {name: "int64" if name == "step" else "float32" for name in ("step", *NAMES)}
    return measurement(batch(wrong), **{"trajectory": trained, "dtypes": dtypes, **more})


NAMES = ("w", "v", "w/Momentum")


def built(numbers: Measurement, lines: Mapping[str, str] | None = None) -> Evidence:
    return Evidence(program(variables=NAMES, lines=lines or {}), measurement=numbers)


def checked(
    trained: Trajectory | Missing,
    wrong: Sequence[str] = (),
    *,
    fields: Mapping[str, Any] | None = None,
    **more: Any,
) -> Verdict:
    return WeightsEqual(**(fields or {})).judge(built(ran(trained, wrong, **more)))


def steps_of(verdict: Verdict) -> dict[str, int]:
    """The number of steps after which each variable in a finding differs."""
    assert verdict.state != "not-checked", verdict.reason
    return {
        finding.object: int(finding.expected.split()[-2])  # "the reference's value after 2 steps"
        for finding in verdict.findings
    }


def test_kept(snapshot: SnapshotAssertion) -> None:
    verdict = checked(steps({}))

    assert verdict == Verdict(
        "weights-equal",
        "kept",
        "executed",
        findings=[],
        note=ANY,
        figures=verdict.figures,
    )
    assert messages(verdict) == snapshot
    assert [
        (figure["variable"], figure["state"], figure["error"]) for figure in verdict.figures
    ] == [(name, "equal", 0.0) for name in ("w", "v", "w/Momentum", "step")]


def test_broken(snapshot: SnapshotAssertion) -> None:
    numbers = ran(steps({"w": [[2, 4], [3, 6], [4, 8]]}), updates={"w": "update/w"})
    graph = built(numbers, {"update/w": "main.py:40 net.py:3", "w": "main.py:9"})

    verdict = WeightsEqual().judge(graph)

    assert (verdict.state, verdict.evidence) == ("broken", "executed")
    assert messages(verdict) == snapshot
    assert verdict.findings == [
        Finding(
            object="w",
            op="VarHandleOp",
            evidence="executed",
            expected="the reference's value after 1 step",
            found="off by 0.33 of its change in the reference",
            frames=("main.py:40", "net.py:3"),
            message=ANY,
            consequence=ANY,
            fix=ANY,
        )
    ]
    assert [(figure["variable"], figure["state"]) for figure in verdict.figures] == [
        ("w", "differs"),
        ("v", "equal"),
        ("w/Momentum", "equal"),
        ("step", "equal"),
    ]
    assert json.loads(json.dumps(verdict.figures, allow_nan=False)) == verdict.figures


def test_without_a_known_update() -> None:
    numbers = ran(steps({"w": [[2, 4]] * 3}))

    (finding,) = WeightsEqual().judge(built(numbers, {"w": "main.py:9"})).findings

    assert finding.where == "main.py:9"
    assert "built at" not in finding.message


def test_a_later_copy_of_a_strategy_does_not_change() -> None:
    gpus = [Device.parse(f"/gpu:{number}") for number in (0, 1)]
    copies = {"w": Copy("w", 0), "v": Copy("w", 1)}
    graph = program(variables=NAMES).with_fields(
        strategy=Strategy("MirroredStrategy", gpus, copies)
    )

    verdict = WeightsEqual().judge(
        Evidence(graph, measurement=ran(steps({"v": [[0.0, 0.0]] * 3})))
    )

    (finding,) = verdict.findings
    assert (
        "that step changes the copy on /device:GPU:1 0 times as much as the copy on /device:GPU:0"
    ) in finding.message


# What is not checked.


def test_not_checked_without_numbers() -> None:
    graph = Evidence(program(), measurement=Missing("no reference is given"))

    assert WeightsEqual().judge(graph) == Verdict(
        "weights-equal", "not-checked", None, "no reference is given"
    )


def test_not_checked_without_steps() -> None:
    why = "which op is one step is not expected"

    assert checked(Missing(why)) == Verdict("weights-equal", "not-checked", None, why)


def test_types_that_are_too_coarse(snapshot: SnapshotAssertion) -> None:
    """A difference of a twentieth is accepted, so a variable that never changes is not found."""
    still = steps({"w": [START] * 3, "v": [START] * 3})
    coarse = displaced(still, w=100, v=100)

    verdict = checked(coarse, dtypes={**dict.fromkeys(NAMES, "bfloat16"), "step": "int64"})

    assert verdict.state == "not-checked"
    assert messages(verdict) == snapshot
    assert {figure["state"] for figure in verdict.figures} == {"too-coarse", "equal"}


def test_gradients_that_are_too_coarse_for_their_variables(snapshot: SnapshotAssertion) -> None:
    """Other findings, such as a counter, are still reported."""
    precisions = dict.fromkeys("wv", "bfloat16")

    assert checked(steps({}), precisions=precisions).state == "not-checked"
    verdict = checked(steps({"step": [2, 4, 6]}), precisions=precisions)
    assert steps_of(verdict) == {"step": 1}
    assert messages(verdict) == snapshot


def test_variables_that_are_finer_than_their_gradients() -> None:
    """A gradient rounded to float32 changes a float64 variable by slightly more or less."""
    trained = steps({"w": [*STEPS[:2], [3, 6 + 20 * 2.0**-23]]})
    dtypes = {**dict.fromkeys(NAMES, "float64"), "step": "int64"}

    assert checked(trained, dtypes=dtypes, precisions=dict.fromkeys("wv", "float64")).findings
    coarse = checked(trained, dtypes=dtypes, precisions=dict.fromkeys("wv", "float32"))
    assert coarse.state == "kept"


def test_variables_that_follow_rounding_errors() -> None:
    """A variable is left out if its gradient is noise, and so are its slots."""
    trained = steps({"w": [[9, 9]] * 3, "w/Momentum": [[9, 9]] * 3})
    numbers = replace(ran(trained), trials=[batch(noisy="w")])

    verdict = WeightsEqual().judge(built(numbers))

    assert verdict.state == "kept"
    assert [figure["variable"] for figure in verdict.figures] == ["v", "step"]


# Causes.


@pytest.mark.parametrize("wrong", ["w", "wv"])
def test_weights_of_a_wrong_gradient_refer_to_its_rule(
    wrong: str, snapshot: SnapshotAssertion
) -> None:
    """The gradient of the variable, or of the slot's variable, whichever comes first."""
    trained = steps({"w/Momentum": [[10, 2]] * 3, "w": [[1, 2], [2, 4], [3, 7]]})

    verdict = checked(trained, wrong)

    assert steps_of(verdict) == {"w": 3, "w/Momentum": 1}
    assert messages(verdict) == snapshot


def test_later_differences_follow(snapshot: SnapshotAssertion) -> None:
    trained = steps({"v": [[1, 2], [2, 5], [3, 6]], "w": [[1, 2], [2, 4], [9, 9]]})

    verdict = checked(trained)

    assert steps_of(verdict) == {"w": 3, "v": 2}
    assert messages(verdict) == snapshot


def test_differences_after_a_different_gradient_follow(snapshot: SnapshotAssertion) -> None:
    trained = steps({"v": [[2, 4], [3, 6], [4, 8]], "w": [[1, 2], [2, 5], [9, 9]]})

    verdict = checked(trained, ["v"])

    assert steps_of(verdict) == {"w": 2, "v": 1}
    assert messages(verdict) == snapshot


@pytest.mark.parametrize("dtype", ["int64", "int32", "uint16"])
@pytest.mark.parametrize("by", [2, 16, 0, -1])
def test_a_counter_with_another_increment_is_found(
    dtype: str, by: int, snapshot: SnapshotAssertion
) -> None:
    dtypes = {**dict.fromkeys(NAMES, "float32"), "step": dtype}
    verdict = checked(steps({"step": [by, 2 * by, 3 * by]}), dtypes=dtypes)

    assert steps_of(verdict) == {"step": 1}
    assert messages(verdict) == snapshot


def test_a_counter_that_does_not_start_at_zero(snapshot: SnapshotAssertion) -> None:
    trained = steps({"step": [3, 5, 7]})

    verdict = checked(displaced(trained, step=100))

    assert steps_of(verdict) == {"step": 1}
    assert messages(verdict) == snapshot


def test_integers_of_more_than_one_element(snapshot: SnapshotAssertion) -> None:
    dtypes = {**dict.fromkeys(NAMES, "float32"), "v": "int32", "step": "int64"}

    verdict = checked(steps({"v": [[2, 4]] * 3}), dtypes=dtypes)

    assert steps_of(verdict) == {"v": 1}
    assert messages(verdict) == snapshot


def test_a_counter_that_differs_late(snapshot: SnapshotAssertion) -> None:
    verdict = checked(steps({"step": [1, 3, 5]}))

    assert steps_of(verdict) == {"step": 2}
    assert messages(verdict) == snapshot


@pytest.mark.parametrize(
    ("found", "step"),
    [
        pytest.param({"w": [START] * 3}, 1, id="the first step"),
        pytest.param({"w": [[1, 2]] * 3}, 2, id="the second step"),
        pytest.param({"w": [[1, 2], [2, 4], [2, 4]]}, 3, id="the last step"),
        pytest.param({"w/Momentum": [START] * 3}, 1, id="a slot"),
    ],
)
def test_variables_that_the_step_does_not_change(
    found: Mapping[str, Any], step: int, snapshot: SnapshotAssertion
) -> None:
    verdict = checked(steps(found))

    assert steps_of(verdict) == dict.fromkeys(found, step)
    assert messages(verdict) == snapshot


@pytest.mark.parametrize(
    ("found", "step"),
    [
        pytest.param({"w": [[2, 4], [4, 8], [6, 12]]}, 1, id="twice"),
        pytest.param({"w": [[1.1, 2.2], [2, 4], [3, 6]]}, 1, id="a tenth more"),
        pytest.param({"w": [[-1, -2], [2, 4], [3, 6]]}, 1, id="the other way"),
        pytest.param({"w": [[1, 2], [2.5, 5], [3, 6]]}, 2, id="in the second step"),
        pytest.param({"w/Momentum": [[10, 2]] * 3}, 1, id="a slot"),
    ],
)
def test_the_factor_of_a_change(
    found: Mapping[str, Any], step: int, snapshot: SnapshotAssertion
) -> None:
    verdict = checked(steps(found))

    assert steps_of(verdict) == dict.fromkeys(found, step)
    assert messages(verdict) == snapshot


def test_copies_that_are_not_updated(snapshot: SnapshotAssertion) -> None:
    """In the second step, the gradients of w come from another variable, and the gradients of v do
    not."""
    trained = steps(
        {"w": [[1, 2], [2, 5], [3, 9]], "v": [[1, 2], [3, 4], [3, 8]], "w/Momentum": [[5, 1]] * 3},
        after=batch("w"),
    )

    verdict = checked(trained)

    assert steps_of(verdict) == {"w": 2, "v": 2, "w/Momentum": 2}
    assert messages(verdict) == snapshot


@pytest.mark.parametrize("late", [None, batch()], ids=["no trial", "an equal trial"])
def test_no_copy_without_a_difference_after_the_steps(
    late: Trial | None, snapshot: SnapshotAssertion
) -> None:
    trained = steps({"w": [[1, 2], [2, 5], [3, 9]]}, after=late)

    verdict = checked(trained)

    assert steps_of(verdict) == {"w": 2}
    assert messages(verdict) == snapshot


def test_no_copy_if_the_first_gradient_differs(snapshot: SnapshotAssertion) -> None:
    trained = steps({"w": [[1, 2], [2, 5], [3, 9]]}, after=batch("wv"))

    verdict = checked(trained, ["w", "v"])

    assert steps_of(verdict) == {"w": 2}
    assert messages(verdict) == snapshot


def test_stale_copies_with_equal_weights(snapshot: SnapshotAssertion) -> None:
    """The weights may be equal within the tolerance; the gradient after the steps is not."""
    trained = steps({}, after=batch("v"))
    graph = built(ran(trained, updates={"v": "update/v"}), {"update/v": "main.py:40 net.py:3"})

    verdict = WeightsEqual().judge(graph)

    assert messages(verdict) == snapshot
    assert verdict.findings == [
        Finding(
            object="v",
            op="VarHandleOp",
            evidence="executed",
            expected="the reference's gradient from equal variables",
            found="a different gradient after 3 steps",
            frames=("main.py:40", "net.py:3"),
            message=ANY,
            consequence=ANY,
            fix=ANY,
        )
    ]
    assert checked(trained, fields={"allow": "v"}).state == "kept"


def test_copies_are_found_once(snapshot: SnapshotAssertion) -> None:
    """A finding for each variable, whether its weights diverge or not."""
    trained = steps({"w": [[1, 2], [2, 5], [3, 9]]}, after=batch("wv"))

    verdict = checked(trained)

    assert [finding.object for finding in verdict.findings] == ["w", "v"]
    assert messages(verdict) == snapshot


@pytest.mark.parametrize("first", [[2, 1], [1.0005, 2.001]], ids=["elsewhere", "hardly further"])
def test_an_update_of_no_known_cause_is_found(
    first: Sequence[float], snapshot: SnapshotAssertion
) -> None:
    verdict = checked(steps({"w": [first, [2, 4], [3, 6]]}))

    assert steps_of(verdict) == {"w": 1}
    assert messages(verdict) == snapshot


def test_broken_by_a_weight_that_is_not_finite(snapshot: SnapshotAssertion) -> None:
    verdict = checked(steps({"w": [[math.nan, 2]] * 3}))

    assert steps_of(verdict) == {"w": 1}
    assert messages(verdict) == snapshot


@pytest.mark.parametrize(
    ("trained", "expected"),
    [
        (steps({"w": [[math.nan, 2]] * 3}), "NaN or infinite"),
        (
            trajectory(
                {"w": START}, {"w": [START] * 3}, {"w": [[1, 1]] * 3}, uncertain={"w": [False] * 2}
            ),
            "changed, but not in the reference",
        ),
    ],
)
def test_the_error_is_in_the_finding(trained: Trajectory, expected: str) -> None:
    (finding,) = checked(trained).findings

    assert finding.found == expected


def test_a_statistic_is_no_trained_variable(snapshot: SnapshotAssertion) -> None:
    """A statistic does not have a gradient."""
    trained = trajectory(
        {"w": START, "mean": START},
        {"w": STEPS, "mean": STEPS},
        {"mean": [[1.9, 3.8], [2, 4], [3, 6]]},
        uncertain={"w": [False, False]},
    )
    for wrong in ([], ["w"]):
        numbers = ran(trained, wrong, dtypes=dict.fromkeys(["w", "v", "mean"], "float32"))
        evidence = Evidence(program(variables=["w", "mean"]), measurement=numbers)
        verdict = WeightsEqual().judge(evidence)
        assert steps_of(verdict) == {"mean": 1}
        assert messages(verdict) == snapshot


# Declared differences.


@pytest.mark.parametrize(
    ("allow", "left"),
    [((), ["w", "v"]), (("w",), ["v"]), (("?",), []), (("w*", "V"), ["v"])],
)
def test_variables_that_are_left_out(allow: tuple[str, ...], left: list[str]) -> None:
    trained = steps({"w": [[2, 1]] * 3, "v": [[2, 1]] * 3})

    verdict = checked(trained, fields={"allow": allow})

    assert [finding.object for finding in verdict.findings] == left
    assert verdict.state == ("broken" if left else "kept")


def test_no_finding_follows_an_allowed_variable(snapshot: SnapshotAssertion) -> None:
    trained = steps({"v": [[9, 1]] * 3, "w": [[1, 2], [9, 9], [9, 9]]})

    verdict = checked(trained, fields={"allow": ("v",)})

    assert steps_of(verdict) == {"w": 2}
    assert messages(verdict) == snapshot


def test_tolerance_and_noise() -> None:
    """After the last step w, which is 6, is off by 42 eps."""
    trained = steps({"w": [*STEPS[:2], [3, 6 * (1 + 42 * 2.0**-23)]]}, noise=2.0**-22)

    cases: list[tuple[dict[str, float], bool]] = [
        ({}, False),
        ({"tolerance": 41}, False),
        ({"tolerance": 43}, True),
        ({"noise": 125.0}, False),
        ({"noise": 127.0}, True),
    ]
    for fields, is_kept in cases:
        assert (checked(trained, fields=fields).state == "kept") == is_kept


def test_the_scale_of_the_gradients_applies_to_slots(snapshot: SnapshotAssertion) -> None:
    trained = steps({"w/Momentum": [[640, 128], [512, 256], [384, 384]]})

    assert checked(trained, scale=128.0).state == "kept"
    verdict = checked(trained)
    assert steps_of(verdict) == {"w/Momentum": 1}
    assert messages(verdict) == snapshot


def test_a_compensated_factor_is_the_factor_of_the_slots() -> None:
    """All gradients are twice as large, and the learning rate is half."""
    trained = steps({"w/Momentum": [[10, 2], [8, 4], [6, 6]]})

    assert checked(trained, ["w", "v"]).state == "kept"
    assert list(steps_of(checked(trained, ["w"]))) == ["w/Momentum"]
    assert list(steps_of(checked(trained))) == ["w/Momentum"]


@pytest.mark.parametrize("optimizer", ["ResourceApplyGradientDescent", "ResourceApplyAdam"])
def test_elements_that_follow_rounding_errors(optimizer: str) -> None:
    trained = steps({"w": [[1, -2], [2, -4], [3, -6]]})
    certain = np.array([True, False])
    doubtful = [{**step, "w": step["w"]._replace(certain=certain)} for step in trained.steps]

    verdict = checked(replace(trained, steps=doubtful), optimizers=frozenset([optimizer]))

    assert verdict.state == ("kept" if "Adam" in optimizer else "broken")
    assert checked(trained, optimizers=frozenset([optimizer])).state == "broken"


@pytest.mark.parametrize(
    ("values", "errors"),
    [
        ({}, []),
        ({"steps": 3, "tolerance": 0.5, "noise": 1, "allow": ["v"]}, []),
        ({"steps": 100}, []),
        ({"steps": 2}, ["steps: 2 steps are too few to show later mistakes; give 3 or more"]),
        ({"steps": 0}, ["steps: 0 steps are too few to show later mistakes; give 3 or more"]),
        ({"steps": 3.5}, ["steps: 3.5 does not fit; give a whole number"]),
        ({"tolerance": 0}, ["tolerance: 0 is not above 0; give a positive number"]),
        ({"noise": -8.0}, ["noise: -8.0 is not above 0; give a positive number"]),
        *(
            ({field: value}, [f"{field}: {value} does not fit; give a number"])
            for field in ("tolerance", "noise")
            for value in (math.nan, math.inf, -math.inf)
        ),
    ],
)
def test_policy_errors_name_the_wrong_fields(
    values: Mapping[str, Any], errors: Sequence[str]
) -> None:
    found = [str(error) for error in policy_errors({"weights-equal": values})]

    assert found == [f"weights-equal.{error}" for error in errors]


def test_the_note_has_the_number_of_steps(snapshot: SnapshotAssertion) -> None:
    trained = trajectory(
        {"w": START}, {"w": [[n, n] for n in range(1, 8)]}, {}, uncertain={"w": [False, False]}
    )

    assert messages(checked(trained)) == snapshot


def test_equal_constants_do_not_keep_the_rule(snapshot: SnapshotAssertion) -> None:
    trained = steps({})
    still = trajectory(
        {"w": START, "v": START}, {"w": [START] * 3, "v": [START] * 3}, {"w": [START] * 3}
    )

    for verdict in (checked(trained, fields={"allow": ("*",)}), checked(still)):
        assert verdict.state == "not-checked"
        assert messages(verdict) == snapshot


def test_a_counter_follows_no_gradient(snapshot: SnapshotAssertion) -> None:
    """Its cause is separate from other mistakes."""
    verdict = checked(steps({"w": [[2, 1]] * 3, "step": [2, 4, 6]}), ["w"])

    assert steps_of(verdict) == {"w": 1, "step": 1}
    assert messages(verdict) == snapshot


def test_a_statistic_follows_the_first_of_several_different_gradients(
    snapshot: SnapshotAssertion,
) -> None:
    trained = trajectory(
        {"w": START, "v": START, "mean": START},
        {"w": STEPS, "v": STEPS, "mean": STEPS},
        {"mean": [[1.9, 3.8], [2, 4], [3, 6]]},
        uncertain={"w": [False, False], "v": [False, False]},
    )
    numbers = ran(trained, ["w", "v"], dtypes=dict.fromkeys(["w", "v", "mean"], "float32"))

    (finding,) = (
        WeightsEqual()
        .judge(Evidence(program(variables=["w", "v", "mean"]), measurement=numbers))
        .findings
    )

    assert messages(finding) == snapshot


@pytest.mark.parametrize(
    ("expected", "state"),
    [
        ([START, START, [0.0, 1.0]], "kept"),
        ([[0.0, 1.0], [0.0, 2.0], [0.0, 3.0]], "kept"),
        ([[1.0, 2.0], START, START], "not-checked"),
    ],
    ids=["in the last step", "one element", "there and back"],
)
def test_variables_that_the_steps_change_in_the_end_are_compared(
    expected: Any, state: str
) -> None:
    trained = trajectory({"w": START}, {"w": expected}, {}, uncertain={"w": [False, False]})

    assert WeightsEqual().judge(built(ran(trained))).state == state


@pytest.mark.parametrize(
    "found",
    [
        pytest.param([2.0, 4.0, 0.0], id="it stays"),
        pytest.param([2.0, 4.0, 5.0], id="it moves"),
        pytest.param([1000.0, 2000.0, 0.5], id="it moves by little"),
    ],
)
def test_the_factor_of_a_change_with_a_constant_element(
    found: Sequence[float], snapshot: SnapshotAssertion
) -> None:
    way = [1.0, 2.0, 0.0]
    start = [0.0, 0.0, 0.0]
    trained = trajectory(
        {"w": start}, {"w": [way] * 3}, {"w": [found] * 3}, uncertain={"w": [False] * 3}
    )

    verdict = checked(trained)

    assert steps_of(verdict) == {"w": 1}
    assert messages(verdict) == snapshot


def test_copies_are_in_the_order_of_their_names() -> None:
    """Several variables have gradients that differ only after the steps."""
    verdict = checked(steps({}, after=batch(["w", "v"])))

    assert [finding.object for finding in verdict.findings] == ["v", "w"]


def test_a_few_times_the_noise_is_no_difference() -> None:
    """The difference is five times the noise; eight times are allowed."""
    found = [[value + 5e-4 for value in step] for step in STEPS]

    assert checked(steps({"w": found}, noise=1e-4)).state == "kept"
    assert checked(steps({"w": found}, noise=5e-5)).state == "broken"


def test_later_differences_follow_the_first_for_all_names(
    snapshot: SnapshotAssertion,
) -> None:
    verdict = checked(steps({"w": [[2, 1]] * 3, "v": [[1, 2], [2, 9], [3, 9]]}))

    assert steps_of(verdict) == {"w": 1, "v": 2}
    assert messages(verdict) == snapshot


APART = [[1.0, 2.0], [2.0, 5.0], [3.0, 9.0]]


def raced(number: int, name: str) -> str:
    """The note on variables that are computed from a counter that races with its update."""
    return (
        f"{f'{name} is' if number == 1 else f'{number} variables are'} not compared: the step may "
        f"read step for {name} before or after step is updated; read it under "
        "tf.control_dependencies([train_op])"
    )


def test_a_variable_with_a_race_is_left_out() -> None:
    trained = steps({"w/Momentum": APART, "v": APART})

    verdict = checked(trained, races={"w/Momentum": "w", "v": "step"})

    assert verdict.state == "kept"
    assert verdict.note == f"2 variables equal after 3 steps; {raced(2, 'v')}"
    assert {figure["variable"] for figure in verdict.figures} == {"w", "step"}
    assert steps_of(checked(trained, races={"v": "step"})) == {"w/Momentum": 1}


def test_the_slots_of_a_variable_with_a_race_are_left_out() -> None:
    verdict = checked(steps({"w": APART, "w/Momentum": APART}), races={"w": "step"})

    assert verdict.note == f"2 variables equal after 3 steps; {raced(2, 'w')}"


def test_a_race_of_an_allowed_variable_is_not_in_the_note() -> None:
    verdict = checked(steps({}), races={"v": "step"}, fields={"allow": ("v",)})

    assert verdict.note == "3 variables equal after 3 steps"


def test_races_are_in_the_note_of_a_broken_rule() -> None:
    verdict = checked(steps({"w": APART}), races={"v": "step"})

    assert steps_of(verdict) == {"w": 2}
    assert verdict.note == f"2 variables equal after 3 steps; {raced(1, 'v')}"


@pytest.mark.parametrize(
    ("races", "left", "number"),
    [
        (("w", "v"), "no trained variable is left to compare", 3),
        (("w", "v", "step"), "no variable that the steps change is left to compare", 4),
    ],
    ids=["but the counter", "none"],
)
def test_not_checked_if_races_leave_no_variable(
    races: Sequence[str], left: str, number: int
) -> None:
    trained = steps({name: APART for name in races if name != "step"})

    verdict = checked(trained, races=dict.fromkeys(races, "step"))

    assert (verdict.state, verdict.reason) == ("not-checked", f"{left}; {raced(number, 'w')}")


def test_weights_that_no_step_changes_prove_nothing() -> None:
    """A learning rate that begins at 0, or gradients that are only collected."""
    trained = trajectory(
        {"w": START, "v": START, "step": 0},
        {"w": [START] * 3, "v": [START] * 3, "step": [1, 2, 3]},
        {},
        uncertain={"w": [False, False], "v": [False, False]},
    )

    verdict = checked(trained)

    assert (verdict.state, verdict.reason) == (
        "not-checked",
        "no trained variable changes in these steps, as with a learning rate of 0",
    )


def test_findings_remain_if_races_leave_no_trained_variable() -> None:
    trained = steps({"step": [2, 4, 6]})

    assert steps_of(checked(trained, races={"w": "step", "v": "step"})) == {"step": 1}


def test_other_variables_are_compared_if_the_trained_ones_are_unknown() -> None:
    way = [1.0, 2.0, 3.0]
    trained = trajectory({"w": 0.0, "v": 0.0}, {"w": way, "v": way}, {})

    verdict = checked(trained, races={"v": "step"})

    assert verdict.note == f"1 variable equal after 3 steps; {raced(1, 'v')}"


def after_small_steps(change: float, trial: Trial | None = None) -> Verdict:
    """The verdict on w and v without slots: up to 1000, with a given change in each step."""
    start = {"w": [1000.0, 500.0], "v": [1000.0, 1.0]}
    trained = trajectory(
        start,
        {name: [np.add(start[name], change * n) for n in (1, 2, 3)] for name in start},
        {},
        uncertain={"w": [False, False], "v": [False, False]},
    )
    dtypes = dict.fromkeys("wv", "float32")
    unread = Trial(4, (), {}, {}, {})
    numbers = measurement(trial or unread, trajectory=trained, dtypes=dtypes)
    return WeightsEqual().judge(built(numbers))


def test_not_checked_if_changes_are_too_small_to_show_a_mistake() -> None:
    verdict = after_small_steps(0.001)

    assert verdict.state == "not-checked"
    assert verdict.reason == (
        "the trained variables change so little in these steps that an error of half the "
        "change would not be detected, and no gradient was compared; check at a larger learning "
        "rate"
    )
    assert verdict.fix == "check at a larger learning rate"


def at_rates(many: float, one: float, found: Mapping[str, Sequence[Any]], **more: Any) -> Verdict:
    """The verdict on two programs with these learning rates."""
    of_towers, of_one = (
        program(host("rate", "Const"), gpus=gpus, variables=NAMES, values={"rate": rate})
        for gpus, rate in (((0, 1), many), ((0,), one))
    )
    numbers = ran(steps(found), **{"reference": of_towers.program, **more})
    return WeightsEqual().judge(Evidence(of_towers, reference=of_one, measurement=numbers))


def test_a_learning_rate_that_is_multiplied_by_the_number_of_towers() -> None:
    verdict = at_rates(0.2, 0.1, {"w": [[2, 4], [3, 6], [4, 8]]})

    assert (verdict.state, verdict.reason) == (
        "not-checked",
        "a constant in the update of w, such as the learning rate, is 0.2 with 2 towers and 0.1 "
        "with one, so the weights differ on purpose; use the same constant to compare weights",
    )


def test_counters_are_judged_at_any_learning_rate() -> None:
    found: Mapping[str, Sequence[Any]] = {"w": [[2, 4], [3, 6], [4, 8]], "step": [2, 4, 6]}

    assert steps_of(at_rates(0.2, 0.1, found)) == {"step": 1}


def test_weights_are_judged_if_the_learning_rate_is_no_reason() -> None:
    """They are equal; or the rates are; or the reference is another program."""
    other = {"w": [[2, 4], [3, 6], [4, 8]]}

    assert at_rates(0.2, 0.1, {}).state == "kept"
    assert steps_of(at_rates(0.1, 0.1, other)) == {"w": 1}
    assert steps_of(at_rates(0.2, 0.1, other, reference="single.py:build")) == {"w": 1}


def test_noise_in_all_gradients_leaves_no_weights_to_compare() -> None:
    """Only the counter is left, which proves nothing about the training."""
    verdict = WeightsEqual().judge(built(replace(ran(steps({})), trials=[batch(noisy="wv")])))

    assert (verdict.state, verdict.reason) == (
        "not-checked",
        "no trained variable is left to compare; the gradients of v and w are too noisy to "
        "compare weights",
    )


def test_the_undetectable_part_of_a_change_is_in_the_note() -> None:
    verdict = after_small_steps(0.01)

    assert verdict.state == "kept"
    assert verdict.note == (
        "2 variables equal after 3 steps; an error of up to 13% of the change of w would not "
        "be detected"
    )


def test_small_steps_hide_nothing_where_gradients_were_compared() -> None:
    verdict = after_small_steps(0.001, batch())

    assert verdict.note == "2 variables equal after 3 steps"


def test_large_steps_have_no_note() -> None:
    assert after_small_steps(1.0).note == "2 variables equal after 3 steps"
