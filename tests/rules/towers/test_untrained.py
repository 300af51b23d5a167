"""Trainable variables that no step updates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from support.towers import gradient, host, on, program, variable

from placement_checks import Op, Placement
from placement_checks.analysis.towers.analysis import analyze
from placement_checks.core.placement import TRAINABLE
from placement_checks.rules.towers.trainables_trained import untrained, without_gradient_use

TRAIN = host("train", "NoOp", "^update/a", "^step/add")  # but not b


def found(graph: Placement) -> list[tuple[str, str | None]]:
    names = analyze(graph).flow.names
    return [(name, None if lost is None else names[lost]) for name, lost in untrained(graph)]


def two(*ops: Op, trainable: Sequence[str] = ("a", "b"), **more: Any) -> Placement:
    return program(
        *ops,
        variables=["a", "b"],
        collections={TRAINABLE: list(trainable)},
        outputs={gradient(i, name): (4,) for i in (0, 1) for name in "ab"},
        **more,
    )


def dropped(name: str, kind: str = "NoOp", *inputs: str) -> list[Op]:
    """Ops that replace the update of b; another op may use its gradient."""
    return [TRAIN, host("update/b", "NoOp"), host(name, kind, *inputs)]


def test_variables_that_the_step_updates_are_trained() -> None:
    assert found(two()) == []


def test_a_gradient_that_is_averaged_and_not_applied() -> None:
    assert found(two(*dropped("beside"))) == [("b", "mean/b")]


def test_only_trainable_variables_are_judged() -> None:
    assert found(two(*dropped("beside"), trainable=["a"])) == []


@pytest.mark.parametrize("kind", ["HistogramSummary", "ScalarSummary"])
def test_a_gradient_that_is_only_shown(kind: str) -> None:
    """One tower's gradient, which no op averages."""
    graph = two(
        *dropped("shown", kind, gradient(0, "b")),
        *(host(f"{name}/b", "NoOp") for name in ("sum", "mean")),
    )

    assert found(graph) == [("b", gradient(0, "b"))]


def clipped(*ops: Op) -> Placement:
    """Gradients that are scaled by their global norm; the gradient of b is not applied."""
    return two(
        *dropped("half/b", "L2Loss", "mean/b"),
        host("norm", "AddN", "half/a", "half/b"),
        host("half/a", "L2Loss", "mean/a"),
        *(host(f"clipped/{name}", "Mul", f"mean/{name}", "norm") for name in "ab"),
        host("update/a", "ResourceApplyGradientDescent", "a", "rate", "clipped/a"),
        *ops,
    )


def test_a_gradient_that_is_only_part_of_the_norm_of_all() -> None:
    """The norm scales the gradients of other variables."""
    assert found(clipped()) == [("b", "clipped/b")]


def test_a_gradient_used_for_its_norm_only() -> None:
    graph = two(
        *dropped("half", "L2Loss", gradient(0, "b")),
        host("shown", "ScalarSummary", "tag", "half"),
        *(host(f"{name}/b", "NoOp") for name in ("sum", "mean")),
    )

    assert found(graph) == [("b", gradient(0, "b"))]


def test_the_norm_of_clipped_gradients_is_shown() -> None:
    graph = clipped(
        host("half/after", "L2Loss", "clipped/b"),
        host("shown", "ScalarSummary", "tag", "half/after"),
    )

    assert found(graph) == [("b", "clipped/b")]


def test_gradients_that_are_clipped_and_applied() -> None:
    graph = clipped(
        host("update/b", "ResourceApplyGradientDescent", "b", "rate", "clipped/b"),
        host("train", "NoOp", "^update/a", "^update/b"),
    )

    assert found(graph) == []


def test_a_gradient_norm_in_a_loss_is_used() -> None:
    """The loss has a penalty on the gradient of a frozen variable."""
    graph = two(
        *dropped("penalty", "L2Loss", gradient(0, "b")),
        *(host(f"{name}/b", "NoOp") for name in ("sum", "mean")),
        host("loss", "AddN", "tower_0/loss", "tower_1/loss", "penalty"),
    )

    assert found(graph) == []


