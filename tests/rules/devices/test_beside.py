"""What is beside the computation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from support.graphs import op, placement

from placement_checks import Op, Placement
from placement_checks.core.placement import Details, Tensor
from placement_checks.rules.devices.no_fallback import host_only_ops


def fell(name: str, kind: str, *inputs: str, switched: bool = False) -> Op:
    """An op that asks for a GPU and is on the host."""
    return op(name, kind, "/gpu:0", "CPU:0", *inputs, fell_with_another=switched)


def beside(graph: Placement) -> list[str]:
    fallen = {name: each for name, each in graph.ops.items() if each.requested.is_gpu}
    return sorted(host_only_ops(graph, fallen))


@pytest.mark.parametrize(
    ("kind", "is_beside"),
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
def test_what_is_for_people_or_saved(kind: str, is_beside: bool) -> None:
    assert beside(placement(fell("a", kind))) == (["a"] if is_beside else [])


class Outputs(Details):
    """The dtypes of what each op yields."""

    def outputs(self, op: str) -> Sequence[Tensor]:
        return [Tensor(dtype, ()) for dtype in op.split("_")]


@pytest.mark.parametrize(
    ("name", "is_text"), [("string", True), ("string_string", True), ("string_int32", False)]
)
def test_text_has_no_place_on_a_gpu(name: str, is_text: bool) -> None:
    graph = placement(fell(name, "Const"))

    assert beside(replace(graph, details=Outputs())) == ([name] if is_text else [])
    assert beside(graph) == []  # nothing is known of what it yields


@pytest.mark.parametrize(
    ("ops", "found"),
    [
        pytest.param([fell("shown", "ScalarSummary", "a")], ["a", "shown"], id="a summary"),
        pytest.param([op("shown", "Assert", "", "", "a")], ["a"], id="one that asks for no GPU"),
        pytest.param(
            [fell("shown", "ScalarSummary", "a"), op("used", "MatMul", "/cpu:0", "", "a")],
            ["shown"],
            id="and an op of the model",
        ),
        pytest.param(
            [fell("b", "Unique", "a"), fell("shown", "PrintV2", "b")],
            ["a", "b", "shown"],
            id="by way of another",
        ),
        pytest.param([fell("shown", "PrintV2", "^a")], ["shown"], id="one that waits for it"),
        pytest.param([], [], id="nobody"),
    ],
)
def test_what_only_such_ops_take_is_beside_as_well(ops: Sequence[Op], found: list[str]) -> None:
    assert beside(placement(fell("a", "Where"), *ops)) == found


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
    assert beside(placement(value, fell("s", "Switch", "value", "p", switched=switched))) == found


@pytest.mark.parametrize(
    ("dtype", "takers", "is_beside"),
    [
        ("int64", ["CollectiveGatherV2"], True),
        ("int32", ["CollectiveGatherV2", "CollectiveGatherV2"], True),
        ("float32", ["CollectiveGatherV2"], False),
        ("int64", ["CollectiveGatherV2", "MatMul"], False),
        ("int64", ["CollectiveReduceV2"], False),
        ("int64", [], False),
    ],
)
def test_the_numbers_of_rows_that_replicas_tell_each_other(
    dtype: str, takers: Sequence[str], is_beside: bool
) -> None:
    """Replicas that meet different ids fill up theirs, before they give them to the others."""
    graph = placement(
        fell("padded", "Pad"),
        *(op(f"taker_{i}", kind, "/gpu:0", "GPU:0", "padded") for i, kind in enumerate(takers)),
        outputs={"padded": (8,)},
        dtypes={"padded": dtype},
    )

    assert beside(graph) == (["padded"] if is_beside else [])


@pytest.mark.parametrize(
    ("name", "kind", "is_count"),
    [
        ("int64", "CollectiveReduceV2", True),
        ("float32", "CollectiveReduceV2", False),
        ("int64", "ConcatV2", False),
    ],
)
def test_a_count_of_replicas_has_no_place_on_a_gpu(name: str, kind: str, is_count: bool) -> None:
    graph = placement(op("sum", kind, "/gpu:0", "GPU:0"), fell(name, "SplitV", "sum:0"))
    fallen = {name: graph.ops[name]}

    known = replace(graph, details=Outputs())
    assert sorted(host_only_ops(known, fallen)) == ([name] if is_count else [])
