"""Matches the variables and towers of a baseline to a placement, and compares the variables.

A refactor may rename variables, so they are matched by name, dtype, shape and order. If a baseline
has hundreds of variables, it lists scopes instead of variables; `match_scopes` and
`compare_folded` handle these scopes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from functools import cached_property
from typing import Final

from placement_checks.baseline.build import fold_by_scope
from placement_checks.core.baseline import (
    Baseline,
    Change,
    Changes,
    FoldedScope,
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
    def _scopes(self) -> Mapping[str, str]:
        return match_scopes(self.old, self.new) if self.old.folded else {}

    @cached_property
    def _matches(self) -> Mapping[str, HeldVariable]:
        """The variables that the baseline lists one by one, by their new names."""
        listed = {variable.name for variable in self.old.variables}
        single = [
            variable
            for variable in self.new
            if variable.name in listed or variable.name not in self._scopes
        ]
        return match_variables(self.old.variables, single)

    @cached_property
    def old_names(self) -> Mapping[str, str]:
        """The old name of each variable; for a folded variable, its last part in the old scope."""
        names = {name: variable.name for name, variable in self._matches.items()}
        for name, scope in self._scopes.items():
            last = name[len(scope) :] if name.startswith(scope) else "/" + name.rpartition("/")[2]
            names.setdefault(name, scope + last)
        return names

    def changes(self) -> Changes:
        """Returns all changes; variables that are listed one by one come first."""
        found = Changes()
        slots: dict[tuple[str, str], list[str]] = defaultdict(list)
        renamed: list[str] = []
        for variable in self.new:
            old = self._matches.get(variable.name)
            if old is None:
                if variable.name not in self._scopes:
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
        if self.old.folded:
            found.add(compare_folded(self.old, self.new, self._scopes))
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


def match_scopes(old: Baseline, new: Sequence[HeldVariable]) -> Mapping[str, str]:
    """Maps each new variable in a folded scope of the baseline to this scope.

    A variable is in the innermost scope that its name begins with. A folded scope without
    variables is matched, in the order of data flow, with a new scope of as many variables.
    """
    sizes = Counter[str]()
    for each in old.folded:
        sizes[each.scope] += each.count
    single = {variable.name for variable in old.variables}
    found: dict[str, str] = {}
    left: dict[str, list[str]] = defaultdict(list)
    depth = max((scope.count("/") for scope in sizes), default=0) + 1
    for variable in new:
        path = variable.name.split("/")[:-1]
        ends = range(len(path), -1, -1)
        scope = next((s for s in ("/".join(path[:end]) for end in ends) if s in sizes), None)
        if scope is not None and (scope or not path):
            found[variable.name] = scope
        elif variable.name not in single:
            left["/".join(path[:depth])].append(variable.name)
    empty = [scope for scope in sizes if scope not in found.values()]
    for names in left.values():
        scope = next((scope for scope in empty if sizes[scope] == len(names)), None)
        if scope is not None:
            empty.remove(scope)
            found.update(dict.fromkeys(names, scope))
    return found


def compare_folded(
    old: Baseline, new: Sequence[HeldVariable], scopes: Mapping[str, str]
) -> Changes:
    """Returns the changes of variables that the baseline lists by scope.

    Args:
        old: the baseline.
        new: the variables of the placement, in the order of data flow.
        scopes: the scope of the baseline for each new variable, from `match_scopes`.
    """
    members = [variable for variable in new if variable.name in scopes]
    _, now = fold_by_scope(members, scopes.get)
    found = Changes()
    listed = {each.name for each in old.variables}
    by_scope: dict[str, list[HeldVariable]] = defaultdict(list)
    for variable in members:
        if variable.name not in listed:
            by_scope[scopes[variable.name]].append(variable)
    groups: dict[str, list[FoldedScope]] = defaultdict(list)
    for each in old.folded:
        groups[each.scope].append(each)
    digests = _digests(now)
    for scope, was in groups.items():
        variables = by_scope[scope]
        what = f"variables of {scope}/*" if scope else "variables without a scope"
        before, after = sum(each.count for each in was), len(variables)
        places_before = Counter[str]()
        devices_before = Counter[tuple[str, tuple[str, ...]]]()
        for group in was:
            places_before[group.place] += group.count
            devices_before[group.place, group.slots] += group.count
        places_after = Counter(variable.place for variable in variables)
        change = Change(
            "variable", what, _count_by_place(places_before), _count_by_place(places_after)
        )
        is_reordered = not _digests(was) <= digests
        if before != after:
            change = replace(change, note=f"were {before}")
            (found.new_there if after > before else found.gone).append(change)
        elif len(was) == 1:
            elsewhere = list(_moved_from(was[0], variables))
            found.moved += elsewhere
            if not elsewhere and is_reordered:
                found.notes.append(f"{what} have other dtypes or shapes, or another order")
        elif devices_before != Counter((each.place, each.slots) for each in variables):
            found.moved.append(change)
        elif is_reordered:
            note = "other variables, or distributed in another order"
            found.moved.append(replace(change, note=note))
    return found


def _digests(groups: Iterable[FoldedScope]) -> set[tuple[str, str, tuple[str, ...], str]]:
    return {(each.scope, each.place, each.slots, each.digest) for each in groups}


def _count_by_place(places: Mapping[str, int]) -> str:
    return join_and(f"{count} on {place}" for place, count in places.items()) if places else ""


def _moved_from(was: FoldedScope, new: Sequence[HeldVariable]) -> Iterator[Change]:
    """Yields the variables and slots of a scope that are no longer on the device of the scope."""
    for variable in new:
        name, ops = variable.name, [variable.name]
        if variable.place != was.place:
            yield Change("variable", f"variable {name}", was.place, variable.place, ops)
        elif _have_other_devices(was.slots, variable.slots):
            before, after = _join_places(was.slots), _join_places(variable.slots)
            yield Change("slots", f"slots of {name}", before, after, ops)
