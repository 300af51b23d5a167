"""Ops that need no GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from support.graphs import op, placement

from placement_checks import Op, Placement
from placement_checks.core.placement import Details, Tensor
from placement_checks.rules.devices.no_fallback import host_only_ops


def fallen_op(name: str, kind: str, *inputs: str, switched: bool = False) -> Op:
    """An op that requests a GPU and is on the host."""
    return op(name, kind, "/gpu:0", "CPU:0", *inputs, fell_with_another=switched)


def host_only(graph: Placement) -> list[str]:
    fallen = {name: each for name, each in graph.ops.items() if each.requested.is_gpu}
    return sorted(host_only_ops(graph, fallen))


@pytest.mark.parametrize(
    ("kind", "is_host_only"),
    [
        ("ScalarSummary", True),
        ("MergeSummary", True),
        ("WriteScalarSummary", True),
        ("Assert", True),
        ("PrintV2", True),
        ("SaveV2", True),
        ("RestoreV2", True),
        ("Print", False),
        ("MatMul", False),
        ("Where", False),
    ],
)
def test_output_and_saver_ops_need_no_gpu(kind: str, is_host_only: bool) -> None:
    assert host_only(placement(fallen_op("a", kind))) == (["a"] if is_host_only else [])


class Outputs(Details):
    """Output dtypes as in the name of the op."""

    def outputs(self, op: str) -> Sequence[Tensor]:
        return [Tensor(dtype, ()) for dtype in op.split("_")]


@pytest.mark.parametrize(
    ("name", "is_text"), [("string", True), ("string_string", True), ("string_int32", False)]
)
def test_text_needs_no_gpu(name: str, is_text: bool) -> None:
    graph = placement(fallen_op(name, "Const"))

    assert host_only(replace(graph, details=Outputs())) == ([name] if is_text else [])
    assert host_only(graph) == []  # its outputs are unknown


@pytest.mark.parametrize(
    ("ops", "found"),
    [
        pytest.param([fallen_op("shown", "ScalarSummary", "a")], ["a", "shown"], id="a summary"),
        pytest.param([op("shown", "Assert", "", "", "a")], ["a"], id="one that requests no GPU"),
        pytest.param(
            [fallen_op("shown", "ScalarSummary", "a"), op("used", "MatMul", "/cpu:0", "", "a")],
            ["shown"],
            id="and an op of the model",
        ),
        pytest.param(
            [fallen_op("b", "Unique", "a"), fallen_op("shown", "PrintV2", "b")],
            ["a", "b", "shown"],
            id="by way of another",
        ),
        pytest.param([fallen_op("shown", "PrintV2", "^a")], ["shown"], id="one that waits for it"),
        pytest.param([], [], id="nobody"),
    ],
)
def test_ops_that_only_such_ops_use_need_no_gpu(ops: Sequence[Op], found: list[str]) -> None:
    assert host_only(placement(fallen_op("a", "Where"), *ops)) == found


@pytest.mark.parametrize(
    ("value", "switched", "found"),
    [
        pytest.param(op("value", "Placeholder", "", "CPU:0"), True, ["s"], id="a predicate"),
        pytest.param(op("value", "Placeholder", "", "CPU:0"), False, [], id="for its own reason"),
        pytest.param(op("value", "Greater", "/gpu:0", "CPU:0"), True, [], id="one that fell"),
        pytest.param(op("value", "Greater", "", "GPU:0"), True, [], id="one that is on a GPU"),
        pytest.param(op("value", "VariableV2", "", "CPU:0"), True, [], id="a variable"),
        pytest.param(op("other", "Greater", "", "CPU:0"), True, [], id="one that is gone"),
    ],
)
def test_the_switch_of_a_value_that_is_on_the_host(
    value: Op, switched: bool, found: Sequence[str]
) -> None:
    assert (
        host_only(placement(value, fallen_op("s", "Switch", "value", "p", switched=switched)))
        == found
    )


@pytest.mark.parametrize(
    ("dtype", "takers", "is_host_only"),
    [
        ("int64", ["CollectiveGatherV2"], True),
        ("int32", ["CollectiveGatherV2", "CollectiveGatherV2"], True),
        ("float32", ["CollectiveGatherV2"], False),
        ("int64", ["CollectiveGatherV2", "MatMul"], False),
        ("int64", ["CollectiveReduceV2"], False),
        ("int64", [], False),
    ],
)
def test_row_numbers_that_replicas_exchange_need_no_gpu(
    dtype: str, takers: Sequence[str], is_host_only: bool
) -> None:
    """Replicas that meet different ids fill up theirs, before they give them to the others."""
    graph = placement(
        fallen_op("padded", "Pad"),
        *(op(f"taker_{i}", kind, "/gpu:0", "GPU:0", "padded") for i, kind in enumerate(takers)),
        outputs={"padded": (8,)},
        dtypes={"padded": dtype},
    )

    assert host_only(graph) == (["padded"] if is_host_only else [])


@pytest.mark.parametrize(
    ("name", "kind", "is_count"),
    [
        ("int64", "CollectiveReduceV2", True),
        ("float32", "CollectiveReduceV2", False),
        ("int64", "ConcatV2", False),
    ],
)
def test_a_count_of_replicas_needs_no_gpu(name: str, kind: str, is_count: bool) -> None:
    graph = placement(op("sum", kind, "/gpu:0", "GPU:0"), fallen_op(name, "SplitV", "sum:0"))
    fallen = {name: graph.ops[name]}

    known = replace(graph, details=Outputs())
    assert sorted(host_only_ops(known, fallen)) == ([name] if is_count else [])
