"""Placements written by hand: what a program asks for, and what a placer might have answered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from placement_checks import Device, Machine, Op, Placement, Variable
from placement_checks.devices import LOCALHOST
from placement_checks.placement import VARIABLE_TYPES, Frame


def op(
    name: str, type: str, requested: str = "", assigned: str = "", *inputs: str, **more: Any
) -> Op:
    """An op; the host it is assigned to is the local one unless `assigned` names a job."""
    put = Device.parse(assigned).over(LOCALHOST) if assigned else None
    return Op(name, type, Device.parse(requested), inputs, put, **more)


def placement(
    *ops: Op,
    machine: str | None = "gpu*2",
    lines: Mapping[str, str] | None = None,
    shapes: Mapping[str, tuple[int | None, ...] | None] | None = None,
    **more: Any,
) -> Placement:
    """A placement of `ops`; `lines` has the user's lines of an op, as in "main.py:9 net.py:3"."""

    def frames(name: str) -> tuple[Frame, ...]:
        steps = (line.split(":") for line in (lines or {}).get(name, "").split())
        return tuple(Frame(file, int(number), "build") for file, number in steps)

    named = {"program": "train.py:build", "placer": "phantom", **more}
    variables = [
        Variable(each.name, "float32", (shapes or {}).get(each.name, (4,)))
        for each in ops
        if each.type in VARIABLE_TYPES
    ]
    return Placement(
        ops={each.name: each for each in ops},
        variables=variables,
        machine=Machine.parse(machine) if machine else None,
        frames=frames,
        **named,
    )
