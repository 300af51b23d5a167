"""Reads lines of source files."""

from __future__ import annotations

import time
import tokenize
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from stat import S_ISREG

_STARTED = time.time()  # earlier than the build of any program
_MAX_LENGTH = 100
_LARGEST_FILE = 4_000_000  # bytes


def source_text(line: str) -> str | None:
    """Returns the text of a line such as ``train.py:12``; None if it cannot be read.

    Cells of notebooks, code passed to `exec` and files in archives cannot be read. If the file was
    written after this process started, the text ends with a note.
    """
    file, _, number = line.rpartition(":")
    try:
        status = Path(file).stat()
    except (OSError, ValueError):
        return None
    if not (S_ISREG(status.st_mode) and status.st_size <= _LARGEST_FILE and number.isdecimal()):
        return None
    lines = _lines(file, (status.st_dev, status.st_ino, status.st_mtime_ns))
    text = lines[int(number) - 1].strip() if 0 < int(number) <= len(lines) else ""
    if len(text) > _MAX_LENGTH:
        text = f"{text[: _MAX_LENGTH - 1]}…"
    if text and status.st_mtime > _STARTED:
        return f"{text}  (the file has changed since)"
    return text or None


@lru_cache(maxsize=64)
def _lines(file: str, _version: tuple[int, ...]) -> Sequence[str]:
    """The lines of a file in its declared encoding; none if it is not a text file."""
    try:
        with tokenize.open(file) as source:
            return source.read().split("\n")
    except (OSError, SyntaxError, ValueError):
        return ()
