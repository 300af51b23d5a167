"""What is told of a group of findings, as sentences for formats that have their own lines."""

from __future__ import annotations

from collections.abc import Iterator

from placement_checks.report.groups import Group
from placement_checks.report.text.finding_lines import likewise
from placement_checks.report.text.wrapping import shortened
from placement_checks.util.printable import printable

_LONGEST = 600  # letters of a sentence, such as what the placer says of a graph


def sentences(group: Group, *, with_line: bool = False) -> Iterator[str]:
    """What is wrong, with which others, what it means, and the fix.

    Args:
        group: some findings.
        with_line: whether the first sentence says at which line, if one is known.
    """
    first = group.first
    where = f"{group.where}: " if with_line and group.where else ""
    yield told(f"{where}{first.message}")
    if len(group.findings) > 1:
        yield told(likewise(group))
    if first.consequence:
        yield told(first.consequence)
    if first.fix:
        yield told(first.advice)


def told(sentence: str, most: int = _LONGEST) -> str:
    """A sentence in one line, its names and itself shortened where they are very long."""
    words = " ".join(map(shortened, printable(sentence).split(" ")))
    return words if len(words) <= most else f"{words[: most - 2]} …"
