from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.graphs import op, placement

from placement_checks import Device, Evidence, Op
from placement_checks.core.devices import LOCALHOST
from placement_checks.core.missing import Missing
from placement_checks.core.placement import Placement, Tensor, producer_of
from placement_checks.core.settings import Settings


@pytest.mark.parametrize("source", ["scope/conv", "scope/conv:1", "^scope/conv"])
def test_producer_of(source: str) -> None:
    assert producer_of(source) == "scope/conv"


def test_colocations_are_the_ops_bound_to_an_op() -> None:
    graph = placement(
        op("v", "VariableV2"),
        op("init", "Assign", colocated=["v"]),
        op("step", "ApplyAdam", colocated=["v", "m"]),
    )
    assert graph.colocations == {"v": ["init", "step"], "m": ["step"]}


def test_assigned_to_matches_patterns() -> None:
    graph = placement(
        op("a", "MatMul", "/gpu:0", "GPU:0"),
        op("b", "MatMul", "/gpu:0", "GPU:1"),
        op("c", "MatMul", "/gpu:0"),
        op("d", "NoOp", "", "CPU:0"),
    )
    assert [op.name for op in graph.assigned_to(Device(type="GPU"))] == ["a", "b"]


def test_kinds_count_the_ops_of_one_type_and_devices() -> None:
    graph = placement(
        op("a", "MatMul", "/gpu:0", "GPU:0"),
        op("b", "MatMul", "/device:GPU:0", "GPU:0"),
        op("c", "MatMul", "/gpu:0", "GPU:1"),
        op("d", "Relu", "/gpu:0", "GPU:0"),
        op("e", "Relu", "/gpu:0"),
    )
    gpu = Device(type="GPU", index=0)
    first, second = (gpu.over(LOCALHOST), replace(gpu, index=1).over(LOCALHOST))

    assert graph.kinds == {
        ("MatMul", gpu, first): 2,
        ("MatMul", gpu, second): 1,
        ("Relu", gpu, first): 1,
        ("Relu", gpu, None): 1,
    }


def test_requests_survive_the_assignment_of_devices() -> None:
    asked: list[Placement] = []

    def make(placement: Placement) -> int:
        asked.append(placement)
        return len(placement.ops)

    requested = placement(op("a", "Const"))
    requested.cached(make)

    placed = requested.with_assigned({"a": op("a", "Const", "", "/cpu:0")})

    assert placed.cached(make) == 1
    assert asked == [requested]
    assert placed.assigned is True
    assert [each.assigned for each in placed.by_number] == [Device.parse("/cpu:0").over(LOCALHOST)]


def test_where_returns_the_innermost_line() -> None:
    graph = placement(op("a", "Const"), lines={"a": "main.py:9 net.py:3"})
    assert graph.where("a") == "net.py:3"
    assert graph.where("b") is None


SOUND = (op("a", "Add", "", "CPU:0"), op("b", "Mul", "/gpu:0", "GPU:0"), op("c", "NoOp"))


@pytest.mark.parametrize(
    ("ops", "more"),
    [
        (SOUND, {}),
        (SOUND[::-1], {"program": "other.py:build", "machine": "gpu*4", "soft": True}),
        ((op("a", "Add", "/cpu:0", "CPU:0"), *SOUND[1:]), {}),  # requests it, and is there anyway
    ],
)
def test_placements_are_equal_if_the_same_ops_are_on_the_same_devices(
    ops: tuple[Op, ...], more: dict[str, Any]
) -> None:
    assert placement(*SOUND) == placement(*ops, **more)
    assert Evidence(placement(*SOUND)) == placement(*ops, **more)
    assert placement(*SOUND) == Evidence(placement(*ops, **more))
    given = Evidence(placement(*ops, **more), settings=Settings(gpus=4))
    assert Evidence(placement(*SOUND)) == given


@pytest.mark.parametrize(
    ("ops", "more"),
    [
        (SOUND[1:], {}),
        ((op("d", "Add", "", "CPU:0"), *SOUND), {}),
        ((op("a", "Add", "", "GPU:0"), *SOUND[1:]), {}),
        ((op("a", "Add", "", "/job:ps/cpu:0"), *SOUND[1:]), {}),
        (SOUND, {"assigned": Missing("no CUDA build here")}),
        (SOUND, {"complete": Missing("the log is torn")}),
    ],
)
def test_placements_with_other_or_unknown_devices_differ(
    ops: tuple[Op, ...], more: dict[str, Any]
) -> None:
    assert placement(*SOUND) != placement(*ops, **more)
    assert placement(*ops, **more) != placement(*SOUND)
    assert Evidence(placement(*SOUND)) != Evidence(placement(*ops, **more))
    assert Evidence(placement(*SOUND)) != placement(*ops, **more)


def test_a_placement_equals_itself_only() -> None:
    graph = placement(*SOUND, assigned=Missing("no CUDA build here"))

    assert graph == graph
    assert graph != replace(graph)
    assert graph != "train.py:build"
    assert Evidence(graph) != "train.py:build"
    with pytest.raises(TypeError, match="unhashable"):
        hash(graph)


@pytest.mark.parametrize(
    ("dtype", "shape", "size"),
    [
        ("bool", (3,), 3),
        ("int4", (3,), 2),
        ("uint2", (5,), 2),
        ("int8", (3,), 3),
        ("float8_e4m3fn", (3,), 3),
        ("bfloat16", (3, 2), 12),
        ("float32", (3, 2), 24),
        ("float32", (), 4),
        ("complex128", (2,), 32),
        ("float32", (0,), 0),
        ("float32", (7, 0), 0),
        ("float32", None, None),
        ("float32", (None,), None),
        ("float32", (3, None, 0), None),
        ("string", (3,), None),
        ("string", (), None),
        ("resource", (), None),
        ("variant", (), None),
        ("bool", None, None),
    ],
)
def test_the_size_of_a_tensor(
    dtype: str, shape: tuple[int | None, ...] | None, size: int | None
) -> None:
    assert Tensor(dtype, shape).bytes == size
