"""Few patterns for many names: as they stand in the ``allow`` of a policy."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from fnmatch import translate
from functools import lru_cache
from itertools import islice

_MANY = 3  # names, for which one pattern is written
_NUMBER = re.compile(r"\d+")
_SPECIAL = re.compile(r"([*?[])")


def patterns_for(names: Collection[str], others: Collection[str], strays: int = 0) -> list[str]:
    """Patterns and names that match all of ``names``, and none of ``others``.

    A pattern stands for a scope, for scopes that differ in their numbers, or for what is called
    alike in all of them: ``tower_*/bn/*``, ``*/ExponentialMovingAverage``.

    Args:
        names: what is to be matched.
        others: what is not.
        strays: how many others for each name a pattern may match all the same.
    """
    left = list(dict.fromkeys(names))
    rejected: set[str] = set()
    found = []
    while left:
        pattern = _literal(left[0])
        for wider in _wider(left[0]):
            if wider in rejected:
                continue
            meant = _matched(wider, left)
            most = strays * meant
            if meant >= _MANY and _matched(wider, others, up_to=most + 1) <= most:
                pattern = wider
                break
            rejected.add(wider)
        found.append(_with_numbers(pattern, left))
        left = [name for name in left if not _pattern(pattern).match(name)]
    return found


def _wider(name: str) -> Iterator[str]:
    """Patterns that match a name, the widest first.

    Its scopes and the name, each with any numbers, with those behind the outermost scope, and as
    they are; and what is called like it in all scopes.
    """
    own = _literal(name).split("/")
    free = [_NUMBER.sub("*", part) for part in own]
    for depth in range(1, len(own)):
        for scope in (free[:depth], [own[0], *free[1:depth]], own[:depth]):
            yield "/".join((*scope, "*"))
    if len(own) > 1:
        yield f"*/{own[-1]}"
    yield "/".join(free)
    yield "/".join((own[0], *free[1:]))


def _with_numbers(pattern: str, names: Collection[str]) -> str:
    """The pattern with each number of the first name that all names have which it matches."""
    own = _literal(next(iter(names))).split("/")
    parts = pattern.split("/")
    if parts[0] == "*":
        return pattern
    for place, part in enumerate(parts):
        narrower = "/".join((*parts[:place], own[place], *parts[place + 1 :]))
        if part != "*" and _matched(narrower, names) == _matched(pattern, names):
            parts[place] = own[place]
    return "/".join(parts)


def _matched(pattern: str, names: Collection[str], up_to: int | None = None) -> int:
    """How many names a pattern matches, of which no more than ``up_to`` are counted."""
    return sum(1 for _ in islice(filter(_pattern(pattern).match, names), up_to))


@lru_cache(maxsize=1024)
def _pattern(pattern: str) -> re.Pattern[str]:
    return re.compile(translate(pattern))


def _literal(name: str) -> str:
    """A pattern that matches this name alone."""
    return _SPECIAL.sub(r"[\1]", name)
