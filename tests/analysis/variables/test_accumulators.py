"""Accumulators: variables that collect values of a tower, to show or to apply later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from support.towers import accumulating, gradient, host, on, program, variable

from placement_checks import Op, Placement
from placement_checks.analysis.variables.accumulators import accumulators
from placement_checks.core.placement import TRAINABLE

BOTH = {"shown0": 0, "shown1": 1}


def found(graph: Placement) -> Mapping[str, int]:
    return accumulators(graph).tower_of


@pytest.mark.parametrize(
    "ops",
    [
        pytest.param([], id="without a reader"),
        pytest.param(
            [
                host("all", "AddN", "shown0", "shown1"),
                host("report", "ScalarSummary", "tag", "all"),
                *(host(f"reset{i}", "Assign", f"shown{i}", "zeros") for i in (0, 1)),
                host("zeros", "Const"),
            ],
            id="added up, shown and reset by the host",
        ),
        pytest.param(
            [
                host("apart", "Sub", "shown0", "tower_1/w/MatMul"),
                host("report", "ScalarSummary", "tag", "apart"),
            ],
            id="shown with a value of another tower",
        ),
        pytest.param(
            [
                variable("shown0", "VariableV2", at="GPU:0"),
                on(0, "is_set", "IsVariableInitialized", "shown0"),
                on(0, "switched", "Switch", "shown0", "is_set"),
                on(0, "value", "Switch", "tower_0/w/MatMul", "is_set"),
                on(0, "tower_0/add", "AssignAdd", "switched", "value"),
                on(0, "first", "Assign", "switched:1", "value:1"),
                on(0, "either", "Merge", "tower_0/add", "first"),
            ],
            id="initialized",
        ),
    ],
)
def test_a_sum_of_one_tower_for_a_summary_is_an_accumulator(ops: Sequence[Op]) -> None:
    assert found(accumulating(*ops)) == BOTH


@pytest.mark.parametrize(
    "op",
    [
        pytest.param(
            on(0, "tower_0/add", "AssignVariableOp", "shown0", "tower_0/w/MatMul"), id="set"
        ),
        pytest.param(host("tower_0/add", "AssignAdd", "shown0", "step/one"), id="a count"),
        pytest.param(
            host("more", "AssignAdd", "shown0", "tower_1/w/MatMul"), id="of several towers"
        ),
        pytest.param(on(0, "tower_0/loss", "Mul", "tower_0/w/MatMul", "shown0"), id="in the loss"),
        pytest.param(
            on(0, "tower_0/loss", "Mul", "tower_0/w/MatMul", "tower_0/add"),
            id="in the loss, as soon as it is added to",
        ),
        pytest.param(
            host("loss", "AddN", "tower_0/loss", "tower_0/add"), id="in the reported loss"
        ),
        pytest.param(on(0, "predict", "Sub", "tower_0/x", "shown0"), id="evaluated with"),
        pytest.param(
            host("update/w", "ResourceApplyAdam", "w", "shown0", "mean/w"), id="taken by an update"
        ),
    ],
)
def test_variables_that_are_no_accumulators(op: Op) -> None:
    assert found(accumulating(op)) == {"shown1": 1}


def test_a_moving_average_is_no_accumulator() -> None:
    """Evaluation reads it."""
    graph = accumulating(
        on(0, "apart", "Sub", "tower_0/w/MatMul", "shown0"),
        on(0, "tower_0/add", "AssignAddVariableOp", "shown0", "apart"),
    )

    assert found(graph) == {"shown1": 1}


def shown_on_gpu(*changes: Op) -> Placement:
    """A program that adds the mean gradient to a variable on the second GPU, for a summary."""
    return accumulating(
        on(1, "size", "L2Loss", "mean/w"),
        on(1, "tower_1/add", "AssignAddVariableOp", "shown1", "size"),
        *changes,
    )


def test_a_sum_for_a_summary_belongs_to_the_gpu_that_computes_its_values() -> None:
    graph = shown_on_gpu()

    assert found(graph) == BOTH
    assert accumulators(graph).names == {"shown0", "shown1"}


@pytest.mark.parametrize(
    "ops",
    [
        pytest.param([host("size", "L2Loss", "mean/w")], id="computed on the host"),
        pytest.param(
            [on(0, "more", "AssignAddVariableOp", "shown1", "tower_0/w/MatMul")], id="of both GPUs"
        ),
        pytest.param(
            [
                host("half", "Mul", "mean/w", "shown1"),
                host("update/w", "AssignSubVariableOp", "w", "half"),
            ],
            id="taken by an update",
        ),
        pytest.param(
            [
                on(1, "negated", "Neg", "mean/w"),
                on(1, "tower_1/add", "AssignAddVariableOp", "shown1", "negated"),
                host("zeros", "Const"),
                *(host(f"reset{i}", "AssignVariableOp", "shown1", "zeros") for i in (0, 1)),
                host("half", "Mul", "rate", "shown1"),
                host("update/w", "AssignSubVariableOp", "w", "half"),
            ],
            id="gradients of all towers, applied and emptied",
        ),
    ],
)
def test_sums_that_belong_to_no_gpu(ops: Sequence[Op]) -> None:
    assert found(shown_on_gpu(*ops)) == {"shown0": 0}


def test_an_accumulator_may_be_called_trainable() -> None:
    """tf.Variable makes every variable trainable."""
    assert found(accumulating(collections={TRAINABLE: ["w", "shown1"]})) == BOTH


def test_a_counter_is_no_accumulator() -> None:
    assert found(program(variable("other"))) == {}


def summing(*changes: Op) -> Placement:
    """Each tower adds up its gradients. The step takes their mean, and other ops clear them."""
    ops = [host("sum/w", "AddN", "tower_0/mean", "tower_1/mean"), host("zeros", "Const")]
    for i in (0, 1):
        ops += [
            variable(f"own{i}", at=f"GPU:{i}"),
            host(f"own{i}/Assign", "AssignVariableOp", f"own{i}", "zeros"),
            on(i, f"own{i}/add", "AssignAddVariableOp", f"own{i}", gradient(i)),
            on(i, f"own{i}/clear", "AssignVariableOp", f"own{i}", "zeros"),
            on(i, f"tower_{i}/read", "ReadVariableOp", f"own{i}"),
            on(i, f"tower_{i}/mean", "RealDiv", f"tower_{i}/read", "share"),
        ]
    return program(*ops, *changes)


def test_gradients_that_a_tower_adds_up_until_they_are_applied() -> None:
    assert found(summing()) == {"own0": 0, "own1": 1}


@pytest.mark.parametrize("terms", [("own0/value", gradient(0)), (gradient(0), "own0/value")])
def test_a_sum_may_be_assigned(terms: Sequence[str]) -> None:
    graph = summing(
        on(0, "own0/value", "ReadVariableOp", "own0"),
        on(0, "own0/sum", "AddV2", *terms),
        on(0, "own0/add", "AssignVariableOp", "own0", "own0/sum"),
    )

    assert found(graph) == {"own0": 0, "own1": 1}


@pytest.mark.parametrize("kind", ["Sub", "Mul"])
def test_other_results_than_sums_do_not_accumulate(kind: str) -> None:
    graph = summing(
        on(0, "own0/value", "ReadVariableOp", "own0"),
        on(0, "own0/new", kind, gradient(0), "own0/value"),
        on(0, "own0/add", "AssignVariableOp", "own0", "own0/new"),
    )

    assert found(graph) == {"own1": 1}


@pytest.mark.parametrize(
    "op",
    [
        pytest.param(
            on(0, "own0/clear", "AssignVariableOp", "own0", gradient(0)), id="never emptied"
        ),
        pytest.param(host("own0/clear", "AssignVariableOp", "own0", "saved"), id="restored"),
        pytest.param(
            on(0, "own0/add", "AssignAddVariableOp", "own0", "tower_0/x"), id="not of gradients"
        ),
        pytest.param(
            on(0, "own0/add", "AssignVariableOp", "own0", gradient(0)), id="not added to"
        ),
        pytest.param(on(0, "tower_0/loss", "Mul", "tower_0/w/MatMul", "own0"), id="in the loss"),
    ],
)
def test_variables_that_do_not_accumulate_gradients(op: Op) -> None:
    assert found(summing(op, host("saved", "RestoreV2"))) == {"own1": 1}
