"""Runs a user's own code: that it raises or calls ``sys.exit`` is an error of the input."""

from __future__ import annotations

import contextlib
import re
import textwrap
import traceback
from collections.abc import Iterator
from pathlib import Path

from placement_checks.core.errors import InputError, PlacementError, message_of
from placement_checks.loading.source_lines import is_users, shown

_COLOURS = re.compile(r"\x1b\[[\d;]*m")  # Keras 3 prints the line with the reason in bold
_AUTOGRAPH = "in user code:"
_FRAME = re.compile(r'File "(.+)", line (\d+), in ')
_KERAS_INTRODUCTION = "Exception encountered when calling"  # Keras names the layer first


@contextlib.contextmanager
def users_code(object: str, what: str, folder: Path | None, fix: str = "") -> Iterator[None]:
    """Run a user's code in this block.

    Args:
        object: the target or function that the error names.
        what: what is run, such as "the builder".
        folder: where the user's frames are looked for; None for anywhere outside libraries.
        fix: what to do where no line of the user's is at fault.

    Raises:
        InputError: it raised, or called ``sys.exit``.
    """
    try:
        yield
    except PlacementError:
        raise
    except (Exception, SystemExit) as error:
        raise _failed(object, f"{what} {_what_happened(error)}", error, folder, fix) from None


def _failed(
    object: str, message: str, error: BaseException, folder: Path | None, fix: str
) -> InputError:
    """The error that says what a user's own code did, with the user's own frames."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if is_users(frame.filename, folder)
    ]
    lines = traceback.format_list(frames) + traceback.format_exception_only(error)
    places = [(frame.filename, str(frame.lineno)) for frame in frames]
    if message_of(error).startswith(_AUTOGRAPH):  # its frames are in the message
        places += [each for each in _FRAME.findall(str(error)) if is_users(each[0], folder)]
    return InputError(
        object,
        message,
        f"look at {shown(places[-1][0])}:{places[-1][1]}" if places else fix,
        details="".join(lines).rstrip(),
    )


def _what_happened(error: Exception | SystemExit) -> str:
    if isinstance(error, SystemExit):
        return f"called sys.exit({', '.join(map(repr, error.args))})"
    reason = _reason(_COLOURS.sub("", message_of(error)))
    return f"raised {type(error).__name__}" + (f": {reason}" if reason else "")


def _reason(message: str) -> str:
    """The line of a message that says what is wrong."""
    first, *more = [line.rstrip() for line in message.strip().splitlines() if line.strip()] or [""]
    if not more:
        return first
    if first == _AUTOGRAPH:  # frames, and below them the error
        lines = textwrap.dedent("\n".join(more)).splitlines()
        error = [line for line in lines if not line.startswith(("File ", " "))]
        return _reason("\n".join(error).partition(": ")[2])
    if first.startswith(_KERAS_INTRODUCTION):
        return more[0]
    return f"{first} {more[0].strip()}" if first.endswith(":") else first
