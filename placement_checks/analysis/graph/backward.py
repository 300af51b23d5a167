"""The backward pass: which ops belong to it, and of which forward op each is the gradient."""

from __future__ import annotations

import re
from collections.abc import Iterator

from placement_checks.analysis.graph.data_flow import DataFlow
from placement_checks.core.placement import Placement

_SCOPE = re.compile(r"(?:^|/)gradients(?:_\d+)?/")
_GRADIENT = re.compile(r"(?:^|.*/)gradients(?:_\d+)?/(.+)_grad/")


class Backward:
    """The backward ops of a graph.

    Attributes:
        ops: for each op of the flow whether it is one.
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
        self._forward: dict[int, tuple[int, str]] | None = None

    def numbers(self) -> Iterator[int]:
        return (number for number, is_one in enumerate(self.ops) if is_one)

    @property
    def forward(self) -> dict[int, tuple[int, str]]:
        """The forward op of each backward op, and how it is known: ``graph`` or ``name``.

        TensorFlow itself notes it while it builds, and in ``_class`` where gradients are colocated
        (python/ops/gradients_util.py); in a saved graph without either, the scope
        ``<forward op>_grad/`` names it.
        """
        if self._forward is None:
            self._forward = {}
            for number in self.numbers():
                found = self._forward_op(number)
                if found is not None:
                    self._forward[number] = found
        return self._forward

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
