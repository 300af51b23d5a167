"""The order of ops in a step, compared with the graph algorithms of networkx."""

from __future__ import annotations

from collections.abc import Sequence

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.graphs import op, placement

from placement_checks import Op
from placement_checks.analysis.graph.data_flow import DataFlow, StepOrder


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
    roots = data.draw(st.sets(st.sampled_from(names), min_size=1))
    step = roots.union(*(nx.ancestors(graph, root) for root in roots))
    marked = {name: 1 << bit for bit, name in enumerate(sorted(step))}

    order = StepOrder(flow, [flow.number[root] for root in roots])

    assert {names[number] for number in order.ops} == step
    own = {flow.number[name]: bit for name, bit in marked.items()}
    awaited, waiting = order.awaited(own), order.waiting(own)
    for name in step:
        before, after = nx.ancestors(graph, name), nx.descendants(graph, name)
        number = flow.number[name]
        assert awaited[number] == sum(marked[other] for other in {name} | before)
        assert waiting[number] == sum(marked[other] for other in {name} | (after & step))


def test_ops_come_after_the_ops_that_they_wait_for() -> None:
    flow = DataFlow(
        placement(
            op("last", "Add", "", "", "x", "^y"), op("x", "Add", "", "", "y"), op("y", "Add")
        )
    )

    assert [flow.names[number] for number in StepOrder(flow, flow.ops[:1]).ops] == [
        "y",
        "x",
        "last",
    ]


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

    awaited = StepOrder(flow, [call]).awaited({first: 1, reads: 2})

    assert awaited[reads] == 2 | waits
    assert awaited[call] == 3
