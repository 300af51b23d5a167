"""Simulate GPUs with CPU devices for TensorFlow 2: eager code, functions and strategies.

The eager runtime creates its devices when it runs its first op. Afterwards, TensorFlow refuses to
create logical CPUs, and soft placement would silently run ops of ``/gpu:1`` on ``CPU:0``. So the
logical CPUs must be requested before.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from itertools import count

import tensorflow as tf

from placement_checks.core.devices import Devices
from placement_checks.run.runnable import uses_simulated
from placement_checks.tf.patches import Patch
from placement_checks.tf.patching import Around, all_patched
from placement_checks.tf.process_state import restore_soft_placement
from placement_checks.tf.simulated_devices import configure_logical_cpus, simulated_scope

# The first collective group key of each strategy.
_group_keys = count(1000, 1000)


def _with_new_keys(init: Callable[..., None]) -> Callable[..., None]:
    """Let each strategy start with a new group key.

    By default, the keys of every strategy start at 1, and a group whose key was used before
    expects tensors of the same shapes.
    """
    return lambda self, group_key_start=1: init(self, group_key_start + next(_group_keys))


# With these patches, a process may use several strategies one after another. Without them,
# TensorFlow fails if the second strategy reduces tensors of other shapes, even on GPUs
# (github.com/tensorflow/tensorflow/issues/62790).
SEVERAL_STRATEGIES: Mapping[Patch, Around] = {Patch.NEW_KEYS: _with_new_keys}


@contextlib.contextmanager
def simulated_gpus(gpus: int, *, devices: Devices = "auto") -> Iterator[None]:
    """Run code for GPUs, unchanged, on CPU devices: ``GPU:i`` is ``CPU:i+1``.

    Inside the context, every device scope is redirected: in eager code, in functions that are
    traced here, and in strategies such as ``tf.distribute.MirroredStrategy(["GPU:0", "GPU:1"])``.
    ``MirroredStrategy()`` and ``CentralStorageStrategy()`` use all simulated GPUs. TensorFlow
    still lists real GPUs only, because Keras would choose GPU kernels for simulated GPUs. Soft
    placement is off, so that no op silently falls back to another device. A process may use
    several strategies one after another. If the machine has enough GPUs, device scopes are not
    redirected.

    Args:
        gpus: the number of GPUs that the code names.
        devices: ``auto`` uses real GPUs if there are enough, ``simulated`` never does.

    Raises:
        UsageError: TensorFlow has started with fewer logical CPUs.
    """
    simulated = uses_simulated(gpus, devices)
    if simulated:
        configure_logical_cpus(gpus + 1)
    patches = _device_patches(gpus) if simulated else {}
    with restore_soft_placement(), all_patched({**SEVERAL_STRATEGIES, **patches}):
        tf.config.set_soft_device_placement(False)
        yield


def _device_patches(gpus: int) -> Mapping[Patch, Around]:
    """Return patches that redirect device scopes, and make strategies find the simulated GPUs."""
    devices = tuple(f"/device:GPU:{index}" for index in range(gpus)) or ("/device:CPU:0",)
    return {
        Patch.EAGER_SCOPE: simulated_scope,
        Patch.GRAPH_SCOPE: simulated_scope,
        Patch.MIRRORED_DEVICES: lambda _: lambda num_gpus=None: devices[:num_gpus],
        Patch.CENTRAL_DEVICES: lambda choose: lambda found: choose(found or gpus),
    }
