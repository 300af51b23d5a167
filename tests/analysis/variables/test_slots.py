"""Slots: variables that are kept for other variables."""

from __future__ import annotations

import pytest
from support.towers import host, on, program, variable

from placement_checks import Op, Placement
from placement_checks.analysis.variables.roles import roles
from placement_checks.analysis.variables.slots import find_slots

EMA = "train/w/Average"  # made in a scope: its name does not begin with "w/"


def test_slots_and_averages_by_name() -> None:
    """A longer name without a slash is not a slot."""
    graph = program(
        *map(variable, ("w/Momentum", "w/Momentum/Average", "w2", "step/x/y")),
    )

    assert find_slots(graph).owner_of == {
        "w/Momentum": "w", "w/Momentum/Average": "w", "step/x/y": "step",
    }  # fmt: skip


def test_two_variables_with_updates_that_take_each_other_have_owners() -> None:
    graph = program(
        variable("v"),
        host("update/w", "ResourceApplyMomentum", "w", "v", "rate", "mean/w"),
        host("update/v", "ResourceApplyMomentum", "v", "w", "rate", "mean/w"),
        host("train", "NoOp", "^update/w", "^update/v"),
    )

    assert find_slots(graph).owner_of.keys() == {"v", "w"}


def test_a_copy_of_the_weights_does_not_own_them() -> None:
    """The tower computes with a copy, which is set to the new weights."""
    graph = program(
        variable("copy"),
        on(0, "tower_0/w/read", "ReadVariableOp", "copy"),
        on(1, "tower_1/w/read", "ReadVariableOp", "copy"),
        host("new", "ReadVariableOp", "w", "^update/w"),
        host("set", "AssignVariableOp", "copy", "new"),
        host("train", "NoOp", "^set"),
    )

    assert find_slots(graph).computed == {}


def averaged(*ops: Op, read: str = "w", value: str = "more") -> Placement:
    """A program that moves a variable towards another one."""
    return program(
        variable(EMA),
        host("new", "ReadVariableOp", read),
        host("old", "ReadVariableOp", EMA),
        host("less", "Sub", "old", "new"),
        host("rate", "Const"),
        host("more", "Mul", "less", "rate"),
        *ops,
        host("average", "AssignSubVariableOp", EMA, value),
        host("train", "NoOp", "^update/w", "^step/add", "^average"),
        shapes={"step": ()},
    )


def test_an_average_in_a_scope_belongs_to_the_variable_in_its_update() -> None:
    assert find_slots(averaged()).owner_of == {EMA: "w"}


def test_the_number_of_the_step_may_set_its_rate() -> None:
    steps = host("count", "ReadVariableOp", "step"), host("less2", "Mul", "more", "count")

    assert find_slots(averaged(*steps, value="less2")).owner_of == {EMA: "w"}


@pytest.mark.parametrize(
    "ops",
    [
        pytest.param([host("less2", "Mul", "more", "tower_0/x")], id="examples"),
        pytest.param([host("less2", "Mul", "more", "mean/w")], id="gradients"),
    ],
)
def test_a_variable_with_other_inputs_is_no_average(ops: list[Op]) -> None:
    assert find_slots(averaged(*ops, value="less2")).owner_of == {}


def test_an_average_of_two_trained_variables_belongs_to_none_of_them() -> None:
    other = [
        variable("v"),
        on(0, "tower_0/v", "MatMul", "tower_0/x", "v"),
        on(0, "tower_0/loss", "Add", "tower_0/w/MatMul", "tower_0/v"),
        host("update/v", "ResourceApplyMomentum", "v", "momentum", "rate", "mean/w"),
        host("both", "Add", "more", "v", "^update/v"),
    ]
    graph = averaged(*other, value="both")

    assert find_slots(graph).averages == {EMA: ["w", "v"]}
    assert find_slots(graph).owner_of == {}


def test_momentum_that_is_written_out_belongs_to_the_variable_that_takes_it() -> None:
    graph = program(
        *(variable(name) for name in ("velocity", "rate", "unused")),
        host("slower", "Mul", "velocity", "momentum"),
        host("velocity/new", "AddV2", "slower", "mean/w"),
        host("velocity/set", "AssignVariableOp", "velocity", "velocity/new"),
        host("change", "Mul", "velocity/new", "rate"),
        host("update/w", "AssignSubVariableOp", "w", "change"),
        host("update/unused", "AssignVariableOp", "unused", "mean/w"),
        host("train", "NoOp", "^update/w", "^velocity/set", "^update/unused"),
        shapes={"rate": ()},
    )

    assert find_slots(graph).owner_of == {"velocity": "w"}
    assert str(roles(graph)["velocity"]) == "slot of w"


def test_a_variable_of_another_shape_is_no_average() -> None:
    assert find_slots(averaged(read="step")).owner_of == {}


def test_a_variable_that_a_loss_uses_is_part_of_the_model() -> None:
    """For example a network that follows another one slowly."""
    target = [
        host("target", "ReadVariableOp", EMA),
        on(0, "tower_0/loss", "Sub", "tower_0/w/MatMul", "target"),
    ]

    assert find_slots(averaged(*target)).owner_of == {}
