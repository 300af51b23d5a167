"""The edges of a graph, compared with the graph algorithms of networkx."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.graphs import op, placement

from placement_checks import Placement
from placement_checks.analysis.graph.data_flow import DataFlow
from placement_checks.core.ids import OpId
from placement_checks.core.placement import producer_of


@st.composite
def graphs(draw: st.DrawFn) -> tuple[Placement, set[OpId]]:
    """Ops 0..n with edges in both directions, so with loops too, and some of the ops."""
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
    return placement(*ops), draw(st.sets(st.integers(0, size - 1).map(OpId)))


def value_edges(graph: Placement) -> Any:
    """The data edges, as a graph of networkx."""
    values = nx.DiGraph()
    values.add_nodes_from(graph.ops)
    values.add_edges_from(
        (source.split(":")[0], op.name)
        for op in graph.ops.values()
        for source in op.inputs
        if not source.startswith("^") and op.type == "Add"
    )
    return values


@given(graphs(), st.booleans())
def test_propagated_masks_have_the_bits_of_all_ops_that_reach_an_op(
    case: tuple[Placement, set[OpId]], to_inputs: bool
) -> None:
    graph, sources = case
    flow = DataFlow(graph)
    values = value_edges(graph)
    reaching = nx.descendants if to_inputs else nx.ancestors

    masks = flow.propagate(
        [1 << number if number in sources else 0 for number in range(len(graph.ops))],
        to_inputs=to_inputs,
    )

    for number, name in enumerate(flow.names):
        expected = reaching(values, name) | {name}
        assert masks[number] == sum(
            1 << number for number in sources if flow.names[number] in expected
        )


@given(graphs(), st.booleans(), st.data())
def test_an_op_with_fixed_bits_gets_no_others(
    case: tuple[Placement, set[OpId]], to_inputs: bool, data: st.DataObject
) -> None:
    graph, sources = case
    flow = DataFlow(graph)
    keep = data.draw(st.lists(st.booleans(), min_size=len(graph.ops), max_size=len(graph.ops)))
    edges = value_edges(graph)
    edges = edges.reverse() if to_inputs else edges
    edges.remove_edges_from(
        [(one, other) for one, other in edges.edges if keep[flow.number[other]]]
    )

    masks = flow.propagate(flow.marks([sources]), to_inputs=to_inputs, keep=keep)

    names = {flow.names[number] for number in sources}
    reached = names.union(*(nx.descendants(edges, name) for name in names))
    assert {name for name, mask in zip(flow.names, masks, strict=True) if mask} == reached


@given(graphs(), st.data())
def test_reachable_ops_end_at_the_given_ops(
    case: tuple[Placement, set[OpId]], data: st.DataObject
) -> None:
    graph, start = case
    flow = DataFlow(graph)
    until = data.draw(st.sets(st.integers(0, len(graph.ops) - 1)))
    forward = value_edges(graph)

    for along, edges in ((None, forward.reverse()), (flow.consumers, forward.copy())):
        edges.remove_edges_from([edge for edge in edges.edges if flow.number[edge[0]] in until])
        names = {flow.names[number] for number in start}
        expected = names.union(*(nx.descendants(edges, name) for name in names))

        reached = flow.reachable(start, along, until=until.__contains__)

        assert {flow.names[number] for number in reached} == expected


def test_the_search_may_follow_a_mapping_or_a_function() -> None:
    flow = DataFlow(placement(*(op(name, "Add") for name in "abcd")))
    a, b, c, _ = flow.ops
    edges = {a: [b, c], b: [], c: [a]}

    assert flow.reachable([a], along=edges) == {a, b, c}
    assert flow.reachable(
        [a], along=lambda op: flow.ops[op + 1 : op + 2], until=[c].__contains__
    ) == {a, b, c}


def test_masks_along_some_edges_only() -> None:
    graph = placement(op("a", "Add"), op("b", "Add", "", "", "a"), op("c", "Add", "", "", "b"))

    flow = DataFlow(graph)

    assert flow.propagate([1, 0, 0], along=[[], [flow.ops[0]], []]) == [1, 1, 0]


def test_marks_number_the_groups_of_an_op() -> None:
    graph = placement(op("a", "Add"), op("b", "Add"), op("c", "Add"))

    a, b, _ = DataFlow(graph).ops

    assert DataFlow(graph).marks([[a, b], [b]]) == [1, 3, 0]


@given(graphs())
def test_all_awaited_ops_are_reachable_along_all_inputs(
    case: tuple[Placement, set[OpId]],
) -> None:
    graph, starts = case
    flow = DataFlow(graph)
    edges = nx.DiGraph()
    edges.add_nodes_from(graph.ops)
    edges.add_edges_from(
        (producer_of(source), op.name) for op in graph.ops.values() for source in op.inputs
    )

    needed = flow.reachable(starts, along=flow.all_inputs)

    names = {flow.names[number] for number in starts}
    expected = names.union(*(nx.ancestors(edges, name) for name in names))
    assert {flow.names[number] for number in needed} == expected


@given(graphs(), st.data())
def test_a_path_is_shortest(case: tuple[Placement, set[OpId]], data: st.DataObject) -> None:
    graph, ends = case
    flow = DataFlow(graph)
    values = value_edges(graph).reverse()
    start = data.draw(st.sampled_from(flow.ops))

    path = flow.path(start, lambda op: op in ends)

    lengths = nx.single_source_shortest_path_length(values, flow.names[start])
    away = [lengths[flow.names[end]] for end in ends - {start} if flow.names[end] in lengths]
    if not away:
        assert path == []
    else:
        assert len(path) == min(away) + 1
        assert path[0] == start
        assert path[-1] in ends
        assert all(
            values.has_edge(flow.names[one], flow.names[other]) for one, other in pairwise(path)
        )


def test_a_call_depends_on_the_ops_of_its_body() -> None:
    graph = placement(
        op("x", "Placeholder"),
        op("call", "PartitionedCall", "", "", "x"),
        op("y", "Neg", "", "", "call"),
        op("call/Tanh", "Tanh", "", "", "x", caller="call"),
        op("call/scale", "Const", caller="call"),
    )
    flow = DataFlow(graph)

    masks = flow.propagate([0, 0, 0, 0, 1])

    assert masks[flow.number["y"]] == 1


@pytest.mark.parametrize("kind", ["Shape", "ShapeN", "Size", "Rank", "ZerosLike", "OnesLike"])
def test_the_shape_of_a_value_is_a_control_input(kind: str) -> None:
    graph = placement(op("x", "Placeholder"), op("like", kind, "", "", "x"))
    flow = DataFlow(graph)

    assert flow.reachable(flow.ops[1:]) == {1}
    assert flow.reachable(flow.ops[1:], along=flow.all_inputs) == {0, 1}


def given_to(name: str, graph: Placement) -> list[str]:
    """The names of the inputs of an op."""
    flow = DataFlow(graph)
    return [flow.names[source] for source in flow.inputs[flow.number[name]]]


def reduced(kind: str, *keys: int, in_attributes: str) -> Placement:
    """Collectives of two GPUs with the given keys, for each of two variables."""
    ops, attributes, values = [], {}, {}
    for variable, key in zip("wv", keys, strict=True):
        for i in (0, 1):
            name = f"{variable}_{i}"
            ops.append(op(f"g/{name}", "MatMul", f"/gpu:{i}"))
            inputs = [f"g/{name}"]
            if in_attributes:
                attributes[name] = {in_attributes: key}
            else:
                ops.append(op(f"key/{name}", "Const"))
                values[f"key/{name}"] = key
                inputs.append(f"key/{name}")
            ops.append(op(name, kind, f"/gpu:{i}", "", *inputs))
    return placement(*ops, attributes=attributes, values=values)


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        ("NcclAllReduce", "shared_name"),
        ("CollectiveReduce", "instance_key"),
        ("CollectiveReduce", "group_key"),
        ("CollectiveGather", "instance_key"),
        ("CollectiveReduceV2", ""),
        ("CollectiveReduceV3", ""),
        ("CollectiveGatherV2", ""),
        ("CollectiveAllToAllV2", ""),
    ],
)
def test_each_member_of_a_collective_has_the_inputs_of_all(kind: str, key: str) -> None:
    """Not the inputs of another variable, which has another key."""
    graph = reduced(kind, 1, 2, in_attributes=key)

    assert given_to("w_1", graph) == ["g/w_0", "g/w_1"]
    assert given_to("v_0", graph) == ["g/v_0", "g/v_1"]


def test_an_op_with_all_inputs_of_a_reduction_is_no_member_of_another() -> None:
    """nccl_ops.reduce_sum makes one op for each variable, without a key."""
    graph = placement(
        *(op(f"g/{name}", "MatMul") for name in ("w_0", "w_1", "v_1")),
        op("w", "NcclReduce", "", "", "g/w_0", "g/w_1"),
        op("v", "NcclReduce", "", "", "g/v_1", "g/v_1"),
    )

    assert given_to("v", graph) == ["g/v_1", "g/v_1"]


@pytest.mark.parametrize(
    "kind",
    [
        "VarHandleOp",
        "VariableV2",
        "BoostedTreesEnsembleResourceHandleOp",
        "EmbeddingCacheHandleOp",
        "HashTable",
        "HashTableV2",
        "FIFOQueue",
        "FIFOQueueV2",
        "Iterator",
        "IteratorV2",
        "AnonymousIteratorV3",
        "MultiDeviceIterator",
        "MutableHashTableOfTensorsV2",
        "ConditionalAccumulator",
        "TFRecordReaderV2",
        "StackV2",
        "TensorArrayV3",
    ],
)
@pytest.mark.parametrize(
    "copy",
    ["Identity", "Enter", "RefEnter", "Switch", "RefSwitch", "RefIdentity", "RefMerge"],
)
def test_writers_change_a_holder_of_state(kind: str, copy: str) -> None:
    graph = placement(
        op("state", kind),
        op("g", "MatMul"),
        op("pred", "Const"),
        op("sum", "Add", "", "", "g", "pred"),
        op("copy", copy, "", "", "state", "pred"),
        op("write", "AssignAdd", "", "", "copy", "g"),
        op("read", "ReadVariableOp", "", "", "state", "g"),
    )
    flow = DataFlow(graph)

    assert flow.writers == {0: [(flow.number["write"], [flow.number["g"]])]}


@pytest.mark.parametrize("kind", ["QueueDequeueManyV2", "ReaderReadV2", "AccumulatorTakeGradient"])
def test_an_op_that_takes_values_out_of_a_holder_writes_nothing(kind: str) -> None:
    graph = placement(
        op("queue", "FIFOQueueV2"), op("n", "Const"), op("batch", kind, "", "", "queue", "n")
    )

    assert DataFlow(graph).writers == {}


@pytest.mark.parametrize("kind", ["MakeIterator", "MultiDeviceIteratorInit"])
def test_the_initializer_of_an_iterator_writes_its_dataset(kind: str) -> None:
    graph = placement(
        op("dataset", "TensorDataset"),
        op("iterator", "MultiDeviceIterator"),
        op("make", kind, "", "", "dataset", "iterator"),
    )

    assert DataFlow(graph).writers == {1: [(2, [0])]}


@pytest.mark.parametrize(
    "kind", ["MakeIterator", "DeleteIterator", "InitializeTableV2", "IteratorFromStringHandleV2"]
)
def test_an_op_on_a_holder_of_state_is_no_holder(kind: str) -> None:
    assert DataFlow(placement(op("only", kind))).state_holder(OpId(0)) is None


def test_ops_of_some_types_are_in_the_order_of_the_graph() -> None:
    graph = placement(op("a", "Add"), op("b", "Neg"), op("c", "Sub"), op("d", "Add"))

    assert DataFlow(graph).having({"Sub", "Add"}.__contains__) == [0, 2, 3]


def test_a_holder_follows_first_inputs_and_loops() -> None:
    graph = placement(
        op("v", "VarHandleOp"),
        op("merge", "RefMerge", "", "", "v", "next"),
        op("next", "Identity", "", "", "merge"),
        op("which", "Switch", "", "", "x", "v"),
        op("x", "Neg"),
    )
    flow = DataFlow(graph)

    holders = {name: flow.state_holder(number) for name, number in flow.number.items()}
    assert holders == {"v": 0, "merge": 0, "next": 0, "which": None, "x": None}


def test_a_collective_without_a_known_input_adds_none() -> None:
    graph = placement(
        op("g", "MatMul"), op("one", "NcclAllReduce", "", "", "g"), op("other", "NcclAllReduce")
    )

    assert given_to("one", graph) == ["g"]
    assert given_to("other", graph) == ["g"]


def test_a_path_leads_only_along_the_given_edges() -> None:
    graph = placement(
        op("a", "Placeholder"),
        op("b", "Neg", "", "", "a"),
        op("c", "Neg", "", "", "b"),
        op("long", "Neg", "", "", "a"),
        op("way", "Neg", "", "", "long"),
        op("round", "Neg", "", "", "way"),
        op("d", "AddN", "", "", "c", "round"),
    )
    flow = DataFlow(graph)

    def names(path: Sequence[int]) -> list[str]:
        return [flow.names[source] for source in path]

    assert names(flow.path(OpId(6), lambda op: op == 0)) == ["d", "c", "b", "a"]
    around = [[source for source in sources if source != 1] for sources in flow.inputs]
    path = flow.path(OpId(6), lambda op: op == 0, along=around.__getitem__)
    assert names(path) == ["d", "round", "way", "long", "a"]


def test_an_input_from_identity_n_is_the_op_that_it_passes_on() -> None:
    flow = DataFlow(
        placement(
            op("a", "Const"),
            op("b", "Const"),
            op("both", "IdentityN", "", "", "a", "b"),
            op("again", "IdentityN", "", "", "both:1", "both"),
            op("of_b", "Neg", "", "", "again"),
            op("of_a", "Neg", "", "", "again:1", "^b"),
        )
    )
    number = flow.number

    assert flow.inputs[number["of_b"]] == [number["b"]]
    assert flow.inputs[number["of_a"]] == [number["a"]]
    # It waits for all its inputs before it passes on any of them.
    needed = flow.reachable([number["of_b"]], along=flow.all_inputs)
    assert all(number[name] in needed for name in ("a", "b", "both", "again"))

    assert number["b"] in flow.control_inputs[number["of_a"]]
