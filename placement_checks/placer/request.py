"""A prepared graph and the placer process that is asked where its ops go.

Checks an answer of the placer against the request that it answers.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache, partial
from typing import Any

from tensorflow.core.framework import types_pb2

from placement_checks.core.devices import Device
from placement_checks.core.errors import InputError
from placement_checks.core.placement import Placement
from placement_checks.graph.graph_def import op_types
from placement_checks.placer.task_order import TaskOrder
from placement_checks.placer.worker.client import PlacerProcess, PlacerUnavailable, Request
from placement_checks.placer.worker.protocol import GraphRefused
from placement_checks.tf.graphs import definition_of

_RESOURCE: int = types_pb2.DT_RESOURCE
_FIRST_REF: int = types_pb2.DT_FLOAT_REF


def check(
    devices: Sequence[str], requested: Sequence[str], placement: Placement, graph_def: Any
) -> None:
    """Check that every op has a device of the machine, and the one that it requests.

    Args:
        devices: the device of each op of the graph, in its order.
        requested: the device each requests, in the same order; empty if placed softly.
        placement: what the program requests, with its machine.
        graph_def: the graph that was placed.

    Raises:
        InputError: the placer cannot have given this answer to this request.
    """
    assert placement.machine is not None
    nodes = graph_def.node
    faults: list[str] = []
    if unknown := set(devices) - set(map(str, placement.machine.devices)):
        faults += [
            f"'{node.name}' is on {device}, which is not in {placement.machine}"
            if device
            else f"'{node.name}' has no device"
            for node, device in zip(nodes, devices, strict=True)
            if device in unknown
        ]
    if elsewhere := {
        (device, request)
        for device, request in set(zip(devices, requested, strict=False))
        if device and not Device.parse(device).matches(Device.parse(request))
    }:
        followed = {name for op in placement.ops.values() for name in op.colocated}
        faults += [
            f"'{node.name}' asks for {request} and is on {device}"
            for node, device, request in zip(nodes, devices, requested, strict=True)
            if (device, request) in elsewhere
            and not (node.name in followed or "_class" in node.attr or _follows_resource(node))
        ]
    if faults:
        raise InputError(
            placement.program,
            f"the placer's answer for {len(faults)} of {len(devices)} ops cannot be right: "
            + faults[0],
            "report this graph: one that was not placed in full is not judged",
        )


def _follows_resource(node: Any) -> bool:
    """Whether an op takes or yields a resource or a reference.

    The placer puts it on the device of that resource, even strictly, whatever it requests.
    """
    types = (dtype for value in node.attr.values() for dtype in (value.type, *value.list.type))
    return _has_resource(node.op) or any(map(_is_resource, types))


@lru_cache(maxsize=4096)
def _has_resource(op_type: str) -> bool:
    registered = definition_of(op_type)
    return registered is not None and any(
        argument.is_ref or _is_resource(argument.type)
        for argument in (*registered.input_arg, *registered.output_arg)
    )


def _is_resource(dtype: int) -> bool:
    return dtype == _RESOURCE or dtype >= _FIRST_REF


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
