"""Reads source files of the user."""

from __future__ import annotations

import tokenize
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from stat import S_ISREG
from typing import NamedTuple

_LARGEST_FILE = 4_000_000  # bytes


class SourceFile(NamedTuple):
    """The lines of a source file, and the time of its last change in seconds since the epoch."""

    lines: Sequence[str]
    changed: float


def read_source(file: str) -> SourceFile | None:
    """Returns a source file in its declared encoding; None if it is no text file of usual size.

    Cells of notebooks, code passed to `exec` and files in archives cannot be read.
    """
    try:
        status = Path(file).stat()
    except (OSError, ValueError):
        return None
    if not (S_ISREG(status.st_mode) and status.st_size <= _LARGEST_FILE):
        return None
    lines = _lines(file, (status.st_dev, status.st_ino, status.st_mtime_ns))
    return SourceFile(lines, status.st_mtime)


@lru_cache(maxsize=64)
def _lines(file: str, _version: tuple[int, ...]) -> Sequence[str]:
    """The lines of a file in its declared encoding; none if it is not a text file."""
    try:
        with tokenize.open(file) as source:
            return source.read().split("\n")
    except (OSError, SyntaxError, ValueError):
        return ()
