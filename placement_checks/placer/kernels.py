"""Why an op cannot be placed on a device: what the kernels of this TensorFlow build take."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import tensorflow as tf

from placement_checks.core.devices import Device
from placement_checks.core.machines import Machine
from placement_checks.core.placement import Op
from placement_checks.loading.tf_internals import kernels_of


def fallback_reason(op: Op, node: Any, machine: Machine) -> str:
    """Why ``op`` did not get the device it requests; ``""`` if not for its own kernels.

    Args:
        op: the op, requested on one device and assigned to another.
        node: its NodeDef; None for an op of a function body.
        machine: the devices that it was placed on.
    """
    requested = Device(type=op.requested.type, index=op.requested.index)
    if not machine.has(requested):
        return f"the machine ({machine}) has no {requested}"
    usable = [
        kernel for kernel in _kernels(op.type) if kernel.device_type in (requested.type, "DEFAULT")
    ]
    if not usable:
        return f"{op.type} has no {requested.type} kernel"
    if node is not None and not any(_fits(kernel, node) for kernel in usable):
        types = sorted({_shown(node, name) for name in _constrained(usable, node)})
        return f"the {requested.type} kernel of {op.type} does not take {', '.join(types)}"
    return ""


BOUND_TO_ANOTHER = "bound to another op, by colocation or by a reference"


@lru_cache(maxsize=4096)
def _kernels(op_type: str) -> tuple[Any, ...]:
    return tuple(kernels_of(op_type))


def _fits(kernel: Any, node: Any) -> bool:
    """Whether the types of a node's attributes are among those the kernel takes."""
    return all(
        _types(node, constraint.name) <= set(constraint.allowed_values.list.type)
        for constraint in kernel.constraint
    )


def _types(node: Any, attribute: str) -> set[int]:
    if attribute not in node.attr:
        return set()
    value = node.attr[attribute]
    return set(value.list.type) if value.HasField("list") else {value.type}


def _constrained(registered: list[Any], node: Any) -> set[str]:
    names = {constraint.name for kernel in registered for constraint in kernel.constraint}
    return {name for name in names if name in node.attr}


def _shown(node: Any, attribute: str) -> str:
    return " and ".join(sorted(map(_name, _types(node, attribute))))


def _name(dtype: int) -> str:
    try:
        return str(tf.dtypes.as_dtype(dtype).name)
    except TypeError:  # a file may have any number
        return f"dtype {dtype}"
