from __future__ import annotations

from dataclasses import replace

import pytest
from graphs import op, placement

from placement_checks import Device
from placement_checks.core.devices import LOCALHOST
from placement_checks.core.placement import Placement, Tensor, producer_of


@pytest.mark.parametrize("source", ["scope/conv", "scope/conv:1", "^scope/conv"])
def test_producer_of(source: str) -> None:
    assert producer_of(source) == "scope/conv"


def test_colocations_are_those_bound_to_an_op() -> None:
    graph = placement(
        op("v", "VariableV2"),
        op("init", "Assign", colocated=["v"]),
        op("step", "ApplyAdam", colocated=["v", "m"]),
    )
    assert graph.colocations == {"v": ["init", "step"], "m": ["step"]}


def test_assigned_to_takes_partial_patterns_and_passes_over_the_unplaced() -> None:
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


def test_what_is_known_of_requests_is_kept_when_devices_are_assigned() -> None:
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


def test_where_is_the_innermost_line() -> None:
    graph = placement(op("a", "Const"), lines={"a": "main.py:9 net.py:3"})
    assert graph.where("a") == "net.py:3"
    assert graph.where("b") is None


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
