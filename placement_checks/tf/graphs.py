"""How a graph was built, the options of its runs, and the registered op types."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, cast

from placement_checks.tf.patching import existing, existing_in, existing_module


def original_op(op: Any) -> Any:
    """The forward op of a backward op; None for other ops."""
    return existing(op, "_original_op")


def current_stack() -> Sequence[Any]:
    """The frames of this thread, the outermost first, in the form of an op's `traceback`.

    Code that AutoGraph rewrote has the user's source lines.
    """
    return cast(Sequence[Any], existing_in("tensorflow.python.util.tf_stack", "extract_stack")())


def device_scopes(op: Any) -> Sequence[Any]:
    """The device scopes around an op at its creation, the innermost first.

    Each scope has the ``filename`` and ``lineno`` of its ``with`` statement. Its ``obj`` is the
    argument of the scope as text.
    """
    return cast(Sequence[Any], existing(op, "_device_assignments"))


def function_body(graph: Any, name: str) -> Any:
    """The `tf.Graph` of a graph's function; None if Python did not trace it."""
    return getattr(existing(graph, "_get_function")(name), "graph", None)


def kernels_of(op_type: str) -> Sequence[Any]:
    """The ``KernelDef`` of every kernel of an op type."""
    owner = "tensorflow.python.framework.kernels"
    registered = existing_in(owner, "get_registered_kernels_for_op")(op_type)
    return cast(Sequence[Any], registered.kernel)


def definition_of(op_type: str) -> Any:
    """The ``OpDef`` of an op type; None if TensorFlow does not know the type."""
    return existing_in("tensorflow.python.framework.op_def_registry", "get")(op_type)


@contextlib.contextmanager
def options_buffer(options: Any) -> Iterator[Any]:
    """Give a ``RunOptions`` in the form that the method of `Patch.RUN` receives."""
    module = existing_module("tensorflow.python.client.pywrap_tf_session")
    buffer = existing(module, "TF_NewBufferFromString")(options.SerializeToString())
    try:
        yield buffer
    finally:
        existing(module, "TF_DeleteBuffer")(buffer)


def set_text_attribute(op: Any, name: str, text: str) -> None:
    """Set an attribute that the op definition lacks; its name begins with ``_``."""
    from tensorflow.core.framework.attr_value_pb2 import AttrValue

    existing(op, "_set_attr")(name, AttrValue(s=text.encode()))
