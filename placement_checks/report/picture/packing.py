"""Columns of ops as short texts: `page/data.js` reads them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_LONGEST_SHARED = len(_DIGITS) ** 2 - 1


class Table(NamedTuple):
    """Texts that occur again and again: each once, and its number wherever it occurs."""

    texts: Sequence[str]
    numbers: Sequence[int]


def table(texts: Iterable[str]) -> Table:
    """The texts in the order in which they first occur."""
    seen: dict[str, int] = {}
    numbers = [seen.setdefault(text, len(seen)) for text in texts]
    return Table(list(seen), numbers)


def runs(values: Iterable[int]) -> str:
    """``3*5,4`` for 3 3 3 3 3 4."""
    return ",".join(
        f"{value}*{times}" if times > 1 else str(value)
        for value, run in groupby(values)
        for times in [len(tuple(run))]
    )


def front_coded(names: Iterable[str]) -> str:
    """A line a name: how many letters it shares with the one before, and the rest.

    The number is of two digits of base 36. A name has no line break, as `printable` sees to.
    """
    lines, before = [], ""
    for name in names:
        shared = _shared(before, name)
        lines.append(f"{_DIGITS[shared // 36]}{_DIGITS[shared % 36]}{name[shared:]}")
        before = name
    return "\n".join(lines)


def _shared(one: str, other: str) -> int:
    """How many letters two names begin with alike; by halves, as they may be long."""
    alike, end = 0, min(len(one), len(other), _LONGEST_SHARED)
    while alike < end:
        middle = (alike + end + 1) // 2
        if one[alike:middle] == other[alike:middle]:
            alike = middle
        else:
            end = middle - 1
    return alike
