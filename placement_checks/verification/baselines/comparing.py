"""Compares a placement with a baseline: each op is looked up by its address."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from placement_checks.analysis.folding import baseline_of, summary_of
from placement_checks.analysis.spread import Spread
from placement_checks.core.baseline.difference import Change, Crossing, Difference
from placement_checks.core.baseline.values import (
    PARTS,
    UNCOUNTED_PARTS,
    VARIABLE,
    Baseline,
    Copies,
    HeldVariable,
)
from placement_checks.core.errors import InputError
from placement_checks.core.placement import Placement
from placement_checks.report.json import versions
from placement_checks.util.text import joined, plural
from placement_checks.verification.baselines import scopes
from placement_checks.verification.baselines.allowed import Allowed
from placement_checks.verification.baselines.pairing import pair_towers, pair_variables
from placement_checks.verification.baselines.telling import Telling

_MOST_NAMED = 3
_MOST_TYPES = 6


def written(placement: Placement) -> Baseline:
    """The baseline of a placement.

    Raises:
        InputError: it has no assigned devices, or is a log's alone.
    """
    return _versioned(baseline_of(Spread(placement)))


def _versioned(baseline: Baseline) -> Baseline:
    known = {name: version for name, version in versions().items() if version is not None}
    return replace(baseline, versions=known)


def compare(
    old: Baseline, placement: Placement, name: str = "", *, exact: bool = False
) -> Difference:
    """What differs between a baseline and a placement.

    Args:
        old: the baseline.
        placement: with assigned devices.
        name: of the baseline, such as its file; by default its program's.
        exact: whether ops more or fewer, on the devices of the rest, count as well.

    Raises:
        InputError: the baseline is of another machine, or nobody assigned devices.
    """
    spread = Spread(placement)
    new = _versioned(summary_of(spread))
    name = name or old.program
    if old.machine != new.machine:
        raise InputError(
            name,
            f"is the baseline of another machine, {old.machine}; this placement is of "
            f"{new.machine}",
            f'compare on that machine: --machine "{old.machine}"; or write one for this machine, '
            "in a file of its own",
        )
    return _Comparison(old, new, spread, exact).difference(name)


@dataclass
class _Comparison:
    old: Baseline
    new: Baseline
    spread: Spread
    exact: bool
    _moved: list[Change] = field(default_factory=list)
    _new_there: list[Change] = field(default_factory=list)
    _gone: list[Change] = field(default_factory=list)
    _notes: list[str] = field(default_factory=list)

    def difference(self, name: str) -> Difference:
        """All that differs; variables come first."""
        self._compare_variables()
        self._compare_towers()
        misplaced = list(self._allowed.misplaced())
        telling = Telling(
            self.old, self.spread, is_known=lambda each: self._allowed.is_known(each.group)
        )
        moved, new_there = telling.told(misplaced)
        self._moved += moved
        self._new_there += new_there
        self._compare_types()
        difference = Difference(
            name,
            self.new.program,
            sum(sum(sites.values()) for sites in self.spread.groups.values())
            - sum(each.number for each in misplaced),
            self._moved,
            self._new_there,
            self._gone,
        )
        self._compare_conditions(is_different=bool(difference))
        crosses = self._crossings() if difference else []
        return replace(difference, crosses=crosses, notes=self._notes)

    @cached_property
    def _allowed(self) -> Allowed:
        return Allowed(self.old, self.spread, self._old_names, self._towers)

    @cached_property
    def _scopes(self) -> Mapping[str, str]:
        return scopes.scopes_of(self.old, self.spread.variables) if self.old.folded else {}

    @cached_property
    def _pairs(self) -> Mapping[str, HeldVariable]:
        """The baseline's variable by the new name, of those that it lists."""
        listed = {variable.name for variable in self.old.variables}
        single = [
            variable
            for variable in self.spread.variables
            if variable.name in listed or variable.name not in self._scopes
        ]
        return pair_variables(self.old.variables, single)

    @cached_property
    def _old_names(self) -> Mapping[str, str]:
        """The baseline's name of each variable; of one that it folds, in its scope."""
        names = {name: variable.name for name, variable in self._pairs.items()}
        for name, scope in self._scopes.items():
            last = name[len(scope) :] if name.startswith(scope) else "/" + name.rpartition("/")[2]
            names.setdefault(name, scope + last)
        return names

    @cached_property
    def _towers(self) -> Mapping[int, int]:
        return pair_towers(self.old.towers, self.new.towers)

    def _compare_variables(self) -> None:
        slots: dict[tuple[str, str], list[str]] = defaultdict(list)
        renamed: list[str] = []
        moved: list[Change] = []
        for variable in self.spread.variables:
            old = self._pairs.get(variable.name)
            if old is None:
                if variable.name not in self._scopes:
                    self._new_there.append(_new_variable(variable))
                continue
            if old.name != variable.name:
                renamed.append(f"{old.name} is {variable.name}")
            if old.place != variable.place:
                moved.append(self._moved_variable(old, variable))
            elif old.slots != variable.slots and len(old.slots) == len(variable.slots):
                places = [joined(sorted(set(each.slots))) for each in (old, variable)]
                slots[places[0], places[1]].append(variable.name)
            self._note_form(old, variable)
        if dealt := _dealt_anew(moved, len(self.spread.variables)):
            moved = [dealt]
        moved += [
            Change("slots", f"slots of {plural(len(names), 'variable')}", was, now, names)
            for (was, now), names in slots.items()
        ]
        taken = {variable.name for variable in self._pairs.values()}
        self._gone += [
            Change("variable", f"variable {each.name} ({each.form})", each.place, "", [each.name])
            for each in self.old.variables
            if each.name not in taken
        ]
        if renamed:
            self._notes.append(f"{plural(len(renamed), 'variable')} renamed: {_some(renamed)}")
        if self.old.folded:
            found = scopes.compared(self.old, self.spread.variables, self._scopes)
            moved += found[0]
            self._new_there += found[1]
            self._gone += found[2]
            self._notes += found[3]
        self._moved += moved

    def _moved_variable(self, old: HeldVariable, new: HeldVariable) -> Change:
        size = new.tensor.bytes
        notes = [f"{size:,} bytes"] if size is not None else []
        if following := self._following[new.name]:
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
            self.spread.placement.where(new.name),
        )

    @cached_property
    def _following(self) -> Counter[str]:
        """How many ops have to be where the variable of their layer is, and are, by its name."""
        following: Counter[str] = Counter()
        for group, sites in self.spread.groups.items():
            if VARIABLE in self._allowed.places(group):
                beside = (number for site, number in sites.items() if site.is_beside)
                following[self.spread.name_of(group.layer)] += sum(beside)
        return following

    def _note_form(self, old: HeldVariable, new: HeldVariable) -> None:
        if old.form != new.form:
            self._notes.append(f"variable {new.name} is {new.form}, was {old.form}")
        if len(old.slots) != len(new.slots):
            has = plural(len(new.slots), "slot")
            self._notes.append(f"variable {new.name} has {has}, had {len(old.slots)}")

    def _compare_towers(self) -> None:
        old, new = self.old.towers, self.new.towers
        ops: Counter[int] = Counter()
        for group, sites in self.spread.groups.items():
            ops[group.tower] += sum(sites.values())
        for tower, place in enumerate(new):
            number = plural(ops[tower], "op")
            if tower not in self._towers:
                self._new_there.append(Change("tower", f"tower {tower}", "", place, note=number))
            elif old[self._towers[tower]] != place:
                if 1 < len(new) == new.count(place):
                    number += f"; all {len(new)} towers are on it now"
                was = old[self._towers[tower]]
                self._moved.append(Change("tower", f"tower {tower}", was, place, note=number))
        note = f"{plural(len(new), 'tower')}, were {len(old)}"
        self._gone += [
            Change("tower", f"tower {tower}", place, "", note=note)
            for tower, place in enumerate(old)
            if tower not in self._towers.values()
        ]

    def _compare_types(self) -> None:
        """Ops more or fewer than were: no difference of places, unless it is to be exact."""
        old, new = _largest(self.old), _largest(self.new)
        for part in PARTS:
            if part in UNCOUNTED_PARTS or part not in self.old.defaults:
                continue
            changed = [
                f"{kind} {old[part][kind]} -> {new[part][kind]}"
                for kind in sorted(old[part].keys() | new[part].keys())
                if old[part][kind] != new[part][kind]
            ]
            if not changed:
                continue
            more = len(changed) - _MOST_TYPES
            listed = ", ".join(changed[:_MOST_TYPES])
            listed += f" and {plural(more, 'type')} more" if more > 0 else ""
            if self.exact:
                self._moved.append(Change("types", f"ops of {part}", "", "", note=listed))
            else:
                self._notes.append(f"{part}, where the rest is: {listed}")

    def _compare_conditions(self, *, is_different: bool) -> None:
        """What else was different when the baseline was written."""
        old, new = self.old, self.new
        if old.soft != new.soft:
            ways = ["strictly", "softly"]
            self._notes.append(f"placed {ways[new.soft]}, the baseline {ways[old.soft]}")
        if old.placer != new.placer:
            self._notes.append(f"placed by the {new.placer} placer, the baseline by {old.placer}")
        if is_different and old.versions != new.versions:
            was, now = (
                ", ".join(f"{name} {version}" for name, version in each.versions.items())
                for each in (old, new)
            )
            self._notes.append(f"the baseline was written by {was}; this is {now}")

    def _crossings(self) -> list[Crossing]:
        none = Copies(0, 0, 0)
        grown = [
            Crossing(*pair, self.old.copies.get(pair, none), copies)
            for pair, copies in self.spread.copies.items()
            if copies.bytes > self.old.copies.get(pair, none).bytes or pair not in self.old.copies
        ]
        return sorted(grown, key=lambda each: (each.old.bytes - each.new.bytes, each))


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
        _some([f"{change.ops[0]} {change.old} -> {change.new}" for change in moved]),
    )


def _some(texts: Sequence[str]) -> str:
    return ", ".join(texts[:_MOST_NAMED]) + (", ..." if len(texts) > _MOST_NAMED else "")


def _largest(baseline: Baseline) -> Mapping[str, Counter[str]]:
    """The number of ops of each type, by part, in the tower that has most."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for (part, _), types in baseline.types.items():
        counts[part] |= Counter(types)
    return counts
