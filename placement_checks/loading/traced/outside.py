"""Errors of TensorFlow about variables that were made outside of the scope of a strategy."""

from __future__ import annotations

import re
import traceback
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from placement_checks.core.errors import InputError, message_of
from placement_checks.loading.source_lines import is_users, users_frames
from placement_checks.loading.tf_internals.distribution import name_of_strategy
from placement_checks.loading.traced.noting import TracingNotes
from placement_checks.loading.traced.strategies import made_by
from placement_checks.loading.traced.variables import NotedVariable
from placement_checks.util.text import joined

_MOST = 3  # names of variables in a message, and lines
# What TensorFlow and Keras say of them: it names none, or one with all of its values.
_OF_SCOPE = re.compile(
    r"distribution strategy scope|tf\.distribute\.Strategy\.scope\(\)|with strategy\.scope\(\)|"
    r"Mixing different tf\.distribute\.Strategy"
)


def told_of_scope(error: InputError, notes: TracingNotes, folder: Path | None) -> InputError:
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
    more = [f"{len(names) - _MOST} more"] if len(names) > _MOST else []
    return InputError(
        error.object,
        f"it made {joined([*names[:_MOST], *more])} outside of the scope of its "
        f"{name_of_strategy(strategy)}{_lines(outside, folder)}, and TensorFlow refuses to train "
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
    return bool(frames) and not is_users(frames[-1].filename, folder)


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
    more = ["…"] if len(lines) > _MOST else []
    return f" ({', '.join([*lines[:_MOST], *more])})" if lines else ""
