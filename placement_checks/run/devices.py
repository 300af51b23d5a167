"""Devices to run on: the GPUs that are here, or logical CPUs in their place.

A v1 session makes as many logical CPUs as its configuration asks for, whatever the process has.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from placement_checks.core.gpus import Devices, local_gpus
from placement_checks.loading.simulated import to_simulated


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
