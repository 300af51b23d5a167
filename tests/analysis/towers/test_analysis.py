"""The tower that each op works for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from support.graphs import op, placement
from support.towers import host, on, program, variable

from placement_checks import Op, Placement
from placement_checks.analysis.towers.analysis import analyze
from placement_checks.core.placement import StepOps


def tower_of(name: str, *ops: Op, **more: Any) -> int | None:
    graph = program(*ops, **more)
    return analyze(graph).tower_of[analyze(graph).flow.number[name]]


@pytest.mark.parametrize(
    ("ops", "tower"),
    [
        pytest.param([on(1, "a", "Tanh", "tower_1/loss")], 1, id="requested there"),
        pytest.param([host("a", "Tanh", "tower_1/loss")], None, id="requested on the host"),
        pytest.param([on(2, "a", "Tanh", "tower_1/loss")], None, id="on a GPU without a tower"),
        pytest.param([op("a", "Tanh", "", "", "tower_1/loss")], None, id="no request"),
        pytest.param(
            [op("a", "Tanh", "", "", colocated=["tower_1/loss"])],
            1,
            id="colocated with an op of a tower",
        ),
        pytest.param(
            [op("a", "Tanh", "", "", colocated=["gone", "tower_1/loss"])],
            1,
            id="colocated with a removed op, and with an op of a tower",
        ),
        pytest.param(
            [host("a", "Tanh", colocated=["tower_1/loss"])],
            None,
            id="colocated, but requested elsewhere",
        ),
        pytest.param(
            [op("a", "Tanh", "", "", colocated=["w"])], None, id="colocated with an op of the host"
        ),
    ],
)
def test_an_op_works_for_the_tower_on_the_gpu_that_it_requests(
    ops: Sequence[Op], tower: int
) -> None:
    assert tower_of("a", *ops, machine="gpu*3") == tower


def test_a_saved_graph_may_have_an_op_before_the_op_it_is_colocated_with() -> None:
    graph = program()
    early = op("early", "Tanh", "", "", colocated=["tower_1/loss"])

    assert analyze(replace(graph, ops={"early": early, **graph.ops})).tower_of[0] is None


@pytest.mark.parametrize("requested", ["", "/gpu:0", "/cpu:0"])
def test_a_backward_op_works_for_the_tower_of_its_forward_op(requested: str) -> None:
    """Gradients that are computed outside the scopes of towers request no device, or another."""
    late = op("gradients/tower_1/w/MatMul_grad/Reshape", "Reshape", requested, "", "tower_1/loss")

    assert tower_of(late.name, late) == 1


def test_a_backward_op_of_the_first_tower_on_the_gpu_of_the_second_works_for_the_first() -> None:
    late = on(1, "gradients/tower_0/w/MatMul_grad/Reshape", "Reshape", "tower_0/loss")

    assert tower_of(late.name, late) == 0


def test_a_backward_op_without_forward_op_works_for_the_requested_gpu() -> None:
    late = on(1, "gradients/loss_grad/Reshape", "Reshape", "loss")

    assert tower_of(late.name, late) == 1


def evaluated(gpu: int, **more: Any) -> Placement:
    """The towers, and a copy of the model without gradients on another GPU."""
    return program(
        on(gpu, "eval/x", "Placeholder"),
        on(gpu, "eval/read", "ReadVariableOp", "w"),
        on(gpu, "eval/MatMul", "MatMul", "eval/x", "eval/read"),
        machine="gpu*3",
        **more,
    )


def test_a_copy_that_only_evaluates_is_no_tower() -> None:
    assert [str(tower) for tower in analyze(evaluated(2)).towers] == [
        "/device:GPU:0",
        "/device:GPU:1",
    ]


def test_every_copy_is_a_tower_if_the_step_is_unknown() -> None:
    assert len(analyze(evaluated(2, step={"train_op": ()})).towers) == 3


def test_a_copy_in_the_step_is_a_tower_even_without_gradients() -> None:
    graph = evaluated(2)
    train = graph.ops["train"]
    ops = {**graph.ops, "train": train._replace(inputs=[*train.inputs, "^eval/MatMul"])}

    assert len(analyze(replace(graph, ops=ops)).towers) == 3


def test_copies_that_only_predict_are_towers_if_no_gpu_trains() -> None:
    """The program trains on the host."""
    graph = placement(
        variable("w"),
        variable("head"),
        *(on(i, f"predict_{i}", "MatMul", "x", "w") for i in (0, 1)),
        host("loss", "MatMul", "x", "head"),
        host("gradients/loss_grad/MatMul", "MatMul", "loss"),
        host("update", "ResourceApplyGradientDescent", "head", "gradients/loss_grad/MatMul"),
        step=StepOps(train_op=("update",), objectives=("loss",)),
    )

    assert len(analyze(graph).towers) == 2


def test_every_copy_is_a_tower_if_there_are_no_gradients() -> None:
    assert len(analyze(evaluated(2, step={"backward": ()})).towers) == 3


def test_the_body_of_a_backward_function_is_part_of_the_backward_pass() -> None:
    graph = placement(
        op("forward", "PartitionedCall"),
        op("forward/Relu", "Relu", caller="forward"),
        op("back", "PartitionedCall"),
        op("back/ReluGrad", "ReluGrad", caller="back"),
        step=StepOps(backward={"back"}),
    )

    assert list(analyze(graph).backward.ops) == [0, 0, 1, 1]


def test_a_backward_op_may_lack_its_forward_op() -> None:
    """A graph that was reduced for serving."""
    graph = placement(op("gradients/gone_grad/Mul", "Mul"), op("kept", "Relu"))

    assert analyze(graph).backward.forward == {}


@pytest.mark.parametrize(
    "ops",
    [
        pytest.param([host("shown", "Mean", "tower_1/x")], id="its input"),
        pytest.param(
            [on(1, "penalty", "L2Loss", "w"), host("shown", "Mean", "penalty")],
            id="a value of a variable alone",
        ),
        pytest.param(
            [
                on(1, "gradients/tower_1/loss_grad/Fill", "Fill"),
                host("shown", "Mean", "gradients/tower_1/loss_grad/Fill"),
            ],
            id="the first op of its backward pass",
        ),
    ],
)
def test_values_that_start_in_a_tower_depend_on_it(ops: Sequence[Op]) -> None:
    analysis = analyze(program(*ops))

    assert list(analysis.towers_in(analysis.towers_behind[analysis.flow.number["shown"]])) == [1]
