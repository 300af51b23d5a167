"""Programs that are meant to be run eagerly: how they are told, and how their step is taken.

Errors of Keras under a strategy, told by their cause where their words are of another.

Errors of TensorFlow about variables that were made outside of the scope of a strategy.
"""

from __future__ import annotations

import contextlib
import dis
import re
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import tensorflow as tf

from placement_checks.capture.eager.calls import CallWatch, NotAGraphProgram
from placement_checks.capture.eager.devices import Refused
from placement_checks.capture.eager.notes import TracingNotes
from placement_checks.capture.eager.variables import NotedVariable, made_by
from placement_checks.core.errors import InputError, message_of
from placement_checks.core.op_types import EXAMPLE_SOURCES
from placement_checks.core.user_code import is_user_file, users_frames
from placement_checks.tf.distribution import strategy_name
from placement_checks.tf.eager import eager_tensors_have
from placement_checks.tf.keras import is_keras_frame
from placement_checks.util.text import join_and, plural

_MOST_FUNCTIONS = 4  # names of functions in a message
_MODEL = "model"  # the key of a Keras model
_EXAMPLE = "{'model': model, 'x': x, 'y': y, 'batch': 64}"
# What TensorFlow says where a graph is built and eager code is expected.
_EAGER_ONLY = re.compile(
    r"symbolic `?(tf\.)?Tensor|\bonly .*\beager (execution|mode)|Tensor\.\w+ is undefined", re.I
)
# What it says where eager code runs and a graph is expected.
_GRAPH_ONLY = re.compile(
    r"not (compatible with|supported in) eager (execution|mode)"
    r"|(?<!only available )when eager execution is enabled",
    re.I,
)
_RAISE = "RAISE_VARARGS"  # the instruction
# What the lines say that look for the other tasks; where a graph is built there are none.
_OF_A_TASK = re.compile(r"TF_CONFIG|ClusterResolver")


class EagerOnlyError(InputError):
    """What went wrong as a program was built into a graph, which is to be run eagerly.

    Attributes:
        is_guess: whether nothing but an error of TensorFlow shows that the program is eager code.
    """

    is_guess = False

    @staticmethod
    def of(error: InputError, *, is_guess: bool = False) -> EagerOnlyError:
        """The same error."""
        same = EagerOnlyError(error.object, error.message, error.fix, details=error.details)
        same.is_guess = is_guess
        return same

    def with_eager_error(self, error: InputError) -> InputError:
        """The error for a program that fails in a graph and eagerly.

        If TensorFlow also refuses to run the program eagerly, the program builds a graph, and its
        error is the first one. Otherwise it is eager code, and its error is the second one.
        """
        if not self.is_guess or self.message.partition(" raised ")[2] in error.message:
            return error
        if isinstance(error, MeansGraph):
            return _with_note(self, "run eagerly,", error)
        return _with_note(error, "built into a graph,", self)


class MeansGraph(InputError):
    """TensorFlow refused to run a program eagerly that builds a graph."""


@contextlib.contextmanager
def eager_code_told(calls: CallWatch) -> Iterator[None]:
    """Tell what is wrong in this block for eager code alone.

    Raises:
        MeansEager: the program is meant to be run eagerly.
    """
    try:
        yield
    except NotAGraphProgram:
        raise EagerOnlyError(
            "the program", "trains in a traced function", "call it eagerly, not in a graph"
        ) from None
    except InputError as error:
        if calls.means_eager or _OF_A_TASK.search(error.details):
            raise EagerOnlyError.of(error) from None
        if _is_eager_only(error.__context__):
            raise EagerOnlyError.of(error, is_guess=True) from None
        raise


@contextlib.contextmanager
def refusals_told(program: str) -> Iterator[None]:
    """Tell of eager code in this block that cannot be watched.

    Raises:
        MeansGraph: TensorFlow refuses to run it eagerly.
        InputError: it calls its step in a graph, or names what stands in for GPUs.
    """
    try:
        yield
    except InputError as error:
        if not _is_graph_only(error.__context__):
            raise
        raise MeansGraph(error.object, error.message, error.fix, details=error.details) from None
    except Refused as refused:
        raise InputError(program, refused.message, refused.fix) from None
    except NotAGraphProgram:
        raise InputError(
            program,
            "calls the tf.function that trains within a tf.Graph, as one op of it",
            "call it eagerly, outside of the graph",
        ) from None


def _is_eager_only(fault: BaseException | None) -> bool:
    """Whether an error is TensorFlow's own, for code that works only eagerly."""
    match fault:
        case None:
            return False
        case AttributeError(obj=tf.Tensor()):
            return eager_tensors_have(fault.name or "")
        case TypeError() if "SymbolicTensor" in message_of(fault):
            return True  # raised by Python, as by float(tensor)
        case NotImplementedError() if not message_of(fault):
            # What tf.Variable raises in a graph if its value is computed from another variable.
            return not _is_raised_by_user(fault)
    return bool(_EAGER_ONLY.search(message_of(fault)))


