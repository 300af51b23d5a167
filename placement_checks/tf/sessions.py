"""What sessions run.

What deletes and overwrites files, and what starts the servers of a cluster.

How programs and strategies ask for the number of GPUs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from placement_checks.tf.patching import (
    Around,
    Patched,
    all_patched,
    existing,
    existing_in,
    existing_module,
    patched,
)


def around_sessions(around: Around) -> Patched:
    """Patch the constructor of sessions, of every kind."""
    return patched(base_session(), "__init__", around)


def around_runs(around: Around) -> Patched:
    """Patch what `run` ends in.

    Its arguments are the session, the handle of a partial run, the ops to run, the tensors to
    fetch, arrays by references of tensors, the options as a buffer, and the metadata.
    """
    return patched(base_session(), "_do_run", around)


def around_other_runs(methods: Mapping[str, Around]) -> Patched:
    """Patch methods of sessions that may do without `run`."""
    return all_patched(base_session(), methods)


@contextlib.contextmanager
def options_buffer(options: Any) -> Iterator[Any]:
    """A ``RunOptions`` as what `around_runs` patches takes it."""
    module = existing_module("tensorflow.python.client.pywrap_tf_session")
    buffer = existing(module, "TF_NewBufferFromString")(options.SerializeToString())
    try:
        yield buffer
    finally:
        existing(module, "TF_DeleteBuffer")(buffer)


def base_session() -> Any:
    return existing_in("tensorflow.python.client.session", "BaseSession")


def around_files(functions: Mapping[str, Around]) -> Patched:
    """Patch what `tf.io.gfile`, its forerunners and ``file_io`` reach files by."""
    return all_patched(existing_module("tensorflow.python.lib.io._pywrap_file_io"), functions)


def around_servers(functions: Mapping[str, Around]) -> Patched:
    """Patch the functions of C that `tf.distribute.Server` is made of."""
    return all_patched(existing_module("tensorflow.python.client.pywrap_tf_session"), functions)


def forget_server(server: Any) -> None:
    """Let a `tf.distribute.Server` end without telling C of it, for one that C did not make."""
    existing(server, "_server")
    del server._server


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
