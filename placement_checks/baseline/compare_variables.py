"""Matches the variables and towers of a baseline to a placement, and compares the variables.

A refactor may rename variables, so they are matched by name, dtype, shape and order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cached_property
from typing import Final

from placement_checks.core.baseline import (
    Baseline,
    Change,
    Changes,
    HeldVariable,
    first_few,
)
from placement_checks.util.text import join_and, plural

_MOST_COMPARED: Final = 10_000  # pairs of names


@dataclass
class VariableComparison:
    """Compares the variables of a baseline with the variables of a placement, and their slots.

    Attributes:
        old: the baseline.
        new: the variables of the placement, in the order of data flow.
        followers: returns the number of ops that must be on the device of a variable, and are.
        where: returns the user's line that built a variable, if that is known.
    """

    old: Baseline
    new: Sequence[HeldVariable]
    followers: Callable[[str], int]
    where: Callable[[str], str | None]

    @cached_property
    def _matches(self) -> Mapping[str, HeldVariable]:
        """The variables of the baseline, by their new names."""
        return match_variables(self.old.variables, self.new)

    @cached_property
    def old_names(self) -> Mapping[str, str]:
        """The old name of each variable that the baseline has."""
        return {name: variable.name for name, variable in self._matches.items()}

    def changes(self) -> Changes:
        """Returns all changes."""
        found = Changes()
        slots: dict[tuple[str, str], list[str]] = defaultdict(list)
        renamed: list[str] = []
        for variable in self.new:
            old = self._matches.get(variable.name)
            if old is None:
                what = f"variable {variable.name} ({variable.form})"
                change = Change("variable", what, "", variable.place, [variable.name])
                found.new_there.append(change)
                continue
            if old.name != variable.name:
                renamed.append(f"{old.name} -> {variable.name}")
            if old.place != variable.place:
                found.moved.append(self._moved(old, variable))
            elif _have_other_devices(old.slots, variable.slots):
                slots[_join_places(old.slots), _join_places(variable.slots)].append(variable.name)
            if old.form != variable.form:
                found.notes.append(f"variable {variable.name} is {variable.form}, was {old.form}")
            if len(old.slots) != len(variable.slots):
                has = plural(len(variable.slots), "slot")
                found.notes.append(f"variable {variable.name} has {has}, had {len(old.slots)}")
        if redistributed := _redistribution(found.moved, len(self.new)):
            found.moved = [redistributed]
        found.moved += [
            Change("slots", f"slots of {plural(len(names), 'variable')}", was, now, names)
            for (was, now), names in slots.items()
        ]
        matched = {variable.name for variable in self._matches.values()}
        found.gone += [
            Change("variable", f"variable {each.name} ({each.form})", each.place, "", [each.name])
            for each in self.old.variables
            if each.name not in matched
        ]
        if renamed:
            found.notes.append(f"{plural(len(renamed), 'variable')} renamed: {first_few(renamed)}")
        return found

    def _moved(self, old: HeldVariable, new: HeldVariable) -> Change:
        size = new.tensor.bytes
        notes = [f"{size:,} bytes"] if size is not None else []
        if followers := self.followers(new.name):
            notes.append(f"{plural(followers, 'op')} with it")
        if new.slots and set(new.slots) == {new.place} and set(old.slots) == {old.place}:
            notes.append(f"{plural(len(new.slots), 'slot')} with it")
        return Change(
            "variable",
            f"variable {new.name}",
            old.place,
            new.place,
            [new.name],
            ", ".join(notes),
            self.where(new.name),
        )


def _have_other_devices(old: Sequence[str], new: Sequence[str]) -> bool:
    """Whether the number of slots is the same, but their devices are not."""
    return old != new and len(old) == len(new)


def _join_places(places: Iterable[str]) -> str:
    return join_and(sorted(set(places)))


def _redistribution(moved: Sequence[Change], variables: int) -> Change | None:
    """One change for variables that exchanged places among the tasks of one job."""
    places = [place for change in moved for place in (change.old, change.new)]
    jobs = {place.partition("/task:")[0] for place in places}
    if len(moved) < 2 or len(jobs) > 1 or not set(places[::2]) & set(places[1::2]):
        return None
    job = jobs.pop()
    among = job if job.startswith("/job:") else "devices"
    return Change(
        "variable",
        f"{len(moved)} of {variables} variables are distributed to {among} in another order",
        "",
        "",
        [name for change in moved for name in change.ops],
        first_few([f"{change.ops[0]} {change.old} -> {change.new}" for change in moved]),
    )


def match_variables(
    old: Sequence[HeldVariable], new: Sequence[HeldVariable]
) -> Mapping[str, HeldVariable]:
    """Maps the names of new variables to the matching variables of the baseline.

    Variables are matched in four passes: by name, dtype and shape; by dtype, shape and the last
    part of the name; by dtype and shape, in the order of data flow; and by name.
    """
    by_name = {variable.name: variable for variable in old}
    matches = {
        variable.name: by_name[variable.name]
        for variable in new
        if variable.name in by_name and by_name[variable.name].form == variable.form
    }
    _match_by(lambda each: (each.form, each.name.rpartition("/")[2]), old, new, matches)
    _match_by(lambda each: each.form, old, new, matches)
    matched = {variable.name for variable in matches.values()}
    for variable in new:
        name = variable.name
        if name in by_name and name not in matches and name not in matched:
            matches[name] = by_name[name]
    return matches


def _match_by(
    key: Callable[[HeldVariable], Hashable],
    old: Sequence[HeldVariable],
    new: Sequence[HeldVariable],
    matches: dict[str, HeldVariable],
) -> None:
    """Matches the remaining variables with equal keys, in their order."""
    matched = {variable.name for variable in matches.values()}
    old_by_key: dict[Hashable, list[HeldVariable]] = defaultdict(list)
    for variable in old:
        if variable.name not in matched:
            old_by_key[key(variable)].append(variable)
    new_by_key: dict[Hashable, list[HeldVariable]] = defaultdict(list)
    for variable in new:
        if variable.name not in matches:
            new_by_key[key(variable)].append(variable)
    for each, after in new_by_key.items():
        if each in old_by_key:
            pairs = zip(*_equalize(old_by_key[each], after), strict=True)
            matches.update((b.name, a) for a, b in pairs)


def _equalize(
    old: Sequence[HeldVariable], new: Sequence[HeldVariable]
) -> tuple[Sequence[HeldVariable], Sequence[HeldVariable]]:
    """Shortens the longer sequence to the variables with the most similar names."""
    if len(old) == len(new):
        return old, new
    short, long = sorted((old, new), key=len)
    chosen = long[: len(short)]
    if len(short) * len(long) <= _MOST_COMPARED:
        similar = [
            max(long, key=lambda each: SequenceMatcher(None, variable.name, each.name).ratio())
            for variable in short
        ]
        if len({variable.name for variable in similar}) == len(short):
            chosen = similar
    return (short, chosen) if short is old else (chosen, short)


def match_towers(old: Sequence[str], new: Sequence[str]) -> Mapping[int, int]:
    """Maps the index of each new tower to its index in the baseline, if there is one.

    ``old`` and ``new`` list the devices of the towers. If each list has a device exactly once, its
    towers match. The remaining towers are matched in order; these towers have moved.
    """
    unique = [place for place in new if new.count(place) == 1 == old.count(place)]
    matches = {new.index(place): old.index(place) for place in unique}
    left = [tower for tower in range(len(old)) if tower not in matches.values()]
    for tower in range(len(new)):
        if tower not in matches and left:
            matches[tower] = left.pop(left.index(tower) if tower in left else 0)
    return matches
