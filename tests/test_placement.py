from __future__ import annotations

import networkx as nx
import pytest
from graphs import op, placement
from hypothesis import given
from hypothesis import strategies as st

from placement_checks import Device
from placement_checks.placement import producer_of


@pytest.mark.parametrize("source", ["scope/conv", "scope/conv:1", "^scope/conv"])
def test_producer_of(source):
    assert producer_of(source) == "scope/conv"


def test_consumers_count_once_and_by_control_edges_too():
    graph = placement(
        op("a", "Const"),
        op("twice", "Mul", "", "", "a", "a:0"),
        op("after", "NoOp", "", "", "^a"),
    )
    assert [each.name for each in graph.consumers["a"]] == ["twice", "after"]
    assert "after" not in graph.consumers


def test_colocations_are_those_bound_to_an_op():
    graph = placement(
        op("v", "VariableV2"),
        op("init", "Assign", colocated=["v"]),
        op("step", "ApplyAdam", colocated=["v", "m"]),
    )
    assert graph.colocations == {"v": ["init", "step"], "m": ["step"]}


def test_assigned_to_takes_partial_patterns_and_passes_over_the_unplaced():
    graph = placement(
        op("a", "MatMul", "/gpu:0", "GPU:0"),
        op("b", "MatMul", "/gpu:0", "GPU:1"),
        op("c", "MatMul", "/gpu:0"),
        op("d", "NoOp", "", "CPU:0"),
    )
    assert [each.name for each in graph.assigned_to(Device(type="GPU"))] == ["a", "b"]


def test_where_is_the_outermost_line():
    graph = placement(op("a", "Const"), lines={"a": "main.py:9 net.py:3"})
    assert graph.where("a") == "main.py:9"
    assert graph.where("b") is None


@pytest.mark.parametrize("copy", ["Identity", "ReadVariableOp", "Enter", "RefSwitch", "Cast"])
def test_readers_follow_copies_of_the_value(copy):
    graph = placement(
        op("v", "VarHandleOp"),
        op("copy", copy, "", "", "v"),
        op("again", "Identity", "", "", "copy:1"),
        op("conv", "Conv2D", "", "", "x", "again"),
        op("relu", "Relu", "", "", "conv"),
    )
    assert [each.name for each in graph.readers("v")] == ["conv"]


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
    assert ([each.name for each in graph.readers("v")] == ["user"]) == reads


def test_readers_of_a_value_that_goes_round_a_loop_are_found_once():
    graph = placement(
        op("v", "VariableV2"),
        op("enter", "RefEnter", "", "", "v", "back"),
        op("back", "Identity", "", "", "enter"),
        op("add", "Add", "", "", "enter", "back"),
    )
    assert [each.name for each in graph.readers("v")] == ["add"]


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
    assert [(each.device.short, each.reads) for each in graph.towers] == [
        ("/device:GPU:2", {"w": "first"}),
        ("/device:GPU:10", {"w": "late"}),
    ]


def test_towers_of_a_cluster_are_ordered_by_job_and_task():
    names = ["/job:worker/task:1/gpu:0", "/job:worker/task:0/gpu:1", "/job:chief/task:2/gpu:0"]
    graph = placement(
        op("w", "VarHandleOp"), *(op(name, "MatMul", name, "", "w") for name in names)
    )
    assert [each.reads["w"] for each in graph.towers] == names[::-1]


@st.composite
def graphs(draw):
    """Ops 0..n with edges either way between them, so loops too, and some sources among them."""
    size = draw(st.integers(1, 9))
    names = [f"op{number}" for number in range(size)]
    edge = st.tuples(st.sampled_from(["", "^"]), st.sampled_from(names), st.sampled_from([0, 1]))
    ops = []
    for name in names:
        inputs = [
            f"^{producer}" if control else f"{producer}:{output}" if output else producer
            for control, producer, output in draw(st.lists(edge, max_size=4))
        ]
        kind = draw(st.sampled_from(["Add", "Add", "Shape", "ZerosLike"]))
        ops.append(op(name, kind, "", "", *inputs))
    return placement(*ops), draw(st.sets(st.sampled_from(names)))


@given(graphs())
def test_influenced_is_what_values_reach(case):
    graph, sources = case
    values = nx.DiGraph()
    values.add_nodes_from(graph.ops)
    values.add_edges_from(
        (source.split(":")[0], each.name)
        for each in graph.ops.values()
        for source in each.inputs
        if not source.startswith("^") and each.type == "Add"
    )
    reached = {near for source in sources for near in values.successors(source)}
    expected = reached.union(*(nx.descendants(values, near) for near in reached))
    assert graph.influenced(sources) == expected
