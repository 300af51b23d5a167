"""Eager ops, variables and traced functions; modules between a program and patched functions."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from placement_checks.tf.patches import Patch
from placement_checks.tf.patching import (
    Around,
    eager_context,
    existing,
    existing_in,
    patched,
)

# Modules on the stack between `tf.device` in a program and the method of `Patch.EAGER_SCOPE`.
DEVICE_SCOPE_MODULES = frozenset(
    {"tensorflow.python.eager.context", "tensorflow.python.framework.ops"}
)
# The function that counts GPUs for programs, as module and name.
NUM_GPUS_FUNCTION = ("tensorflow.python.eager.context", "num_gpus")
# The prefix of the modules of strategies.
STRATEGY_MODULES = "tensorflow.python.distribute."
# These functions query GPUs only to choose a reduction algorithm, also for explicit devices.
REDUCTION_CHOOSERS = frozenset({"select_cross_device_ops", "_make_collective_ops_with_fallbacks"})
# Modules on the stack between a program's query by `tf.config`, `tf.test` or `device_lib` and the
# patched functions.
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
# TensorFlow's name for a function that creates missing variables in its first call.
VARIABLE_CREATING_FUNCTION = "fn_with_cond"
# An argument of the constructor of `Patch.NEW_FUNCTION_VARIABLE`: the new variable adds
# itself and its initial value to this list.
INITIALIZER_LIST_ARGUMENT = "add_initializers_to"


@contextlib.contextmanager
def without_conversion(package: str) -> Iterator[None]:
    """Prevent AutoGraph from converting the code of a package in this block."""
    do_not_convert = existing_in("tensorflow.python.autograph.core.config", "DoNotConvert")

    def extended(rules: Any) -> Any:
        return (do_not_convert(package), *rules)

    with patched(Patch.CONVERSION, extended):
        yield


def eager_device() -> str:
    """The device scope of eager code; ``""`` outside of a device scope."""
    return existing(eager_context(), "device_name") or ""


def eager_op_errors() -> tuple[type[Exception], ...]:
    """The exception types that a failing eager op raises."""
    kind = existing_in("tensorflow.python.eager.core", "_NotOkStatusException")
    return (kind, existing_in("tensorflow.python.framework.errors", "OpError"))


def eager_tensors_have(attribute: str) -> bool:
    """Whether eager tensors have an attribute, such as ``numpy``."""
    tensors = existing(existing_in("tensorflow", "__internal__"), "EagerTensor")
    return hasattr(tensors, attribute)


def next_element(iterator: Any, dtypes: Sequence[Any], shapes: Sequence[Any]) -> Sequence[Any]:
    """Take the next element from an iterator, given its resource tensor."""
    take = existing_in("tensorflow.python.ops.gen_dataset_ops", "iterator_get_next")
    return cast(Sequence[Any], take(iterator=iterator, output_types=dtypes, output_shapes=shapes))


def is_traced(function: Any) -> bool:
    """Whether a function that `tf.function` returned was called or traced."""
    return bool(function.experimental_get_tracing_count())


def variable_handle(variable: Any) -> Any:
    """The handle of a resource variable; variables of strategies have one per replica context."""
    return existing(variable, "_handle")


def traced_functions(graph: Any) -> Mapping[str, Any]:
    """The graphs of the functions that a function's graph calls, by name."""
    functions = existing(graph, "_functions")
    graphs = {
        os.fsdecode(name): getattr(function, "graph", None) for name, function in functions.items()
    }
    return {name: body for name, body in graphs.items() if body is not None}


@contextlib.contextmanager
def around_op_gradients(around: Around) -> Iterator[None]:
    """Patch the function that a tape calls for the gradient of one op.

    The arguments begin with the op's type, attributes, number of inputs, inputs and outputs.
    TensorFlow stores this function in C, so the patch registers a function there.
    """
    register = existing_in("tensorflow.python.pywrap_tfe", "TFE_Py_RegisterGradientFunction")
    original = existing_in(Patch.OP_GRADIENT.owner, Patch.OP_GRADIENT.attribute)
    register(around(original))
    try:
        yield
    finally:
        register(original)


def lift_to_outer_graph(tensor: Any, graph: Any) -> Any:
    """Copy a function's tensor and its ancestors into another graph.

    Returns:
        The tensor in ``graph``; None if it depends on the function's arguments.
    """
    owner = "tensorflow.python.eager.lift_to_graph"
    lift = existing_in(owner, "lift_to_graph")
    try:
        return lift([tensor], graph)[tensor]
    except existing_in(owner, "UnliftableError"):
        return None
