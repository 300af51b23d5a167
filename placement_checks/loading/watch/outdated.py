"""Says what to do where a program is outdated: of TensorFlow 1, or of Python 2."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from pathlib import Path

from placement_checks.core.errors import InputError, message_of
from placement_checks.loading.source_lines import is_users, shown
from placement_checks.loading.watch.syntax_errors import CONVERT, as_input_error

# What Python 3 has under another name, or not at all.
_PYTHON_2 = frozenset(
    ["basestring", "cmp", "execfile", "long", "raw_input", "reduce", "unichr", "unicode", "xrange"]
)


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
    except NameError as error:
        if error.name not in _PYTHON_2:
            raise
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{shown(last.filename)}:{last.lineno}"
        raise InputError(where, f"is code of Python 2: it uses {error.name}", CONVERT) from None
    except (AttributeError, ImportError) as error:
        asked = (
            error.name if isinstance(error, ImportError) else getattr(error.obj, "__name__", None)
        )
        if is_v1 or not str(asked).startswith("tensorflow"):
            raise
        raise InputError(
            program,
            f"before its first training step it raised {type(error).__name__}: "
            f"{message_of(error)}",
            "add --v1 if it means TensorFlow 1 by import tensorflow",
        ) from None
