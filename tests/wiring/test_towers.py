"""Which ops compute with a variable, and which GPUs are towers."""

from __future__ import annotations

import pytest
from graphs import op, placement

from placement_checks.wiring import wiring


def read_by(graph, variable):
    flow = wiring(graph).flow
    return [flow.names[number] for number in wiring(graph).parts.readers[variable]]


@pytest.mark.parametrize("copy", ["Identity", "ReadVariableOp", "Enter", "RefSwitch", "Cast"])
def test_readers_follow_copies_of_the_value(copy):
    graph = placement(
        op("v", "VarHandleOp"),
        op("copy", copy, "", "", "v"),
        op("again", "Identity", "", "", "copy:1"),
        op("conv", "Conv2D", "", "", "x", "again"),
        op("relu", "Relu", "", "", "conv"),
    )
    assert read_by(graph, "v") == ["conv"]


@pytest.mark.parametrize(
    ("type", "reads"),
    [
        ("MatMul", True),
        ("ResourceGather", True),
        ("ScatterNd", True),
        ("AssignVariableOp", False),
        ("ResourceApplyAdam", False),
        ("ResourceScatterAdd", False),
        ("ScatterNdUpdate", False),
        ("VarIsInitializedOp", False),
        ("IsVariableInitialized", False),
        ("VariableShape", False),
        ("SaveV2", False),
        ("DestroyResourceOp", False),
    ],
)
def test_readers_compute_with_the_value(type, reads):
    graph = placement(op("v", "VarHandleOp"), op("user", type, "", "", "v"))
    assert (read_by(graph, "v") == ["user"]) == reads


def test_readers_of_a_value_that_goes_round_a_loop_are_found_once():
    graph = placement(
        op("v", "VariableV2"),
        op("enter", "RefEnter", "", "", "v", "back"),
        op("back", "Identity", "", "", "enter"),
        op("add", "Add", "", "", "enter", "back"),
    )
    assert read_by(graph, "v") == ["add"]


def test_towers_are_the_gpus_asked_for_in_the_order_of_their_numbers():
    """By the request, wherever the placer put them, with the reader that was built first."""
    graph = placement(
        op("w", "VarHandleOp", "/cpu:0", "CPU:0"),
        op("late", "MatMul", "/gpu:10", "CPU:0", "w"),
        op("first", "MatMul", "/gpu:2", "GPU:0", "w"),
        op("second", "MatMul", "/gpu:2", "GPU:0", "w"),
        op("summary", "Mean", "/cpu:0", "CPU:0", "w"),
        op("free", "L2Loss", "", "GPU:0", "w"),
        op("unread", "VarHandleOp", "/gpu:3", "GPU:0"),
    )
    assert [(each.device.short, each.reads) for each in wiring(graph).parts.all] == [
        ("/device:GPU:2", {"w": "first"}),
        ("/device:GPU:10", {"w": "late"}),
    ]


def test_towers_of_a_cluster_are_ordered_by_job_and_task():
    names = ["/job:worker/task:1/gpu:0", "/job:worker/task:0/gpu:1", "/job:chief/task:2/gpu:0"]
    graph = placement(
        op("w", "VarHandleOp"), *(op(name, "MatMul", name, "", "w") for name in names)
    )
    assert [each.reads["w"] for each in wiring(graph).parts.all] == names[::-1]
