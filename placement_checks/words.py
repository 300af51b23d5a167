"""Numbers and lists as sentences have them."""

from __future__ import annotations

from collections.abc import Iterable


def counted(number: int, noun: str) -> str:
    """``1 finding``, ``2 findings``, ``1,000 findings``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def listed(things: Iterable[object]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    *first, last = [str(thing) for thing in things] or [""]
    return f"{', '.join(first)} and {last}" if first else last
