"""Where eager ops run, and what runs them.

How variables of eager code and of functions are made, and what eager tensors have.

Traced functions: their calls, their bodies and their gradients.
"""

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


def around_variables(around: Around) -> Patched:
    """Patch the constructor of resource variables, of every kind."""
    return patched(_resource_variable(), "__init__", around)


def around_variables_of_functions(around: Around) -> Patched:
    """Patch the constructor of the variables that functions make while they are traced."""
    owner = existing_in(
        "tensorflow.python.eager.polymorphic_function.polymorphic_function",
        "UnliftedInitializerVariable",
    )
    return patched(owner, "__init__", around)


# Its argument is a list to which such a variable adds itself, with the tensor of its first value.
ADDS_FIRST_VALUE_TO = "add_initializers_to"


def handle_of(variable: Any) -> Any:
    """The handle of a resource variable; that of a strategy's variable depends on the replica."""
    return existing(variable, "_handle")


def around_handles(around: Around) -> Patched:
    """Patch what makes the handle of a resource variable: shape, dtype and others."""
    owner = existing_module("tensorflow.python.ops.resource_variable_ops")
    return patched(owner, "_variable_handle_from_shape_and_dtype", around)


def is_of_eager_tensors(attribute: str) -> bool:
    """Whether eager tensors have an attribute, such as ``numpy``."""
    tensors = existing(existing_in("tensorflow", "__internal__"), "EagerTensor")
    return hasattr(tensors, attribute)


def _resource_variable() -> Any:
    return existing_in("tensorflow.python.ops.resource_variable_ops", "BaseResourceVariable")


def around_calls(around: Around) -> Patched:
    """Patch what every call of a traced function ends in, whoever makes it.

    Its arguments are the function, the tensors that it is given, and those that it captured.
    """
    return patched(_concrete_function(), "_call_flat", around)


# What a function is called that makes its variables in its first call, unless they are there.
MAKES_VARIABLES = "fn_with_cond"


def traced_functions(graph: Any) -> Mapping[str, Any]:
    """The graphs of the functions that the body of a function calls, by their names."""
    functions = existing(graph, "_functions")
    graphs = {
        os.fsdecode(name): getattr(function, "graph", None) for name, function in functions.items()
    }
    return {name: body for name, body in graphs.items() if body is not None}


@contextlib.contextmanager
def around_gradients_of_ops(around: Around) -> Iterator[None]:
    """Patch what a tape calls for the gradient of one op.

    Its arguments are the op's type, attributes, number of inputs, inputs and outputs, and others.
    """
    register = existing_in("tensorflow.python.pywrap_tfe", "TFE_Py_RegisterGradientFunction")
    original = existing_in("tensorflow.python.eager.backprop", "_gradient_function")
    register(around(original))
    try:
        yield
    finally:
        register(original)


def lift_to_outer_graph(tensor: Any, graph: Any) -> Any:
    """A tensor of a function, made in another graph; None where it hangs on what is outside."""
    owner = "tensorflow.python.eager.lift_to_graph"
    lift = existing_in(owner, "lift_to_graph")
    try:
        return lift([tensor], graph)[tensor]
    except existing_in(owner, "UnliftableError"):
        return None


def next_of(iterator: Any, dtypes: Sequence[Any], shapes: Sequence[Any]) -> Sequence[Any]:
    """The next element of an iterator, by its resource."""
    take = existing_in("tensorflow.python.ops.gen_dataset_ops", "iterator_get_next")
    return cast(Sequence[Any], take(iterator=iterator, output_types=dtypes, output_shapes=shapes))


def _concrete_function() -> Any:
    owner = "tensorflow.python.eager.polymorphic_function.concrete_function"
    return existing_in(owner, "ConcreteFunction")
