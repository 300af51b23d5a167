"""Reads and writes TOML: a ``pyproject.toml``, settings of the command line, and baselines."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from typing import Any

from placement_checks.core import limits
from placement_checks.core.errors import InputError

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_LONG_KEY = re.compile(
    r"""(?<![\w"'\\-])(?:(?:[\w-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+)"""
    rf"{{{limits.TOML_KEY.most}}}",
    re.ASCII,
)


def to_toml(value: Any) -> str:
    """A value in one line: tables are inline tables, and characters that do not print are escaped.

    TOML has no half of a surrogate pair; its escape sequence is written instead.
    """
    if isinstance(value, Mapping):
        fields = (
            f"{key if _BARE_KEY.fullmatch(key) else to_toml(key)} = {to_toml(each)}"
            for key, each in value.items()
        )
        return f"{{ {', '.join(fields)} }}" if value else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(to_toml, value))}]"
    if isinstance(value, str):
        value = value.encode("utf-8", "backslashreplace").decode()
    text = json.dumps(value, ensure_ascii=False)  # TOML writes numbers and strings as JSON does
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else f"\\U{ord(each):08x}" for each in text)


def parse_toml(text: str, file: str) -> dict[str, Any]:
    """Parse a TOML document.

    Args:
        text: the document.
        file: the name of its file, for errors.

    Raises:
        InputError: the document is not valid TOML. Or a key has so many parts that tomllib would
            take quadratic time; such a text in a string is an error, too.
    """
    if match := _LONG_KEY.search(text):
        line = text.count("\n", 0, match.start()) + 1
        raise limits.TOML_KEY.error(f"{file}:{line}", "shorten the key")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        reason = str(error)
    except ValueError:
        reason = "a number has too many digits"
    except RecursionError:
        reason = "its values are nested too deeply"
    message = f"is not valid TOML: {reason}"
    raise InputError(file, message, "correct that line", is_predicate=True)
