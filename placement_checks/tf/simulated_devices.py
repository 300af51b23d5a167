"""Logical CPUs that stand in for GPUs: ``CPU:i+1`` for ``GPU:i``.

``CPU:0`` stays, so that "on the host" and "on a GPU" remain apart, as they would not if every GPU
became ``CPU:0``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import tensorflow as tf

from placement_checks.core.devices import LOCALHOST, Device
from placement_checks.core.errors import UsageError

_asked: list[int] = []  # how many logical CPUs were asked for


@lru_cache(maxsize=1024)
def to_simulated(device: str) -> str:
    """The device that stands in for ``device``: ``CPU:i+1`` for ``GPU:i``, else itself."""
    parsed = Device.parse(device)
    if not parsed.is_gpu:
        return device
    return str(Device(parsed.job, parsed.replica, parsed.task, "CPU", (parsed.index or 0) + 1))


def to_requested(device: Device) -> Device:
    """The device that one stands in for: ``GPU:i`` for ``CPU:i+1``, else itself."""
    if device.type != "CPU" or not device.index:
        return device
    return replace(device, type="GPU", index=device.index - 1)


@lru_cache(maxsize=1024)
def as_requested(device: str) -> str:
    """The name of the device that one of this process stands in for, without its job."""
    asked = to_requested(Device.parse(device))
    if asked.job == LOCALHOST.job:
        asked = Device(type=asked.type, index=asked.index)
    return str(asked) if asked else ""


def simulated_scope(scope: Callable[..., Any]) -> Callable[..., Any]:
    """``tf.device`` of eager code or of a graph, which is led to what stands in for GPUs."""
    return lambda self, name: scope(self, _simulated_instead(name))


def ask_for_cpus(count: int) -> None:
    """See that there are at least so many logical CPUs.

    Raises:
        UsageError: TensorFlow has started with fewer.
    """
    cpu, *_ = tf.config.list_physical_devices("CPU")
    configured = tf.config.get_logical_device_configuration(cpu) or []
    if len(configured) >= count:
        return
    try:
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * count
        )
        _asked.append(count)
    except RuntimeError:  # it has started
        present = len(tf.config.list_logical_devices("CPU"))
        if present < count:
            raise UsageError(
                f"{count - 1} simulated GPUs",
                f"TensorFlow has started with {present} logical CPU{'s'[: present != 1]}, and "
                f"{count} are needed",
                f"run pytest with --placement-gpus={count - 1}, or open simulated_gpus before "
                "anything runs",
            ) from None


def is_stand_in(device: Any) -> bool:
    """Whether a logical device of TensorFlow is one that was only asked for to stand in."""
    return bool(_asked) and device.device_type == "CPU" and not device.name.endswith(":0")


def _simulated_instead(device: Any) -> Any:
    """What is asked for instead: a device is named by text, a `DeviceSpec` or a function."""
    if callable(device):
        device_function: Callable[[Any], Any] = device
        return lambda op: _simulated_instead(device_function(op))
    if isinstance(device, str) and device:
        return to_simulated(device)
    if hasattr(device, "to_string"):
        return (
            to_simulated(device.to_string()) if Device.parse(device.to_string()).is_gpu else device
        )
    return device
