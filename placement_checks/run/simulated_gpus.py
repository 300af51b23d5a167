"""Simulate GPUs with CPU devices for TensorFlow 2: eager code, functions and strategies.

The eager runtime creates its devices when it runs its first op. Afterwards, TensorFlow refuses to
create logical CPUs, and soft placement would silently run ops of ``/gpu:1`` on ``CPU:0``. So the
logical CPUs must be requested before.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import count

import tensorflow as tf

from placement_checks.core.devices import Devices
from placement_checks.run.runnable import uses_simulated
from placement_checks.tf import distribution, eager, patching, sessions
from placement_checks.tf.simulated_devices import configure_logical_cpus, simulated_scope

# The first collective group key of each strategy.
_group_keys = count(1000, 1000)


@contextlib.contextmanager
def simulated_gpus(gpus: int, *, devices: Devices = "auto") -> Iterator[None]:
    """Run code for GPUs, unchanged, on CPU devices: ``GPU:i`` is ``CPU:i+1``.

    Inside the context, every device scope is redirected: in eager code, in functions that are
    traced here, and in strategies such as ``tf.distribute.MirroredStrategy(["GPU:0", "GPU:1"])``.
    ``MirroredStrategy()`` and ``CentralStorageStrategy()`` use all simulated GPUs. TensorFlow
    still lists real GPUs only, because Keras would choose GPU kernels for others. Soft placement
    is off, so that no op silently falls back to another device. If the machine has enough GPUs,
    only soft placement is changed.

    A process may use several strategies one after another. TensorFlow itself fails if the second
    one reduces tensors of other shapes (github.com/tensorflow/tensorflow/issues/62790), on real
    GPUs too.

    Args:
        gpus: the number of GPUs that the code names.
        devices: ``auto`` takes real GPUs if there are enough, ``simulated`` never does.

    Raises:
        UsageError: TensorFlow has started with fewer logical CPUs.
    """
    simulated = uses_simulated(gpus, devices)
    if simulated:
        configure_logical_cpus(gpus + 1)
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
    """Yield patches that redirect device scopes, and that show strategies the simulated GPUs."""
    yield eager.around_eager_devices(simulated_scope)
    yield patching.patched(tf.Graph, "device", simulated_scope)

    devices = tuple(f"/device:GPU:{index}" for index in range(gpus)) or ("/device:CPU:0",)
    yield sessions.around_all_local_devices(lambda _: lambda num_gpus=None: devices[:num_gpus])
    yield sessions.around_local_devices(lambda of: lambda found: of(found or gpus))

    # Keys start at 1 in every strategy, and a group that was used before expects the same shapes.
    yield distribution.around_collective_keys(
        lambda init: (
            lambda self, group_key_start=1: init(self, group_key_start + next(_group_keys))
        )
    )
