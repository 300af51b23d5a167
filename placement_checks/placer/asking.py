"""A prepared graph and the placer process that is asked where its ops go."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Any

from placement_checks.core.placement import Placement
from placement_checks.loading.graph_def import op_types
from placement_checks.placer.answers import check
from placement_checks.placer.task_order import TaskOrder
from placement_checks.placer.worker.client import PlacerProcess, PlacerUnavailable, Request
from placement_checks.placer.worker.refused import GraphRefused

_UNKNOWN_OP = re.compile(r"Op type not registered '([^']*)'")
# Lowering a function puts a number of its own into the names: while/body/_12/Tanh.
_LOWERED = re.compile(r"/_\d+(?=/)")


@dataclass(frozen=True)
class Asking:
    """A graph, and the process that places it.

    Attributes:
        process: the placer.
        graph_def: a GraphDef with the names that the process knows; it may be changed between
            two questions.
        placement: what the program requests, with its machine.
    """

    process: PlacerProcess
    graph_def: Any
    placement: Placement

    @contextlib.contextmanager
    def asked(self, *, soft: bool) -> Iterator[Callable[[], list[str]]]:
        """Send the graph; the block may do other work before it calls for the answer.

        The answer is the device of every op of the placement, in its order; ``""`` for an op of a
        function's body that was not placed.

        Raises:
            GraphRefused: the placer's own error, when the answer is called for.
            PlacerUnavailable: this installation has no placer that can answer.
            PlacerError: the process died or hung.
            InputError: the answer cannot be right.
        """
        with self.process.asked(self._request(soft)) as answer:
            yield partial(self._checked, answer, soft)

    def ask(self, *, soft: bool) -> list[str]:
        """The answer at once; as for `asked`."""
        with self.asked(soft=soft) as answer:
            return answer()

    def _request(self, soft: bool) -> Request:
        return Request(
            self.graph_def.SerializeToString(),
            len(self.placement.ops),
            op_types(self.graph_def),
            self._order.tasks(),
            soft,
        )

    @cached_property
    def _order(self) -> TaskOrder:
        assert self.placement.machine is not None
        return TaskOrder(self.placement.machine)

    def _checked(self, answer: Callable[[], Mapping[str, str]], soft: bool) -> list[str]:
        try:
            placed = answer()
        except GraphRefused as refused:
            if unknown := _UNKNOWN_OP.search(str(refused)):
                raise PlacerUnavailable(
                    f"the placer does not know the op type {unknown[1]}: "
                    "ops of other libraries cannot be placed"
                ) from None
            raise GraphRefused(self._order.restore(str(refused))) from None
        restored = cache(self._order.restore)
        devices = list(map(restored, self._in_order(placed)))
        nodes = self.graph_def.node
        requested = [] if soft else [restored(node.device) for node in nodes]
        check(devices[: len(nodes)], requested, self.placement, self.graph_def)
        return devices

    def _in_order(self, placed: Mapping[str, str]) -> list[str]:
        """A function that is called twice may be placed on two devices; its last call counts."""
        ops = self.placement.ops
        if any(op.caller for op in ops.values()):
            bodies = {_LOWERED.sub("", name): device for name, device in placed.items()}
            placed = bodies | dict(placed)
        return [placed.get(name, "") for name in ops]
