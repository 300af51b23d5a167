"""Programs that are meant to be run eagerly: how they are told, and how their step is taken."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from placement_checks.core.errors import InputError
from placement_checks.core.op_types import EXAMPLE_SOURCES
from placement_checks.loading.traced.calls import CallWatch, WantsEager
from placement_checks.loading.traced.named_devices import Refused
from placement_checks.util.text import joined, plural

_MOST = 4  # names of functions in a message
_MODEL = "model"  # the key of a Keras model
_EXAMPLE = "{'model': model, 'x': x, 'y': y, 'batch': 64}"
# What TensorFlow says where a graph is built and eager code is expected; the last says nothing.
_EAGER = re.compile(r"eager|SymbolicTensor|\bnumpy\b|symbolic|raised NotImplementedError$", re.I)
# What the lines say that look for the other tasks; where a graph is built there are none.
_OF_A_TASK = re.compile(r"TF_CONFIG|ClusterResolver")


class MeansEager(InputError):
    """What went wrong as a program was built into a graph, which is to be run eagerly."""

    @staticmethod
    def of(error: InputError) -> MeansEager:
        """The same error."""
        return MeansEager(error.object, error.message, error.fix, details=error.details)


@contextlib.contextmanager
def eager_code_told(calls: CallWatch) -> Iterator[None]:
    """Tell what is wrong in this block for eager code alone.

    Raises:
        MeansEager: the program is meant to be run eagerly.
    """
    try:
        yield
    except WantsEager:
        raise MeansEager(
            "the program", "trains in a traced function", "call it eagerly, not in a graph"
        ) from None
    except InputError as error:
        looks_for_tasks = _OF_A_TASK.search(error.details)
        if calls.means_eager or _EAGER.search(error.message) or looks_for_tasks:
            raise MeansEager.of(error) from None
        raise


@contextlib.contextmanager
def refusals_told(program: str) -> Iterator[None]:
    """Tell of eager code in this block that cannot be watched.

    Raises:
        InputError: it calls its step in a graph, or names what stands in for GPUs.
    """
    try:
        yield
    except Refused as refused:
        raise InputError(program, refused.message, refused.fix) from None
    except WantsEager:
        raise InputError(
            program,
            "calls the tf.function that trains within a tf.Graph, as one op of it",
            "call it eagerly, outside of the graph",
        ) from None


def is_eager_step(returned: Any) -> bool:
    """Whether a builder returned a step that is a function, to be called, or a Keras model."""
    return isinstance(returned, Mapping) and (callable(returned.get("step")) or _MODEL in returned)


def seems_eager(graph: tf.Graph, calls: CallWatch) -> bool:
    """Whether a graph is what eager code leaves in one: nothing is fed, and no gradient known.

    Such as the variables of a Keras model alone, that was made under a strategy.

    Args:
        graph: what a builder has built that returned nothing.
        calls: what was seen of its functions and tapes.
    """
    means_eager = calls.in_graph or calls.has_strategy
    return means_eager and not any(op.type in EXAMPLE_SOURCES for op in graph.get_operations())


def policy_of(returned: Any) -> Mapping[str, Any]:
    """What a program does differently on purpose, as its builder returned it."""
    policy = returned.get("policy") if isinstance(returned, Mapping) else None
    return policy if isinstance(policy, Mapping) else {}


def take_step(returned: Any, calls: CallWatch) -> None:
    """Call the step that a builder returned, unless one was seen already.

    One that is eager code is traced as a whole.
    """
    if not is_eager_step(returned) or calls.steps:
        return
    if _MODEL in returned:
        _fit(returned)
        return
    step, given = returned["step"], returned.get("args", ())
    arguments = given() if callable(given) else given
    step(*arguments)
    if not calls.steps:
        tf.function(step)(*arguments)


def _fit(returned: Mapping[str, Any]) -> None:
    """Train the model that a builder returned, with its data.

    Raises:
        InputError: it is no model, or has no data.
    """
    model = returned[_MODEL]
    if not callable(getattr(model, "fit", None)):
        raise InputError(
            "what the builder returned",
            f"has as its 'model' a {type(model).__name__}, which has no fit",
            f"return a compiled Keras model and its data: {_EXAMPLE}",
        )
    if "x" not in returned:
        raise InputError(
            "what the builder returned",
            "has a 'model', and no 'x' to train it with",
            f"return its data too: {_EXAMPLE}",
        )
    data = [returned[key] for key in ("x", "y") if key in returned]
    rows = {"batch_size": returned["batch"]} if "batch" in returned else {}
    model.fit(*data, **rows, shuffle=False, verbose=0)


def no_traced_step(program: str, calls: CallWatch) -> InputError:
    """The error for eager code that ended, and no function that trains was called."""
    step = "{'step': train_step, 'args': (x, y)}"
    if calls.eager_gradients:
        return InputError(
            program,
            f"took gradients outside of any tf.function, {plural(calls.eager_gradients, 'time')}: "
            "nothing is known of such a step before it runs",
            f"decorate the step with @tf.function, or return it: {step}",
        )
    if calls.others:
        names = list(calls.others)
        more = f" and {len(names) - _MOST} others" if len(names) > _MOST else ""
        return InputError(
            program,
            f"ended without a training step: {plural(len(names), 'function')} ran, "
            f"{joined(names[:_MOST])}{more}, and none takes gradients and changes variables",
            f"call the function that trains, or return it: {step}",
        )
    return InputError(
        program,
        "ended without a training step, and called no tf.function",
        f"call the function that trains, or return it: {step}; or a Keras model: {_EXAMPLE}",
    )
