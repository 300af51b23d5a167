"""Ask TensorFlow's placer for the device of every op of a built program."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

from placement_checks.core.devices import LOCALHOST, Device
from placement_checks.core.machines import Machine
from placement_checks.core.missing import Missing
from placement_checks.core.placement import Op, Placement, Refusal
from placement_checks.graph.graph_def import all_nodes, without_large_constants
from placement_checks.placer.reasons import (
    BOUND_TO_ANOTHER,
    all_refusals,
    fallback_reason,
    parse_refusal,
)
from placement_checks.placer.request import PlacerQuery, TaskOrder
from placement_checks.placer.worker.client import PlacerUnavailable, phantom
from placement_checks.placer.worker.protocol import GraphRefused


@contextlib.contextmanager
def place_async(
    placement: Placement, graph_def: Any, machine: Machine
) -> Iterator[Callable[[], Placement]]:
    """Send a graph to TensorFlow's placer; the block may do other work until the placer answers.

    If strict placement fails, the refusals are collected and the graph is placed softly.

    Args:
        placement: the requested devices, and whether soft placement is on.
        graph_def: the program's ``GraphDef``, which is not changed.
        machine: the devices to place on, which need not exist.

    Yields:
        A function that waits for the answer. It returns ``placement`` with assigned devices.

    Raises:
        InputError: TensorFlow cannot read the device name that an op requests, or the placer's
            answer contradicts the request.
        PlacerError: the placer process died or hung.
    """
    placement = placement.with_fields(machine=machine)
    if refusals := _refused_by_machine(placement):
        missing = Missing(f"the machine ({machine}) lacks tasks that the program names")
        yield lambda: replace(placement, refusals=refusals, placer="phantom", assigned=missing)
        return
    query = PlacerQuery(phantom, prepare_graph_def(graph_def, machine), placement)
    with contextlib.ExitStack() as stack:
        try:
            answer = stack.enter_context(query.send(soft=placement.soft))
        except PlacerUnavailable as reason:
            missing = reason.missing
            yield lambda: replace(placement, assigned=missing)
        else:
            yield partial(_receive, query, answer)


def _receive(query: PlacerQuery, answer: Callable[[], list[str]]) -> Placement:
    """Wait for the assigned devices; if strict placement is refused, place softly."""
    placement = query.placement
    refusals: list[Refusal] = []
    try:
        try:
            devices = answer()
        except GraphRefused as refused:
            if placement.soft:
                raise
            refusals = list(all_refusals(query, refused))
            devices = query.place(soft=True)
    except GraphRefused as refused:
        return replace(
            placement,
            refusals=refusals or [parse_refusal(refused, placement)],
            placer="phantom",
            assigned=Missing("the placer refused the graph"),
        )
    except PlacerUnavailable as reason:
        return replace(placement, assigned=reason.missing)
    return _with_assigned(placement, devices).with_fields(
        refusals=tuple(refusals), placer="phantom"
    )


def _refused_by_machine(placement: Placement) -> list[Refusal]:
    """Refusals of the ops that request a job or task that the machine lacks."""
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


# Strategies use these parts in device names without a job. If LOCALHOST were put before such a
# name, the parts would occur twice, which TensorFlow accepts but `Device.parse` does not.
_LOCAL_TASK = re.compile(r"/(?:replica|task):0(?=/|$)")


def prepare_graph_def(graph_def: Any, machine: Machine) -> Any:
    """Copy a GraphDef for the placer process.

    On a local machine, every device name gets the job localhost. In a cluster, tasks get the names
    of `TaskOrder`. Large constants lose their values, unless shapes may depend on them.
    """
    renamed = cache(_on_localhost if machine.is_local else TaskOrder(machine).device)
    copied = without_large_constants(graph_def)
    for node in all_nodes(copied):
        node.device = renamed(node.device)
    return copied


def _on_localhost(device: str) -> str:
    return device if "/job:" in device else str(LOCALHOST) + _LOCAL_TASK.sub("", device)


def _with_assigned(placement: Placement, devices: Sequence[str]) -> Placement:
    """The placement with assigned devices, and the reasons for ops that fell back."""
    assert placement.machine is not None
    parsed = {device: Device.parse(device) if device else None for device in set(devices)}
    ops = {
        name: Op(name, type, requested, inputs, parsed[device], colocated, caller=caller)
        for (name, type, requested, inputs, _, colocated, _, _, caller), device in zip(
            placement.ops.values(), devices, strict=True
        )
    }
    placed = placement.with_assigned(ops)
    fallback_kinds = {
        (requested, assigned)
        for _, requested, assigned in placed.kinds
        if assigned and not assigned.matches(requested)
    }
    if not fallback_kinds:
        return placed
    ops = dict(placed.ops)
    for name, op in placed.ops.items():
        if (op.requested, op.assigned) in fallback_kinds:
            reason = fallback_reason(op, placed.details.attributes(name), placement.machine)
            ops[name] = op._replace(
                fallback_reason=reason or BOUND_TO_ANOTHER, fell_with_another=not reason
            )
    return placed.with_assigned(ops)
