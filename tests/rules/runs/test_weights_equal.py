from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.measurements import displaced, measurement, trajectory
from support.steps import Program, Value, add_n, mean, square, total
from support.towers import GPUS, host, on, program, variable
from support.verdicts import broken, kept, not_checked, verdicts

from placement_checks import Op, Placement
from placement_checks.core.evidence import Evidence
from placement_checks.core.measurement import Measurement, Trajectory, Trial
from placement_checks.core.missing import Missing
from placement_checks.core.strategies import Copy, Strategy
from placement_checks.rules.runs.weights_equal import WeightsEqual
from placement_checks.verification.policy import parse_policy

NAMES = ("w", "v", "w/Momentum")
# The values of w and v after three steps from 0.
STEPS = [[1.0, 2.0], [2.0, 4.0], [3.0, 6.0]]
START = [0.0, 0.0]
# Other values.
AHEAD = [[2, 4], [3, 6], [4, 8]]
APART = [[1.0, 2.0], [2.0, 5.0], [3.0, 9.0]]


def steps(
    *, w: Any = None, v: Any = None, slot: Any = None, step: Any = None, **more: Any
) -> Trajectory:
    """A trajectory of w and v, which are trained, a slot of w, and a counter.

    The arguments are the values of the program, if they differ from the values of the reference.
    """
    found = {"w": w, "v": v, "w/Momentum": slot, "step": step}
    return trajectory(
        {"w": START, "v": START, "w/Momentum": START, "step": 0},
        {
            "w": STEPS,
            "v": STEPS,
            "w/Momentum": [[5.0, 1.0], [4.0, 2.0], [3.0, 3.0]],
            "step": [1, 2, 3],
        },
        {name: values for name, values in found.items() if values is not None},
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


def numbers(trained: Trajectory | Missing, *trials: Trial, **more: Any) -> Measurement:
    dtypes = {name: "int64" if name == "step" else "float32" for name in ("step", *NAMES)}
    return measurement(*(trials or [batch()]), **{"trajectory": trained, "dtypes": dtypes, **more})


def ran(
    trained: Trajectory | Missing,
    *trials: Trial,
    ops: Sequence[Op] = (),
    lines: Mapping[str, str] | None = None,
    **more: Any,
) -> Evidence:
    """A program with these training steps, and with the gradients of these batches."""
    graph = program(*ops, variables=NAMES, lines=lines or {})
    return Evidence(graph, measurement=numbers(trained, *trials, **more))


def typed(**dtypes: str) -> dict[str, str]:
    """The dtypes of all variables, by default float32, and of the counter."""
    return {**dict.fromkeys(NAMES, "float32"), "step": "int64", **dtypes}


def with_mean(*wrong: str, trained: Sequence[str] = ("w",)) -> Evidence:
    """A statistic that differs, and trained variables, whose gradients may be wrong.

    A statistic does not have a gradient.
    """
    names = [*trained, "mean"]
    run = trajectory(
        dict.fromkeys(names, START),
        dict.fromkeys(names, STEPS),
        {"mean": [[1.9, 3.8], [2, 4], [3, 6]]},
        uncertain={name: [False, False] for name in trained},
    )
    dtypes = dict.fromkeys(["w", "v", "mean"], "float32")
    measured = numbers(run, batch(wrong), dtypes=dtypes)
    return Evidence(program(variables=names), measurement=measured)


def mirrored() -> Evidence:
    """The second copy of a variable does not change."""
    copies = {"w": Copy("w", 0), "v": Copy("w", 1)}
    strategy = Strategy("MirroredStrategy", GPUS, copies)
    graph = program(variables=NAMES).with_fields(strategy=strategy)
    return Evidence(graph, measurement=numbers(steps(v=[START] * 3)))


def certain(optimizer: str, *, elements: Sequence[bool] = (True, True)) -> Evidence:
    """The second element of w moves the other way; rounding errors decide the other elements."""
    trained = steps(w=[[1, -2], [2, -4], [3, -6]])
    doubtful = [
        {**step, "w": step["w"]._replace(certain=np.array(elements))} for step in trained.steps
    ]
    return ran(replace(trained, steps=doubtful), optimizers=frozenset([optimizer]))


def changing(expected: Sequence[Any], found: Sequence[Any] | None = None) -> Evidence:
    """One trained variable with these values after each step."""
    start = np.zeros(len(expected[0])).tolist()
    values = {} if found is None else {"w": found}
    uncertain = {"w": [False] * len(start)}
    return ran(trajectory({"w": start}, {"w": expected}, values, uncertain=uncertain))


def small_steps(change: float, trial: Trial | None = None) -> Evidence:
    """Variables of up to 1000, without slots, with a given change in each step."""
    start = {"w": [1000.0, 500.0], "v": [1000.0, 1.0]}
    trained = trajectory(
        start,
        {name: [np.add(start[name], change * n) for n in (1, 2, 3)] for name in start},
        {},
        uncertain={"w": [False, False], "v": [False, False]},
    )
    unread = Trial(4, (), {}, {}, {})
    return ran(trained, trial or unread, dtypes=dict.fromkeys("wv", "float32"))


def at_rate(rate: float, count: int) -> Placement:
    """A program that trains w and v at a learning rate, w with momentum."""
    made = Program()
    w, v, slot = (made.variable(name, (2,), is_trained=name in "wv") for name in NAMES)
    step = made.variable("step", is_trained=False)
    gradients: list[list[Value]] = [[], []]
    for i in range(count):
        with made.tower(i):
            x = made.placeholder("x", (None, 2), None if count == 1 else i)
            loss = mean(square(total(x * w.read() * v.read(), 1)))
            for own, each in zip(gradients, (w, v), strict=True):
                own.append(made.gradient(loss, each))
    of_w, of_v = (add_n(each) / float(count) for each in gradients)
    made.train(w.apply_momentum(slot, rate, of_w), v.descend(rate, of_v), step.assign_add(1.0))
    return made.placement()


def at_rates(many: float, one: float, trained: Trajectory, **more: Any) -> Evidence:
    """Two towers, and one GPU, with these learning rates."""
    of_towers, of_one = at_rate(many, 2), at_rate(one, 1)
    measured = numbers(trained, **{"reference": of_towers.program, **more})
    return Evidence(of_towers, reference=of_one, measurement=measured)


def frozen_copy(**more: Any) -> Evidence:
    """The second tower reads a copy of w, which starts as w, and another variable, which does not.

    No step updates them.
    """
    ops = [
        variable("copy"),
        host("value", "ReadVariableOp", "w"),
        host("start", "Identity", "value"),
        host("assign", "AssignVariableOp", "copy", "start"),
        on(1, "tower_1/w/read", "ReadVariableOp", "copy"),
        variable("other"),
        host("zero", "Const"),
        host("zeros", "AssignVariableOp", "other", "zero"),
        on(1, "tower_1/own", "MatMul", "tower_1/w/MatMul", "tower_1/other"),
        on(1, "tower_1/other", "ReadVariableOp", "other"),
        on(1, "tower_1/loss", "Mean", "tower_1/own"),
    ]
    lines = {"copy": "main.py:5", "other": "main.py:6", "update/w": "main.py:40"}
    return ran(ops=ops, lines=lines, updates={"w": "update/w"}, **more)


def repeated(trained: Trajectory, to: str, *updates: str, kind: str = "NoOp") -> Evidence:
    """The step has further updates of a variable, in a function that each tower calls."""
    ops = [
        *(host(name, "AssignAddVariableOp", to, "share") for name in updates),
        host("update/w", kind, "w", "rate", "mean/w"),
        host("train", "NoOp", "^update/w", "^update/v", "^step/add", *(f"^{u}" for u in updates)),
    ]
    lines = {"update/w": "main.py:25", **dict.fromkeys(updates, "main.py:26 ema.py:9")}
    return ran(trained, ops=ops, lines=lines)


COARSE = dict.fromkeys("wv", "bfloat16")
STILL = trajectory(
    {"w": START, "v": START}, {"w": [START] * 3, "v": [START] * 3}, {"w": [START] * 3}
)
# A learning rate that begins at 0, or gradients that are only collected.
UNCHANGED = trajectory(
    {"w": START, "v": START, "step": 0},
    {"w": [START] * 3, "v": [START] * 3, "step": [1, 2, 3]},
    {},
    uncertain={"w": [False, False], "v": [False, False]},
)
BOTH_DIFFER = steps(w=[[2, 1]] * 3, v=[[2, 1]] * 3)
# After the last step w, which is 6, is off by 42 eps.
OFF_BY_42 = steps(w=[*STEPS[:2], [3, 6 * (1 + 42 * 2.0**-23)]], noise=2.0**-22)
# A gradient rounded to float32 changes a float64 variable by slightly more or less.
FINE = steps(w=[*STEPS[:2], [3, 6 + 20 * 2.0**-23]])
DOUBLE = {**dict.fromkeys(NAMES, "float64"), "step": "int64"}
LARGER_SLOT = steps(slot=[[10, 2], [8, 4], [6, 6]])
SLOT_128 = steps(slot=[[640, 128], [512, 256], [384, 384]])
# The difference is five times the noise of 1e-4; eight times are allowed.
OFF_BY_NOISE = [[value + 5e-4 for value in step] for step in STEPS]

CASES = {
    "equal weights": kept(ran(steps())),
    "a variable is ahead": broken(
        ran(
            steps(w=AHEAD),
            updates={"w": "update/w"},
            lines={"update/w": "main.py:40 net.py:3", "w": "main.py:9"},
        )
    ),
    "a variable is ahead, and its update is not known": broken(
        ran(steps(w=[[2, 4]] * 3), lines={"w": "main.py:9"})
    ),
    "a later copy of a strategy does not change": broken(mirrored()),
    "no run": not_checked(Evidence(program(), measurement=Missing("no reference is given"))),
    "no step": not_checked(ran(Missing("which op is one step is not expected"))),
    # A difference of a twentieth is accepted, so a variable that never changes is not found.
    "variables in bfloat16": not_checked(
        ran(
            displaced(steps(w=[START] * 3, v=[START] * 3), w=100, v=100),
            dtypes={**dict.fromkeys(NAMES, "bfloat16"), "step": "int64"},
        )
    ),
    "gradients in bfloat16": not_checked(ran(steps(), precisions=COARSE)),
    # Other findings, such as a counter, are still reported.
    "gradients in bfloat16, and the counter differs": broken(
        ran(steps(step=[2, 4, 6]), precisions=COARSE)
    ),
    "variables and gradients in float64": broken(
        ran(FINE, dtypes=DOUBLE, precisions=dict.fromkeys("wv", "float64"))
    ),
    "variables in float64, and gradients in float32": kept(
        ran(FINE, dtypes=DOUBLE, precisions=dict.fromkeys("wv", "float32"))
    ),
    "a variable whose gradient is noise differs, and its slot": kept(
        ran(steps(w=[[9, 9]] * 3, slot=[[9, 9]] * 3), batch(noisy="w"))
    ),
    # The gradient of the variable, or of the slot's variable, whichever comes first.
    **{
        f"a variable and its slot differ, and the gradients of {wrong}": broken(
            ran(steps(slot=[[10, 2]] * 3, w=[[1, 2], [2, 4], [3, 7]]), batch(wrong))
        )
        for wrong in ("w", "wv")
    },
    "two variables differ, one after the other": broken(
        ran(steps(v=[[1, 2], [2, 5], [3, 6]], w=[[1, 2], [2, 4], [9, 9]]))
    ),
    "two variables differ from the first step, and one later": broken(
        ran(steps(w=[[2, 1]] * 3, v=[[1, 2], [2, 9], [3, 9]]))
    ),
    "a variable differs after another one with a different gradient": broken(
        ran(steps(v=AHEAD, w=[[1, 2], [2, 5], [9, 9]]), batch("v"))
    ),
    **{
        f"a counter of {dtype} is incremented by {by}": broken(
            ran(steps(step=[by, 2 * by, 3 * by]), dtypes=typed(step=dtype))
        )
        for dtype, by in (
            *(("int64", by) for by in (2, 16, 0, -1)),
            *(("int32", 2), ("uint16", 2)),
        )
    },
    "a counter that does not start at zero": broken(
        ran(displaced(steps(step=[3, 5, 7]), step=100))
    ),
    "integers of more than one element": broken(
        ran(steps(v=[[2, 4]] * 3), dtypes=typed(v="int32"))
    ),
    "a counter that differs late": broken(ran(steps(step=[1, 3, 5]))),
    **{
        f"a variable that does not change in {which}": broken(ran(trained))
        for which, trained in {
            "the first step": steps(w=[START] * 3),
            "the second step": steps(w=[[1, 2]] * 3),
            "the last step": steps(w=[[1, 2], [2, 4], [2, 4]]),
        }.items()
    },
    "a slot that does not change": broken(ran(steps(slot=[START] * 3))),
    **{
        f"a variable that changes {how}": broken(ran(trained))
        for how, trained in {
            "twice as much": steps(w=[[2, 4], [4, 8], [6, 12]]),
            "by a tenth more": steps(w=[[1.1, 2.2], [2, 4], [3, 6]]),
            "the other way": steps(w=[[-1, -2], [2, 4], [3, 6]]),
            "by half more in the second step": steps(w=[[1, 2], [2.5, 5], [3, 6]]),
            "in another direction": steps(w=[[2, 1], [2, 4], [3, 6]]),
            "hardly further": steps(w=[[1.0005, 2.001], [2, 4], [3, 6]]),
        }.items()
    },
    "a slot that changes twice as much": broken(ran(steps(slot=[[10, 2]] * 3))),
    # In the second step, the gradients of w come from another variable, and the gradients of v do
    # not.
    "the gradients of w differ after the steps, and both variables differ": broken(
        ran(steps(w=APART, v=[[1, 2], [3, 4], [3, 8]], slot=[[5, 1]] * 3, after=batch("w")))
    ),
    **{
        f"a variable differs, and {what} after the steps": broken(ran(steps(w=APART, after=late)))
        for what, late in {"no gradient is known": None, "gradients are equal": batch()}.items()
    },
    "a variable and all gradients differ from the first step": broken(
        ran(steps(w=APART, after=batch("wv")), batch("wv"))
    ),
    # The weights may be equal within the tolerance; the gradient after the steps is not.
    "equal weights, and a gradient differs after the steps": broken(
        ran(
            steps(after=batch("v")),
            updates={"v": "update/v"},
            lines={"update/v": "main.py:40 net.py:3"},
        )
    ),
    "equal weights, and a gradient that is allowed differs after the steps": kept(
        ran(steps(after=batch("v"))), allow=("v",)
    ),
    "equal weights, and two gradients differ after the steps": broken(
        ran(steps(after=batch("wv")))
    ),
    "a variable differs, and two gradients after the steps": broken(
        ran(steps(w=APART, after=batch("wv")))
    ),
    "a tower reads a copy, and a gradient differs after the steps": broken(
        frozen_copy(trained=steps(after=batch("w")))
    ),
    "a tower reads a copy, and a variable differs": broken(
        frozen_copy(trained=steps(w=APART, after=batch("w")))
    ),
    "an optimizer and two additions update a variable": broken(
        repeated(
            steps(w=[[2, 4], [4, 8], [6, 12]]),
            "w",
            "more",
            "again",
            kind="ResourceApplyGradientDescent",
        )
    ),
    "two additions update a slot": broken(
        repeated(
            steps(slot=[[10, 2]] * 3),
            "w/Momentum",
            "more",
            "again",
            kind="ResourceApplyGradientDescent",
        )
    ),
    "one addition updates a slot": broken(
        repeated(
            steps(slot=[[10, 2]] * 3), "w/Momentum", "more", kind="ResourceApplyGradientDescent"
        )
    ),
    "two additions update a slot, and no optimizer is known": broken(
        repeated(steps(slot=[[10, 2]] * 3), "w/Momentum", "more", "again")
    ),
    "a variable is not finite": broken(ran(steps(w=[[math.nan, 2]] * 3))),
    "a variable changes only in the program": broken(changing([START] * 3, [[1, 1]] * 3)),
    "a statistic differs": broken(with_mean()),
    "a statistic and the gradient of a variable differ": broken(with_mean("w")),
    "a statistic and two gradients differ": broken(with_mean("w", "v", trained=("w", "v"))),
    **{
        f"two variables differ, allowed: {allow}": expected(ran(BOTH_DIFFER), allow=allow)
        for allow, expected in (
            ((), broken),
            (("w",), broken),
            (("?",), kept),
            (("w*", "V"), broken),
        )
    },
    "a variable differs after an allowed one": broken(
        ran(steps(v=[[9, 1]] * 3, w=[[1, 2], [9, 9], [9, 9]])), allow=("v",)
    ),
    **{
        f"off by 42 eps, which are 126 times the noise: {fields}": expected(
            ran(OFF_BY_42), **fields
        )
        for fields, expected in (
            ({}, broken),
            ({"tolerance": 41}, broken),
            ({"tolerance": 43}, kept),
            ({"noise": 125.0}, broken),
            ({"noise": 127.0}, kept),
        )
    },
    "off by five times the noise": kept(ran(steps(w=OFF_BY_NOISE, noise=1e-4))),
    "off by ten times the noise": broken(ran(steps(w=OFF_BY_NOISE, noise=5e-5))),
    "a slot has the scale of the gradients": kept(ran(SLOT_128, scale=128.0)),
    "a slot has another scale than the gradients": broken(ran(SLOT_128)),
    # All gradients are twice as large, and the learning rate is half.
    "all gradients and a slot are twice as large": kept(ran(LARGER_SLOT, batch("wv"))),
    "one gradient and a slot are twice as large": broken(ran(LARGER_SLOT, batch("w"))),
    "only a slot is twice as large": broken(ran(LARGER_SLOT)),
    "rounding errors decide an element, by Adam": kept(
        certain("ResourceApplyAdam", elements=(True, False))
    ),
    "rounding errors decide an element, by gradient descent": broken(
        certain("ResourceApplyGradientDescent", elements=(True, False))
    ),
    "rounding errors decide no element, by Adam": broken(certain("ResourceApplyAdam")),
    "seven steps": kept(changing([[n, n] for n in range(1, 8)])),
    "all variables are allowed": not_checked(ran(steps()), allow=("*",)),
    "no variable changes": not_checked(ran(STILL)),
    "weights do not change, and the counter does": not_checked(ran(UNCHANGED)),
    "a counter differs, and a variable with a different gradient": broken(
        ran(steps(w=[[2, 1]] * 3, step=[2, 4, 6]), batch("w"))
    ),
    "a variable that changes in the last step": kept(changing([START, START, [0.0, 1.0]])),
    "a variable of which one element changes": kept(
        changing([[0.0, 1.0], [0.0, 2.0], [0.0, 3.0]])
    ),
    "a variable that changes there and back": not_checked(changing([[1.0, 2.0], START, START])),
    **{
        f"two elements change twice as much, and the third {how}": broken(
            changing([[1.0, 2.0, 0.0]] * 3, [found] * 3)
        )
        for how, found in {
            "stays": [2.0, 4.0, 0.0],
            "moves": [2.0, 4.0, 5.0],
            "moves by little": [1000.0, 2000.0, 0.5],
        }.items()
    },
    "variables that are computed from a counter with a race": kept(
        ran(steps(slot=APART, v=APART), races={"w/Momentum": "w", "v": "step"})
    ),
    "a slot differs, and another variable has a race": broken(
        ran(steps(slot=APART, v=APART), races={"v": "step"})
    ),
    "a variable with a race and its slot": kept(
        ran(steps(w=APART, slot=APART), races={"w": "step"})
    ),
    "an allowed variable with a race": kept(ran(steps(), races={"v": "step"}), allow=("v",)),
    "a variable differs, and another has a race": broken(ran(steps(w=APART), races={"v": "step"})),
    "races of all variables but the counter": not_checked(
        ran(steps(w=APART, v=APART), races={"w": "step", "v": "step"})
    ),
    "races of all variables": not_checked(
        ran(steps(w=APART, v=APART), races={"w": "step", "v": "step", "step": "step"})
    ),
    "races of all variables but the counter, which differs": broken(
        ran(steps(step=[2, 4, 6]), races={"w": "step", "v": "step"})
    ),
    "a race, and trained variables are unknown": kept(
        ran(
            trajectory({"w": 0.0, "v": 0.0}, {"w": [1.0, 2.0, 3.0], "v": [1.0, 2.0, 3.0]}, {}),
            races={"v": "step"},
        )
    ),
    "changes of 0.001, and no gradient was compared": not_checked(small_steps(0.001)),
    "changes of 0.01, and no gradient was compared": kept(small_steps(0.01)),
    "changes of 1, and no gradient was compared": kept(small_steps(1.0)),
    "changes of 0.001, and gradients were compared": kept(small_steps(0.001, batch())),
    "twice the learning rate on two towers, and a variable is ahead": not_checked(
        at_rates(0.2, 0.1, steps(w=AHEAD))
    ),
    "twice the learning rate on two towers, and a counter differs": broken(
        at_rates(0.2, 0.1, steps(w=AHEAD, step=[2, 4, 6]))
    ),
    "twice the learning rate on two towers, and equal weights": kept(at_rates(0.2, 0.1, steps())),
    "one learning rate, and a variable is ahead": broken(at_rates(0.1, 0.1, steps(w=AHEAD))),
    "twice the learning rate of another program, and a variable is ahead": broken(
        at_rates(0.2, 0.1, steps(w=AHEAD), reference="single.py:build")
    ),
    # Only the counter is left, which proves nothing about the training.
    "all gradients are noise": not_checked(ran(steps(), batch(noisy="wv"))),
}

test_verdicts = verdicts(WeightsEqual, CASES)


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
    found = [str(error) for error in parse_policy({"weights-equal": values})[1]]

    assert found == [f"weights-equal.{error}" for error in errors]
