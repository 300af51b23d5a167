"""What a user names of a program: an op, a variable or a device."""

from __future__ import annotations

from difflib import get_close_matches

from placement_checks.core.devices import LOCALHOST, Device
from placement_checks.core.errors import InputError, UsageError
from placement_checks.core.placement import Op, Placement, producer_of
from placement_checks.util.text import joined, nearest

_OFFERED = 3  # names that are near


def object_named(placement: Placement, text: str) -> Op | Device:
    """The op or device of that name; ``w:0`` and ``^w`` are the op w.

    Raises:
        UsageError: there is none; the message offers the nearest names.
    """
    op = placement.ops.get(producer_of(text))
    if op is not None:
        return op
    device = _device(text)
    if device is None:
        near = " or ".join(map(repr, _nearest(producer_of(text), placement)))
        fix = f"did you mean {near}?" if near else "placement-checks place TARGET lists them"
        raise UsageError(repr(text), f"is no op or device of {placement.program}", fix)
    if not _is_known(placement, device):
        devices = placement.machine.devices if placement.machine else ()
        names = joined(each.short for each in devices) or "none by name"
        raise UsageError(repr(text), f"is no device of {placement.program}", f"it has {names}")
    return device


def _device(text: str) -> Device | None:
    """What it says where it is written like a device: ``/gpu:1``, ``GPU:1``."""
    try:
        device = Device.parse(text)
    except InputError:
        return None
    return device if device.index is not None or device.job else None


def _is_known(placement: Placement, device: Device) -> bool:
    """Whether the machine has it, or an op asks for it."""
    if placement.machine is not None and placement.machine.has(device):
        return True
    requested = {op.requested for op in placement.ops.values()}
    return any(each and each.over(LOCALHOST).matches(device) for each in requested)


def _nearest(name: str, placement: Placement) -> list[str]:
    """The variables that end so or are spelled like it, else such ops, else the least unlike."""
    ops = list(placement.ops)
    for names in ([variable.name for variable in placement.variables], ops):
        ending = [other for other in names if other.endswith(f"/{name}")]
        spelled = get_close_matches(name, names, n=_OFFERED)
        if near := list(dict.fromkeys([*ending, *spelled])):
            return near[:_OFFERED]
    least_unlike = nearest(name, ops)
    return [least_unlike] if least_unlike else []
