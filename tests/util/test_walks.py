"""Walks: the nodes that are reachable, and the order in which they come."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from placement_checks.util.walks import sources_first, walk

Graph = dict[int, list[int]]
NODES = range(8)
GRAPHS = st.fixed_dictionaries(
    {node: st.lists(st.sampled_from(NODES), max_size=3) for node in NODES}
)
STARTS = st.lists(st.sampled_from(NODES), max_size=3)


def reachable(graph: Graph, start: list[int]) -> set[int]:
    found = set(start)
    for _ in NODES:
        found |= {other for node in found for other in graph[node]}
    return found


@given(GRAPHS, STARTS)
def test_a_walk_yields_each_reachable_node_once_and_the_start_first(
    graph: Graph, start: list[int]
) -> None:
    found = list(walk(start, graph.__getitem__))

    assert len(found) == len(set(found))
    assert set(found) == reachable(graph, start)
    assert found[: len(set(start))] == list(dict.fromkeys(start))


def test_a_walk_that_ends_early_asks_for_no_further_neighbors() -> None:
    none: Graph = {}

    assert next(walk([1], none.__getitem__)) == 1


@given(GRAPHS, STARTS)
def test_sources_come_first_except_in_loops(graph: Graph, roots: list[int]) -> None:
    without_loops = {node: [other for other in graph[node] if other < node] for node in NODES}

    assert set(sources_first(roots, graph.__getitem__)) == reachable(graph, roots)
    found = list(sources_first(roots, without_loops.__getitem__))
    assert len(found) == len(set(found))
    for at, node in enumerate(found):
        assert set(without_loops[node]) <= set(found[:at])
