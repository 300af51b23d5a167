"""Variables in which each tower adds up what the program shows."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from towers import accumulating, host, on, program, variable

from placement_checks import Op, Placement
from placement_checks.analysis.accumulators import accumulators
from placement_checks.core.placement import TRAINABLE

BOTH = {"shown0": 0, "shown1": 1}


def found(graph: Placement) -> dict[str, int]:
    return accumulators(graph).tower_of


@pytest.mark.parametrize(
    "ops",
    [
        pytest.param([], id="that nothing reads yet"),
        pytest.param(
            [
                host("all", "AddN", "shown0", "shown1"),
                host("report", "ScalarSummary", "tag", "all"),
                *(host(f"reset{i}", "Assign", f"shown{i}", "zeros") for i in (0, 1)),
                host("zeros", "Const"),
            ],
            id="that the host adds up, shows and resets",
        ),
        pytest.param(
            [
                host("apart", "Sub", "shown0", "tower_1/w/MatMul"),
                host("report", "ScalarSummary", "tag", "apart"),
            ],
            id="that is shown beside what another tower computes",
        ),
        pytest.param(
            [
                on(0, "is_set", "IsVariableInitialized", "shown0"),
                on(0, "switched", "Switch", "shown0", "is_set"),
                on(0, "value", "Switch", "tower_0/w/MatMul", "is_set"),
                on(0, "tower_0/add", "AssignAdd", "switched", "value"),
                on(0, "first", "Assign", "switched:1", "value:1"),
                on(0, "either", "Merge", "tower_0/add", "first"),
            ],
            id="that is set at first",
        ),
    ],
)
def test_what_a_tower_adds_up_to_be_shown(ops: Sequence[Op]) -> None:
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
            host("loss", "AddN", "tower_0/loss", "tower_0/add"), id="in the loss that is told"
        ),
        pytest.param(on(0, "predict", "Sub", "tower_0/x", "shown0"), id="evaluated with"),
        pytest.param(
            host("update/w", "ResourceApplyAdam", "w", "shown0", "mean/w"), id="taken by an update"
        ),
    ],
)
def test_what_is_no_accumulator(op: Op) -> None:
    assert found(accumulating(op)) == {"shown1": 1}


def test_a_moving_average_is_none() -> None:
    """Evaluation reads it."""
    graph = accumulating(
        on(0, "apart", "Sub", "tower_0/w/MatMul", "shown0"),
        on(0, "tower_0/add", "AssignAddVariableOp", "shown0", "apart"),
    )

    assert found(graph) == {"shown1": 1}


def test_what_is_trainable_is_none() -> None:
    assert found(accumulating(collections={TRAINABLE: ["w", "shown1"]})) == {"shown0": 0}


def test_the_counter_of_a_program_is_none() -> None:
    assert found(program(variable("other"))) == {}
