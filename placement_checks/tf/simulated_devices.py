"""Logical CPUs that simulate GPUs: ``CPU:i+1`` for ``GPU:i``.

``CPU:0`` remains the host, so that ops on the host differ from ops on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import tensorflow as tf

from placement_checks.core.devices import LOCALHOST, Device
from placement_checks.core.errors import UsageError

_configured_counts: list[int] = []  # the numbers of logical CPUs that this module configured


@lru_cache(maxsize=1024)
def to_simulated(device: str) -> str:
    """The stand-in of a device: ``CPU:i+1`` for ``GPU:i``; other devices unchanged.

    A CPU without index becomes ``CPU:0``, the only CPU of the host. Otherwise, it would get the
    index of the stand-in if it is in the scope of a GPU.
    """
    parsed = Device.parse(device)
    if parsed.type == "CPU" and parsed.index is None:
        return str(replace(parsed, index=0))
    if not parsed.is_gpu:
        return device
    return str(Device(parsed.job, parsed.replica, parsed.task, "CPU", (parsed.index or 0) + 1))


def to_requested(device: Device) -> Device:
    """The device that a stand-in simulates: ``GPU:i`` for ``CPU:i+1``; others unchanged."""
    if device.type != "CPU" or not device.index:
        return device
    return replace(device, type="GPU", index=device.index - 1)


@lru_cache(maxsize=1024)
def requested_name(device: str) -> str:
    """The name of the device that a stand-in simulates; the job localhost is omitted."""
    simulated = to_requested(Device.parse(device))
    if simulated.job == LOCALHOST.job:
        simulated = Device(type=simulated.type, index=simulated.index)
    return str(simulated) if simulated else ""


def simulated_scope(scope: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the ``device`` method of an eager context or a graph: GPU scopes open stand-ins."""
    return lambda self, name: scope(self, _to_simulated_scope(name))


def configure_logical_cpus(count: int) -> None:
    """Configure at least ``count`` logical CPUs.

    Raises:
        UsageError: TensorFlow has already started with fewer CPUs.
    """
    cpu, *_ = tf.config.list_physical_devices("CPU")
    configured = tf.config.get_logical_device_configuration(cpu) or []
    if len(configured) >= count:
        return
    try:
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * count
        )
        _configured_counts.append(count)
    except RuntimeError:  # TensorFlow has started
        present = len(tf.config.list_logical_devices("CPU"))
        if present < count:
            raise UsageError(
                f"{count - 1} simulated GPUs",
                f"TensorFlow has already started with {present} logical CPU{'s'[: present != 1]}; "
                f"{count} are required",
                f"run pytest with --placement-gpus={count - 1}, or open simulated_gpus before "
                "anything runs",
            ) from None


def is_stand_in(device: Any) -> bool:
    """Whether a logical device exists only because this module configured it as a stand-in."""
    return (
        bool(_configured_counts) and device.device_type == "CPU" and not device.name.endswith(":0")
    )


def _to_simulated_scope(device: Any) -> Any:
    """A `tf.device` argument for stand-ins: text, a `DeviceSpec` or a function."""
    if callable(device):
        device_function: Callable[[Any], Any] = device
        return lambda op: _to_simulated_scope(device_function(op))
    if isinstance(device, str) and device:
        return to_simulated(device)
    if hasattr(device, "to_string") and Device.parse(device.to_string()).is_gpu:
        return to_simulated(device.to_string())
    return device
