"""Why an op cannot be placed on a device: what the kernels of this TensorFlow build take."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import tensorflow as tf

from placement_checks.core.devices import Device
from placement_checks.core.machines import Machine
from placement_checks.core.placement import Op
from placement_checks.loading.tf_internals.graph_building import kernels_of


def fallback_reason(op: Op, attributes: Mapping[str, Any], machine: Machine) -> str:
    """Why ``op`` did not get the device it requests; ``""`` if not for its own kernels.

    Args:
        op: the op, requested on one device and assigned to another.
        attributes: what it computes with, as `Details.attributes` has it.
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
    if not any(_fits(kernel, attributes) for kernel in usable):
        types = sorted({_shown(attributes, name) for name in _lacking(usable, attributes)})
        return f"the {requested.type} kernel of {op.type} does not take {', '.join(types)}"
    return ""


BOUND_TO_ANOTHER = "bound to another op, by colocation or by a reference"


@lru_cache(maxsize=4096)
def _kernels(op_type: str) -> tuple[Any, ...]:
    return tuple(kernels_of(op_type))


def _fits(kernel: Any, attributes: Mapping[str, Any]) -> bool:
    """Whether the types of an op's attributes are among those the kernel takes."""
    return all(
        _types(attributes, constraint.name) <= set(constraint.allowed_values.list.type)
        for constraint in kernel.constraint
    )


def _types(attributes: Mapping[str, Any], attribute: str) -> set[int]:
    value = attributes.get(attribute, ())
    return set(value) if isinstance(value, tuple) else {value}


def _lacking(usable: list[Any], attributes: Mapping[str, Any]) -> set[str]:
    """The attributes whose types no kernel takes; if each has one that does, all constrained."""
    taken: dict[str, bool] = {}
    for constraint in (each for kernel in usable for each in kernel.constraint):
        if name_types := _types(attributes, constraint.name):
            takes = name_types <= set(constraint.allowed_values.list.type)
            taken[constraint.name] = takes or taken.get(constraint.name, False)
    return {name for name, takes in taken.items() if not takes} or set(taken)


def _shown(attributes: Mapping[str, Any], attribute: str) -> str:
    return " and ".join(sorted(map(_name, _types(attributes, attribute))))


def _name(dtype: int) -> str:
    try:
        return str(tf.dtypes.as_dtype(dtype).name)
    except TypeError:  # a file may have any number
        return f"dtype {dtype}"
