"""What the placer refuses: its messages, and how all of them are found."""

from __future__ import annotations

import re
from collections.abc import Iterator

from placement_checks.core.devices import LOCALHOST, Device
from placement_checks.core.errors import InputError
from placement_checks.core.op_types import VARIABLES
from placement_checks.core.placement import MAX_REFUSALS, Placement, Refusal
from placement_checks.placer.asking import Asking
from placement_checks.placer.worker.refused import GraphRefused

# The placer's messages, read in core/common_runtime/placer.cc and colocation_graph.cc.
_NODE = re.compile(r"(?:for operation |\{\{(?:colocation_)?node )([^\s:{}]+)")
_MEMBER = re.compile(r"^  (\S+) \(\S+\)", re.MULTILINE)
_MALFORMED = re.compile(r"Malformed device specification '([^']*)' in node: \{name:'([^']*)'")


def all_refusals(asking: Asking, refused: GraphRefused) -> Iterator[Refusal]:
    """Everything that strict placement refuses, one after the other.

    The placer stops at the first op, so that op and those bound to it may go anywhere, and it
    is asked again.
    """
    placement = asking.placement
    nodes = {node.name: node for node in asking.graph_def.node}
    devices: dict[str, str] = {}
    reported: set[str] = set()
    try:
        for _ in range(MAX_REFUSALS):
            refusal = refusal_of(refused, placement)
            alike = _on_the_same_missing_device(refusal, placement)
            for name in [refusal.op, *alike]:
                if name not in reported:
                    yield Refusal(name, refusal.message.replace(refusal.op, name))
            group = {refusal.op, *_NODE.findall(str(refused)), *_MEMBER.findall(str(refused))}
            group.update(alike)
            reported |= {refusal.op, *alike}
            released = group & nodes.keys() - devices.keys()
            if not released:
                return
            for name in released:
                devices[name] = nodes[name].device
                nodes[name].device = _without_type(devices[name])
            try:
                asking.ask(soft=False)
            except GraphRefused as again:
                refused = again
            else:
                return
    finally:
        for name, device in devices.items():
            nodes[name].device = device


def _on_the_same_missing_device(refusal: Refusal, placement: Placement) -> list[str]:
    """The other ops that request the same device, if the machine lacks it."""
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


def refusal_of(refused: GraphRefused, placement: Placement) -> Refusal:
    """The op that an error of the placer is about, and its message as the user can read it.

    Where that op is bound to a variable, the variable is what the user knows.

    Raises:
        InputError: the message is about a device name that the placer cannot read.
    """
    message = str(refused)
    malformed = _MALFORMED.search(message)
    if malformed:
        device = malformed[1].removeprefix(str(LOCALHOST))
        line = placement.where(malformed[2])
        where = f" ({line})" if line else ""
        raise InputError(
            placement.program,
            f"op '{malformed[2]}'{where} asks for the device '{device}', "
            "which TensorFlow cannot read",
            "write it like /cpu:0, /gpu:1 or /job:ps/task:0/device:CPU:0",
        )
    node = _NODE.search(message)
    bound = [placement.ops[name] for name in _MEMBER.findall(message) if name in placement.ops]
    variable = next((op.name for op in bound if op.type in VARIABLES), None)
    return Refusal(variable or (node[1] if node else ""), message.replace(str(LOCALHOST), ""))
