"""Where a baseline lets the ops of an address be, and which of a placement's are not there.

Tells misplaced ops: those that went the same way together, in the words of the model.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple

from placement_checks.baseline.build import (
    NONE,
    Group,
    Site,
    Spread,
    describe_device,
    place_matches,
)
from placement_checks.baseline.text import ranges
from placement_checks.core.baseline import (
    ANY_NUMBER,
    NO_TOWER,
    PARTS,
    TOWER,
    VARIABLE,
    Address,
    Baseline,
    Change,
    device_text,
)
from placement_checks.core.op_types import GLUE
from placement_checks.core.placement import Op
from placement_checks.util.text import plural

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


def exception_for(
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
                if not any(place_matches(place, group, site, self.spread) for place in allowed)
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
        places = exception_for(self.old.exceptions, part, tower, what)
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
            place = describe_device(group, site, self.spread, default)
            if place not in allowed:  # a symbol may have come true that was not
                place = next(
                    each for each in allowed if place_matches(each, group, site, self.spread)
                )
            filled[place] += number
            last[place] = site
        fewer = [place for place in sorted(allowed) if filled[place] < allowed[place]]
        left = sum(allowed[place] - filled[place] for place in fewer)
        for place in sorted(allowed):
            more = min(left, filled[place] - allowed[place])
            if more > 0:
                left -= more
                yield Misplaced(group, last[place], more, tuple(fewer))


OWN: Final = "its tower's device"
_MOST_NAMED: Final = 2  # ops
_MOST_LAYERS: Final = 4


class ChangeKind(NamedTuple):
    """What ops that are elsewhere have in common that are told together.

    If they are new, ``old`` is where the rest is.
    """

    part: str
    old: str
    new: str
    is_new: bool


@dataclass
class ChangeMessages:
    """Tells what is misplaced.

    Attributes:
        old: the baseline.
        spread: the placement.
        is_known: whether the baseline has the variable of an op's layer.
    """

    old: Baseline
    spread: Spread
    is_known: Callable[[Misplaced], bool]
    _ops: Mapping[Misplaced, Sequence[Op]] = field(default_factory=dict)

    def told(self, misplaced: Sequence[Misplaced]) -> tuple[list[Change], list[Change]]:
        """The changes: what has moved, and what is new, in the order of the parts."""
        if not misplaced:
            return [], []
        self._ops = self._found(misplaced)
        ways: dict[ChangeKind, list[Misplaced]] = defaultdict(list)
        for each in misplaced:
            ways[self._way(each)].append(each)
        moved: list[Change] = []
        new_there: list[Change] = []
        done: set[ChangeKind] = set()
        for way in sorted(ways, key=lambda way: (PARTS.index(way.part), way)):
            if way in done:
                continue
            members, what = ways[way], [way.part]
            backward = way._replace(part="backward")
            if way.part == "forward" and backward in ways:
                layers = {each.group.layer for each in members}
                if {each.group.layer for each in ways[backward]} <= layers:
                    done.add(backward)
                    members, what = [*members, *ways[backward]], ["forward", "backward"]
            (new_there if way.is_new else moved).append(self._change(way, members, what))
        return moved, new_there

    def _found(self, misplaced: Sequence[Misplaced]) -> Mapping[Misplaced, Sequence[Op]]:
        wanted: dict[object, set[Site]] = defaultdict(set)
        for each in misplaced:
            wanted[each.group].add(each.site)
        ops = self.spread.ops_of(wanted)  # type: ignore[arg-type]
        return {each: ops[each.group, each.site] for each in misplaced}

    def _way(self, each: Misplaced) -> ChangeKind:
        group = each.group
        is_new = not each.allowed or not self.is_known(each)
        if group.type not in GLUE and group.type not in self._types.get(group.part, ()):
            is_new = is_new or group.part in self._types
        old = " or ".join(sorted({self._said(place, each) for place in each.allowed}))
        return ChangeKind(group.part, old, self._own(each.site.place, each), is_new)

    @cached_property
    def _types(self) -> Mapping[str, set[str]]:
        return types_by_part(self.old)

    def _said(self, place: str, each: Misplaced) -> str:
        """A place that the baseline allows, as this placement has it."""
        if place == TOWER:
            return OWN
        if place == VARIABLE and each.group.layer != NONE:
            device = self.spread.placement.by_number[each.group.layer].assigned
            return f"with its variable on {device_text(device)}"
        return self._own(place, each)

    def _own(self, place: str, each: Misplaced) -> str:
        tower = each.group.tower
        return OWN if tower != NONE and self.spread.towers[tower] == place else place

    def _change(
        self, way: ChangeKind, members: Sequence[Misplaced], what: Sequence[str]
    ) -> Change:
        towers = sorted({each.group.tower for each in members} - {NONE})
        old, new = way.old, way.new
        if len(towers) == 1:
            device = self.spread.towers[towers[0]]
            old, new = old.replace(OWN, device), new.replace(OWN, device)
        ops = [op for each in members for op in self._ops[each]]
        number = sum(each.number for each in members)
        words = [" and ".join(what)]
        words += [f" of tower {ranges(towers)}"] if towers else []
        if number < 0.9 * self._all(what, towers):
            words.append(layer_suffix(self.spread.name_of(each.group.layer) for each in members))
        notes = [f"{plural(number, 'op')}: {_named(ops)}"]
        if number < len(ops):
            notes.insert(0, f"{number} of these {len(ops)}")
        fell = next((op for op in ops if op.requested.is_gpu and op.fallback_reason), None)
        if fell is not None:
            notes.append(f"asks for {device_text(fell.requested)}: {fell.fallback_reason}")
        if way.is_new:
            notes.append(f"the rest is on {old}" if old else "the baseline has none")
        return Change(
            "ops",
            "".join(words),
            "" if way.is_new else old,
            new,
            [op.name for op in ops],
            "; ".join(notes),
            self.spread.placement.where(ops[0].name),
        )

    def _all(self, parts: Sequence[str], towers: Sequence[int]) -> int:
        """How many ops these parts of these towers have."""
        wanted = towers or [NONE]
        return sum(
            sum(sites.values())
            for group, sites in self.spread.groups.items()
            if group.part in parts and group.tower in wanted
        )


def types_by_part(page: Baseline) -> Mapping[str, set[str]]:
    """The types of ops that each part of a baseline has, of those that are counted."""
    types: dict[str, set[str]] = defaultdict(set)
    for (part, _), counts in page.types.items():
        types[part] |= counts.keys()
    return types


def layer_suffix(layers: Iterable[str]) -> str:
    """The scopes of layers as they follow a part: ``, layer conv1``."""
    scopes = sorted({name.rpartition("/")[0] or name for name in layers} - {""})
    if not scopes:
        return ""
    more = ", ..." if len(scopes) > _MOST_LAYERS else ""
    noun = "layer" if len(scopes) == 1 else "layers"
    return f", {noun} {', '.join(scopes[:_MOST_LAYERS])}{more}"


def _named(ops: Sequence[Op]) -> str:
    """The first of the ops, those that only hold the graph together last."""
    telling = [op for op in ops if op.type not in GLUE] or list(ops[:1])
    more = ", ..." if len(ops) > min(len(telling), _MOST_NAMED) else ""
    return ", ".join(f"{op.type} {op.name}" for op in telling[:_MOST_NAMED]) + more
