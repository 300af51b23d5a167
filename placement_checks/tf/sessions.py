"""Sessions, servers, and queries for the number of GPUs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from placement_checks.tf.patching import (
    existing,
    existing_module,
)


@contextlib.contextmanager
def options_buffer(options: Any) -> Iterator[Any]:
    """Give a ``RunOptions`` in the form that the method of `Patch.RUN` receives."""
    module = existing_module("tensorflow.python.client.pywrap_tf_session")
    buffer = existing(module, "TF_NewBufferFromString")(options.SerializeToString())
    try:
        yield buffer
    finally:
        existing(module, "TF_DeleteBuffer")(buffer)


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
