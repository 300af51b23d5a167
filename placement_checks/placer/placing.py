"""Asks TensorFlow's placer where the ops of a built program go."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

from placement_checks.core.devices import LOCALHOST, Device, Devices, local_gpus
from placement_checks.core.machines import Machine
from placement_checks.core.missing import Missing
from placement_checks.core.placement import Op, Placement, Placer, Refusal
from placement_checks.graph.graph_def import all_nodes, without_large_constants
from placement_checks.placer.reasons import (
    BOUND_TO_ANOTHER,
    all_refusals,
    fallback_reason,
    refusal_of,
)
from placement_checks.placer.request import Asking
from placement_checks.placer.task_order import TaskOrder
from placement_checks.placer.worker.client import PlacerUnavailable, phantom, session
from placement_checks.placer.worker.protocol import GraphRefused


@contextlib.contextmanager
def place_async(
    placement: Placement, graph_def: Any, machine: Machine, devices: Devices
) -> Iterator[Callable[[], Placement]]:
    """Send a graph to TensorFlow's placer; the block may do other work before it calls the result.

    That is ``placement`` with the devices that are assigned on ``machine``. Where strict placement
    fails, the refusals are collected and the graph is placed softly.

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
    placement = placement.knowing(machine=machine)
    here = machine.is_local and 0 < len(machine.gpus) <= len(local_gpus())
    if devices == "real" and not here:
        missing = Missing(f"this machine lacks the requested devices ({machine})")
        yield lambda: replace(placement, assigned=missing)
        return
    real = here and devices != "simulated"
    kind: Placer = "session" if real else "phantom"
    if refusals := _of_other_clusters(placement):
        missing = Missing(f"the machine ({machine}) lacks tasks that the program names")
        yield lambda: replace(placement, refusals=refusals, placer=kind, assigned=missing)
        return
    asking = Asking(session if real else phantom, prepare_graph_def(graph_def, machine), placement)
    with contextlib.ExitStack() as stack:
        try:
            answer = stack.enter_context(asking.asked(soft=placement.soft))
        except PlacerUnavailable as reason:
            missing = Missing(str(reason))
            yield lambda: replace(placement, assigned=missing)
        else:
            yield partial(_placed, asking, answer, kind)


def _placed(asking: Asking, answer: Callable[[], list[str]], kind: Placer) -> Placement:
    """What the placer makes of a graph; softly where it may, or where it refuses else."""
    placement = asking.placement
    refusals: list[Refusal] = []
    try:
        try:
            devices = answer()
        except GraphRefused as refused:
            if placement.soft:
                raise
            refusals = list(all_refusals(asking, refused))
            devices = asking.ask(soft=True)
    except GraphRefused as refused:
        return replace(
            placement,
            refusals=refusals or [refusal_of(refused, placement)],
            placer=kind,
            assigned=Missing("the placer refused the graph"),
        )
    except PlacerUnavailable as reason:
        return replace(placement, assigned=Missing(str(reason)))
    placed = _assigned(placement, devices)
    return placed.knowing(refusals=tuple(refusals), placer=kind)


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


def prepare_graph_def(graph_def: Any, machine: Machine) -> Any:
    """A copy of a GraphDef that can be placed from outside.

    On one host every op names that host, in a cluster tasks have the names of `TaskOrder`, and
    large constants that no shape depends on become small ones.
    """
    renamed = cache(_on_localhost if machine.is_local else TaskOrder(machine).device)
    copied = without_large_constants(graph_def)
    for node in all_nodes(copied):
        node.device = renamed(node.device)
    return copied


def _on_localhost(device: str) -> str:
    return device if "/job:" in device else str(LOCALHOST) + _HERE.sub("", device)


def _assigned(placement: Placement, devices: Sequence[str]) -> Placement:
    parsed = {device: Device.parse(device) if device else None for device in set(devices)}
    ops = {
        name: Op(name, type, requested, inputs, parsed[device], colocated, caller=caller)
        for (name, type, requested, inputs, _, colocated, _, _, caller), device in zip(
            placement.ops.values(), devices, strict=True
        )
    }
    placed = placement.with_assigned(ops)
    fell = {
        (requested, assigned)
        for _, requested, assigned in placed.kinds
        if assigned and not assigned.matches(requested)
    }
    return _with_reasons(placed, fell) if fell else placed


def _with_reasons(
    placement: Placement, fell: Collection[tuple[Device, Device | None]]
) -> Placement:
    """With the reasons why ops fell, which are those of some requested and assigned devices."""
    assert placement.machine is not None
    ops = dict(placement.ops)
    fallen = {op.name: op for op in ops.values() if (op.requested, op.assigned) in fell}
    for name, op in fallen.items():
        reason = fallback_reason(op, placement.details.attributes(name), placement.machine)
        ops[name] = op._replace(
            fallback_reason=reason or BOUND_TO_ANOTHER, fell_with_another=not reason
        )
    return placement.with_assigned(ops)
