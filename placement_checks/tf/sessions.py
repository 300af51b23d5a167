"""Sessions, the files and servers that programs use, and queries for the number of GPUs."""

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

_SESSION_LIBRARY = "tensorflow.python.client.pywrap_tf_session"


def around_sessions(around: Around) -> Patched:
    """Patch the constructor of every kind of session."""
    return patched(_base_session(), "__init__", around)


def around_runs(around: Around) -> Patched:
    """Patch ``_do_run``, which every `run` of a session calls.

    Its arguments are the session, the handle of a partial run, the ops to run, the tensors to
    fetch, the fed arrays by tensor reference, the options as a buffer, and the metadata.
    """
    return patched(_base_session(), "_do_run", around)


def around_session_methods(methods: Mapping[str, Around]) -> Patched:
    """Patch other methods of sessions, by name."""
    return all_patched(_base_session(), methods)


def _base_session() -> Any:
    return existing_in("tensorflow.python.client.session", "BaseSession")


@contextlib.contextmanager
def options_buffer(options: Any) -> Iterator[Any]:
    """Give a ``RunOptions`` in the form that the method of `around_runs` receives."""
    module = existing_module(_SESSION_LIBRARY)
    buffer = existing(module, "TF_NewBufferFromString")(options.SerializeToString())
    try:
        yield buffer
    finally:
        existing(module, "TF_DeleteBuffer")(buffer)


def around_files(functions: Mapping[str, Around]) -> Patched:
    """Patch functions, by name, through which `tf.io.gfile` and ``file_io`` access files."""
    return all_patched(existing_module("tensorflow.python.lib.io._pywrap_file_io"), functions)


def around_servers(functions: Mapping[str, Around]) -> Patched:
    """Patch C functions, by name, that `tf.distribute.Server` calls."""
    return all_patched(existing_module(_SESSION_LIBRARY), functions)


def forget_server(server: Any) -> None:
    """Drop the C object of a `tf.distribute.Server` before its destructor frees it.

    For servers that got another object from a patch.
    """
    existing(server, "_server")
    del server._server


# The function that counts GPUs for programs, as module and name.
NUM_GPUS_FUNCTION = ("tensorflow.python.eager.context", "num_gpus")
# The modules of strategies begin with this.
STRATEGY_MODULES = "tensorflow.python.distribute."
# Strategies that were given devices call these functions too, to choose a reduction algorithm.
REDUCTION_CHOOSERS = frozenset({"select_cross_device_ops", "_make_collective_ops_with_fallbacks"})
# Modules on the stack between a program's query by `tf.config`, `tf.test` or `device_lib` and the
# functions that are patched below.
DEVICE_QUERY_MODULES = frozenset(
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


def around_context(methods: Mapping[str, Around]) -> Patched:
    """Patch methods, by name, of the eager context, which the functions of `tf.config` call."""
    return all_patched(existing_in("tensorflow.python.eager.context", "Context"), methods)


def around_device_list(around: Around) -> Patched:
    """Patch the function behind `device_lib.list_local_devices`.

    It receives a serialized ``ConfigProto`` and returns serialized ``DeviceAttributes``.
    """
    owner = existing_module("tensorflow.python.client._pywrap_device_lib")
    return patched(owner, "list_devices", around)


def around_all_local_devices(around: Around) -> Patched:
    """Patch the choice of default devices in `tf.distribute.MirroredStrategy`."""
    owner = existing_module("tensorflow.python.distribute.mirrored_strategy")
    return patched(owner, "all_local_devices", around)


def around_local_devices(around: Around) -> Patched:
    """Patch the choice of devices in `CentralStorageStrategy`; it receives the number of GPUs."""
    owner = existing_module("tensorflow.python.distribute.device_util")
    return patched(owner, "local_devices_from_num_gpus", around)
