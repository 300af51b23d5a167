"""Sentences as lines of a width that a screen has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from placement_checks.util.printable import printable

WIDTH = 120
_NARROWEST = 40
_LONGEST_WORD = 120  # such as the name of an op

# Of the lines that are made, which many functions make for one report.
_columns: ContextVar[int] = ContextVar("columns", default=WIDTH)


@contextmanager
def fitted(columns: int) -> Iterator[None]:
    """Make lines in this block that are no longer than a terminal is wide."""
    before = _columns.set(max(_NARROWEST, min(columns, WIDTH)))
    try:
        yield
    finally:
        _columns.reset(before)


def columns() -> int:
    """How long lines are."""
    return _columns.get()


def wrapped(
    text: str, *, indent: int = 0, hanging: int, most: int | None = None, width: int | None = None
) -> list[str]:
    """A sentence as lines, which end at its spaces.

    Args:
        text: the sentence, or what else is to be told.
        indent: the spaces before the first line.
        hanging: those before the lines that follow.
        most: how many lines to make of it at most, where they have the usual length; None for as
            many as it takes.
        width: of a line; None for what `fitted` says.
    """
    if width is None:
        width = columns()
        most = most and most * WIDTH // width
    if indent + len(text) <= width <= WIDTH and text.isprintable():
        return [" " * indent + text]
    lines: list[str] = []
    for line in _lines(text, indent, hanging, width):
        if len(lines) == most:
            lines[-1] += " …"
            break
        lines.append(line)
    return lines


def _lines(text: str, indent: int, hanging: int, full: int) -> Iterator[str]:
    line, is_empty = " " * indent, True
    room = full - indent
    for word in map(shortened, text.split(" ")):
        width = _width(word)
        if width + 1 > room and not is_empty:
            yield line
            line, is_empty, room = " " * hanging, True, full - hanging
        line += word if is_empty else f" {word}"
        room -= width if is_empty else width + 1
        is_empty = False
    yield line


def shortened(word: str, most: int = _LONGEST_WORD) -> str:
    """A word with a mark in the place of its middle, where it is longer than may be shown."""
    if _width(word) <= most:
        return word
    half = (most - 1) // 2
    shown = printable(word)
    return f"{shown[:half]}…{shown[-half:]}"


def _width(word: str) -> int:
    return len(word) if word.isprintable() else len(printable(word))
