"""Where eager ops run, and what runs them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from placement_checks.loading.tf_internals.patching import (
    Around,
    Patched,
    eager_context,
    existing,
    existing_in,
    existing_module,
    patched,
)


def around_eager_devices(around: Around) -> Patched:
    """Patch what a device scope of eager code is opened by."""
    return patched(existing_in("tensorflow.python.eager.context", "Context"), "device", around)


@contextlib.contextmanager
def around_eager_ops(fast: Around, slow: Around) -> Iterator[None]:
    """Patch what runs an eager op.

    The fast way is given a context, the op's type and name, its inputs, and behind them pairs of
    an attribute and its value; the slow one the type as bytes, the number of results, the inputs,
    the pairs as a tuple, and others.
    """
    with (
        patched(existing_module("tensorflow.python.pywrap_tfe"), "TFE_Py_FastPathExecute", fast),
        patched(existing_module("tensorflow.python.eager.execute"), "execute", slow),
    ):
        yield


def failed_eager_op() -> tuple[type[Exception], ...]:
    """What is raised where an eager op fails."""
    kind = existing_in("tensorflow.python.eager.core", "_NotOkStatusException")
    return (kind, existing_in("tensorflow.python.framework.errors", "OpError"))


def eager_device() -> str:
    """The device scope of eager code; ``""`` outside of one."""
    return existing(eager_context(), "device_name") or ""


# What stands between `tf.device` in a program and what `around_eager_devices` patches.
SCOPES_THROUGH = frozenset({"tensorflow.python.eager.context", "tensorflow.python.framework.ops"})
