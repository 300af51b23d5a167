"""Records, while a program builds, the gradients that its optimisers are called with."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from placement_checks.core.program import AppliedGradient
from placement_checks.loading.tf_internals import trained_by

_KERAS = ("keras", "tf_keras")


def op_name(variable: Any) -> str:
    """The name of the op that holds a variable, of TensorFlow or of Keras."""
    inner = getattr(variable, "value", None)
    if inner is not None and not callable(inner):  # Keras 3 has a variable in a variable
        variable = inner
    handle = getattr(variable, "handle", None)
    return str((variable if handle is None else handle).op.name)


@contextlib.contextmanager
def record_applied() -> Iterator[list[AppliedGradient]]:
    """Record the gradients that optimisers of `tf.compat.v1.train` and of Keras are called with.

    The list grows while the block runs; the optimisers are as they were when it ends.
    """
    applied: list[AppliedGradient] = []
    patched: list[tuple[type, str, Any]] = []
    try:
        for optimizer in (tf.compat.v1.train.Optimizer, *_keras_optimizers()):
            # Keras 3 has apply, which its apply_gradients calls.
            name = "apply" if hasattr(optimizer, "apply") else "apply_gradients"
            patched.append((optimizer, name, optimizer.__dict__.get(name)))
            setattr(
                optimizer, name, _recording(getattr(optimizer, name), name == "apply", applied)
            )
        yield applied
    finally:
        for optimizer, name, original in patched:
            if original is None:
                delattr(optimizer, name)
            else:
                setattr(optimizer, name, original)


def _recording(
    original: Callable[..., Any], separate: bool, applied: list[AppliedGradient]
) -> Callable[..., Any]:
    """``original``, an optimiser's method, that records the gradients it is given.

    Keras 3 gives gradients and variables in two lists, ``separate``; the others give pairs.
    """

    def apply(self: Any, gradients: Any, *args: Any, **kwargs: Any) -> Any:
        gradients = list(gradients)
        pairs = gradients
        if separate:
            named: Any = args[0] if args else kwargs.get("trainable_variables")
            variables = trained_by(self) if named is None else named
            pairs = list(zip(gradients, variables, strict=False))
        applied.extend(
            AppliedGradient(gradient, op_name(variable), type(self).__name__)
            for gradient, variable in pairs
        )
        return original(self, gradients, *args, **kwargs)

    return apply


def _keras_optimizers() -> Iterator[type]:
    for name in _KERAS:
        keras = sys.modules.get(name)
        optimizers = getattr(keras, "optimizers", None)
        if optimizers is not None:
            yield optimizers.Optimizer
            if not hasattr(optimizers.Optimizer, "apply"):  # Keras 2 keeps the earlier ones too
                yield optimizers.legacy.Optimizer
