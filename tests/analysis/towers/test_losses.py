"""The tower of each loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from support.towers import gradient, host, on, program

from placement_checks import Op
from placement_checks.analysis.towers.analysis import analyze


def losses(*ops: Op, of: Sequence[str], **more: Any) -> tuple[list[list[str]], bool]:
    """The names of the losses of each tower, and whether they are parts of a joint loss."""
    analysis = analyze(program(*ops, step={"objectives": of}, **more))
    names = [[analysis.flow.names[op] for op in of_tower] for of_tower in analysis.losses.by_tower]
    return names, analysis.losses.joint


def test_a_loss_on_the_host_belongs_to_the_tower_it_is_computed_from() -> None:
    ops = [host(f"loss_{i}", "Cast", f"tower_{i}/loss") for i in (0, 1)]

    assert losses(*ops, of=("loss_1", "loss_0")) == ([["loss_0"], ["loss_1"]], False)


def test_a_penalty_that_the_host_computes_belongs_to_no_tower() -> None:
    penalty = host("penalty", "L2Loss", "w")
    expected = ([["tower_0/loss"], ["tower_1/loss"]], False)

    assert losses(penalty, of=("tower_0/loss", "tower_1/loss", "penalty")) == expected


def test_a_loss_of_several_towers_belongs_to_the_tower_without_a_loss() -> None:
    """losses-apart reports this mistake."""
    both = host("both", "AddN", "tower_0/loss", "tower_1/loss")

    assert losses(both, of=("tower_0/loss", "both")) == ([["tower_0/loss"], ["both"]], False)


def test_a_loss_of_all_towers_next_to_the_loss_of_another_network_belongs_to_none() -> None:
    """A generator trains with the last tower alone. Both networks use tower_1/w/MatMul."""
    ops = [
        on(1, "tower_1/fool", "Neg", "tower_1/w/MatMul"),
        host("both", "AddN", "tower_0/loss", "tower_1/loss"),
    ]
    expected = [["tower_0/loss"], ["tower_1/w/MatMul", "tower_1/loss"]]

    assert losses(*ops, of=("tower_1/fool", "both")) == (expected, True)


def test_a_loss_that_contains_a_term_of_another_tower_belongs_to_the_tower_without_a_loss() -> (
    None
):
    """The terms of all towers so far are in one collection."""
    ops = [
        on(0, "tower_0/penalty", "L2Loss", "tower_0/w/MatMul"),
        host("first", "AddN", "tower_0/loss", "tower_0/penalty"),
        host("all", "AddN", "tower_0/loss", "tower_0/penalty", "tower_1/loss"),
    ]
    shapes = dict.fromkeys(("first", "all", "tower_0/loss", "tower_0/penalty"), ())

    found = losses(*ops, of=("first", "all"), outputs=shapes)

    assert found == ([["first"], ["all"]], False)


def test_the_parts_of_one_loss_are_the_last_ops_of_the_towers() -> None:
    """This also holds on the host. The GPU of a constant does not matter."""
    ops = [
        host("squared", "Square", "tower_1/loss"),
        on(0, "half", "Const"),
        host("sum", "AddN", "tower_0/loss", "squared"),
        host("total", "Mul", "half", "sum"),
    ]

    assert losses(*ops, of=("total",)) == ([["tower_0/loss"], ["squared"]], True)


def test_the_penalty_on_its_gradients_is_part_of_a_towers_loss() -> None:
    ops = [host(f"loss_{i}", "AddN", f"tower_{i}/loss", gradient(i)) for i in (0, 1)]

    assert losses(*ops, of=("loss_0", "loss_1")) == ([["loss_0"], ["loss_1"]], False)


def test_joint_losses_as_many_as_towers_belong_to_none() -> None:
    """Two networks with opposite losses."""
    ops = [host(f"{name}_loss", "AddN", "tower_0/loss", "tower_1/loss") for name in "dg"]
    expected = [["tower_0/loss"] * 2, ["tower_1/loss"] * 2]

    assert losses(*ops, of=("d_loss", "g_loss")) == (expected, True)


def test_a_part_on_the_gpu_of_a_tower_belongs_to_it_even_if_it_depends_on_another() -> None:
    """Moments that towers share."""
    shared = on(1, "tower_1/loss", "AddN", "tower_0/loss", "tower_1/w/MatMul")

    assert losses(shared, of=("loss",)) == ([["tower_0/loss"], ["tower_1/loss"]], True)


def test_a_part_that_is_used_twice_is_one() -> None:
    ops = [host("sum", "AddN", "tower_0/loss", "tower_1/loss"), host("twice", "Mul", "sum", "sum")]

    assert losses(*ops, of=("twice",)) == ([["tower_0/loss"], ["tower_1/loss"]], True)


def test_parts_of_a_loss_on_a_gpu_depend_on_one_tower() -> None:
    ops = [
        on(0, "sum", "AddN", "tower_0/loss", "tower_1/loss"),
        on(0, "half", "Const"),
        on(0, "total", "Mul", "sum", "half"),
    ]

    assert losses(*ops, of=("total",)) == ([["tower_0/loss"], ["tower_1/loss"]], True)


def test_ops_of_a_joint_loss_on_a_gpu_work_for_no_tower() -> None:
    """Labels for these ops, and their backward ops, work for no tower either."""
    ops = [
        on(0, "labels", "Placeholder"),
        on(0, "outputs", "ConcatV2", "tower_0/w/MatMul", "tower_1/w/MatMul"),
        on(0, "total", "Mul", "outputs", "labels"),
        on(0, "gradients/total_grad/Mul", "Mul", "total"),
        *(on(0, f"gradients/outputs_grad/{i}", "Slice", "gradients/total_grad/Mul") for i in "01"),
        *(on(i, gradient(i), "MatMul", f"gradients/outputs_grad/{i}") for i in (0, 1)),
    ]
    analysis = analyze(program(*ops, step={"objectives": ["total"]}))

    def tower(name: str) -> int | None:
        return analysis.tower_of[analysis.flow.number[name]]

    towers = [tower(each.name) for each in ops]
    assert towers == [0, None, None, None, 0, 1, 0, 1]
    assert analysis.towers_of(analysis.flow.number["labels"]) == 0
    assert analysis.losses.by_tower == [
        [analysis.flow.number[f"tower_{i}/w/MatMul"]] for i in (0, 1)
    ]


def test_inputs_on_a_gpu_that_feed_all_towers_belong_to_none() -> None:
    ops = [
        on(0, "images", "Placeholder"),
        on(0, "copy", "Identity", "images"),
        *(on(i, f"tower_{i}/x", "StridedSlice", "copy", f"begin_{i}") for i in (0, 1)),
        on(0, "total", "AddN", "tower_0/loss", "tower_1/loss"),
    ]

    assert losses(*ops, of=("total",)) == ([["tower_0/loss"], ["tower_1/loss"]], True)
