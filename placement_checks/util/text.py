"""Numbers and lists as sentences have them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from difflib import get_close_matches


def counted(number: int, noun: str) -> str:
    """``1 finding``, ``2 findings``, ``1,000 findings``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def listed(things: Iterable[object]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    *first, last = [str(thing) for thing in things] or [""]
    return f"{', '.join(first)} and {last}" if first else last


def nearest(name: str, names: Collection[str]) -> str | None:
    """The name in another scope, or else the one that is spelled most like it."""
    own = name.rpartition("/")[2]
    ends = [each for each in names if each.endswith(f"/{name}")]
    near = [
        *ends,
        *get_close_matches(name, names, n=1),
        *(each for each in names if each.rpartition("/")[2] == own),
        *get_close_matches(name, names, n=1, cutoff=0.4),
    ]
    return near[0] if near else None
