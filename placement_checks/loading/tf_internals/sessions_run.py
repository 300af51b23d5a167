"""What sessions run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from placement_checks.loading.tf_internals.patching import (
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
