"""How variables of eager code and of functions are made, and what eager tensors have."""

from __future__ import annotations

from typing import Any

from placement_checks.loading.tf_internals.patching import (
    Around,
    Patched,
    existing,
    existing_in,
    existing_module,
    patched,
)


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
