"""Walks of graphs, whose nodes may be ops, functions or names."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import TypeVar

_Node = TypeVar("_Node", bound=Hashable)


def walk(start: Iterable[_Node], neighbors: Callable[[_Node], Iterable[_Node]]) -> Iterator[_Node]:
    """Yield the nodes that are reachable from ``start``, each once; ``start`` comes first."""
    waiting = list(dict.fromkeys(start))
    yield from waiting.copy()
    seen = set(waiting)
    while waiting:
        for node in neighbors(waiting.pop()):
            if node not in seen:
                seen.add(node)
                waiting.append(node)
                yield node


def sources_first(
    roots: Iterable[_Node], sources: Callable[[_Node], Iterable[_Node]]
) -> Iterator[_Node]:
    """Yield the nodes that are reachable from ``roots``, each after its sources.

    If nodes form a loop, one node of the loop comes before one of its sources.
    """
    seen: set[_Node] = set()
    for root in roots:
        if root in seen:
            continue
        seen.add(root)
        open_nodes = [(root, iter(sources(root)))]
        while open_nodes:
            node, remaining = open_nodes[-1]
            for source in remaining:
                if source not in seen:
                    seen.add(source)
                    open_nodes.append((source, iter(sources(source))))
                    break
            else:
                yield node
                open_nodes.pop()
