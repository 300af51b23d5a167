"""What a rule means, with its example, for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from placement_checks.report.text.console import show

_STYLES = {"-": "red", "+": "green"}


def write(explanation: str, example: Sequence[str], console: Console) -> None:
    """Print the explanation of a rule, and the diff from what breaks it to what mends it."""
    diff = _diff(example) if example else ()
    for line in (*map(Text, explanation.splitlines()), *diff):
        show(console, line)


def _diff(example: Sequence[str]) -> Iterator[Text]:
    yield Text()
    yield Text("A program that breaks it (-), and mended (+); tf1 is tf.compat.v1:")
    yield Text()
    yield from (Text(line, _STYLES.get(line[:1], "")) for line in example)
