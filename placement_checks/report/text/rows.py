"""What is said of one thing as rows: a label, and what belongs to it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from placement_checks.report.text.wrapping import wrapped

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
