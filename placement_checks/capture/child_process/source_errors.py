"""Explains why source code cannot run: it is not valid Python 3, or it needs TensorFlow 1."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from placement_checks.core.errors import InputError, message_of
from placement_checks.core.user_code import is_user_file, relative_path

# Syntax of Python 2: its name, Python 3's error message for it, and a pattern in the source line.
_PYTHON_2_SYNTAX = (
    ("a print statement", r"call to 'print'", r""),
    ("an exec statement", r"call to 'exec'", r""),
    ("except ERROR, NAME", r"must be parenthesized|invalid syntax", r"\bexcept\b[^:]*,"),
    ("raise ERROR, VALUE", r"invalid syntax", r"\braise\s+[\w.]+\s*,"),
    ("backticks", r"invalid (syntax|character)", r"`"),
    ("the operator <>", r"invalid syntax", r"<>"),
    ("a long number such as 10L", r"invalid (decimal|hexadecimal) literal", r"\b\d\w*[lL]\b"),
    ("an octal number such as 0755", r"leading zeros in decimal", r""),
    ("a string with the prefix ur", r"invalid syntax", r"\b[uU][rR]['\"]"),
    ("a parameter in parentheses", r"parameters cannot be parenthesized", r""),
    ("mixed tabs and spaces", r"inconsistent use of tabs", r""),
)
_BAD_BYTES = re.compile(r"\(unicode error\) '([\w-]+)' codec can't decode byte (0x\w\w)")
_CONVERT = "convert it to Python 3, for example with 2to3; placement-checks does not convert it"


def compile_error(error: BaseException, path: str) -> InputError:
    """Return the error for an exception of `compile`, with its source line.

    The exception is a SyntaxError, or has another type if the script is not text or is nested too
    deeply.
    """
    name = relative_path(path)
    if not isinstance(error, SyntaxError):
        reason = message_of(error) or "it is nested too deeply"
        message = f"cannot be compiled: {reason}"
        return InputError(name, message, "check that it is a Python script", is_predicate=True)
    where = f"{name}:{error.lineno}" if error.lineno else name
    if syntax := _python_2_syntax(error):
        return InputError(
            where, f"is written in Python 2: it has {syntax}", _CONVERT, is_predicate=True
        )
    if bad := _BAD_BYTES.match(error.msg):
        return InputError(
            name,
            f"is not valid {bad[1]}: it contains the byte {bad[2]}",
            "save it as UTF-8, or declare its encoding in the first line: "
            "# -*- coding: latin-1 -*-",
            is_predicate=True,
        )
    return InputError(
        where,
        f"is not valid Python 3: {error.msg}",
        "run it with python to see why",
        is_predicate=True,
    )


def _python_2_syntax(error: SyntaxError) -> str:
    """Return the syntax of Python 2 in the source line of an error; ``""`` if there is none."""
    return next(
        (
            name
            for name, message, text in _PYTHON_2_SYNTAX
            if re.search(message, error.msg) and re.search(text, error.text or "")
        ),
        "",
    )


@contextlib.contextmanager
def explain_outdated(program: str, *, is_v1: bool) -> Iterator[None]:
    """Explain errors in this block that are due to TensorFlow 1, or to syntax of Python 2.

    Raises:
        InputError: the program uses a name of TensorFlow 1 that TensorFlow 2 lacks, or imports a
            module that is not valid Python 3.
    """
    try:
        yield
    except SyntaxError as error:  # in a module that the program imports
        if error.filename is None or not is_user_file(error.filename, None):
            raise
        raise compile_error(error, error.filename) from None
    except (AttributeError, ImportError) as error:
        # `tf.compat.v1` lacks `tf.estimator`, too, since TensorFlow 2.16.
        is_estimator = isinstance(error, AttributeError) and error.name == "estimator"
        if not _is_missing_in_tensorflow(error) or (is_v1 and not is_estimator):
            raise
        raise InputError(
            program,
            f"before its first training step it raised {type(error).__name__}: "
            f"{message_of(error)}",
            "use TensorFlow 2.15, the last version with estimators"
            if is_estimator
            else "add --v1 if the program is written for TensorFlow 1",
        ) from None


def _is_missing_in_tensorflow(error: Exception) -> bool:
    """Whether an error is due to a name or module that TensorFlow lacks."""
    match error:
        case ImportError(name=name):
            return str(name).startswith("tensorflow")
        case AttributeError(obj=owner):
            return str(getattr(owner, "__name__", "")).startswith("tensorflow")
    return False
