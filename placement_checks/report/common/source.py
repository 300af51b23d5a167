"""Shows lines of source files."""

from __future__ import annotations

import time

from placement_checks.util.source_files import read_source

_STARTED = time.time()  # earlier than the build of any program
_MAX_LENGTH = 100


def source_text(line: str) -> str | None:
    """Returns the text of a line such as ``train.py:12``; None if it cannot be read.

    If the file was written after this process started, the text ends with a note.
    """
    file, _, number = line.rpartition(":")
    source = read_source(file) if number.isdecimal() else None
    if source is None or not 0 < int(number) <= len(source.lines):
        return None
    text = source.lines[int(number) - 1].strip()
    if len(text) > _MAX_LENGTH:
        text = f"{text[: _MAX_LENGTH - 1]}…"
    if text and source.changed > _STARTED:
        return f"{text}  (the file has changed since)"
    return text or None
