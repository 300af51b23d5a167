"""Compares a placement with a baseline: each op is looked up by its address."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property

from placement_checks.analysis.folding import baseline_of, summary_of
from placement_checks.analysis.spread import Spread
from placement_checks.core.baseline.difference import Difference
from placement_checks.core.baseline.values import VARIABLE, Baseline
from placement_checks.core.placement import Placement
from placement_checks.report.json import versions
from placement_checks.verification.baselines.allowed import Allowed
from placement_checks.verification.baselines.changes import Changes
from placement_checks.verification.baselines.conditions import (
    check_machine,
    compared_towers,
    compared_types,
    crossings,
    other_conditions,
)
from placement_checks.verification.baselines.pairing import pair_towers
from placement_checks.verification.baselines.telling import Telling
from placement_checks.verification.baselines.variables import VariableComparison


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
        telling = Telling(
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
