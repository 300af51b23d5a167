"""The training step of a program that does not name its train op, and its updates."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from support.towers import host, program, variable

from placement_checks import Op
from placement_checks.analysis.towers.analysis import analyze


def roots(*ops: Op, of: Sequence[str]) -> list[str]:
    analysis = analyze(program(*ops, step={"train_op": (), "train_ops": of}))
    return [analysis.flow.names[op] for op in analysis.updates.roots]


@pytest.mark.parametrize(
    "kind", ["NoOp", "Identity", "IdentityN", "StatefulPartitionedCall", "If", "Case"]
)
def test_the_step_is_the_group_around_the_train_op_of_the_optimizer(kind: str) -> None:
    around = [host("step_and_more", kind, "train"), host("all", "NoOp", "^step_and_more", "^loss")]

    assert roots(*around, of=("train",)) == ["all"]


def test_a_loop_around_a_step_is_not_one_step() -> None:
    assert roots(host("steps", "While", "train"), of=("train",)) == ["train"]


def test_an_op_that_only_computes_with_the_step_is_no_group() -> None:
    assert roots(host("shown", "Add", "train", "one"), of=("train",)) == ["train"]


def test_a_removed_train_op_is_left_out() -> None:
    assert roots(of=("gone", "train")) == ["train"]


def test_three_of_many_train_ops_are_named() -> None:
    graph = program(
        *(host(f"train_{letter}", "NoOp") for letter in "abcd"),
        step={"train_op": (), "train_ops": [f"train_{letter}" for letter in "dcba"]},
    )

    assert (missing := analyze(graph).updates.missing) is not None
    assert missing.reason == (
        "the graph has 4 train ops, train_a, train_b, train_c and 1 more, and it is unknown which "
        "one a step runs"
    )


@pytest.mark.parametrize(
    "inputs", [[], ["gone", "one"], ["tower_0/x", "one"], ["queue", "one"], ["alone", "one"]]
)
def test_an_assignment_without_a_variable_is_no_update(inputs: Sequence[str]) -> None:
    graph = program(
        host("queue", "FIFOQueueV2"),
        host("one", "Const"),
        host("alone", "Identity"),
        host("set", "Assign", *inputs),
        host("train", "NoOp", "^set", "^step/add"),
    )

    assert list(analyze(graph).updates.by_variable) == ["step"]


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("AssignSub", True),
        ("ApplyAdam", True),
        ("ApplyLamb", True),
        ("ScatterNdSub", True),
        ("StridedSliceAssign", True),
        ("CountUpTo", True),
        ("ScatterNd", False),
        ("ScatterNdNonAliasingAdd", False),
        ("AccumulatorApplyGradient", False),
    ],
)
def test_updates_change_their_first_input(kind: str, changes: bool) -> None:
    graph = program(
        variable("v", "VariableV2"),
        host("set", kind, "v", "rows", "values"),
        host("train", "NoOp", "^set"),
    )

    assert ("v" in analyze(graph).updates.by_variable) == changes


def test_nested_branches_are_found_by_their_switches() -> None:
    """Two updates in the inner branches, and one in the other outer branch, exclude each other."""
    graph = program(
        variable("v", "VariableV2"),
        host("outer", "RefSwitch", "v", "pred"),
        host("inner", "RefSwitch", "outer:1", "second"),
        host("first", "AssignAdd", "inner:1", "one"),
        host("second_one", "AssignAdd", "inner", "one"),
        host("other", "AssignAdd", "outer", "one"),
        host("train", "NoOp", "^first", "^second_one", "^other"),
    )
    analysis = analyze(graph)

    assert len(analysis.updates.by_variable["v"]) == 3
    assert len(analysis.updates.select_for_one_step(analysis.updates.by_variable["v"])) == 1


def test_updates_that_run_at_once_are_in_the_order_of_building() -> None:
    """Updates of one branch, between updates outside of branches."""
    graph = program(
        variable("v", "VariableV2"),
        host("cond/Switch", "RefSwitch", "v", "pred"),
        host("cond/first", "AssignAdd", "cond/Switch:1", "one"),
        host("always", "AssignAdd", "v", "one"),
        host("cond/other", "AssignAdd", "cond/Switch", "one"),
        host("train", "NoOp", "^cond/first", "^always", "^cond/other"),
    )
    analysis = analyze(graph)

    found = analysis.updates.select_for_one_step(analysis.updates.by_variable["v"])

    assert [analysis.flow.names[update.op] for update in found] == ["cond/first", "always"]
