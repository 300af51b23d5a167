"""What is global to a thread or to the process, as programs may change it."""

from __future__ import annotations

from typing import Any, cast

from placement_checks.loading.tf_internals.patching import (
    eager_context,
    existing,
    existing_in,
    existing_module,
)


def is_v2_behavior() -> bool:
    """Whether `tf.compat.v1.disable_v2_behavior` was not called."""
    return bool(existing_in("tensorflow.python.tf2", "enabled")())


def is_eager_by_default() -> bool:
    """Whether threads begin with eager execution."""
    context = existing_module("tensorflow.python.eager.context")
    return bool(existing(context, "default_execution_mode") == existing(context, "EAGER_MODE"))


def make_eager_by_default() -> None:
    """`tf.compat.v1.enable_eager_execution`, which refuses as soon as there is a graph."""
    context = existing_module("tensorflow.python.eager.context")
    existing(context, "default_execution_mode")
    context.default_execution_mode = existing(context, "EAGER_MODE")


def is_tensor_equality() -> bool:
    """Whether ``==`` of tensors compares their elements."""
    return bool(existing(existing_in("tensorflow", "Tensor"), "_USE_EQUALITY"))


def is_control_flow_v2() -> bool:
    """Whether branches and loops are functions.

    `tf.compat.v1.control_flow_v2_enabled` would make a default graph, and answers for that.
    """
    return bool(existing_in("tensorflow.python.ops.control_flow_util", "ENABLE_CONTROL_FLOW_V2"))


def is_eager() -> bool:
    """Whether this thread runs eagerly; settles with what it began, as all eager code does."""
    return bool(existing(existing(eager_context(), "_thread_local_data"), "is_eager"))


def set_eager(on: bool) -> None:
    """Turn it on or off."""
    is_eager()
    existing(eager_context(), "_thread_local_data").is_eager = on


def open_graphs() -> int:
    """How many graphs were made the default one of this thread, and are still."""
    return len(existing(_graph_stack(), "stack"))


def close_graph() -> None:
    """End the innermost ``as_default`` of this thread."""
    switches = existing(eager_context(), "context_switches")
    existing(_graph_stack(), "stack").pop()
    switches.pop()


def global_graph() -> Any:
    """The default graph outside of all `open_graphs`; None where it was not made yet.

    `tf.compat.v1.get_default_graph` would make it.
    """
    return existing(_graph_stack(), "_global_default_graph")


def global_seed() -> int | None:
    """The seed of eager code; `tf.compat.v1.get_seed` would draw from it."""
    return cast("int | None", existing_in("tensorflow.python.eager.context", "global_seed")())


def set_global_seed(seed: int | None) -> None:
    """Set it; `tf.random.set_seed` sets that of the default graph where there is one."""
    existing_in("tensorflow.python.eager.context", "set_global_seed")(seed)


def _graph_stack() -> Any:
    return existing_in("tensorflow.python.framework.ops", "_default_graph_stack")
