"""Compares the variables of a baseline with others, and their slots.

Compares variables that a baseline tells by scope, because they are hundreds.

Which variable and which tower of a baseline is which of a placement: names may have changed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cached_property
from typing import Final

from placement_checks.baseline.build import folded_by
from placement_checks.core.baseline import (
    Baseline,
    Change,
    Changes,
    FoldedScope,
    HeldVariable,
    first_few,
)
from placement_checks.util.text import join_and, plural


def scopes_of(old: Baseline, new: Sequence[HeldVariable]) -> Mapping[str, str]:
    """The scope of the baseline that each new variable belongs to, by its name.

    By the beginning of its name; a scope of which none is left is paired with a new one of as many
    variables, in the order of data flow.
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
    unseen = [scope for scope in sizes if scope not in found.values()]
    for names in left.values():
        scope = next((scope for scope in unseen if sizes[scope] == len(names)), None)
        if scope is not None:
            unseen.remove(scope)
            found.update(dict.fromkeys(names, scope))
    return found


def compared(old: Baseline, new: Sequence[HeldVariable], scopes: Mapping[str, str]) -> Changes:
    """What differs between the variables told by scope."""
    members = [variable for variable in new if variable.name in scopes]
    _, now = folded_by(members, scopes.get)
    found = Changes()
    listed = {each.name for each in old.variables}
    by_scope: dict[str, list[HeldVariable]] = defaultdict(list)
    for variable in members:
        if variable.name not in listed:
            by_scope[scopes[variable.name]].append(variable)
    groups: dict[str, list[FoldedScope]] = defaultdict(list)
    for each in old.folded:
        groups[each.scope].append(each)
    told = _told(now)
    for scope, was in groups.items():
        mine = by_scope[scope]
        what = f"variables of {scope}/*" if scope else "variables without a scope"
        before, after = sum(each.count for each in was), len(mine)
        if before != after:
            change = Change("variable", what, _where(was), _spread(mine), note=f"were {before}")
            (found.new_there if after > before else found.gone).append(change)
        elif len(was) == 1:
            elsewhere = list(_elsewhere(was[0], mine))
            found.moved += elsewhere
            if not elsewhere and not _told(was) <= told:
                found.notes.append(f"{what} have other forms, or another order")
        elif Counter(_amounts(was)) != Counter((v.place, v.slots) for v in mine):
            found.moved.append(Change("variable", what, _where(was), _spread(mine)))
        elif not _told(was) <= told:
            note = "dealt in another order, or others"
            found.moved.append(Change("variable", what, _where(was), _spread(mine), note=note))
    return found


def _told(groups: Iterable[FoldedScope]) -> set[tuple[str, str, tuple[str, ...], str]]:
    return {(each.scope, each.place, each.slots, each.digest) for each in groups}


def _amounts(groups: Sequence[FoldedScope]) -> Iterator[tuple[str, tuple[str, ...]]]:
    for group in groups:
        yield from [(group.place, group.slots)] * group.count


def _elsewhere(was: FoldedScope, new: Sequence[HeldVariable]) -> Iterator[Change]:
    for variable in new:
        if variable.place != was.place:
            yield Change(
                "variable", f"variable {variable.name}", was.place, variable.place, [variable.name]
            )
        elif variable.slots != was.slots and len(variable.slots) == len(was.slots):
            old, place = (join_and(sorted(set(slots))) for slots in (was.slots, variable.slots))
            yield Change("slots", f"slots of {variable.name}", old, place, [variable.name])


def _where(groups: Sequence[FoldedScope]) -> str:
    return join_and(f"{each.count} on {each.place}" for each in groups)


def _spread(variables: Sequence[HeldVariable]) -> str:
    places = Counter(variable.place for variable in variables)
    return join_and(f"{count} on {place}" for place, count in places.items()) if places else ""


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


