"""CPU devices in place of GPUs for TensorFlow 2: eager code, functions and strategies.

The eager runtime makes its devices once, when it first runs anything. So many logical CPUs must be
asked for before that; afterwards TensorFlow refuses, and what asks for ``/gpu:1`` would run on
``CPU:0`` without a word, as soft placement has it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import count

import tensorflow as tf

from placement_checks.core.devices import Devices
from placement_checks.run.runnable import uses_simulated
from placement_checks.tf import distribution, eager, patching, sessions
from placement_checks.tf.simulated_devices import ask_for_cpus, simulated_scope

# Where the numbers of the groups of devices begin that strategies add up in, of each strategy.
_group_keys = count(1000, 1000)


@contextlib.contextmanager
def simulated_gpus(gpus: int, *, devices: Devices = "auto") -> Iterator[None]:
    """Run what names GPUs, unchanged, on CPU devices in their place: ``GPU:i`` is ``CPU:i+1``.

    Within it, whatever opens a device scope is led elsewhere: eager code, functions that are
    traced here, and strategies such as ``tf.distribute.MirroredStrategy(["GPU:0", "GPU:1"])``.
    ``MirroredStrategy()`` and ``CentralStorageStrategy()``, which take all GPUs, take these; a
    list of GPUs from TensorFlow has the real ones alone, since Keras would use kernels of GPUs.
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
    simulated = uses_simulated(gpus, devices)
    if simulated:
        ask_for_cpus(gpus + 1)
    soft = tf.config.get_soft_device_placement()
    tf.config.set_soft_device_placement(False)
    try:
        with contextlib.ExitStack() as patched:
            if simulated:
                for patch in _device_patches(gpus):
                    patched.enter_context(patch)
            yield
    finally:
        tf.config.set_soft_device_placement(soft)


def _device_patches(gpus: int) -> Iterator[patching.Patched]:
    """What leads elsewhere: device scopes, and what strategies take for the GPUs there are."""
    yield eager.around_eager_devices(simulated_scope)
    yield patching.patched(tf.Graph, "device", simulated_scope)

    devices = tuple(f"/device:GPU:{index}" for index in range(gpus)) or ("/device:CPU:0",)
    yield sessions.around_all_local_devices(lambda _: lambda num_gpus=None: devices[:num_gpus])
    yield sessions.around_local_devices(lambda of: lambda found: of(found or gpus))

    # Keys begin at 1 in every strategy, and a group that was used before expects the same shapes.
    yield distribution.around_collective_keys(
        lambda init: (
            lambda self, group_key_start=1: init(self, group_key_start + next(_group_keys))
        )
    )
