"""How the variables of a live graph get their first values."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import tensorflow as tf

from placement_checks.core.program import InitialState
from placement_checks.core.variables import Variable
from placement_checks.loading.graph_reading import name_of
from placement_checks.loading.graph_strategy import copies, strategy_of_graph

tf1 = tf.compat.v1


def initial_state(graph: tf.Graph, variables: Iterable[Variable]) -> InitialState:
    """What initialises the variables of a graph, its tables, and the copies of a strategy.

    Args:
        graph: it was just built.
        variables: those that its ops hold.
    """
    holders = {variable.name for variable in variables}
    tables = graph.get_collection(tf1.GraphKeys.TABLE_INITIALIZERS)
    mirrors, unsynchronised = _mirrors(graph)
    return InitialState(
        _initialisers(graph, holders, tf1.GraphKeys.GLOBAL_VARIABLES),
        _initialisers(graph, holders, tf1.GraphKeys.LOCAL_VARIABLES),
        tables=[table.name for table in tables],
        mirrors=mirrors,
        unsynchronised=unsynchronised,
    )


def _initialisers(graph: tf.Graph, holders: Collection[str], key: str) -> dict[str, str]:
    """The initialisers of the variables of a collection."""
    return {
        name_of(variable.name): variable.initializer.name
        for entry in graph.get_collection(key)
        for variable in copies(entry)
        if name_of(variable.name) in holders
    }


def _mirrors(graph: tf.Graph) -> tuple[dict[str, str], frozenset[str]]:
    """The copies that a strategy keeps of variables, each with the variable that it copies.

    The second result has those, first ones too, that it aggregates only when they are read.
    """
    strategy = strategy_of_graph(graph)
    kept = strategy.copies.items() if strategy is not None else ()
    mirrors = {name: copy.of for name, copy in kept if copy.replica}
    return mirrors, frozenset(name for name, copy in kept if not copy.in_sync)
