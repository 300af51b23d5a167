"""The backward pass: the ops that compute gradients, and the forward op of each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property

from placement_checks.analysis.graph.data_flow import DataFlow
from placement_checks.core.placement import Placement

_SCOPE = re.compile(r"(?:^|/)gradients(?:_\d+)?/")
_GRADIENT = re.compile(r"(?:^|.*/)gradients(?:_\d+)?/(.+)_grad/")


class Backward:
    """The backward ops of a graph.

    Attributes:
        ops: for each op whether it is a backward op.
    """

    def __init__(self, placement: Placement, flow: DataFlow) -> None:
        self._placement = placement
        self._flow = flow
        backward = placement.step.backward
        self.ops = bytearray(
            [name in backward for name in flow.names]
            if backward is not None
            else ["gradients" in name and bool(_SCOPE.search(name)) for name in flow.names]
        )
        for number, caller in flow.callers.items():
            self.ops[number] |= self.ops[caller]

    def numbers(self) -> Iterator[int]:
        """Yield the backward ops, in creation order."""
        return (number for number, is_backward in enumerate(self.ops) if is_backward)

    @cached_property
    def forward(self) -> dict[int, tuple[int, str]]:
        """The forward op of each backward op, and how it was found: by ``graph`` or ``name``.

        TensorFlow records the forward op while it builds the graph, and in ``_class`` if gradients
        are colocated (python/ops/gradients_util.py). In a saved graph without either, the scope
        ``<forward op>_grad/`` names the forward op.
        """
        ops = ((number, self._forward_op(number)) for number in self.numbers())
        return {number: forward for number, forward in ops if forward is not None}

    def _forward_op(self, number: int) -> tuple[int, str] | None:
        name = self._flow.names[number]
        forward = self._placement.details.forward_op(name)
        if not forward:
            forward = next(
                (
                    op
                    for op in self._placement.ops[name].colocated
                    if op in self._flow.number and not self.ops[self._flow.number[op]]
                ),
                "",
            )
        if forward:
            return (self._flow.number[forward], "graph") if forward in self._flow.number else None
        scope = _GRADIENT.match(name)
        if scope and scope[1] in self._flow.number:
            return self._flow.number[scope[1]], "name"
        return None
