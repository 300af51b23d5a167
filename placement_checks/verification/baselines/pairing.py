"""Which variable and which tower of a baseline is which of a placement: names may have changed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Final

from placement_checks.core.baseline.values import HeldVariable

_MOST_COMPARED: Final = 10_000  # pairs of names


def pair_variables(
    old: Sequence[HeldVariable], new: Sequence[HeldVariable]
) -> Mapping[str, HeldVariable]:
    """The variable of the baseline, by the name of the new one.

    By name and form; the rest by form and the last part of the name, and then by form, in the
    order of data flow; last by name, with another form.
    """
    by_name = {variable.name: variable for variable in old}
    pairs = {
        variable.name: by_name[variable.name]
        for variable in new
        if variable.name in by_name and by_name[variable.name].form == variable.form
    }
    for key in (_form_and_last_part, _form):
        _pair_by(key, old, new, pairs)
    taken = {variable.name for variable in pairs.values()}
    for variable in new:
        name = variable.name
        if name in by_name and name not in pairs and name not in taken:
            pairs[name] = by_name[name]
    return pairs


def _form_and_last_part(variable: HeldVariable) -> Hashable:
    return variable.form, variable.name.rpartition("/")[2]


def _form(variable: HeldVariable) -> Hashable:
    return variable.form


def _pair_by(
    key: Callable[[HeldVariable], Hashable],
    old: Sequence[HeldVariable],
    new: Sequence[HeldVariable],
    pairs: dict[str, HeldVariable],
) -> None:
    """Pair those that are left and have one key, in their order."""
    taken = {variable.name for variable in pairs.values()}
    left: dict[Hashable, list[HeldVariable]] = defaultdict(list)
    for variable in old:
        if variable.name not in taken:
            left[key(variable)].append(variable)
    right: dict[Hashable, list[HeldVariable]] = defaultdict(list)
    for variable in new:
        if variable.name not in pairs:
            right[key(variable)].append(variable)
    for each, those in right.items():
        if each in left:
            before, after = _as_many(left[each], those)
            pairs.update((b.name, a) for a, b in zip(before, after, strict=True))


def _as_many(
    old: Sequence[HeldVariable], new: Sequence[HeldVariable]
) -> tuple[Sequence[HeldVariable], Sequence[HeldVariable]]:
    """As many of the one as of the other; of the longer those whose names are most alike."""
    if len(old) == len(new):
        return old, new
    short, long = sorted((old, new), key=len)
    kept = long[: len(short)]
    if len(short) * len(long) <= _MOST_COMPARED:
        alike = [_nearest(variable, long) for variable in short]
        if len({variable.name for variable in alike}) == len(short):
            kept = alike
    return (short, kept) if short is old else (kept, short)


def _nearest(variable: HeldVariable, others: Sequence[HeldVariable]) -> HeldVariable:
    return max(others, key=lambda other: SequenceMatcher(None, variable.name, other.name).ratio())


def pair_towers(old: Sequence[str], new: Sequence[str]) -> Mapping[int, int]:
    """The tower of the baseline, by the new one, given the device of each.

    By device where both have one tower there; the rest in their order, which have then moved.
    """
    alone = [place for place in new if new.count(place) == 1 == old.count(place)]
    pairs = {new.index(place): old.index(place) for place in alone}
    left = [tower for tower in range(len(old)) if tower not in pairs.values()]
    for tower in range(len(new)):
        if tower not in pairs and left:
            same = tower if tower in left else left[0]
            left.remove(same)
            pairs[tower] = same
    return pairs
