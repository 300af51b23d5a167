"""Pipelines: where the rows of a step come out of queues and iterators."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from placement_checks.core.op_types import PIPELINE_OUTPUTS
from placement_checks.core.placement import producer_of


class Node(Protocol):
    """A node of a GraphDef."""

    @property
    def name(self) -> str: ...
    @property
    def op(self) -> str: ...
    @property
    def input(self) -> Sequence[str]: ...


def pipeline_outputs(nodes: Iterable[Node], roots: Iterable[str]) -> list[str]:
    """The tensors that some ops take from pipelines, in the order in which they were built.

    Of pipelines that follow each other, such as a queue that prefetches, those of the last.

    Args:
        nodes: of a graph.
        roots: the ops or tensors of a step, and what its gradients are taken of.
    """
    by_name = {node.name: node for node in nodes}
    todo = [name for name in map(producer_of, roots) if name in by_name]
    seen = set(todo)
    read = set()
    while todo:
        for tensor in by_name[todo.pop()].input:
            producer = producer_of(tensor)
            if producer in by_name and by_name[producer].op in PIPELINE_OUTPUTS:
                if not tensor.startswith("^"):
                    read.add(tensor if ":" in tensor else f"{tensor}:0")
            elif producer in by_name and producer not in seen:
                seen.add(producer)
                todo.append(producer)
    order = {name: number for number, name in enumerate(by_name)}
    return sorted(read, key=lambda tensor: (order[producer_of(tensor)], int(tensor.split(":")[1])))
