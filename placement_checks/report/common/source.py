"""Shows lines of source files."""

from __future__ import annotations

import time

from placement_checks.util.source_files import read_source

_STARTED = time.time()  # earlier than the build of any program
_MAX_LENGTH = 100
_MOST_LINES = 10  # of a statement


def source_text(line: str) -> str | None:
    """Returns the text of a line such as ``train.py:12``; None if it cannot be read.

    If the line ends with an opening bracket, the lines after it follow, up to the closing bracket.
    If the file was written after this process started, the text ends with a note.
    """
    file, _, number = line.rpartition(":")
    source = read_source(file) if number.isdecimal() else None
    if source is None or not 0 < int(number) <= len(source.lines):
        return None
    text, *after = map(str.strip, source.lines[int(number) - 1 :][:_MOST_LINES])
    code = text.partition("  #")[0]
    if code.endswith(("(", "[", "{")):
        for each in after:
            text = code = f"{code}{'' if code.endswith(('(', '[', '{')) else ' '}{each}"
            if sum(map(code.count, "([{")) <= sum(map(code.count, ")]}")):
                break
    if len(text) > _MAX_LENGTH:
        text = f"{text[: _MAX_LENGTH - 1]}…"
    if text and source.changed > _STARTED:
        return f"{text}  (the file has changed since)"
    return text or None
