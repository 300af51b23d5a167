"""How programs and strategies ask for the number of GPUs."""

from __future__ import annotations

from collections.abc import Mapping

from placement_checks.loading.tf_internals.patching import (
    Around,
    Patched,
    all_patched,
    existing_in,
    existing_module,
    patched,
)
from placement_checks.loading.tf_internals.sessions_run import base_session


def around_all_local_devices(around: Around) -> Patched:
    """Patch what `tf.distribute.MirroredStrategy` finds where it is given no devices."""
    owner = existing_module("tensorflow.python.distribute.mirrored_strategy")
    return patched(owner, "all_local_devices", around)


def around_local_devices(around: Around) -> Patched:
    """Patch what `CentralStorageStrategy` takes for as many GPUs as there are."""
    owner = existing_module("tensorflow.python.distribute.device_util")
    return patched(owner, "local_devices_from_num_gpus", around)


# What stands between a program and the functions below, where the program asks by `tf.config`,
# `tf.test` or `device_lib`.
ASKED_THROUGH = frozenset(
    f"tensorflow.python.{module}"
    for module in (
        "autograph.impl.api",
        "client.device_lib",
        "framework.config",
        "framework.test_util",
        "util.deprecation",
        "util.module_wrapper",
    )
)
NUMBER_OF_GPUS = ("tensorflow.python.eager.context", "num_gpus")
STRATEGIES = "tensorflow.python.distribute."
# Strategies ask by these how gradients are best added up, whoever named the devices.
CHOOSING_A_REDUCTION = frozenset(
    {"select_cross_device_ops", "_make_collective_ops_with_fallbacks"}
)


def around_context(methods: Mapping[str, Around]) -> Patched:
    """Patch methods of the eager context, which every function of `tf.config` calls."""
    return all_patched(existing_in("tensorflow.python.eager.context", "Context"), methods)


def around_listed_devices(around: Around) -> Patched:
    """Patch what `device_lib.list_local_devices` calls: serialised configuration, and devices."""
    return patched(
        existing_module("tensorflow.python.client._pywrap_device_lib"), "list_devices", around
    )


def around_session_devices(around: Around) -> Patched:
    """Patch ``list_devices`` of sessions."""
    return patched(base_session(), "list_devices", around)