def _is_raised_by_user(fault: BaseException) -> bool:
    """Whether a `raise` of the last line of the traceback raised an error, and no call.

    TensorFlow removes its own lines from tracebacks, so that a call of the user's is the last one.
    """
    last = fault.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is None:
        return False
    of_tensorflow = str(last.tb_frame.f_globals.get("__name__", "")).startswith("tensorflow.")
    return not of_tensorflow and dis.opname[last.tb_frame.f_code.co_code[last.tb_lasti]] == _RAISE


def _is_graph_only(fault: BaseException | None) -> bool:
    """Whether an error is TensorFlow's own, for code that works only in a graph."""
    return fault is not None and bool(_GRAPH_ONLY.search(message_of(fault)))


def _with_note(error: InputError, when: str, other: InputError) -> InputError:
    """The error, with another one in its details."""
    fix = f"; {other.fix}" if other.fix else ""
    note = f"note: {when} {other.message}{fix}"
    details = f"{error.details}\n{note}" if error.details else note
    return InputError(error.object, error.message, error.fix, details=details)


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
        more = (
            f" and {len(names) - _MOST_FUNCTIONS} others" if len(names) > _MOST_FUNCTIONS else ""
        )
        return InputError(
            program,
            f"ended without a training step: {plural(len(names), 'function')} ran, "
            f"{join_and(names[:_MOST_FUNCTIONS])}{more}, and none takes gradients and changes "
            "variables",
            f"call the function that trains, or return it: {step}",
        )
    return InputError(
        program,
        "ended without a training step, and called no tf.function",
        f"call the function that trains, or return it: {step}; or a Keras model: {_EXAMPLE}",
    )


_KERAS_2 = "Keras 2: install tf_keras, and set TF_USE_LEGACY_KERAS=1"
_SIZES = re.compile(r"'?(\w+)'? sizes: (\d+)")


def explain_keras_error(error: InputError) -> InputError:
    """The error for what a user's code raised; of what Keras cannot do with its cause.

    Any other error is given back as it is.

    Args:
        error: what the code raised is its context.
    """
    raised = error.__context__
    if raised is None:
        return error
    stack = traceback.extract_tb(raised.__traceback__)
    own = [number for number, frame in enumerate(stack) if is_keras_frame(frame)]
    if not own:
        return error
    called_back = any(is_user_file(frame.filename, None) for frame in stack[own[0] :])
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
    return f"its data are of unequal lengths: {join_and(sizes)}", ""


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


_MOST_VARIABLES = 3  # names of variables in a message, and lines
# What TensorFlow and Keras say of them: it names none, or one with all of its values.
_OF_SCOPE = re.compile(
    r"distribution strategy scope|tf\.distribute\.Strategy\.scope\(\)|with strategy\.scope\(\)|"
    r"Mixing different tf\.distribute\.Strategy"
)


def explain_scope_error(error: InputError, notes: TracingNotes, folder: Path | None) -> InputError:
    """The error for what a user's code raised; of variables outside of a scope with their names.

    Any other error is given back as it is.

    Args:
        error: what the code raised is its context.
        notes: what was noted of the program.
        folder: where the user's source lines are; None for anywhere but in libraries.
    """
    strategy = next((each for each in notes.strategies if each.num_replicas_in_sync > 1), None)
    raised = error.__context__
    if strategy is None or raised is None or not _is_of_scope(raised, folder):
        return error
    outside = _outside(notes)
    if not outside:
        return error
    names = [each.name for each in outside]
    more = [f"{len(names) - _MOST_VARIABLES} more"] if len(names) > _MOST_VARIABLES else []
    return InputError(
        error.object,
        f"it made {join_and([*names[:_MOST_VARIABLES], *more])} outside of the scope of its "
        f"{strategy_name(strategy)}{_lines(outside, folder)}, and TensorFlow refuses to train "
        f"with {'it' if len(names) == 1 else 'them'} ({type(raised).__name__})",
        "make the model, its optimizer and its metrics under `with strategy.scope():`",
        details="\n".join(takewhile(lambda line: line[:1] == " ", error.details.splitlines())),
    )


def _is_of_scope(raised: BaseException, folder: Path | None) -> bool:
    """Whether it is about a scope; of an assertion of a library without a word that is likely."""
    message = message_of(raised)
    if message or not isinstance(raised, AssertionError):
        return _OF_SCOPE.search(message) is not None
    frames = traceback.extract_tb(raised.__traceback__)
    return bool(frames) and not is_user_file(frames[-1].filename, folder)


def _outside(notes: TracingNotes) -> Sequence[NotedVariable]:
    """What was made in no scope: the variables that can be trained, else all."""
    outside = [
        noted
        for noted in notes.variables.all()
        if made_by(noted) is None and not noted.orders_collectives
    ]
    return [noted for noted in outside if _is_trainable(noted.variable)] or outside


def _is_trainable(variable: Any) -> bool:
    return bool(variable.trainable and variable.dtype.is_floating)


def _lines(outside: Sequence[NotedVariable], folder: Path | None) -> str:
    """The user's lines that made them, in brackets."""
    frames = [users_frames(noted.stack, folder) for noted in outside]
    lines = list(dict.fromkeys(str(each[-1]) for each in frames if each))
    more = ["…"] if len(lines) > _MOST_VARIABLES else []
    return f" ({', '.join([*lines[:_MOST_VARIABLES], *more])})" if lines else ""
