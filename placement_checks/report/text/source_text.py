"""What a source line says, as far as its file can still be read."""

from __future__ import annotations

import time
import tokenize
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from stat import S_ISREG

_STARTED = time.time()  # of this process, or soon after: before any program is built
_LONGEST = 100
_LARGEST_FILE = 4_000_000  # bytes


def source_text(line: str) -> str | None:
    """The text of a line, as in ``train.py:12``; None where there is none to be read.

    That is so for a cell of a notebook, what `exec` was given and files in an archive, and where
    the file has become shorter. A file that was written after this process began may not be what
    was run: that is said.
    """
    file, _, number = line.rpartition(":")
    lines, changed = source_lines(file)
    known = number.isdecimal() and 0 < int(number) <= len(lines)
    text = lines[int(number) - 1].strip() if known else ""
    if len(text) > _LONGEST:
        text = f"{text[: _LONGEST - 1]}…"
    if text and changed:
        return f"{text}  (the file has changed since)"
    return text or None


def source_lines(file: str) -> tuple[Sequence[str], bool]:
    """The lines of a file, none where it cannot be read; and whether it was written meanwhile."""
    try:
        status = Path(file).stat()
    except (OSError, ValueError):
        return (), False
    if not (S_ISREG(status.st_mode) and status.st_size <= _LARGEST_FILE):
        return (), False
    lines = _lines(file, (status.st_dev, status.st_ino, status.st_mtime_ns))
    return lines, status.st_mtime > _STARTED


@lru_cache(maxsize=64)
def _lines(file: str, _version: tuple[int, ...]) -> Sequence[str]:
    """Those of a file in the encoding that it names; none where it is no text."""
    try:
        with tokenize.open(file) as source:
            return source.read().split("\n")
    except (OSError, SyntaxError, ValueError):
        return ()
