"""Why ops do not get the devices that they request.

Strict placement refuses such ops: `all_refusals` collects the placer's messages. Soft placement
moves them: `fallback_reason` compares them with the kernels of the installed TensorFlow.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import tensorflow as tf

from placement_checks.core.devices import LOCALHOST, Device
from placement_checks.core.errors import InputError
from placement_checks.core.machines import Machine
from placement_checks.core.op_types import VARIABLES
from placement_checks.core.placement import Op, Placement, Refusal, most_refusals
from placement_checks.placer.request import PlacerQuery
from placement_checks.placer.worker.protocol import GraphRefused
from placement_checks.tf.graphs import kernels_of

# Parts of the placer's messages (core/common_runtime/placer.cc and colocation_graph.cc).
_NODE = re.compile(r"(?:for operation |\{\{(?:colocation_)?node )([^\s:{}]+)")
_MEMBER = re.compile(r"^  (\S+) \(\S+\)", re.MULTILINE)
_MALFORMED = re.compile(r"Malformed device specification '([^']*)' in node: \{name:'([^']*)'")


def all_refusals(query: PlacerQuery, refused: GraphRefused) -> Iterator[Refusal]:
    """Yield the refusals of strict placement; ``refused`` is the placer's answer to ``query``.

    The placer stops at the first op that it refuses. So this function removes the requested device
    type of this op and of the ops colocated with it, and places the graph again, until the placer
    accepts the graph.
    """
    placement = query.placement
    nodes = {node.name: node for node in query.graph_def.node}
    devices: dict[str, str] = {}
    reported: set[str] = set()
    try:
        for _ in range(most_refusals(placement.machine)):
            refusal = parse_refusal(refused, placement)
            others = _on_the_same_missing_device(refusal, placement)
            for name in [refusal.op, *others]:
                if name not in reported:
                    yield Refusal(name, refusal.message.replace(refusal.op, name))
            group = {refusal.op, *_NODE.findall(str(refused)), *_MEMBER.findall(str(refused))}
            group.update(others)
            reported |= {refusal.op, *others}
            released = group & nodes.keys() - devices.keys()
            if not released:
                return
            for name in released:
                devices[name] = nodes[name].device
                nodes[name].device = _without_type(devices[name])
            try:
                query.place(soft=False)
            except GraphRefused as again:
                refused = again
            else:
                return
    finally:
        for name, device in devices.items():
            nodes[name].device = device


def _on_the_same_missing_device(refusal: Refusal, placement: Placement) -> list[str]:
    """Other ops that request the same device, if the machine lacks it."""
    op = placement.ops.get(refusal.op)
    if op is None or placement.machine is None or placement.machine.has(op.requested):
        return []
    return [
        other.name
        for other in placement.ops.values()
        if other.requested == op.requested and other.name != op.name and not other.caller
    ]


def _without_type(device: str) -> str:
    parsed = Device.parse(device)
    return str(Device(parsed.job, parsed.replica, parsed.task))


def parse_refusal(refused: GraphRefused, placement: Placement) -> Refusal:
    """The op that the placer's error names, and its message without internal job names.

    If a variable is colocated with the op, the refusal names the variable instead, because users
    know the name of the variable.

    Raises:
        InputError: the error is about a device name that TensorFlow cannot read.
    """
    message = str(refused)
    malformed = _MALFORMED.search(message)
    if malformed:
        device = malformed[1].removeprefix(str(LOCALHOST))
        line = placement.where(malformed[2])
        where = f" ({line})" if line else ""
        raise InputError(
            placement.program,
            f"op '{malformed[2]}'{where} requests the device '{device}', "
            "which TensorFlow cannot read",
            "write it like /cpu:0, /gpu:1 or /job:ps/task:0/device:CPU:0",
        )
    node = _NODE.search(message)
    bound = [placement.ops[name] for name in _MEMBER.findall(message) if name in placement.ops]
    variable = next((op.name for op in bound if op.type in VARIABLES), None)
    return Refusal(variable or (node[1] if node else ""), message.replace(str(LOCALHOST), ""))


def fallback_reason(op: Op, attributes: Mapping[str, Any], machine: Machine) -> str:
    """Return why an op did not get its requested device.

    The reason is ``""`` if the machine has this device, and a kernel of the op supports it.

    Args:
        op: an op that was assigned to another device than it requested.
        attributes: the attributes of the op, from `Details.attributes`.
        machine: the devices that the graph was placed on.
    """
    requested = Device(type=op.requested.type, index=op.requested.index)
    if machine.hides(requested):
        return f"{machine.hidden_by} hides {requested} from the program"
    if missing := machine.missing(requested):
        return missing
    usable = [
        kernel for kernel in _kernels(op.type) if kernel.device_type in (requested.type, "DEFAULT")
    ]
    if not usable:
        return f"{op.type} has no {requested.type} kernel"
    if any(all(_allows(each, attributes) for each in kernel.constraint) for kernel in usable):
        return ""
    constraints = [each for kernel in usable for each in kernel.constraint]
    constrained = {each.name for each in constraints if _types(attributes, each.name)}
    # No kernel supports all attributes. If each attribute alone is supported, name all of them.
    supported = {each.name for each in constraints if _allows(each, attributes)}
    types = sorted(
        {
            " and ".join(sorted(map(_dtype_name, _types(attributes, name))))
            for name in constrained - supported or constrained
        }
    )
    return f"the {requested.type} kernel of {op.type} does not take {', '.join(types)}"


BOUND_TO_ANOTHER = (
    "it must be on the device of another op, with which it is colocated or which it uses"
)


@lru_cache(maxsize=4096)
def _kernels(op_type: str) -> tuple[Any, ...]:
    return tuple(kernels_of(op_type))


def _allows(constraint: Any, attributes: Mapping[str, Any]) -> bool:
    """Whether a constraint of a kernel allows the types of an op's attribute."""
    return _types(attributes, constraint.name) <= set(constraint.allowed_values.list.type)


def _types(attributes: Mapping[str, Any], attribute: str) -> set[int]:
    value = attributes.get(attribute, ())
    return set(value) if isinstance(value, tuple) else {value}


def _dtype_name(dtype: int) -> str:
    try:
        return str(tf.dtypes.as_dtype(dtype).name)
    except TypeError:  # a file may contain any number
        return f"dtype {dtype}"
