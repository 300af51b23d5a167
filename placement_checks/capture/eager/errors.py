"""Explains the errors of eager programs, and of programs that may be eager.

The module answers three questions about an error:

* Does it mean that the program must run eagerly? Then `detect_eager_code` raises `EagerOnlyError`.
* Why can the eager program not be captured? `explain_refusals` and `no_traced_step_error`.
* What is the real cause of a misleading error of Keras or TensorFlow? `explain_keras_error` and
  `explain_scope_error`.
"""

from __future__ import annotations

import contextlib
import dis
import re
import traceback
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

import tensorflow as tf

from placement_checks.capture.eager.calls import CallWatch, NotAGraphProgram
from placement_checks.capture.eager.devices import Refusal
from placement_checks.capture.eager.notes import TracingNotes
from placement_checks.capture.eager.variables import strategy_id
from placement_checks.core.errors import InputError, message_of
from placement_checks.core.user_code import is_user_file, users_line
from placement_checks.tf.distribution import strategy_name
from placement_checks.tf.eager import eager_tensors_have
from placement_checks.tf.keras import is_keras_frame
from placement_checks.util.text import join_and, listed, plural

_MOST_FUNCTIONS = 4  # names of functions in a message
_MOST_VARIABLES = 3  # names of variables in a message, and source lines
EXAMPLE_STEP = "{'step': train_step, 'args': (x, y)}"
EXAMPLE_MODEL = "{'model': model, 'x': x, 'y': y, 'batch': 64}"
# TensorFlow's messages for eager code that runs while a graph is built.
_EAGER_ONLY = re.compile(
    r"symbolic `?(tf\.)?Tensor|\bonly .*\beager (execution|mode)|Tensor\.\w+ is undefined"
    r"|capture an EagerTensor without building a function",
    re.I,
)
# TensorFlow's messages for graph code that runs eagerly.
_GRAPH_ONLY = re.compile(
    r"not (compatible with|supported in) eager (execution|mode)"
    r"|(?<!only available )when eager execution is enabled",
    re.I,
)
_RAISE = "RAISE_VARARGS"  # the bytecode instruction of `raise`
# Matches tracebacks of code that looks up the other tasks of a cluster. No cluster exists while a
# program is built into a graph.
_CLUSTER_LOOKUP = re.compile(r"TF_CONFIG|ClusterResolver")


class EagerOnlyError(InputError):
    """An eager program failed because it was built into a graph.

    Attributes:
        is_guess: whether a TensorFlow error is the only sign that the program is eager code.
    """

    is_guess = False

    @staticmethod
    def from_error(error: InputError, *, is_guess: bool = False) -> EagerOnlyError:
        """Convert an error to an `EagerOnlyError` with the same message."""
        same = error.copy(EagerOnlyError)
        same.is_guess = is_guess
        return same

    def with_eager_error(self, error: InputError) -> InputError:
        """Choose the error for a program that fails in a graph and also eagerly.

        ``error`` is the error of the eager run, and is normally returned. But if ``self`` is a
        guess and TensorFlow refuses to run the program eagerly, the program builds a graph, and
        ``self`` is returned. After a guess, the details of the result quote the other error.
        """
        if not self.is_guess or self.message.partition(" raised ")[2] in error.message:
            return error
        if isinstance(error, GraphOnlyError):
            return _with_note(self, "run eagerly,", error)
        return _with_note(error, "built into a graph,", self)


class GraphOnlyError(InputError):
    """TensorFlow refused to run a program eagerly, because the program builds a graph."""


@contextlib.contextmanager
def detect_eager_code(calls: CallWatch) -> Iterator[None]:
    """Build a program into a graph in this block, and convert errors if it is eager code.

    Raises:
        EagerOnlyError: the program must run eagerly.
    """
    try:
        yield
    except NotAGraphProgram:
        raise EagerOnlyError(
            "the program",
            "trains in a traced function",
            "call it eagerly, not in a graph",
            is_predicate=True,
        ) from None
    except InputError as error:
        if calls.means_eager or _CLUSTER_LOOKUP.search(error.details):
            raise EagerOnlyError.from_error(error) from None
        if _is_eager_only(error.__context__):
            raise EagerOnlyError.from_error(error, is_guess=True) from None
        raise


@contextlib.contextmanager
def explain_refusals(program: str) -> Iterator[None]:
    """Run eager code in this block, and explain errors if it cannot be captured.

    Raises:
        GraphOnlyError: TensorFlow refuses to run the code eagerly.
        InputError: the code calls its training step in a graph, or names a CPU device that
            simulates a GPU.
    """
    try:
        yield
    except InputError as error:
        fault = error.__context__
        if fault is None or not _GRAPH_ONLY.search(message_of(fault)):
            raise
        raise error.copy(GraphOnlyError) from None
    except Refusal as refusal:
        raise InputError(
            program, refusal.message, refusal.fix, is_predicate=refusal.is_predicate
        ) from None
    except NotAGraphProgram:
        raise InputError(
            program,
            "calls the tf.function that trains inside a tf.Graph, where the whole step is one op",
            "call it eagerly, outside of the graph",
            is_predicate=True,
        ) from None