@dataclass
class VariableComparison:
    """Compares variables.

    Attributes:
        old: the baseline.
        new: those that are there now, in the order of data flow.
        following: how many ops are where a variable is because they have to be.
        where: the user's line that built a variable, if that is known.
    """

    old: Baseline
    new: Sequence[HeldVariable]
    following: Callable[[str], int]
    where: Callable[[str], str | None]

    @cached_property
    def _scopes(self) -> Mapping[str, str]:
        return scopes_of(self.old, self.new) if self.old.folded else {}

    @cached_property
    def _pairs(self) -> Mapping[str, HeldVariable]:
        """The baseline's variable by the new name, of those that it lists."""
        listed = {variable.name for variable in self.old.variables}
        single = [
            variable
            for variable in self.new
            if variable.name in listed or variable.name not in self._scopes
        ]
        return pair_variables(self.old.variables, single)

    @cached_property
    def old_names(self) -> Mapping[str, str]:
        """The baseline's name of each variable; of one that it folds, in its scope."""
        names = {name: variable.name for name, variable in self._pairs.items()}
        for name, scope in self._scopes.items():
            last = name[len(scope) :] if name.startswith(scope) else "/" + name.rpartition("/")[2]
            names.setdefault(name, scope + last)
        return names

    def changes(self) -> Changes:
        """All that differs; those that were listed one by one come first."""
        found = Changes()
        slots: dict[tuple[str, str], list[str]] = defaultdict(list)
        renamed: list[str] = []
        for variable in self.new:
            old = self._pairs.get(variable.name)
            if old is None:
                if variable.name not in self._scopes:
                    found.new_there.append(_new_variable(variable))
                continue
            if old.name != variable.name:
                renamed.append(f"{old.name} is {variable.name}")
            if old.place != variable.place:
                found.moved.append(self._moved(old, variable))
            elif old.slots != variable.slots and len(old.slots) == len(variable.slots):
                places = [join_and(sorted(set(each.slots))) for each in (old, variable)]
                slots[places[0], places[1]].append(variable.name)
            found.notes += _other_forms(old, variable)
        if dealt := _dealt_anew(found.moved, len(self.new)):
            found.moved = [dealt]
        found.moved += [
            Change("slots", f"slots of {plural(len(names), 'variable')}", was, now, names)
            for (was, now), names in slots.items()
        ]
        taken = {variable.name for variable in self._pairs.values()}
        found.gone += [
            Change("variable", f"variable {each.name} ({each.form})", each.place, "", [each.name])
            for each in self.old.variables
            if each.name not in taken
        ]
        if renamed:
            found.notes.append(f"{plural(len(renamed), 'variable')} renamed: {first_few(renamed)}")
        if self.old.folded:
            found.add(compared(self.old, self.new, self._scopes))
        return found

    def _moved(self, old: HeldVariable, new: HeldVariable) -> Change:
        size = new.tensor.bytes
        notes = [f"{size:,} bytes"] if size is not None else []
        if following := self.following(new.name):
            notes.append(f"{plural(following, 'op')} with it")
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


def _other_forms(old: HeldVariable, new: HeldVariable) -> list[str]:
    notes = []
    if old.form != new.form:
        notes.append(f"variable {new.name} is {new.form}, was {old.form}")
    if len(old.slots) != len(new.slots):
        has = plural(len(new.slots), "slot")
        notes.append(f"variable {new.name} has {has}, had {len(old.slots)}")
    return notes


def _new_variable(variable: HeldVariable) -> Change:
    what = f"variable {variable.name} ({variable.form})"
    return Change("variable", what, "", variable.place, [variable.name])


def _dealt_anew(moved: Sequence[Change], variables: int) -> Change | None:
    """Variables that have changed places among the tasks of one job, as one change."""
    places = [place for change in moved for place in (change.old, change.new)]
    jobs = {place.partition("/task:")[0] for place in places}
    if len(moved) < 2 or len(jobs) > 1 or not set(places[::2]) & set(places[1::2]):
        return None
    job = jobs.pop()
    among = job if job.startswith("/job:") else "devices"
    return Change(
        "variable",
        f"{len(moved)} of {variables} variables are dealt to {among} in another order",
        "",
        "",
        [name for change in moved for name in change.ops],
        first_few([f"{change.ops[0]} {change.old} -> {change.new}" for change in moved]),
    )
