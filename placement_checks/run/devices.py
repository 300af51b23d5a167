"""Devices to run on: the GPUs that are here, or logical CPUs in their place.

``GPU:i`` becomes ``CPU:i+1`` and ``CPU:0`` stays, so that "on the host" and "on a GPU" remain
apart, as they would not if every GPU became ``CPU:0``. A v1 session makes as many logical CPUs as
its configuration asks for, whatever the process has.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

import tensorflow as tf

from placement_checks.core.devices import Device
from placement_checks.core.gpus import Devices, local_gpus


def uses_simulated(gpus: int, devices: Devices = "auto") -> bool:
    """Whether CPU devices stand in for GPUs.

    Args:
        gpus: how many GPUs a program names.
        devices: ``auto`` takes real GPUs where there are enough, ``simulated`` never does.
    """
    return devices == "simulated" or len(local_gpus()) < gpus


def session_config(gpus: int, devices: Devices = "auto") -> Any:
    """The ``ConfigProto`` of a session with as many GPUs, or CPU devices; soft placement is off.

    Args:
        gpus: how many GPUs the program names.
        devices: as for `uses_simulated`.
    """
    if uses_simulated(gpus, devices):
        return tf.compat.v1.ConfigProto(device_count={"CPU": gpus + 1, "GPU": 0})
    return tf.compat.v1.ConfigProto(gpu_options=tf.compat.v1.GPUOptions(allow_growth=True))


@contextlib.contextmanager
def running_on(gpus: int, *, devices: Devices = "auto") -> Iterator[Any]:
    """Build into the default graph for ``gpus`` GPUs, or for what stands in for them.

    Args:
        gpus: how many GPUs the program names.
        devices: as for `uses_simulated`.

    Yields:
        The ``ConfigProto`` for the session that runs the graph, which may be changed.
    """
    config = session_config(gpus, devices)
    with contextlib.ExitStack() as stack:
        if uses_simulated(gpus, devices):
            stack.enter_context(tf.compat.v1.device(lambda op: to_simulated(op.device)))
        yield config


@contextlib.contextmanager
def full_precision() -> Iterator[None]:
    """Let GPUs multiply float32 as float32, and not as TF32, which has 10 bits of fraction."""
    settings = tf.config.experimental
    before = settings.tensor_float_32_execution_enabled()
    settings.enable_tensor_float_32_execution(False)
    try:
        yield
    finally:
        settings.enable_tensor_float_32_execution(before)


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
