"""Lines on a console."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from placement_checks.util.printable import printable


def show(console: Console, line: Text) -> None:
    """Print a line as it is: not wrapped, and with control characters escaped.

    A line that has any is printed without colours, so that none are taken for ours.
    """
    safe = line if line.plain.isprintable() else Text(printable(line.plain))
    console.print(safe, soft_wrap=True, highlight=False)
