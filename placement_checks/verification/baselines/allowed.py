"""Where a baseline lets the ops of an address be, and which of a placement's are not there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from placement_checks.analysis.folding import is_true, said
from placement_checks.analysis.spread import NONE, Group, Site, Spread
from placement_checks.core.baseline.values import (
    ANY_NUMBER,
    NO_TOWER,
    Address,
    Baseline,
)

# With one tower, what is its own and what is shared are the same.
SAME_WITH_ONE_TOWER: Final[Mapping[str, tuple[str, ...]]] = {
    "input": ("shared input",),
    "shared input": ("input",),
    "forward": ("shared forward",),
    "shared forward": ("forward",),
    "backward": ("shared backward",),
    "shared backward": ("backward",),
    "evaluate": ("shared evaluate",),
    "shared evaluate": ("evaluate",),
    "average": ("update", "other"),
    "update": ("average",),
    "other": ("average",),
}


def excepted(
    exceptions: Mapping[Address, Mapping[str, int]],
    part: str,
    tower: int,
    what: Sequence[tuple[str | None, str | None]],
) -> Mapping[str, int] | None:
    """What the line says that tells of some ops; None if there is none.

    Args:
        exceptions: the lines.
        part: of the ops.
        tower: theirs, of which a line tells rather than one of all towers.
        what: the layers and types of which it may tell; the first is taken.
    """
    for whose in (tower, NO_TOWER):
        for layer, kind in what:
            places = exceptions.get(Address(part, whose, layer, kind))
            if places is not None:
                return places
    return None


@dataclass(frozen=True)
class Misplaced:
    """Ops of one address that are not where the baseline says.

    Attributes:
        group: their address.
        site: where they are.
        number: how many of those that are there.
        allowed: where they should be, as the baseline says it; empty where it has no such part.
    """

    group: Group
    site: Site
    number: int
    allowed: tuple[str, ...]


@dataclass(frozen=True)
class Allowed:
    """Looks ops of a placement up in a baseline.

    Attributes:
        old: the baseline.
        spread: the ops.
        variables: the baseline's name of each variable, by the new one.
        towers: the baseline's number of each tower.
    """

    old: Baseline
    spread: Spread
    variables: Mapping[str, str]
    towers: Mapping[int, int]

    def misplaced(self) -> Iterator[Misplaced]:
        """All that are not where the baseline says."""
        for group, sites in self.spread.groups.items():
            allowed = self.places(group)
            elsewhere = {
                site: number
                for site, number in sites.items()
                if not any(is_true(place, group, site, self.spread) for place in allowed)
            }
            for site, number in elsewhere.items():
                yield Misplaced(group, site, number, tuple(sorted(allowed)))
            if not elsewhere and len(allowed) > 1:
                yield from self._too_many(group, sites, allowed)

    def is_known(self, group: Group) -> bool:
        """Whether the baseline has the variable of an address, or it has none."""
        return group.layer == NONE or self.spread.names[group.layer] in self.variables

    def places(self, group: Group) -> Mapping[str, int]:
        """Where ops of an address may be, each with how many."""
        found = self._of_part(group.part, group)
        if not self._one_tower_more_or_less:
            return found
        others = [self._of_part(part, group) for part in SAME_WITH_ONE_TOWER.get(group.part, ())]
        return {place: ANY_NUMBER for places in (found, *others) for place in places}

    @cached_property
    def _one_tower_more_or_less(self) -> bool:
        return (len(self.old.towers) < 2) != (len(self.spread.towers) < 2)

    @cached_property
    def _excepted(self) -> frozenset[tuple[str, str | None]]:
        """The parts and types of which there are exceptions, so that the others are quick."""
        return frozenset((address.part, address.type) for address in self.old.exceptions)

    @cached_property
    def _defaults(self) -> Mapping[str, Mapping[str, int]]:
        return {part: {place: ANY_NUMBER} for part, place in self.old.defaults.items()}

    def _of_part(self, part: str, group: Group) -> Mapping[str, int]:
        if (part, group.type) not in self._excepted and (part, None) not in self._excepted:
            return self._defaults.get(part, {})
        tower = self.towers.get(group.tower, NO_TOWER)
        what: list[tuple[str | None, str | None]] = [(None, group.type)]
        if self.is_known(group):
            name = self.spread.name_of(group.layer)
            layer = self.variables.get(name, name)
            what = [(layer, group.type), (layer, None), *what]
        places = excepted(self.old.exceptions, part, tower, what)
        return self._defaults.get(part, {}) if places is None else places

    def _too_many(
        self, group: Group, sites: Mapping[Site, int], allowed: Mapping[str, int]
    ) -> Iterator[Misplaced]:
        """Those that have changed between the places that the baseline allows.

        Of one place there are fewer and of another more than it says; if there are only more, they
        are new.
        """
        if ANY_NUMBER in allowed.values() or not self.is_known(group):
            return
        filled: Counter[str] = Counter()
        last: dict[str, Site] = {}
        default = self.old.defaults.get(group.part, "")
        for site, number in sites.items():
            place = said(group, site, self.spread, default)
            if place not in allowed:  # a symbol may have come true that was not
                place = next(each for each in allowed if is_true(each, group, site, self.spread))
            filled[place] += number
            last[place] = site
        fewer = [place for place in sorted(allowed) if filled[place] < allowed[place]]
        left = sum(allowed[place] - filled[place] for place in fewer)
        for place in sorted(allowed):
            more = min(left, filled[place] - allowed[place])
            if more > 0:
                left -= more
                yield Misplaced(group, last[place], more, tuple(fewer))
