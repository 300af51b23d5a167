"""What deletes and overwrites files, and what starts the servers of a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from placement_checks.loading.tf_internals.patching import (
    Around,
    Patched,
    all_patched,
    existing,
    existing_module,
)


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
