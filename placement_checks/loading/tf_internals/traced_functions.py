"""Traced functions: their calls, their bodies and their gradients."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from placement_checks.loading.tf_internals.patching import (
    Around,
    Patched,
    existing,
    existing_in,
    patched,
)


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


def lifted(tensor: Any, graph: Any) -> Any:
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