def _is_eager_only(fault: BaseException | None) -> bool:
    """Whether TensorFlow raised an error because the code works only eagerly."""
    match fault:
        case None:
            return False
        case AttributeError(obj=tf.Tensor()):
            return eager_tensors_have(fault.name or "")
        case TypeError() if "SymbolicTensor" in message_of(fault):
            return True  # raised by Python, such as for float(tensor)
        case NotImplementedError() if not message_of(fault):
            # tf.Variable raises this in a graph if its value is computed from another variable.
            return not _is_raised_by_user(fault)
    return bool(_EAGER_ONLY.search(message_of(fault)))


def _is_raised_by_user(fault: BaseException) -> bool:
    """Whether the last frame of the traceback executes `raise`, and not a call.

    TensorFlow removes its own frames from tracebacks. So if TensorFlow raised the exception, the
    last frame is the user's call.
    """
    last = fault.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is None:
        return False
    is_in_tensorflow = str(last.tb_frame.f_globals.get("__name__", "")).startswith("tensorflow.")
    code = last.tb_frame.f_code.co_code
    return not is_in_tensorflow and dis.opname[code[last.tb_lasti]] == _RAISE


def _with_note(error: InputError, when: str, other: InputError) -> InputError:
    fix = f"; {other.fix}" if other.fix else ""
    note = f"note: {when} {other.message}{fix}"
    details = f"{error.details}\n{note}" if error.details else note
    return error.copy(InputError, details=details)


def no_traced_step_error(program: str, calls: CallWatch) -> InputError:
    """Return the error for eager code that ended without a call of a training function."""
    if calls.eager_gradients:
        step = "the function that calls strategy.run" if calls.in_replica else "the training step"
        return InputError(
            program,
            f"took gradients outside of any tf.function, {plural(calls.eager_gradients, 'time')}: "
            "such a training step has no graph that could be checked",
            f"decorate {step} with @tf.function, or return it: {EXAMPLE_STEP}",
            is_predicate=True,
        )
    if calls.others:
        return InputError(
            program,
            f"ended without a training step: it called {plural(len(calls.others), 'function')}, "
            f"{listed(list(calls.others), _MOST_FUNCTIONS)}, but none takes gradients and updates "
            "variables",
            f"call the function that trains, or return it: {EXAMPLE_STEP}",
            is_predicate=True,
        )
    return InputError(
        program,
        "ended without a training step, and called no tf.function",
        f"call the function that trains, or return it: {EXAMPLE_STEP}; or return a Keras model: "
        f"{EXAMPLE_MODEL}",
        is_predicate=True,
    )


_KERAS_2 = "Keras 2: install tf_keras, and set TF_USE_LEGACY_KERAS=1"


class _KerasError(NamedTuple):
    """An error of Keras or TensorFlow with a known cause."""

    pattern: str  # matches the name of the exception and its message
    cause: str  # the message with the cause; `{0}` is the first group of the pattern
    fix: str = ""  # how to change the program; `""` if the source line is enough
    # Whether the cause only applies if Keras called no code of the user, such as a train_step.
    is_of_fit: bool = False


_KERAS_ERRORS = (
    _KerasError(
        r"Inputs to operation AddN .*Input 0: \[(\d+)[,\]].*!= input 1: \[(\d+)[,\]]",
        "its first batch gives one replica {0} and another {1}, but Keras 3 sums the batches "
        "of all replicas when it builds the model",
        "make the size of the first batch a multiple of the number of replicas: set batch_size, "
        "or use dataset.batch(…, drop_remainder=True)",
    ),
    _KerasError(
        r"Cond\.call\(\).*`merge_call` called while defining a new graph",
        "its optimizer updates variables in a branch of the step, as Keras 3 does for "
        "gradient_accumulation_steps and ema_overwrite_frequency, but TensorFlow cannot sum over "
        "replicas in a branch",
        "instead of gradient_accumulation_steps, use larger batches, or accumulate the gradients "
        "in your own train_step; instead of ema_overwrite_frequency, use "
        "keras.callbacks.SwapEMAWeights",
    ),
    _KerasError(
        r"calling (\w+)\.call\(\).*specify an aggregation method to update",
        "{0} of Keras 3 does not train under CentralStorageStrategy: it assigns to a variable "
        "without an aggregation method for the values of the replicas",
        f"use tf.distribute.MirroredStrategy, or {_KERAS_2}",
    ),
    _KerasError(
        r"Data cardinality is ambiguous(.*sizes:.*)",
        "its data have unequal lengths: {0}",
    ),
    _KerasError(
        r"^StopIteration: $|Received an empty generator",
        "the generator passed to fit ends before the first batch",
    ),
    _KerasError(
        r"^ValueError: Attempt to convert a value \(PerReplica:",
        "fit of Keras 3 does not train under MultiWorkerMirroredStrategy: it sums the batches of "
        "all replicas when it builds the model, which this strategy refuses",
        f"write your own training loop, or use {_KERAS_2}",
        is_of_fit=True,
    ),
    _KerasError(
        r"^ValueError: To use this dataset, .*create_per_worker_dataset",
        "fit of Keras 3 does not train under ParameterServerStrategy: it creates no "
        "ClusterCoordinator, which schedules the steps on the workers",
        f"use a ClusterCoordinator and your own training loop, or {_KERAS_2}",
        is_of_fit=True,
    ),
)


