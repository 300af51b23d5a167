"""Sentences as lines of a width that a screen has.

Lines on a console.

What is said of one thing as rows: a label, and what belongs to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

from placement_checks.util.text import printable

WIDTH = 120
_NARROWEST = 40
_LONGEST_WORD = 120  # such as the name of an op

# Of the lines that are made, which many functions make for one report.
_columns: ContextVar[int] = ContextVar("columns", default=WIDTH)


@contextmanager
def terminal_width(columns: int) -> Iterator[None]:
    """Make lines in this block that are no longer than a terminal is wide."""
    before = _columns.set(max(_NARROWEST, min(columns, WIDTH)))
    try:
        yield
    finally:
        _columns.reset(before)


def current_width() -> int:
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


def show(console: Console, line: Text) -> None:
    """Print a line as it is: not wrapped, and with control characters escaped.

    A line that has any is printed without colours, so that none are taken for ours.
    """
    _print(console, line if line.plain.isprintable() else Text(printable(line.plain)))


def _print(console: Console, line: Text) -> None:
    if console.is_terminal or console.record:
        console.print(line, soft_wrap=True, highlight=False)
    else:  # what has no colours takes a fortieth of the time
        console.file.write(f"{line.plain}\n")


_MOST = 5  # lines of a row
_INDENT = "  "


class Row(NamedTuple):
    """A label and its lines; a row without lines is left out."""

    label: str
    lines: Sequence[str]


def in_rows(headline: str, rows: Iterable[Row]) -> Iterator[str]:
    """The headline, an empty line, and the rows, their lines below each other."""
    told = [row for row in rows if row.lines]
    width = len(_INDENT) + 2 + max((len(row.label) for row in told), default=0)
    yield headline
    yield ""
    for row in told:
        label = f"{_INDENT}{row.label}"
        for line in _shortened(row.lines):
            first, *others = wrapped(line, indent=width, hanging=width + len(_INDENT))
            yield f"{label:<{width}}{first[width:]}"
            yield from others
            label = ""


def _shortened(lines: Sequence[str], most: int = _MOST) -> Sequence[str]:
    """The first and the last line of those that are too many, which are counted."""
    if len(lines) <= most:
        return lines
    return [*lines[: most - 2], f"… {len(lines) - most + 1} more", lines[-1]]
