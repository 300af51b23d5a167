"""The GPU that each op works for."""

from __future__ import annotations

from typing import Any

import pytest
from support.graphs import op, placement
from support.towers import host, on, program, variable

from placement_checks import Op, Placement
from placement_checks.analysis.towers.analysis import analyze
from placement_checks.core.placement import StepOps


def home(graph: Placement, name: str) -> str | None:
    found = analyze(graph).sites[analyze(graph).flow.number[name]]
    return None if found is None else found.device.short


def lookup(*takers: Op, kind: str = "ResourceGather", **more: Any) -> Placement:
    """A lookup for the second tower, colocated with its table on the GPU of the first."""
    return program(
        variable("table", at="GPU:0"),
        on(0, "row", kind, "table", "tower_1/x", colocated=["table"]),
        *takers,
        **more,
    )


def test_a_lookup_works_for_the_tower_that_uses_it_and_not_for_the_gpu_of_its_table() -> None:
    graph = lookup(on(1, "tower_1/w/MatMul", "MatMul", "row", "tower_1/w/read"))

    assert home(graph, "row") == "/device:GPU:1"
    assert "table" in analyze(graph).towers[1].reads
    assert "table" not in analyze(graph).towers[0].reads


def test_an_op_between_two_towers_works_for_the_next_user() -> None:
    """Even if the host uses the value in between."""
    graph = lookup(
        host("scaled", "Mul", "row", "factor"),
        on(1, "tower_1/w/MatMul", "MatMul", "scaled", "tower_1/w/read"),
    )

    assert home(graph, "row") == "/device:GPU:1"
    assert home(graph, "scaled") is None


def test_an_unused_op_works_for_the_tower_of_its_inputs() -> None:
    graph = program(on(0, "beside", "ScalarSummary", "tower_1/loss", colocated=["w"]))

    assert home(graph, "beside") == "/device:GPU:1"


def test_the_device_of_a_variable_does_not_decide() -> None:
    """Otherwise every lookup would work for the GPU of the table."""
    graph = program(
        variable("table", at="GPU:0"),
        on(0, "norm", "L2Loss", "table", colocated=["table"]),
        host("shown", "ScalarSummary", "norm"),
    )

    assert home(graph, "norm") == "/device:GPU:0"  # as it asks: there is nothing else to go by


@pytest.mark.parametrize("taken", ["", "^"])
def test_an_op_that_both_towers_use_is_shared(taken: str) -> None:
    """A penalty that the first tower computes; a control edge does not use it."""
    graph = program(
        on(0, "penalty", "L2Loss", "tower_0/w/read"),
        on(0, "tower_0/loss", "AddN", "tower_0/w/MatMul", "penalty"),
        on(1, "tower_1/loss", "AddN", "tower_1/w/MatMul", f"{taken}penalty"),
    )

    assert home(graph, "penalty") == ("/device:GPU:0" if taken else None)
    assert analyze(graph).tower_of[analyze(graph).flow.number["penalty"]] == (0 if taken else None)


def test_an_op_that_depends_on_examples_works_for_the_requested_gpu() -> None:
    """Even if the other tower uses it: losses-apart reports this mistake."""
    graph = program(on(1, "tower_1/loss", "AddN", "tower_0/loss", "tower_1/w/MatMul"))

    assert home(graph, "tower_0/loss") == "/device:GPU:0"


def test_a_total_on_one_gpu_does_not_move_the_towers() -> None:
    """Towers and their inputs stay on their own GPUs."""
    graph = lookup(
        on(1, "tower_1/w/MatMul", "MatMul", "row", "tower_1/w/read"),
        on(0, "total", "AddN", "tower_0/loss", "tower_1/loss"),
    )

    assert home(graph, "row") == "/device:GPU:1"


@pytest.mark.parametrize(
    "taker",
    [
        pytest.param(host("set", "AssignVariableOp", "mean", "moved"), id="an assignment"),
        pytest.param(
            on(1, "gradients/late_grad/Mul", "Mul", "moved"), id="an op of the backward pass"
        ),
    ],
)
def test_assignments_and_the_backward_pass_do_not_decide(taker: Op) -> None:
    graph = program(
        variable("mean", at="GPU:0"),
        on(0, "moved", "Mul", "mean", "decay", colocated=["mean"]),
        taker,
        on(1, "tower_1/after", "Mean", "set"),
    )

    assert home(graph, "moved") == "/device:GPU:0"


def test_an_op_of_a_loop_is_used_by_the_next_iteration() -> None:
    graph = placement(
        op("x", "Placeholder"),
        op("table", "VariableV2", "/gpu:0"),
        op("merge", "Merge", "", "", "x", "next"),
        on(1, "body", "Tanh", "merge"),
        on(0, "row", "Gather", "table", "ids", colocated=["table"]),
        on(0, "rows", "Add", "row", "zero", colocated=["table"]),
        op("next", "NextIteration", "", "", "rows"),
    )

    assert home(graph, "row") == home(graph, "rows") == "/device:GPU:1"


def test_with_one_gpu_every_op_works_for_the_requested_gpu() -> None:
    graph = lookup(on(0, "taker", "Mul", "row"), gpus=[0, 0])

    assert home(graph, "row") == "/device:GPU:0"


def test_in_a_cluster_the_task_counts() -> None:
    tasks = [f"/job:worker/task:{task}/gpu:0" for task in (0, 1)]
    graph = placement(
        op("x", "Placeholder"),
        op("table", "VarHandleOp", tasks[0]),
        op("row", "ResourceGather", tasks[0], "", "table", "x", colocated=["table"]),
        op("logits", "MatMul", tasks[1], "", "row", "x"),
    )

    assert home(graph, "row") == "/job:worker/task:1/device:GPU:0"


def test_without_a_known_step() -> None:
    graph = lookup(
        on(1, "tower_1/w/MatMul", "MatMul", "row", "tower_1/w/read"), step=StepOps()._asdict()
    )

    assert home(graph, "row") == "/device:GPU:1"
