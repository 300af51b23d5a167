"""What keeps a script from being compiled, in one line; code of Python 2 is named as such."""

from __future__ import annotations

import re
from pathlib import Path

from placement_checks.core.errors import InputError, message_of
from placement_checks.loading.source_lines import shown

# What only Python 2 reads, by what Python 3 says of it, and by what stands in the line.
_PYTHON_2 = (
    ("a print statement", r"call to 'print'", r""),
    ("an exec statement", r"call to 'exec'", r""),
    ("except ERROR, NAME", r"must be parenthesized|invalid syntax", r"\bexcept\b[^:]*,"),
    ("raise ERROR, VALUE", r"invalid syntax", r"\braise\s+[\w.]+\s*,"),
    ("backticks", r"invalid (syntax|character)", r"`"),
    ("the operator <>", r"invalid syntax", r"<>"),
    ("a long number such as 10L", r"invalid (decimal|hexadecimal) literal", r"\b\d\w*[lL]\b"),
    ("an octal number such as 0755", r"leading zeros in decimal", r""),
    ("a string with the prefix ur", r"invalid syntax", r"\b[uU][rR]['\"]"),
    ("a parameter in brackets", r"parameters cannot be parenthesized", r""),
    ("tabs and spaces mixed", r"inconsistent use of tabs", r""),
)
_BAD_BYTES = re.compile(r"\(unicode error\) '([\w-]+)' codec can't decode byte (0x\w\w)")
CONVERT = "convert it to Python 3, as 2to3 does; nothing is converted here"


def as_input_error(error: BaseException, path: Path, source: bytes) -> InputError:
    """The error for what `compile` raised, with the line that is at fault.

    Args:
        error: a SyntaxError, or another where the script is no text or is nested too deep.
        path: of the script.
        source: what is in it.
    """
    name = shown(str(path))
    if not isinstance(error, SyntaxError):
        reason = message_of(error) or "it is nested too deep"
        return InputError(name, f"cannot be compiled: {reason}", "check that it is a script")
    where = f"{name}:{error.lineno}" if error.lineno else name
    if old := _python_2(error, source):
        return InputError(where, f"is code of Python 2: {old}", CONVERT)
    if bad := _BAD_BYTES.match(error.msg):
        return InputError(
            name,
            f"is not {bad[1]}: it has the byte {bad[2]}",
            "save it as UTF-8, or name its encoding in the first line: # -*- coding: latin-1 -*-",
        )
    return InputError(where, f"is no Python: {error.msg}", "see what python itself says of it")


def _python_2(error: SyntaxError, source: bytes) -> str:
    """What in the line is of Python 2; ``""`` if nothing is."""
    lines = source.splitlines()
    number = (error.lineno or 0) - 1
    line = lines[number].decode("latin-1") if 0 <= number < len(lines) else ""
    return next(
        (
            what
            for what, message, text in _PYTHON_2
            if re.search(message, error.msg) and re.search(text, line)
        ),
        "",
    )
