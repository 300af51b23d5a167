"""Eager ops and variables, and traced functions: their calls, bodies and gradients."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from placement_checks.tf.patching import (
    Around,
    Patched,
    eager_context,
    existing,
    existing_in,
    existing_module,
    patched,
)

# Modules on the stack between `tf.device` in a program and the method of `around_eager_devices`.
DEVICE_SCOPE_MODULES = frozenset(
    {"tensorflow.python.eager.context", "tensorflow.python.framework.ops"}
)
# TensorFlow's name for a function that creates missing variables in its first call.
VARIABLE_CREATING_FUNCTION = "fn_with_cond"
# An argument of the constructor that `around_function_variables` patches: a list to which the new
# variable adds itself and its initial value.
INITIALIZER_LIST_ARGUMENT = "add_initializers_to"


def around_eager_devices(around: Around) -> Patched:
    """Patch ``Context.device``, which opens the device scopes of eager code."""
    return patched(existing_in("tensorflow.python.eager.context", "Context"), "device", around)


def eager_device() -> str:
    """The device scope of eager code; ``""`` outside of one."""
    return existing(eager_context(), "device_name") or ""


@contextlib.contextmanager
def around_eager_ops(fast: Around, slow: Around) -> Iterator[None]:
    """Patch the two functions that run an eager op.

    Args:
        fast: patches the fast path. Its arguments are a context, the op's type, its name, its
            inputs, then alternately the name and the value of each attribute.
        slow: patches the slow path. Its arguments are the op's type as bytes, the number of
            results, the inputs, a tuple of names and values of attributes, and others.
    """
    with (
        patched(existing_module("tensorflow.python.pywrap_tfe"), "TFE_Py_FastPathExecute", fast),
        patched(existing_module("tensorflow.python.eager.execute"), "execute", slow),
    ):
        yield


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


def around_pipelines(around: Around) -> Patched:
    """Patch the method that every iterator calls to get the dataset that it iterates over."""
    owner = existing_in("tensorflow.python.data.ops.dataset_ops", "DatasetV2")
    return patched(owner, "_apply_debug_options", around)


def around_variables(around: Around) -> Patched:
    """Patch the constructor of every kind of resource variable."""
    owner = existing_in("tensorflow.python.ops.resource_variable_ops", "BaseResourceVariable")
    return patched(owner, "__init__", around)


def around_function_variables(around: Around) -> Patched:
    """Patch the constructor of variables that functions create while they are traced."""
    owner = existing_in(
        "tensorflow.python.eager.polymorphic_function.polymorphic_function",
        "UnliftedInitializerVariable",
    )
    return patched(owner, "__init__", around)


def around_handles(around: Around) -> Patched:
    """Patch the function that creates variable handles; it receives shape, dtype and others."""
    owner = existing_module("tensorflow.python.ops.resource_variable_ops")
    return patched(owner, "_variable_handle_from_shape_and_dtype", around)


def variable_handle(variable: Any) -> Any:
    """The handle of a resource variable; a strategy's variable has one per replica context."""
    return existing(variable, "_handle")


def around_calls(around: Around) -> Patched:
    """Patch the method that runs every call of a traced function.

    Its arguments are the function, the tensors of the call, and the captured tensors.
    """
    owner = "tensorflow.python.eager.polymorphic_function.concrete_function"
    return patched(existing_in(owner, "ConcreteFunction"), "_call_flat", around)


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

    Its arguments are the op's type, attributes, number of inputs, inputs and outputs, and others.
    TensorFlow keeps this function in C, so it is registered instead of assigned.
    """
    register = existing_in("tensorflow.python.pywrap_tfe", "TFE_Py_RegisterGradientFunction")
    original = existing_in("tensorflow.python.eager.backprop", "_gradient_function")
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
