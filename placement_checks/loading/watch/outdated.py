"""Says what to do where a program is outdated: of TensorFlow 1, or of Python 2."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from pathlib import Path

from placement_checks.core.errors import InputError, message_of
from placement_checks.loading.source_lines import is_users, users_frames
from placement_checks.loading.watch.python_2 import python_2_cause
from placement_checks.loading.watch.syntax_errors import CONVERT, as_input_error


@contextlib.contextmanager
def explain_outdated(program: str, *, is_v1: bool) -> Iterator[None]:
    """Run a program in this block.

    Raises:
        InputError: it asks TensorFlow 2 for what version 1 had, or is code of Python 2.
    """
    try:
        yield
    except SyntaxError as error:  # of a module that it imports
        if error.filename is None or not is_users(error.filename, None):
            raise
        file = Path(error.filename)
        raise as_input_error(error, file, file.read_bytes()) from None
    except (AttributeError, ImportError, NameError, TypeError) as error:
        if cause := python_2_cause(error):
            stack = traceback.extract_tb(error.__traceback__)
            where = next(reversed(users_frames(stack, None)), program)
            raise InputError(str(where), f"is code of Python 2: {cause}", CONVERT) from None
        if is_v1 or not _is_asked_of_tensorflow(error):
            raise
        raise InputError(
            program,
            f"before its first training step it raised {type(error).__name__}: "
            f"{message_of(error)}",
            "add --v1 if it means TensorFlow 1 by import tensorflow",
        ) from None


def _is_asked_of_tensorflow(error: Exception) -> bool:
    """Whether TensorFlow lacks a name or module that the program asked for."""
    match error:
        case ImportError(name=name):
            return str(name).startswith("tensorflow")
        case AttributeError(obj=owner):
            return str(getattr(owner, "__name__", "")).startswith("tensorflow")
    return False
