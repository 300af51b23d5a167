"""The order of ops in a step, compared with the graph algorithms of networkx."""

from __future__ import annotations

from collections.abc import Sequence

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.graphs import op, placement

from placement_checks import Op
from placement_checks.analysis.graph.data_flow import DataFlow


@st.composite
def edges(draw: st.DrawFn) -> dict[str, list[str]]:
    """The inputs of some ops, by name, in both directions, so with loops too."""
    names = [f"op{number}" for number in range(draw(st.integers(1, 9)))]
    edge = st.builds(str.__add__, st.sampled_from(["", "^"]), st.sampled_from(names))
    return {name: draw(st.lists(edge, max_size=4)) for name in names}


@given(edges(), st.data())
def test_masks_have_the_bits_of_all_ops_before_or_after_an_op(
    inputs: dict[str, list[str]], data: st.DataObject
) -> None:
    names = list(inputs)
    flow = DataFlow(placement(*(op(name, "Add", "", "", *inputs[name]) for name in names)))
    graph = nx.DiGraph()
    graph.add_nodes_from(names)
    graph.add_edges_from(
        (source.lstrip("^"), name) for name, sources in inputs.items() for source in sources
    )
    marked = data.draw(st.sets(st.sampled_from(names)))
    own = [int(name in marked) << number for number, name in enumerate(names)]

    awaited = flow.propagate(own, along=flow.waits_for)
    waiting = flow.propagate(own, along=flow.waits_for, to_inputs=True)

    for number, name in enumerate(names):
        before, after = nx.ancestors(graph, name), nx.descendants(graph, name)
        for masks, others in ((awaited, before), (waiting, after)):
            expected = marked & {name, *others}
            assert masks[number] == sum(1 << flow.number[other] for other in expected)


@pytest.mark.parametrize(
    ("kind", "inputs", "waits"),
    [
        ("StatefulPartitionedCall", ["value", "^first"], True),
        ("StatefulPartitionedCall", ["first"], False),
        ("If", ["first", "value"], True),
        ("If", ["value", "first"], False),
        ("While", ["first"], False),
    ],
    ids=["ordered", "an argument", "decision", "an argument of a branch", "of a loop"],
)
@pytest.mark.parametrize("deep", [False, True], ids=["", "in another call"])
def test_the_body_of_a_call_waits_for_the_control_inputs_and_the_decision(
    kind: str, inputs: Sequence[str], waits: bool, deep: bool
) -> None:
    body: list[Op] = [op("call/reads", "ReadVariableOp", caller="call")]
    if deep:
        body = [
            op("call/inner", "StatefulPartitionedCall", caller="call"),
            op("call/reads", "ReadVariableOp", caller="call/inner"),
        ]
    flow = DataFlow(
        placement(op("first", "Add"), op("value", "Add"), op("call", kind, "", "", *inputs), *body)
    )
    first, call, reads = (flow.number[name] for name in ("first", "call", "call/reads"))

    awaited = flow.propagate(flow.marks([[first], [reads]]), along=flow.waits_for)

    assert awaited[reads] == 2 | waits
    assert awaited[call] == 3
