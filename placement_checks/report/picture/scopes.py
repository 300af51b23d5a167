"""The layer of each variable, by its name: the scope that it is in, the same for all towers."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from placement_checks.analysis.layouts import layout
from placement_checks.core.placement import Placement

Scope = tuple[str, ...]
_NUMBERS = re.compile(r"\d+")
_PART = re.compile(r"/part_\d+$")  # of a variable that is cut up


def scopes(placement: Placement) -> Mapping[str, Scope]:
    """The scope of each variable by its name, or the variable itself where it has none.

    Variables of which each tower has its own lose what tells them apart, such as ``tower_1``.
    """
    shared = {name: _shared_name(names) for names in _by_tower(placement) for name in names}
    found = {}
    for name, *_ in placement.variables:
        parts = _PART.sub("", shared.get(name, name)).split("/")
        found[name] = tuple(parts[:-1]) or tuple(parts)
    return found


def inside_common(scope_of: Mapping[str, Scope]) -> Mapping[str, Scope]:
    """The same scopes without those that all variables are in, as a whole model often is in one.

    A variable that is in no other scope is a layer by itself.
    """
    scopes_of = list(scope_of.values())
    depth = 0
    while len({scope[: depth + 1] for scope in scopes_of}) == 1 < max(map(len, scopes_of)) - depth:
        depth += 1
    return {name: scope[depth:] or (name.rpartition("/")[2],) for name, scope in scope_of.items()}


def _by_tower(placement: Placement) -> Iterator[Sequence[str]]:
    """Variables that stand for one another, one of each tower, in the order of the towers."""
    lies = layout(placement)
    for group in lies.mirrored:
        yield [name for _, name in sorted({**group.of, **group.apart}.items())]
    own: dict[tuple[str, str], list[str]] = defaultdict(list)
    towers: dict[tuple[str, str], int] = defaultdict(int)
    for name, *_ in placement.variables:
        readers = lies.readers.get(name, 0)
        if readers.bit_count() != 1 or name in lies.copies or name in lies.apart:
            continue
        first, _, rest = name.partition("/")
        key = _NUMBERS.sub("", first), rest
        own[key].append(name)
        towers[key] |= readers
    for key, names in own.items():
        if len(names) > 1 and towers[key].bit_count() == len(names):
            yield names


def _shared_name(names: Sequence[str]) -> str:
    """What the names have in common, part by part; the shortest of them where that is no scope."""
    parts = [name.split("/") for name in names]
    shortest = min(parts, key=len)
    if any(len(each) != len(shortest) for each in parts):
        return "/".join(shortest)
    same = [own[0] for own in zip(*parts, strict=True) if len(set(own)) == 1]
    return "/".join(same if len(same) > 1 else shortest)
