"""Checks an answer of the placer against the request that it answers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from tensorflow.core.framework import types_pb2

from placement_checks.core.devices import Device
from placement_checks.core.errors import InputError
from placement_checks.core.placement import Placement
from placement_checks.loading.tf_internals.graph_building import definition_of

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
