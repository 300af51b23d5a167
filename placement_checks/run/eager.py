"""CPU devices in place of GPUs for TensorFlow 2: eager code, functions and strategies.

The eager runtime makes its devices once, when it first runs anything. So many logical CPUs must be
asked for before that; afterwards TensorFlow refuses, and what asks for ``/gpu:1`` would run on
``CPU:0`` without a word, as soft placement has it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import cross_device_utils, device_util, mirrored_strategy
from tensorflow.python.eager import context
from tensorflow.python.framework import ops

from placement_checks.core.devices import Device
from placement_checks.core.errors import UsageError
from placement_checks.run.devices import stand_in, stands_in

# Where the numbers of the groups of devices begin that strategies add up in, of each strategy.
_group_keys = count(1000, 1000)


@contextlib.contextmanager
def simulated_gpus(gpus: int, *, devices: str = "auto") -> Iterator[None]:
    """Run what names GPUs, unchanged, on CPU devices in their place: ``GPU:i`` is ``CPU:i+1``.

    Within it, whatever opens a device scope is led elsewhere: eager code, functions that are
    traced here, and strategies such as ``tf.distribute.MirroredStrategy(["GPU:0", "GPU:1"])``.
    ``MirroredStrategy()`` and ``CentralStorageStrategy()``, which take all GPUs, take these; who
    asks TensorFlow for a list of GPUs is told the truth, as Keras would go on to kernels of GPUs.
    Soft placement is off, so that nothing falls back unseen. Where there are as many GPUs, nothing
    is changed but that.

    Strategies may follow one another in a process: TensorFlow itself fails if a second one adds up
    tensors of other shapes (github.com/tensorflow/tensorflow/issues/62790), on real GPUs too.

    Args:
        gpus: how many GPUs the code names.
        devices: ``auto`` takes real GPUs where there are enough, ``simulated`` never does.

    Raises:
        UsageError: TensorFlow has started with fewer logical CPUs.
    """
    simulated = stands_in(gpus, devices)
    if simulated:
        ask_for_cpus(gpus + 1)
    soft = tf.config.get_soft_device_placement()
    tf.config.set_soft_device_placement(False)
    try:
        with contextlib.ExitStack() as patched:
            if simulated:
                for owner, name, instead in _patches(gpus):
                    patched.callback(setattr, owner, name, getattr(owner, name))
                    setattr(owner, name, instead)
            yield
    finally:
        tf.config.set_soft_device_placement(soft)


def _patches(gpus: int) -> Iterator[tuple[Any, str, Any]]:
    """What takes the place of TensorFlow's own: the owner, the name and the function."""
    of_context, of_graph = context.Context.device, ops.Graph.device
    yield context.Context, "device", lambda self, name: of_context(self, _instead(name))
    yield ops.Graph, "device", lambda self, name: of_graph(self, _instead(name))

    of_local = device_util.local_devices_from_num_gpus
    devices = of_local(gpus)
    yield mirrored_strategy, "all_local_devices", lambda num_gpus=None: devices[:num_gpus]
    yield device_util, "local_devices_from_num_gpus", lambda found: of_local(found or gpus)

    # Keys begin at 1 in every strategy, and a group that has met before expects the same shapes.
    of_keys = cross_device_utils.CollectiveKeys.__init__
    yield (
        cross_device_utils.CollectiveKeys,
        "__init__",
        lambda self, group_key_start=1: of_keys(self, group_key_start + next(_group_keys)),
    )


def ask_for_cpus(count: int) -> None:
    """See that there are at least so many logical CPUs.

    Raises:
        UsageError: TensorFlow has started with fewer.
    """
    if context.context()._initialized:
        present = len(tf.config.list_logical_devices("CPU"))
        if present < count:
            raise UsageError(
                f"{count - 1} simulated GPUs",
                f"TensorFlow has started with {present} logical CPU{'s'[: present != 1]}, and "
                f"{count} are needed",
                f"run pytest with --placement-gpus={count - 1}, or open simulated_gpus before "
                "anything runs",
            )
        return
    cpu, *_ = tf.config.list_physical_devices("CPU")
    configured = tf.config.get_logical_device_configuration(cpu) or []
    if len(configured) < count:
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * count
        )


def _instead(device: Any) -> Any:
    """What is asked for instead: a device is named by text, a `DeviceSpec` or a function."""
    if callable(device):
        asked: Callable[[Any], Any] = device
        return lambda op: _instead(asked(op))
    if isinstance(device, str) and device:
        return stand_in(device)
    if hasattr(device, "to_string"):
        return stand_in(device.to_string()) if Device.parse(device.to_string()).is_gpu else device
    return device
