"""Whether an answer can be the placer's to what it was asked."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from tensorflow.core.framework import types_pb2

from placement_checks.core.devices import Device
from placement_checks.core.errors import InputError
from placement_checks.core.placement import Placement
from placement_checks.loading.tf_internals import definition_of

_RESOURCE: int = types_pb2.DT_RESOURCE
_FIRST_REF: int = types_pb2.DT_FLOAT_REF


def check(
    devices: Sequence[str], requested: Sequence[str], asked: Placement, graph_def: Any
) -> None:
    """That an answer has every op, each on a device of the machine, and where it asks to be.

    Args:
        devices: the device of each op of the graph, in its order.
        requested: where each had to be placed; empty if the placer was allowed to go elsewhere.
        asked: the program and its machine.
        graph_def: the graph that was placed.

    Raises:
        InputError: it is none that the placer can have given to this request.
    """
    assert asked.machine is not None
    there = set(map(str, asked.machine.devices))
    nodes = graph_def.node
    faults = [
        f"'{node.name}' is on {device}, which is not in {asked.machine}"
        if device
        else f"'{node.name}' has no device"
        for node, device in zip(nodes, devices, strict=True)
        if device not in there
    ]
    elsewhere = [
        (node, device, wanted)
        for node, device, wanted in zip(nodes, devices, requested, strict=False)
        if device and not _suits(device, wanted)
    ]
    if elsewhere:
        led = {name for op in asked.ops.values() for name in op.colocated}
        faults += [
            f"'{node.name}' asks for {wanted} and is on {device}"
            for node, device, wanted in elsewhere
            if not (node.name in led or "_class" in node.attr or _follows_resource(node))
        ]
    if faults:
        raise InputError(
            asked.program,
            f"the placer's answer for {len(faults)} of {len(devices)} ops cannot be right: "
            + faults[0],
            "report this graph: nothing is said about a graph that was not placed in full",
        )


@lru_cache(maxsize=65536)
def _suits(device: str, requested: str) -> bool:
    return Device.parse(device).matches(Device.parse(requested))


def _follows_resource(node: Any) -> bool:
    """Whether an op takes or gives a resource or a reference.

    The placer puts it on the device of what it is led to, even strictly, wherever it asks to be.
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
