"""Records, while a program builds, the gradients that its optimisers are called with."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import tensorflow as tf

from placement_checks.core.errors import InputError
from placement_checks.core.program import AppliedGradient, Gradient
from placement_checks.loading.own_graphs import is_whole
from placement_checks.loading.tf_internals.keras_objects import trained_by

_KERAS = ("keras", "tf_keras")


class Call(NamedTuple):
    """What an optimiser was called with.

    Attributes:
        gradient: the tensor, the slices or what a strategy makes of several.
        variable: that of TensorFlow or Keras; None where a program only declares it.
        name: that of its op; ``""`` for a variable of eager code, which has none.
        optimizer: the class of the optimiser; ``""`` where a gradient is only declared.
    """

    gradient: Any
    variable: Any
    name: str
    optimizer: str


def in_graph(calls: Iterable[Call], graph: tf.Graph) -> list[AppliedGradient]:
    """The gradients that are applied in a graph, or in the bodies of its functions."""
    return [
        AppliedGradient(
            _tensors(graph, call.gradient), call.name, call.optimizer, home is not graph
        )
        for call in calls
        if call.name
        and ((home := getattr(call.gradient, "graph", graph)) is graph or not is_whole(home))
    ]


def with_declared(calls: Iterable[Call], pairs: Any, program: str) -> Iterable[Call]:
    """The calls of optimisers, in which what a program itself declares takes precedence.

    Raises:
        InputError: what it declares are not pairs of a gradient and its variable.
    """
    by_variable = {call.name: call for call in calls}
    try:
        for gradient, variable in pairs:
            name = op_name(variable)
            called = by_variable.get(name, Call(None, None, name, ""))
            by_variable[name] = called._replace(gradient=gradient)
    except (AttributeError, TypeError, ValueError):
        raise InputError(
            program,
            f"its gradients are {pairs!r:.80}",
            "return pairs of a gradient and its variable: [(gradient, variable), …]",
        ) from None
    return by_variable.values()


def _tensors(graph: tf.Graph, gradient: Any) -> Gradient | None:
    """The tensors of a gradient by name; None where they are not in this graph itself."""
    sliced = isinstance(gradient, tf.IndexedSlices)
    parts = (gradient.values, gradient.indices) if sliced else (gradient,)
    if any(getattr(part, "graph", None) is not graph for part in parts):
        return None
    return Gradient(*(part.name for part in parts))


def op_name(variable: Any) -> str:
    """The name of the op that holds a variable, of TensorFlow or of Keras.

    ``""`` for one that eager code made, as a module's variable may be that a graph is built with.
    """
    inner = getattr(variable, "value", None)
    if inner is not None and not callable(inner):  # Keras 3 has a variable in a variable
        variable = inner
    handle = getattr(variable, "handle", None)
    holder = variable if handle is None else handle
    return "" if _is_eager(holder) else str(holder.op.name)


def _is_eager(holder: Any) -> bool:
    return isinstance(holder, tf.Tensor) and not tf.is_symbolic_tensor(holder)


@contextlib.contextmanager
def record_applied() -> Iterator[list[Call]]:
    """Record the gradients that optimisers of `tf.compat.v1.train` and of Keras are called with.

    The list grows while the block runs; the optimisers are as they were when it ends.
    """
    applied: list[Call] = []
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
    original: Callable[..., Any], separate: bool, applied: list[Call]
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
            Call(gradient, variable, _applied_to(variable), type(self).__name__)
            for gradient, variable in pairs
        )
        return original(self, gradients, *args, **kwargs)

    return apply


def _applied_to(variable: Any) -> str:
    """The name of the op of a variable; ``""`` in a function that eager code calls."""
    is_eager = tf.compat.v1.executing_eagerly_outside_functions()
    return "" if is_eager else op_name(variable)


def _keras_optimizers() -> Iterator[type]:
    for name in _KERAS:
        keras = sys.modules.get(name)
        optimizers = getattr(keras, "optimizers", None)
        if optimizers is not None:
            yield optimizers.Optimizer
            if not hasattr(optimizers.Optimizer, "apply"):  # Keras 2 keeps the earlier ones too
                yield optimizers.legacy.Optimizer