def test_a_gradient_that_the_program_did_not_ask_for() -> None:
    """TensorFlow computes the gradients of all inputs of an op."""
    ops = [host(f"{name}/b", "NoOp") for name in ("sum", "mean")]

    assert found(two(*dropped("beside"), *ops)) == []


def test_a_variable_without_gradients_is_frozen() -> None:
    ops = [host(f"{name}/b", "NoOp") for name in ("sum", "mean")]
    gone = [on(i, gradient(i, "b"), "NoOp") for i in (0, 1)]

    assert found(two(*dropped("beside"), *ops, *gone)) == []


def test_a_variable_that_no_loss_reads() -> None:
    graph = program(
        variable("bias"),
        on(0, "tower_0/prediction", "AddV2", "tower_0/w/MatMul", "bias"),
        collections={TRAINABLE: ["w", "bias"]},
    )

    assert found(graph) == [("bias", None)]


@pytest.mark.parametrize(
    "update",
    [
        pytest.param(host("other", "ResourceApplyAdam", "b", "mean/b"), id="an optimizer's"),
        pytest.param(host("other", "AssignSubVariableOp", "b", "mean/b"), id="written out"),
    ],
)
def test_variables_that_another_step_updates_are_trained(update: Op) -> None:
    """Two networks are trained alternately."""
    assert found(two(TRAIN, host("update/b", "NoOp"), update)) == []


def test_an_assignment_does_not_train_a_variable() -> None:
    assert found(two(*dropped("set", "AssignVariableOp", "b", "fed"))) == [("b", "mean/b")]


@pytest.mark.parametrize(("kind", "lost"), [("Gather", True), ("MatMul", False)])
def test_the_gradient_of_rows_has_a_shape_of_its_own(kind: str, lost: bool) -> None:
    ops = [
        *dropped("beside"),
        on(0, "tower_0/b/MatMul", kind, "b", "tower_0/x"),
        on(0, gradient(0, "b"), "Reshape", "tower_0/b/MatMul"),
        host("sum/b", "NoOp"),
        host("rows", "ConcatV2", gradient(0, "b")),
        host("mean/b", "NoOp"),
    ]
    graph = program(
        *ops,
        variables=["a", "b"],
        collections={TRAINABLE: ["a", "b"]},
        outputs={gradient(0, "b"): (None,)},
    )

    assert found(graph) == ([("b", "rows")] if lost else [])


def with_gradients(*ops: Op, **more: Any) -> Placement:
    """A program that takes the gradients of both variables and applies only the gradient of a."""
    names = {name: [gradient(0, name)] for name in "ab"}
    return program(
        *ops, gpus=(0,), variables=["a", "b"], step={"gradients_by_variable": names}, **more
    )


ONLY_A = [TRAIN, *(host(f"{name}/b", "NoOp") for name in ("sum", "mean", "update"))]
BOTH = {TRAINABLE: ["a", "b"]}


def test_a_gradient_that_no_op_takes_is_unused() -> None:
    assert list(without_gradient_use(with_gradients(*ONLY_A, collections=BOTH))) == ["b"]


@pytest.mark.parametrize(
    ("ops", "trainable"),
    [
        pytest.param([], "ab", id="applied"),
        pytest.param(ONLY_A, "a", id="not to be trained"),
        pytest.param([*ONLY_A, host("norm", "L2Loss", gradient(0, "b"))], "ab", id="shown"),
        pytest.param(
            [*ONLY_A, host("other", "ResourceApplyGradientDescent", "b", "share", "share")],
            "ab",
            id="another step feeds it",
        ),
    ],
)
def test_gradients_that_are_used(ops: Sequence[Op], trainable: str) -> None:
    assert (
        list(without_gradient_use(with_gradients(*ops, collections={TRAINABLE: [*trainable]})))
        == []
    )


def test_a_gradient_that_the_program_did_not_take_is_not_unused() -> None:
    """TensorFlow computes the gradients of all inputs of an op."""
    assert list(without_gradient_use(two(*ONLY_A))) == []
