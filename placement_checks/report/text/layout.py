"""Wraps sentences to the width of the terminal, prints lines, and lays out labeled rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

from placement_checks.util.text import printable

WIDTH = 120
_MIN_WIDTH = 40
_LONGEST_WORD = 120  # such as the name of an op

# A context variable, since many functions wrap the lines of one report.
_columns: ContextVar[int] = ContextVar("columns", default=WIDTH)


@contextmanager
def terminal_width(columns: int) -> Iterator[None]:
    """Wraps lines in this block to the width of a terminal, within limits."""
    before = _columns.set(max(_MIN_WIDTH, min(columns, WIDTH)))
    try:
        yield
    finally:
        _columns.reset(before)


def current_width() -> int:
    """Returns the current limit of the length of lines."""
    return _columns.get()


def wrap(
    text: str, *, indent: int = 0, hanging: int, most: int | None = None, width: int | None = None
) -> list[str]:
    """Wraps a sentence at its spaces.

    Args:
        text: the sentence.
        indent: the number of spaces before the first line.
        hanging: the number of spaces before the other lines.
        most: the largest number of lines of the usual width, or of correspondingly more lines if
            they are narrower; None for no limit.
        width: the length of a line; None for `current_width`.
    """
    if width is None:
        width = current_width()
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
    for word in map(shorten, text.split(" ")):
        width = _width(word)
        if width + 1 > room and not is_empty:
            yield line
            line, is_empty, room = " " * hanging, True, full - hanging
        line += word if is_empty else f" {word}"
        room -= width if is_empty else width + 1
        is_empty = False
    yield line


def shorten(word: str, most: int = _LONGEST_WORD) -> str:
    """Replaces the middle of a word that is too long with an ellipsis."""
    if _width(word) <= most:
        return word
    half = (most - 1) // 2
    shown = printable(word)
    return f"{shown[:half]}…{shown[-half:]}"


def _width(word: str) -> int:
    return len(word) if word.isprintable() else len(printable(word))


def print_line(console: Console, line: Text) -> None:
    """Prints a line without wrapping, with control characters escaped.

    A line with control characters is printed without colors.
    """
    line = line if line.plain.isprintable() else Text(printable(line.plain))
    if console.is_terminal or console.record:
        console.print(line, soft_wrap=True, highlight=False)
    else:  # 40 times as fast, for text without colors
        console.file.write(f"{line.plain}\n")


_MAX_LINES = 5  # of a row
_INDENT = "  "


class Row(NamedTuple):
    """A label and its lines; rows without lines are omitted."""

    label: str
    lines: Sequence[str]


def layout_rows(headline: str, rows: Iterable[Row]) -> Iterator[str]:
    """Yields the headline, an empty line, and the rows with aligned lines."""
    filled = [row for row in rows if row.lines]
    width = len(_INDENT) + 2 + max((len(row.label) for row in filled), default=0)
    yield headline
    yield ""
    for row in filled:
        label = f"{_INDENT}{row.label}"
        lines = row.lines
        if len(lines) > _MAX_LINES:
            omitted = f"… {len(lines) - _MAX_LINES + 1} more"
            lines = [*lines[: _MAX_LINES - 2], omitted, lines[-1]]
        for line in lines:
            first, *others = wrap(line, indent=width, hanging=width + len(_INDENT))
            yield f"{label:<{width}}{first[width:]}"
            yield from others
            label = ""