def explain_keras_error(error: InputError) -> InputError:
    """Replace the message of an error by its cause, if Keras raised it for a known cause.

    The context of the error is the exception of the program. Other errors are returned unchanged.
    """
    raised = error.__context__
    if raised is None:
        return error
    stack = traceback.extract_tb(raised.__traceback__)
    first = next((number for number, frame in enumerate(stack) if is_keras_frame(frame)), None)
    if first is None:
        return error
    called_back = any(is_user_file(frame.filename, None) for frame in stack[first:])
    text = f"{type(raised).__name__}: {message_of(raised)}"
    for known in _KERAS_ERRORS:
        found = re.search(known.pattern, text, re.DOTALL)
        if found and not (known.is_of_fit and called_back):
            cause = known.cause.format(*map(_describe_group, found.groups()))
            return InputError(
                error.object,
                f"{cause} ({type(raised).__name__})",
                "; ".join(filter(None, (known.fix, error.fix))),
                details=_frames_only(error.details),
            )
    return error


def _describe_group(text: str) -> str:
    """Describe a part of Keras's message: a number of rows, sizes by name, or another text."""
    if text.isdecimal():
        return plural(int(text), "row")
    sizes = re.findall(r"'?(\w+)'? sizes: (\d+)", text)
    return join_and(f"{name} has {plural(int(rows), 'row')}" for name, rows in sizes) or text


def _frames_only(details: str) -> str:
    """The lines of a traceback without its message, because a clearer message replaces it."""
    return "\n".join(takewhile(lambda line: line[:1] == " ", details.splitlines()))


# Messages of TensorFlow and Keras about variables created outside of a strategy scope. The
# messages name no variable, or print one variable with all its values.
_SCOPE_ERROR = re.compile(
    r"distribution strategy scope|tf\.distribute\.Strategy\.scope\(\)|with strategy\.scope\(\)|"
    r"Mixing different tf\.distribute\.Strategy"
)
# AutoGraph replaces the message of an error by the frames in the traced function, followed by the
# type and the message of the error.
_TRACED = "in user code:"
_TRACED_FRAME = re.compile(r'^ *File "(.+)", line \d+', re.MULTILINE)


def explain_scope_error(error: InputError, notes: TracingNotes, folder: Path | None) -> InputError:
    """Name the variables that were created outside of a strategy scope, if they are the cause.

    The context of the error is the exception of the program. Other errors are returned unchanged.
    """
    strategy = next((each for each in notes.strategies if each.num_replicas_in_sync > 1), None)
    raised = error.__context__
    if strategy is None or raised is None or not _is_scope_error(raised, folder):
        return error
    outside = [
        each
        for each in notes.variables.all()
        if strategy_id(each) is None and not each.orders_collectives
    ]
    trainable = [
        each for each in outside if each.variable.trainable and each.variable.dtype.is_floating
    ]
    outside = trainable or outside
    if not outside:
        return error
    places = list(dict.fromkeys(users_line(each.stack, folder) for each in outside))
    places = [place for place in places if place]
    more = ["…"] if len(places) > _MOST_VARIABLES else []
    lines = f" ({', '.join([*places[:_MOST_VARIABLES], *more])})" if places else ""
    return InputError(
        error.object,
        f"it created {listed([each.name for each in outside], _MOST_VARIABLES)} outside of the "
        f"scope of its {strategy_name(strategy)}{lines}, and "
        f"TensorFlow refuses to train with {'it' if len(outside) == 1 else 'them'} "
        f"({type(raised).__name__})",
        "create the model, its optimizer and its metrics under `with strategy.scope():`",
        details=_frames_only(error.details),
    )


def _is_scope_error(raised: BaseException, folder: Path | None) -> bool:
    """Whether an exception is about a strategy scope.

    An `AssertionError` of a library without a message counts too: no other cause of it is known.
    """
    message = message_of(raised)
    if not isinstance(raised, AssertionError):
        return _SCOPE_ERROR.search(message) is not None
    files = [frame.filename for frame in traceback.extract_tb(raised.__traceback__)]
    if message.startswith(_TRACED) and message.endswith(f"{AssertionError.__name__}:"):
        files = _TRACED_FRAME.findall(message)
    elif message:
        return _SCOPE_ERROR.search(message) is not None
    return bool(files) and not is_user_file(files[-1], folder)
