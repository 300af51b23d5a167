"""Devices to run on: the GPUs that are here, or logical CPUs in their place.

``GPU:i`` becomes ``CPU:i+1`` and ``CPU:0`` stays, so that "on the host" and "on a GPU" remain
apart, as they would not if every GPU became ``CPU:0``. A v1 session makes as many logical CPUs as
its configuration asks for, whatever the process has.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from placement_checks import machines
from placement_checks.devices import Device


@contextlib.contextmanager
def running_on(gpus: int, *, devices: str = "auto") -> Iterator[Any]:
    """Build into the default graph for ``gpus`` GPUs, or for what stands in for them.

    Args:
        gpus: how many GPUs the program names.
        devices: ``auto`` takes real GPUs where there are enough, ``simulated`` never does.

    Yields:
        The ``ConfigProto`` for the session that runs the graph: soft placement off, and as many
        logical CPUs as it takes. It may be changed.
    """
    if devices != "simulated" and len(machines.local_gpus()) >= gpus:
        yield tf.compat.v1.ConfigProto(gpu_options=tf.compat.v1.GPUOptions(allow_growth=True))
        return
    with tf.compat.v1.device(lambda op: stand_in(op.device)):
        yield tf.compat.v1.ConfigProto(device_count={"CPU": gpus + 1, "GPU": 0})


def stand_in(device: str) -> str:
    """The device that stands in for ``device``: ``CPU:i+1`` for ``GPU:i``, else itself."""
    parsed = Device.parse(device)
    if not parsed.is_gpu:
        return device
    return str(Device(parsed.job, parsed.replica, parsed.task, "CPU", (parsed.index or 0) + 1))
