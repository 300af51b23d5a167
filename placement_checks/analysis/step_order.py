"""Which ops of a training step wait for which others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from placement_checks.analysis.data_flow import DataFlow, Edges
from placement_checks.core.op_types import BRANCHES


class StepOrder:
    """What runs in a step, and in which order it has to.

    Attributes:
        ops: of the step, each after those that it waits for, but where a loop leads back.
    """

    def __init__(self, flow: DataFlow, roots: Iterable[int]) -> None:
        self._waits_for = _with_starts(flow)
        self._nodes = _sources_first(roots, self._waits_for)
        self.ops = [op for op in self._nodes if op < len(flow.names)]

    def awaited(self, own: Mapping[int, int]) -> Sequence[int]:
        """For each op the bits of all that it waits for, its own among them."""
        masks = self._own(own)
        changed = True
        while changed:  # once more, and again where a loop leads back
            changed = False
            for here in self._nodes:
                mask = masks[here]
                for source in self._waits_for[here]:
                    mask |= masks[source]
                if mask != masks[here]:
                    masks[here] = mask
                    changed = True
        return masks

    def waiting(self, own: Mapping[int, int]) -> Sequence[int]:
        """For each op the bits of all that wait for it, its own among them."""
        masks = self._own(own)
        changed = True
        while changed:
            changed = False
            for here in reversed(self._nodes):
                mask = masks[here]
                for source in self._waits_for[here] if mask else ():
                    if mask | masks[source] != masks[source]:
                        masks[source] |= mask
                        changed = True
        return masks

    def _own(self, own: Mapping[int, int]) -> list[int]:
        masks = [0] * len(self._waits_for)
        for op, bits in own.items():
            masks[op] = bits
        return masks


def _with_starts(flow: DataFlow) -> Edges:
    """What each op waits for. A call has a start besides, which the ops of its body wait for.

    A body begins before all values that it computes with are there, since TensorFlow inlines
    calls: it waits for what is ordered before the call, and for what decides on a branch.
    """
    edges = list(flow.all_inputs)
    start_of = {call: len(edges) + number for number, call in enumerate(sorted(flow.calls))}
    edges += ([*_starts_after(flow, call)] for call in start_of)
    for op, call in flow.callers.items():
        edges[op] = [*edges[op], start_of[call]]
    for call, start in start_of.items():
        if call in flow.callers:
            edges[start] = [*edges[start], start_of[flow.callers[call]]]
    return edges


def _starts_after(flow: DataFlow, call: int) -> Iterator[int]:
    yield from flow.control_inputs.get(call, ())
    if flow.types[call] in BRANCHES:
        yield from flow.inputs[call][:1]


def _sources_first(roots: Iterable[int], edges: Edges) -> list[int]:
    """All that is reached from ``roots``, each after what its edges lead to."""
    seen = bytearray(len(edges))
    ordered: list[int] = []
    for root in roots:
        if seen[root]:
            continue
        seen[root] = 1
        todo = [(root, iter(edges[root]))]
        while todo:
            here, sources = todo[-1]
            for source in sources:
                if not seen[source]:
                    seen[source] = 1
                    todo.append((source, iter(edges[source])))
                    break
            else:
                ordered.append(here)
                todo.pop()
    return ordered
