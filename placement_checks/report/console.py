"""Lines on a console."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from placement_checks.util.printable import printable

# What marks the folds of a page. No line has them, as they are not printable.
FOLD, OPENED, END = "\ue000", "\ue001", "\ue002"


@dataclass(frozen=True)
class Fold:
    """Lines that a page shows when its reader asks for them."""

    summary: str
    lines: Sequence[Text | Fold]


def show(console: Console, line: Text | Fold) -> None:
    """Print a line as it is: not wrapped, and with control characters escaped.

    A line that has any is printed without colours, so that none are taken for ours.
    """
    if isinstance(line, Fold):
        _print(console, Text(f"{FOLD}{printable(line.summary)}{OPENED}"))
        for each in line.lines:
            show(console, each)
        _print(console, Text(END))
        return
    _print(console, line if line.plain.isprintable() else Text(printable(line.plain)))


def _print(console: Console, line: Text) -> None:
    if console.is_terminal or console.record:
        console.print(line, soft_wrap=True, highlight=False)
    else:  # what has no colours takes a fortieth of the time
        console.file.write(f"{line.plain}\n")
