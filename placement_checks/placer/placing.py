"""Asks TensorFlow's placer where the ops of a built program go."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from placement_checks.core.devices import LOCALHOST, Device
from placement_checks.core.errors import InputError
from placement_checks.core.gpus import Devices, local_gpus
from placement_checks.core.machines import Machine
from placement_checks.core.missing import Missing
from placement_checks.core.op_types import VARIABLES
from placement_checks.core.placement import MAX_REFUSALS, Op, Placement, Placer, Refusal
from placement_checks.loading.graph_def import (
    all_nodes,
    keep_constants_whole,
    op_types,
    without_large_constants,
)
from placement_checks.placer.answers import check
from placement_checks.placer.kernels import BOUND_TO_ANOTHER, fallback_reason
from placement_checks.placer.task_order import TaskOrder
from placement_checks.placer.worker.client import (
    PlacerProcess,
    PlacerUnavailable,
    Request,
    phantom,
    session,
)
from placement_checks.placer.worker.refused import GraphRefused


def place(placement: Placement, graph_def: Any, machine: Machine, devices: Devices) -> Placement:
    """``placement`` with the devices that TensorFlow's placer assigns on ``machine``.

    Where strict placement fails, the refusals are collected and the graph is placed softly.

    Args:
        placement: what a program requests, and whether it may be placed softly.
        graph_def: its ``GraphDef``, which is not changed.
        machine: the devices.
        devices: ``real`` for this machine's own devices, ``simulated`` for ones that need not
            exist, ``auto`` for its own where it has enough GPUs.

    Raises:
        InputError: an op requests a device whose name TensorFlow cannot read, or the placer's
            answer cannot be right.
        PlacerError: the placer process died or hung.
    """
    placement = replace(placement, machine=machine)
    here = machine.is_local and 0 < len(machine.gpus) <= len(local_gpus())
    if devices == "real" and not here:
        missing = Missing(f"this machine lacks the requested devices ({machine})")
        return replace(placement, assigned=missing)
    real = here and devices != "simulated"
    process = session if real else phantom
    kind: Placer = "session" if real else "phantom"
    if refusals := _of_other_clusters(placement):
        return replace(
            placement,
            refusals=refusals,
            placer=kind,
            assigned=Missing(f"the machine ({machine}) lacks tasks that the program names"),
        )
    return _placed(process, prepared(graph_def, machine), placement, kind)


def _placed(
    process: PlacerProcess, graph_def: Any, placement: Placement, kind: Placer
) -> Placement:
    """What the placer makes of a prepared graph; softly where it may, or where it refuses else."""
    refusals: list[Refusal] = []
    try:
        if not placement.soft:
            try:
                placed = _ask(process, graph_def, placement, soft=False)
                return _assigned(placement, graph_def, placed, kind)
            except GraphRefused as refused:
                refusals = list(_refusals(process, graph_def, placement, refused))
        try:
            placed = _ask(process, graph_def, placement, soft=True)
        except GraphRefused as refused:
            return replace(
                placement,
                refusals=refusals or [_refusal(str(refused), placement)],
                placer=kind,
                assigned=Missing("the placer refused the graph"),
            )
    except PlacerUnavailable as reason:
        return replace(placement, assigned=Missing(str(reason)))
    return replace(_assigned(placement, graph_def, placed, kind), refusals=refusals)


def _of_other_clusters(placement: Placement) -> list[Refusal]:
    """The ops that request a job or task that the machine lacks, which no placer allows."""
    assert placement.machine is not None
    lacking = {
        device: reason
        for device in {op.requested for op in placement.ops.values()}
        if (reason := placement.machine.lacks(device))
    }
    return [
        Refusal(op.name, f"it {lacking[op.requested]}")
        for op in placement.ops.values()
        if op.requested in lacking and not op.caller
    ]


# What strategies name without a job; only TensorFlow reads a device name that has a part twice.
_HERE = re.compile(r"/(?:replica|task):0(?=/|$)")


def prepared(graph_def: Any, machine: Machine) -> Any:
    """A copy of a GraphDef that can be placed from outside.

    On one host every op names that host, in a cluster tasks have the names of `TaskOrder`, and
    large constants that no shape depends on become small ones.
    """
    renamed = cache(_on_localhost if machine.is_local else TaskOrder(machine).device)
    copied = without_large_constants(graph_def)
    for node in all_nodes(copied):
        node.device = renamed(node.device)
    if not machine.is_local:
        keep_constants_whole(copied)
    return copied


def _on_localhost(device: str) -> str:
    return device if "/job:" in device else str(LOCALHOST) + _HERE.sub("", device)


def _ask(process: PlacerProcess, graph_def: Any, placement: Placement, *, soft: bool) -> list[str]:
    """The device of every op of ``placement``, in its order."""
    assert placement.machine is not None
    order = TaskOrder(placement.machine)
    request = Request(
        graph_def.SerializeToString(),
        len(placement.ops),
        op_types(graph_def),
        order.tasks(),
        soft,
    )
    try:
        placed = process.place(request)
    except GraphRefused as refused:
        if unknown := _UNKNOWN_OP.search(str(refused)):
            raise PlacerUnavailable(
                f"the placer does not know the op type {unknown[1]}: "
                "ops of other libraries cannot be placed"
            ) from None
        raise GraphRefused(order.restore(str(refused))) from None
    restored = cache(order.restore)
    answer = list(map(restored, _in_order(placed, placement)))
    requested = [] if soft else [restored(node.device) for node in graph_def.node]
    check(answer[: len(graph_def.node)], requested, placement, graph_def)
    return answer


# Lowering a function puts a number of its own into the names: while/body/_12/Tanh.
_LOWERED = re.compile(r"/_\d+(?=/)")


def _in_order(placed: Mapping[str, str], placement: Placement) -> list[str]:
    """The device of every op of ``placement``; ``""`` for one that was not placed.

    A function that is called twice may be placed on two devices; its last call counts.
    """
    if any(op.caller for op in placement.ops.values()):
        placed = {_LOWERED.sub("", name): device for name, device in placed.items()} | dict(placed)
    return [placed.get(name, "") for name in placement.ops]


def _assigned(
    placement: Placement, graph_def: Any, devices: Sequence[str], kind: Placer
) -> Placement:
    parsed = {device: Device.parse(device) if device else None for device in set(devices)}
    ops = {
        name: Op(name, type, requested, inputs, parsed[device], colocated, caller=caller)
        for (name, type, requested, inputs, _, colocated, _, _, caller), device in zip(
            placement.ops.values(), devices, strict=True
        )
    }
    placed = replace(placement, ops=ops, placer=kind, assigned=True)
    fell = {
        (requested, assigned)
        for _, requested, assigned in placed.kinds
        if assigned and not assigned.matches(requested)
    }
    return _with_reasons(placed, graph_def, fell) if fell else placed


def _with_reasons(
    placement: Placement, graph_def: Any, fell: Collection[tuple[Device, Device | None]]
) -> Placement:
    """With the reasons why ops fell, which are those of some requested and assigned devices."""
    assert placement.machine is not None
    ops = dict(placement.ops)
    fallen = {op.name: op for op in ops.values() if (op.requested, op.assigned) in fell}
    nodes = {node.name: node for node in graph_def.node if node.name in fallen}
    for name, op in fallen.items():
        reason = fallback_reason(op, nodes.get(name), placement.machine)
        ops[name] = op._replace(
            fallback_reason=reason or BOUND_TO_ANOTHER, fell_with_another=not reason
        )
    return replace(placement, ops=ops)


# The placer's messages, read in core/common_runtime/placer.cc and colocation_graph.cc.
_NODE = re.compile(r"(?:for operation |\{\{(?:colocation_)?node )([^\s:{}]+)")
_MEMBER = re.compile(r"^  (\S+) \(\S+\)", re.MULTILINE)
_UNKNOWN_OP = re.compile(r"Op type not registered '([^']*)'")
_MALFORMED = re.compile(r"Malformed device specification '([^']*)' in node: \{name:'([^']*)'")


def _refusals(
    process: PlacerProcess, graph_def: Any, placement: Placement, refused: GraphRefused
) -> Iterator[Refusal]:
    """Everything that strict placement refuses, one after the other.

    The placer stops at the first op, so that op and those bound to it may go anywhere, and it
    is asked again.
    """
    nodes = {node.name: node for node in graph_def.node}
    devices: dict[str, str] = {}
    reported: set[str] = set()
    try:
        for _ in range(MAX_REFUSALS):
            refusal = _refusal(str(refused), placement)
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
                _ask(process, graph_def, placement, soft=False)
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


def _refusal(message: str, placement: Placement) -> Refusal:
    """The op that a message of the placer is about, and the message as the user can read it.

    Where that op is bound to a variable, the variable is what the user knows.

    Raises:
        InputError: the message is about a device name that the placer cannot read.
    """
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
