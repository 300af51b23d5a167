"""Compares a placement with a baseline.

Variables and towers are matched first, then each op is looked up by its address. Objectives,
numbers of ops, copies, and the conditions under which the baseline was written are compared too.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from placement_checks.analysis.variables.objectives import objectives
from placement_checks.baseline.build import (
    Spread,
    baseline_from_placement,
    build_baseline,
    summarize,
)
from placement_checks.baseline.compare_ops import AllowedPlaces, ChangeMessages
from placement_checks.baseline.compare_variables import VariableComparison, match_towers
from placement_checks.baseline.text import ranges
from placement_checks.core.baseline import (
    NO_TOWER,
    PARTS,
    UNCOUNTED_PARTS,
    VARIABLE,
    Baseline,
    Change,
    Changes,
    Copies,
    Crossing,
    Difference,
    first_few,
)
from placement_checks.core.errors import InputError
from placement_checks.core.placement import Placement
from placement_checks.util.text import plural

_MOST_TYPES = 6


def compare(
    old: Baseline, placement: Placement, name: str = "", *, exact: bool = False
) -> Difference:
    """Returns what differs between a baseline and a placement.

    Args:
        old: the baseline.
        placement: the placement, with assigned devices.
        name: the name of the baseline, such as its file; by default the name of its program.
        exact: whether a changed number of ops is a difference, even if all ops are on the expected
            devices.

    Raises:
        InputError: the baseline is for another machine, or the placement lacks assigned devices.
    """
    spread = Spread(placement)
    new = summarize(spread)
    name = name or old.program
    if old.machine != new.machine:
        raise InputError(
            name,
            f"is the baseline for another machine, {old.machine}; this placement is for "
            f"{new.machine}",
            f'compare on that machine: --machine "{old.machine}"; or write a baseline for this '
            "machine to another file",
            is_predicate=True,
        )
    return _Comparison(old, new, spread, exact).difference(name)


def compare_placements(old: Placement, new: Placement, name: str) -> Difference:
    """Returns what differs between two placements, perhaps on different machines.

    Args:
        old: the placement before, with assigned devices.
        new: the placement now.
        name: the name of the old placement.

    Raises:
        InputError: a placement lacks assigned devices, requested devices or a machine.
    """
    baseline, machine = baseline_from_placement(old), str(new.machine)
    difference = compare(replace(baseline, machine=machine), new, name)
    if baseline.machine == machine:
        return difference
    note = f"placed on {machine}, in {name} on {baseline.machine}"
    return replace(difference, notes=[*difference.notes, note])


def renamed_variables(old: Placement, new: Placement) -> Mapping[str, str]:
    """Maps the old names of renamed variables and slots to their new names.

    Args:
        old: the placement before, with assigned devices.
        new: the placement now.
    """
    before, now = Spread(old), Spread(new)
    baseline = build_baseline(before)
    comparison = VariableComparison(baseline, now.variables, lambda _: 0, lambda _: None)
    names = {was: name for name, was in comparison.old_names.items() if was != name}
    for slot, variable in before.slot_owners.items():
        if variable in names and variable in slot:
            name = slot.replace(variable, names[variable])
            if name in new.ops:
                names[slot] = name
    return names


@dataclass
class _Comparison:
    old: Baseline
    new: Baseline
    spread: Spread
    exact: bool

    def difference(self, name: str) -> Difference:
        """Returns all changes; variables come first."""
        found = Changes()
        found.add(self._variables.changes())
        found.add(self._compare_towers())
        found.add(self._compare_objectives())
        misplaced = list(self._allowed.misplaced())
        found.add(ChangeMessages(self._allowed).changes(misplaced))
        found.add(self._compare_types())
        difference = Difference(
            name,
            self.new.program,
            sum(sum(op_devices.values()) for op_devices in self.spread.groups.values())
            - sum(each.number for each in misplaced),
            found.moved,
            found.new_there,
            found.gone,
        )
        is_different = bool(difference)
        found.notes += _compare_conditions(self.old, self.new, is_different=is_different)
        crosses = _grown_copies(self.old.copies, self.spread.copies) if is_different else []
        return replace(difference, crosses=crosses, notes=found.notes)

    @cached_property
    def _variables(self) -> VariableComparison:
        return VariableComparison(
            self.old,
            self.spread.variables,
            followers=lambda name: self._followers[name],
            where=self.spread.placement.where,
        )

    @cached_property
    def _allowed(self) -> AllowedPlaces:
        towers = match_towers(self.old.towers, self.new.towers)
        return AllowedPlaces(self.old, self.spread, self._variables.old_names, towers)

    @cached_property
    def _followers(self) -> Counter[str]:
        """For each variable, the number of ops that must be on its device, and are."""
        followers: Counter[str] = Counter()
        for group, op_devices in self.spread.groups.items():
            if VARIABLE in self._allowed.places(group):
                followers[self.spread.variable_name(group.layer)] += sum(
                    number
                    for op_device, number in op_devices.items()
                    if op_device.is_with_variable
                )
        return followers

    def _compare_towers(self) -> Changes:
        found = Changes()
        old, new, matches = self.old.towers, self.new.towers, self._allowed.towers
        ops: Counter[int] = Counter()
        for group, op_devices in self.spread.groups.items():
            ops[group.tower] += sum(op_devices.values())
        for tower, place in enumerate(new):
            what, notes = f"tower {tower}", [plural(ops[tower], "op")]
            if tower not in matches:
                found.new_there.append(Change("tower", what, "", place, note=notes[0]))
            elif old[matches[tower]] != place:
                if 1 < len(new) == new.count(place):
                    notes.append(f"all {len(new)} towers are on it now")
                was = old[matches[tower]]
                found.moved.append(Change("tower", what, was, place, note="; ".join(notes)))
        note = f"{plural(len(new), 'tower')}, were {len(old)}"
        found.gone += [
            Change("tower", f"tower {tower}", place, "", note=note)
            for tower, place in enumerate(old)
            if tower not in matches.values()
        ]
        return found

    def _compare_objectives(self) -> Changes:
        """Returns the changes of objectives: one change for all variables that it applies to."""
        now, old_names = objectives(self.spread.placement), self._variables.old_names
        before = {variable.name: variable.objective for variable in self.old.variables}
        found = Changes()
        changed: dict[tuple[str, str], list[str]] = defaultdict(list)
        for variable in self.spread.variables:
            old = before.get(old_names.get(variable.name, ""), "")
            new = now.get(variable.name, "")
            if old and old != new:
                changed[old, new].append(variable.name)
        for (old, new), names in changed.items():
            what = f"objective of {first_few(names)}"
            if new:
                note = plural(len(names), "variable") if len(names) > 1 else ""
                where = self.spread.update_line(names[0])
                found.moved.append(Change("objective", what, old, new, names, note, where))
            else:
                found.notes.append(f"{what} cannot be read any more, was {old}")
        return found

    def _compare_types(self) -> Changes:
        """Returns changed numbers of ops: notes, or changes if the comparison is exact."""
        found = Changes()
        towers = self._allowed.towers
        for part in PARTS:
            if part in UNCOUNTED_PARTS or part not in self.old.defaults:
                continue
            changed: dict[tuple[str, bool], list[int]] = defaultdict(list)
            for tower, was in ((NO_TOWER, NO_TOWER), *towers.items()):
                before = Counter(self.old.types.get((part, was), {}))
                after = Counter(self.new.types.get((part, tower), {}))
                if numbers := _changed_numbers(before, after):
                    changed[numbers, tower == NO_TOWER].append(tower)
            for (numbers, is_shared), members in changed.items():
                what = part
                if not is_shared and len(members) < len(towers):
                    what += f" of tower {ranges(members)}"
                if self.exact:
                    found.moved.append(Change("types", f"ops of {what}", "", "", note=numbers))
                else:
                    found.notes.append(f"numbers of ops in {what}: {numbers}")
        return found


def _changed_numbers(old: Counter[str], new: Counter[str]) -> str:
    """The changed numbers of ops by type: ``Tanh 0 -> 1``; empty if all are equal."""
    changed = [
        f"{kind} {old[kind]} -> {new[kind]}"
        for kind in sorted(old.keys() | new.keys())
        if old[kind] != new[kind]
    ]
    more = len(changed) - _MOST_TYPES
    text = ", ".join(changed[:_MOST_TYPES])
    return f"{text} and {plural(more, 'more type')}" if more > 0 else text


def _compare_conditions(old: Baseline, new: Baseline, *, is_different: bool) -> Sequence[str]:
    """Notes on other conditions of placement, and on other versions if anything differs."""
    notes = []
    if old.soft != new.soft:
        ways = ["strict", "soft"]
        notes.append(f"placement is {ways[new.soft]}, was {ways[old.soft]}")
    if old.placer != new.placer:
        notes.append(f"the placer is {new.placer}, was {old.placer}")
    if is_different and old.versions != new.versions:
        was, now = (
            ", ".join(f"{name} {version}" for name, version in each.versions.items())
            for each in (old, new)
        )
        notes.append(f"the baseline was written by {was}; this is {now}")
    return notes


def _grown_copies(
    old: Mapping[tuple[str, str], Copies], new: Mapping[tuple[str, str], Copies]
) -> list[Crossing]:
    """The pairs of devices between which a step copies more than before, most first."""
    none = Copies(0, 0, 0)
    grown = [
        Crossing(*pair, old.get(pair, none), copies)
        for pair, copies in new.items()
        if copies.bytes > old.get(pair, none).bytes or pair not in old
    ]
    return sorted(grown, key=lambda each: (each.old.bytes - each.new.bytes, each))
