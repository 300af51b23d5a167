"""Looks up the ops of a placement in a baseline, and describes misplaced ops.

`AllowedPlaces` finds the ops that are not on the devices that the baseline states for their
address. `ChangeMessages` combines misplaced ops that moved between the same places into one
`Change`, in the words of the model: parts, towers and layers.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

from placement_checks.baseline.build import (
    NO_LAYER,
    Group,
    OpDevice,
    Spread,
    choose_place,
    place_matches,
)
from placement_checks.baseline.text import ranges
from placement_checks.core.baseline import (
    ANY_NUMBER,
    NO_TOWER,
    PARTS,
    TOWER,
    UNCOUNTED_PARTS,
    VARIABLE,
    Address,
    Baseline,
    Change,
    Changes,
    device_text,
)
from placement_checks.core.op_types import GLUE
from placement_checks.core.placement import Op
from placement_checks.util.text import plural

# With a single tower, the tower's own ops cannot be distinguished from shared ops.
_SAME_WITH_ONE_TOWER: Final[Mapping[str, tuple[str, ...]]] = {
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


@dataclass(frozen=True)
class Misplaced:
    """Ops of one address on a device that the baseline does not allow.

    Attributes:
        group: the address.
        op_device: the device of the ops.
        number: the number of misplaced ops; other ops of the address may rightly be on the device.
        allowed: the places that the baseline allows; empty if the baseline lacks the part.
    """

    group: Group
    op_device: OpDevice
    number: int
    allowed: tuple[str, ...]


@dataclass(frozen=True)
class AllowedPlaces:
    """The places that a baseline allows for the ops of a placement.

    Attributes:
        old: the baseline.
        spread: the ops of the placement.
        variables: the name of each variable in the baseline, by its name in the placement.
        towers: the index of each tower in the baseline, by its index in the placement.
    """

    old: Baseline
    spread: Spread
    variables: Mapping[str, str]
    towers: Mapping[int, int]

    def misplaced(self) -> Iterator[Misplaced]:
        """Yields the ops that are not where the baseline allows them."""
        for group, op_devices in self.spread.groups.items():
            allowed = self.places(group)
            elsewhere = {
                op_device: number
                for op_device, number in op_devices.items()
                if not any(
                    place_matches(place, group, op_device, self.spread) for place in allowed
                )
            }
            for op_device, number in elsewhere.items():
                yield Misplaced(group, op_device, number, tuple(sorted(allowed)))
            if not elsewhere and len(allowed) > 1:
                yield from self._exchanged(group, op_devices, allowed)

    def is_known(self, group: Group) -> bool:
        """Whether the baseline has the variable of an address; true if there is no variable."""
        return group.layer == NO_LAYER or self.spread.names[group.layer] in self.variables

    def places(self, group: Group) -> Mapping[str, int]:
        """The allowed places of an address, each with the allowed number of ops."""
        found = self._places_in(group.part, group)
        if (len(self.old.towers) < 2) == (len(self.spread.towers) < 2):
            return found
        others = [
            self._places_in(part, group) for part in _SAME_WITH_ONE_TOWER.get(group.part, ())
        ]
        return {place: ANY_NUMBER for places in (found, *others) for place in places}

    @cached_property
    def _exception_types(self) -> frozenset[tuple[str, str | None]]:
        """The parts and types with exceptions, to exclude most other ops quickly."""
        return frozenset((address.part, address.type) for address in self.old.exceptions)

    @cached_property
    def _defaults(self) -> Mapping[str, Mapping[str, int]]:
        return {part: {place: ANY_NUMBER} for part, place in self.old.defaults.items()}

    def _places_in(self, part: str, group: Group) -> Mapping[str, int]:
        """The places of the most specific line of a part that applies to an address."""
        default = self._defaults.get(part, {})
        types = self._exception_types
        if (part, group.type) not in types and (part, None) not in types:
            return default
        lines: list[tuple[str | None, str | None]] = [(None, group.type)]
        if self.is_known(group):
            name = self.spread.variable_name(group.layer)
            layer = self.variables.get(name, name)
            lines = [(layer, group.type), (layer, None), *lines]
        for tower in (self.towers.get(group.tower, NO_TOWER), NO_TOWER):
            for line in lines:
                places = self.old.exceptions.get(Address(part, tower, *line))
                if places is not None:
                    return places
        return default

    def _exchanged(
        self, group: Group, op_devices: Mapping[OpDevice, int], allowed: Mapping[str, int]
    ) -> Iterator[Misplaced]:
        """Yields ops that moved from one allowed place to another.

        One place has fewer ops than the baseline states, and another has more. If no place has
        fewer, the additional ops are new and allowed.
        """
        if ANY_NUMBER in allowed.values() or not self.is_known(group):
            return
        actual: Counter[str] = Counter()
        last: dict[str, OpDevice] = {}
        default = self.old.defaults.get(group.part, "")
        for op_device, number in op_devices.items():
            place = choose_place(group, op_device, self.spread, default)
            if place not in allowed:  # a symbol may match now that did not match before
                place = next(
                    each for each in allowed if place_matches(each, group, op_device, self.spread)
                )
            actual[place] += number
            last[place] = op_device
        fewer = [place for place in sorted(allowed) if actual[place] < allowed[place]]
        moved = sum(allowed[place] - actual[place] for place in fewer)
        for place in sorted(allowed):
            more = min(moved, actual[place] - allowed[place])
            if more > 0:
                moved -= more
                yield Misplaced(group, last[place], more, tuple(fewer))


_MOST_NAMED: Final = 2  # ops
_MOST_LAYERS: Final = 4


class ChangeKind(NamedTuple):
    """The common properties of misplaced ops that one `Change` describes."""

    part: str  # the part of the step
    # The allowed places; if the ops are new, the places of the other ops of the part.
    old: tuple[str, ...]
    new: str  # the place of the ops. In `old` and `new`, `TOWER` means the device of their tower.
    is_new: bool  # whether the baseline does not have the ops


@dataclass
class ChangeMessages:
    """Describes misplaced ops."""

    allowed: AllowedPlaces

    @property
    def spread(self) -> Spread:
        return self.allowed.spread

    def changes(self, misplaced: Sequence[Misplaced]) -> Changes:
        """Returns the moved and the new ops, in the order of the parts."""
        found = Changes()
        if not misplaced:
            return found
        op_devices: dict[Group, set[OpDevice]] = defaultdict(set)
        for each in misplaced:
            op_devices[each.group].add(each.op_device)
        ops = self.spread.ops_at(op_devices)
        kinds: dict[ChangeKind, list[Misplaced]] = defaultdict(list)
        for each in misplaced:
            kinds[self._kind(each)].append(each)
        done: set[ChangeKind] = set()
        for kind in sorted(kinds, key=lambda kind: (PARTS.index(kind.part), kind)):
            if kind in done:
                continue
            members, parts = kinds[kind], [kind.part]
            backward = kind._replace(part="backward")
            if kind.part == "forward" and backward in kinds:
                layers = {each.group.layer for each in members}
                if {each.group.layer for each in kinds[backward]} <= layers:
                    done.add(backward)
                    members, parts = [*members, *kinds[backward]], ["forward", "backward"]
            named = [op for each in members for op in ops[each.group, each.op_device]]
            change = self._change(kind, members, parts, named)
            (found.new_there if kind.is_new else found.moved).append(change)
        return found

    def _kind(self, each: Misplaced) -> ChangeKind:
        group = each.group
        is_new = not each.allowed or not self.allowed.is_known(group)
        if group.type not in GLUE and group.type not in self._types.get(group.part, ()):
            is_new = is_new or group.part not in UNCOUNTED_PARTS
        old = sorted({self._describe_allowed(place, each) for place in each.allowed})
        return ChangeKind(
            group.part, tuple(old), self._describe(each.op_device.device, each), is_new
        )

    @cached_property
    def _types(self) -> Mapping[str, set[str]]:
        """The counted types of ops in each part of the baseline."""
        types: dict[str, set[str]] = defaultdict(set)
        for (part, _), counts in self.allowed.old.types.items():
            types[part] |= counts.keys()
        return types

    def _describe_allowed(self, place: str, each: Misplaced) -> str:
        if place == VARIABLE and each.group.layer != NO_LAYER:
            device = self.spread.placement.by_number[each.group.layer].assigned
            return f"with its variable on {device_text(device)}"
        return self._describe(place, each)

    def _describe(self, place: str, each: Misplaced) -> str:
        tower = each.group.tower
        is_own = tower != NO_TOWER and self.spread.towers[tower] == place
        return TOWER if is_own else place

    def _change(
        self,
        kind: ChangeKind,
        members: Sequence[Misplaced],
        parts: Sequence[str],
        ops: Sequence[Op],
    ) -> Change:
        towers = sorted({each.group.tower for each in members} - {NO_TOWER})
        own = self.spread.towers[towers[0]] if len(towers) == 1 else "its tower's device"
        old = " or ".join(own if place == TOWER else place for place in kind.old)
        new = own if kind.new == TOWER else kind.new
        number = sum(each.number for each in members)
        what = " and ".join(parts)
        what += f" of tower {ranges(towers)}" if towers else ""
        if number < 0.9 * self._count_ops(parts, towers):
            what += _layer_suffix(self.spread.variable_name(each.group.layer) for each in members)
        notes = [f"{plural(number, 'op')}: {_name_ops(ops)}"]
        if number < len(ops):
            notes.insert(0, f"{number} of these {len(ops)}")
        fallback = next((op for op in ops if op.requested.is_gpu and op.fallback_reason), None)
        if fallback is not None:
            notes.append(f"requests {device_text(fallback.requested)}: {fallback.fallback_reason}")
        if kind.is_new:
            notes.append(f"the others are on {old}" if old else "new in this placement")
        return Change(
            "ops",
            what,
            "" if kind.is_new else old,
            new,
            [op.name for op in ops],
            "; ".join(notes),
            self.spread.placement.where(ops[0].name),
        )

    def _count_ops(self, parts: Sequence[str], towers: Sequence[int]) -> int:
        return sum(
            sum(op_devices.values())
            for group, op_devices in self.spread.groups.items()
            if group.part in parts and group.tower in (towers or [NO_TOWER])
        )


def _layer_suffix(layers: Iterable[str]) -> str:
    """The scopes of layers, as text to append to a part: ``, layer conv1``."""
    scopes = sorted({name.rpartition("/")[0] or name for name in layers} - {""})
    if not scopes:
        return ""
    more = ", ..." if len(scopes) > _MOST_LAYERS else ""
    noun = "layer" if len(scopes) == 1 else "layers"
    return f", {noun} {', '.join(scopes[:_MOST_LAYERS])}{more}"


def _name_ops(ops: Sequence[Op]) -> str:
    """The types and names of the first ops that compute something, or of the first op."""
    named = [op for op in ops if op.type not in GLUE] or list(ops[:1])
    more = ", ..." if len(ops) > min(len(named), _MOST_NAMED) else ""
    return ", ".join(f"{op.type} {op.name}" for op in named[:_MOST_NAMED]) + more
