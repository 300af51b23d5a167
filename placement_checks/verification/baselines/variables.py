"""Compares the variables of a baseline with others, and their slots."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from placement_checks.core.baseline.difference import Change
from placement_checks.core.baseline.values import Baseline, HeldVariable
from placement_checks.util.text import joined, plural
from placement_checks.verification.baselines import scopes
from placement_checks.verification.baselines.changes import Changes, some
from placement_checks.verification.baselines.pairing import pair_variables


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
        return scopes.scopes_of(self.old, self.new) if self.old.folded else {}

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
                places = [joined(sorted(set(each.slots))) for each in (old, variable)]
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
            found.notes.append(f"{plural(len(renamed), 'variable')} renamed: {some(renamed)}")
        if self.old.folded:
            found.add(scopes.compared(self.old, self.new, self._scopes))
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
        some([f"{change.ops[0]} {change.old} -> {change.new}" for change in moved]),
    )
