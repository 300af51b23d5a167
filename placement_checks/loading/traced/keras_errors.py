"""Errors of Keras under a strategy, told by their cause where their words are of another."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Mapping
from itertools import takewhile

from placement_checks.core.errors import InputError, message_of
from placement_checks.loading.source_lines import is_users
from placement_checks.loading.tf_internals.keras_objects import is_of_keras
from placement_checks.util.text import joined, plural

_KERAS_2 = "Keras 2: install tf_keras, and set TF_USE_LEGACY_KERAS=1"
_SIZES = re.compile(r"'?(\w+)'? sizes: (\d+)")


def told_of_keras(error: InputError) -> InputError:
    """The error for what a user's code raised; of what Keras cannot do with its cause.

    Any other error is given back as it is.

    Args:
        error: what the code raised is its context.
    """
    raised = error.__context__
    if raised is None:
        return error
    stack = traceback.extract_tb(raised.__traceback__)
    own = [number for number, frame in enumerate(stack) if is_of_keras(frame)]
    if not own:
        return error
    called_back = any(is_users(frame.filename, None) for frame in stack[own[0] :])
    said = f"{type(raised).__name__}: {message_of(raised)}"
    for pattern, tell in (_TOLD if called_back else {**_TOLD, **_TOLD_OF_FIT}).items():
        if found := re.search(pattern, said, re.DOTALL):
            message, fix = tell(found)
            return InputError(
                error.object,
                f"{message} ({type(raised).__name__})",
                "; ".join(filter(None, (fix, error.fix))),
                details="\n".join(
                    takewhile(lambda line: line[:1] == " ", error.details.splitlines())
                ),
            )
    return error


def _uneven(found: re.Match[str]) -> tuple[str, str]:
    one, other = (plural(int(rows), "row") for rows in found.groups())
    return (
        f"its first batch gives one replica {one} and another {other}, and Keras 3 adds up the "
        "batches of all replicas as it builds the model",
        "begin with a batch that the number of replicas divides: batch_size, or "
        "dataset.batch(…, drop_remainder=True)",
    )


def _in_branch(_: re.Match[str]) -> tuple[str, str]:
    return (
        "its optimizer updates in a branch of the step, as Keras 3 does for "
        "gradient_accumulation_steps, and TensorFlow adds nothing up over replicas there",
        "take larger batches in its place, or collect the gradients in a train_step of your own",
    )


def _no_aggregation(found: re.Match[str]) -> tuple[str, str]:
    return (
        f"{found[1]} of Keras 3 does not train under CentralStorageStrategy: it assigns to a "
        "variable, and does not say how the values of replicas are brought together",
        f"tf.distribute.MirroredStrategy, or {_KERAS_2}",
    )


def _unequal(found: re.Match[str]) -> tuple[str, str]:
    sizes = [f"{name} has {plural(int(rows), 'row')}" for name, rows in _SIZES.findall(found[0])]
    return f"its data are of unequal lengths: {joined(sizes)}", ""


def _over_workers(_: re.Match[str]) -> tuple[str, str]:
    return (
        "fit of Keras 3 does not train under MultiWorkerMirroredStrategy: it adds up the batches "
        "of all replicas as it builds the model, which this strategy refuses",
        f"a training loop of your own, or {_KERAS_2}",
    )


def _by_coordinator(_: re.Match[str]) -> tuple[str, str]:
    return (
        "fit of Keras 3 does not train under ParameterServerStrategy: it makes no "
        "ClusterCoordinator, which hands the steps to the workers",
        f"a ClusterCoordinator and a training loop of your own, or {_KERAS_2}",
    )


def _ended(_: re.Match[str]) -> tuple[str, str]:
    return "the generator that fit is given ends before the first batch", ""


# What Keras or TensorFlow say, and what the cause and the way out of it are.
_TOLD: Mapping[str, Callable[[re.Match[str]], tuple[str, str]]] = {
    r"Inputs to operation AddN .*Input 0: \[(\d+)[,\]].*!= input 1: \[(\d+)[,\]]": _uneven,
    r"Cond\.call\(\).*`merge_call` called while defining a new graph": _in_branch,
    r"calling (\w+)\.call\(\).*specify an aggregation method to update": _no_aggregation,
    r"Data cardinality is ambiguous.*sizes:.*": _unequal,
    r"^StopIteration: $|Received an empty generator": _ended,
}
# The same where Keras itself came to it, and no code of the user's that it calls.
_TOLD_OF_FIT: Mapping[str, Callable[[re.Match[str]], tuple[str, str]]] = {
    r"^ValueError: Attempt to convert a value \(PerReplica:": _over_workers,
    r"^ValueError: To use this dataset, .*create_per_worker_dataset": _by_coordinator,
}
