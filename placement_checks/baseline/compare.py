"""Compares a placement with a baseline: each op is looked up by its address.

Compares what else baselines say: their towers, types, copies, and how they were made.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from placement_checks.baseline.build import Spread, build_baseline, summary_of
from placement_checks.baseline.compare_ops import Allowed, ChangeMessages
from placement_checks.baseline.compare_variables import VariableComparison, pair_towers
from placement_checks.core.baseline import (
    PARTS,
    UNCOUNTED_PARTS,
    VARIABLE,
    Baseline,
    Change,
    Changes,
    Copies,
    Crossing,
    Difference,
)
from placement_checks.core.errors import InputError
from placement_checks.core.placement import Placement
from placement_checks.core.versions import versions
from placement_checks.util.text import plural

_MOST_TYPES = 6


def check_machine(old: Baseline, new: Baseline, name: str) -> None:
    """Refuse what is of two machines.

    Args:
        old: the baseline.
        new: what is compared with it.
        name: of the baseline.

    Raises:
        InputError: names both machines.
    """
    if old.machine != new.machine:
        raise InputError(
            name,
            f"is the baseline of another machine, {old.machine}; this placement is of "
            f"{new.machine}",
            f'compare on that machine: --machine "{old.machine}"; or write one for this machine, '
            "in a file of its own",
        )


def compared_towers(
    old: Sequence[str], new: Sequence[str], pairs: Mapping[int, int], ops: Mapping[int, int]
) -> Changes:
    """What differs between towers.

    Args:
        old: the device of each.
        new: the device of each.
        pairs: the old number of each new tower that was there.
        ops: how many ops each new one has, if that is known.
    """
    found = Changes()
    for tower, place in enumerate(new):
        notes = [plural(ops[tower], "op")] if tower in ops else []
        if tower not in pairs:
            change = Change("tower", f"tower {tower}", "", place, note="; ".join(notes))
            found.new_there.append(change)
        elif old[pairs[tower]] != place:
            if 1 < len(new) == new.count(place):
                notes.append(f"all {len(new)} towers are on it now")
            was = old[pairs[tower]]
            found.moved.append(
                Change("tower", f"tower {tower}", was, place, note="; ".join(notes))
            )
    note = f"{plural(len(new), 'tower')}, were {len(old)}"
    found.gone += [
        Change("tower", f"tower {tower}", place, "", note=note)
        for tower, place in enumerate(old)
        if tower not in pairs.values()
    ]
    return found


def compared_types(before: Baseline, after: Baseline, *, exact: bool = False) -> Changes:
    """Ops more or fewer than were: no difference of places, unless it is to be exact."""
    found = Changes()
    old, new = _largest(before), _largest(after)
    for part in PARTS:
        if part in UNCOUNTED_PARTS or part not in before.defaults:
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
        if exact:
            found.moved.append(Change("types", f"ops of {part}", "", "", note=listed))
        else:
            found.notes.append(f"{part}, where the rest is: {listed}")
    return found


def _largest(baseline: Baseline) -> Mapping[str, Counter[str]]:
    """The number of ops of each type, by part, in the tower that has most."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for (part, _), types in baseline.types.items():
        counts[part] |= Counter(types)
    return counts


def other_conditions(old: Baseline, new: Baseline, *, is_different: bool) -> list[str]:
    """What else was different when the baseline was written; its versions if anything is."""
    notes = []
    if old.soft != new.soft:
        ways = ["strictly", "softly"]
        notes.append(f"placed {ways[new.soft]}, the baseline {ways[old.soft]}")
    if old.placer != new.placer:
        notes.append(f"placed by the {new.placer} placer, the baseline by {old.placer}")
    if is_different and old.versions != new.versions:
        was, now = (
            ", ".join(f"{name} {version}" for name, version in each.versions.items())
            for each in (old, new)
        )
        notes.append(f"the baseline was written by {was}; this is {now}")
    return notes


def crossings(
    old: Mapping[tuple[str, str], Copies], new: Mapping[tuple[str, str], Copies]
) -> list[Crossing]:
    """Where a step copies more than it did, most first."""
    none = Copies(0, 0, 0)
    grown = [
        Crossing(*pair, old.get(pair, none), copies)
        for pair, copies in new.items()
        if copies.bytes > old.get(pair, none).bytes or pair not in old
    ]
    return sorted(grown, key=lambda each: (each.old.bytes - each.new.bytes, each))


def written(placement: Placement) -> Baseline:
    """The baseline of a placement.

    Raises:
        InputError: it has no assigned devices, or is a log's alone.
    """
    return _versioned(build_baseline(Spread(placement)))


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
    check_machine(old, new, name)
    return _Comparison(old, new, spread, exact).difference(name)


@dataclass
class _Comparison:
    old: Baseline
    new: Baseline
    spread: Spread
    exact: bool

    def difference(self, name: str) -> Difference:
        """All that differs; variables come first."""
        found = Changes()
        found.add(self._variables.changes())
        ops = self._ops_of_towers()
        found.add(compared_towers(self.old.towers, self.new.towers, self._allowed.towers, ops))
        misplaced = list(self._allowed.misplaced())
        telling = ChangeMessages(
            self.old, self.spread, is_known=lambda each: self._allowed.is_known(each.group)
        )
        found.add(Changes(*telling.told(misplaced)))
        found.add(compared_types(self.old, self.new, exact=self.exact))
        difference = Difference(
            name,
            self.new.program,
            sum(sum(sites.values()) for sites in self.spread.groups.values())
            - sum(each.number for each in misplaced),
            found.moved,
            found.new_there,
            found.gone,
        )
        is_different = bool(difference)
        found.notes += other_conditions(self.old, self.new, is_different=is_different)
        crosses = crossings(self.old.copies, self.spread.copies) if is_different else []
        return replace(difference, crosses=crosses, notes=found.notes)

    @cached_property
    def _variables(self) -> VariableComparison:
        return VariableComparison(
            self.old,
            self.spread.variables,
            following=lambda name: self._following[name],
            where=self.spread.placement.where,
        )

    @cached_property
    def _allowed(self) -> Allowed:
        towers = pair_towers(self.old.towers, self.new.towers)
        return Allowed(self.old, self.spread, self._variables.old_names, towers)

    @cached_property
    def _following(self) -> Counter[str]:
        """How many ops have to be where the variable of their layer is, and are, by its name."""
        following: Counter[str] = Counter()
        for group, sites in self.spread.groups.items():
            if VARIABLE in self._allowed.places(group):
                beside = (number for site, number in sites.items() if site.is_beside)
                following[self.spread.name_of(group.layer)] += sum(beside)
        return following

    def _ops_of_towers(self) -> Counter[int]:
        ops = Counter(dict.fromkeys(range(len(self.new.towers)), 0))
        for group, sites in self.spread.groups.items():
            ops[group.tower] += sum(sites.values())
        return ops
