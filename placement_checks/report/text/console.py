"""Lines on a console."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from placement_checks.util.printable import printable


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
