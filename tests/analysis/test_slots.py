"""Slots: variables that are kept for other variables."""

from __future__ import annotations

import pytest
from support.towers import host, on, program, variable

from placement_checks import Op, Placement
from placement_checks.analysis.addresses import addresses

EMA = "train/w/Average"  # made in a scope: its name does not begin with "w/"


def test_slots_and_averages_by_name() -> None:
    """A longer name without a slash is not a slot."""
    graph = program(
        *map(variable, ("w/Momentum", "w/Momentum/Average", "w2", "step/x/y")),
    )

    assert addresses(graph).slot_of == {
        "w/Momentum": "w", "w/Momentum/Average": "w", "step/x/y": "step",
    }  # fmt: skip


def test_two_variables_with_updates_that_take_each_other_have_owners() -> None:
    graph = program(
        variable("v"),
        host("update/w", "ResourceApplyMomentum", "w", "v", "rate", "mean/w"),
        host("update/v", "ResourceApplyMomentum", "v", "w", "rate", "mean/w"),
        host("train", "NoOp", "^update/w", "^update/v"),
    )

    assert addresses(graph).slot_of.keys() == {"v", "w"}


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
    assert addresses(averaged()).slot_of == {EMA: "w"}


def test_the_number_of_the_step_may_set_its_rate() -> None:
    steps = host("count", "ReadVariableOp", "step"), host("less2", "Mul", "more", "count")

    assert addresses(averaged(*steps, value="less2")).slot_of == {EMA: "w"}


@pytest.mark.parametrize(
    "ops",
    [
        pytest.param([host("less2", "Mul", "more", "tower_0/x")], id="examples"),
        pytest.param([host("less2", "Mul", "more", "mean/w")], id="gradients"),
        pytest.param(
            [
                variable("v"),
                host("also", "ReadVariableOp", "v"),
                host("less2", "Add", "more", "also"),
            ],
            id="two variables",
        ),
        pytest.param(
            [host(f"more{n}", "Neg", f"more{n - 1}" if n else "more") for n in range(100)]
            + [host("less2", "Neg", "more99")],
            id="a long computation",
        ),
    ],
)
def test_a_variable_with_other_inputs_is_no_average(ops: list[Op]) -> None:
    assert addresses(averaged(*ops, value="less2")).slot_of == {}


def test_a_variable_of_another_shape_is_no_average() -> None:
    assert addresses(averaged(read="step")).slot_of == {}


def test_a_variable_that_a_loss_uses_is_part_of_the_model() -> None:
    """For example a network that follows another one slowly."""
    target = [
        host("target", "ReadVariableOp", EMA),
        on(0, "tower_0/loss", "Sub", "tower_0/w/MatMul", "target"),
    ]

    assert addresses(averaged(*target)).slot_of == {}
