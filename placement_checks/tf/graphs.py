"""What shows how a graph was built, and what is registered for its ops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from placement_checks.tf.patching import (
    Around,
    Patched,
    existing,
    existing_in,
    existing_module,
    patched,
)


def around_gradients(around: Around) -> Patched:
    """Patch what `tf.gradients` and the optimisers of `tf.compat.v1.train` take gradients with.

    It is called once for each call of theirs, and within itself; its first argument is the
    objectives.
    """
    return patched(
        existing_module("tensorflow.python.ops.gradients_util"), "_GradientsHelper", around
    )


def original_op(op: Any) -> Any:
    """The forward op that a backward op was built for; None for others."""
    return existing(op, "_original_op")


def current_stack() -> Sequence[Any]:
    """The frames of this thread, the outermost first, as those of an op's `traceback`.

    What AutoGraph has rewritten is told by the lines of the user's that it was made of.
    """
    return cast(Sequence[Any], existing_in("tensorflow.python.util.tf_stack", "extract_stack")())


def device_scopes(op: Any) -> Sequence[Any]:
    """The device scopes around an op as it was made, the innermost first.

    Each has a ``filename`` and a ``lineno``, where it was opened, and an ``obj``: what it was
    given, as text.
    """
    return cast(Sequence[Any], existing(op, "_device_assignments"))


def function_body(graph: Any, name: str) -> Any:
    """The `tf.Graph` that a function of a graph was traced into; None where Python has none."""
    return getattr(existing(graph, "_get_function")(name), "graph", None)


def kernels_of(op_type: str) -> Sequence[Any]:
    """The ``KernelDef`` of every kernel of an op type."""
    registered = existing_in(
        "tensorflow.python.framework.kernels", "get_registered_kernels_for_op"
    )
    return cast(Sequence[Any], registered(op_type).kernel)


def definition_of(op_type: str) -> Any:
    """The ``OpDef`` of an op type; None if there is no such type."""
    return existing_in("tensorflow.python.framework.op_def_registry", "get")(op_type)
