"""Compares two baselines by their lines, which do not say how many ops are where.

Where a baseline lets ops be, by its lines alone, and the devices that its symbols stand for.

Compares the variables of two baselines where either tells some by scope.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from placement_checks.baseline.compare import (
    compared_towers,
    compared_types,
    crossings,
    other_conditions,
)
from placement_checks.baseline.compare_ops import (
    OWN,
    SAME_WITH_ONE_TOWER,
    ChangeKind,
    exception_for,
    layer_suffix,
    types_by_part,
)
from placement_checks.baseline.compare_variables import VariableComparison, pair_towers
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
    Changes,
    Difference,
    FoldedScope,
    HeldVariable,
    first_few,
)
from placement_checks.core.errors import InputError
from placement_checks.core.op_types import GLUE
from placement_checks.util.text import join_and

Exceptions = Mapping[Address, Mapping[str, int]]


class Allowance(NamedTuple):
    """How many ops may be at a device, if that is said, and as which place."""

    number: int
    place: str


class Devices:
    """The devices that the symbols of a baseline stand for, where it is one each."""

    def __init__(self, page: Baseline) -> None:
        self._page = page
        self._place_of = {variable.name: variable.place for variable in page.variables}

    def of(self, place: str, address: Address) -> str:
        """The device of a place; the symbol itself if it stands for several."""
        if place == TOWER:
            devices = self._page.towers
            if address.tower != NO_TOWER:
                return devices[address.tower]
        elif place == VARIABLE:
            devices = self._of_variables(address.layer)
        else:
            return place
        return devices[0] if len(set(devices)) == 1 else place

    def said(self, device: str, address: Address, place: str = "") -> str:
        """How a report calls a device that a baseline allows as a place; by itself without."""
        if device == TOWER or (
            address.tower != NO_TOWER and self._page.towers[address.tower] == device
        ):
            return OWN
        if device == VARIABLE:
            return "with its variable"
        return f"with its variable on {device}" if place == VARIABLE else device

    def _of_variables(self, layer: str | None) -> tuple[str, ...]:
        folded = self._page.folded
        if layer is None:
            return (*self._place_of.values(), *(each.place for each in folded))
        if layer in self._place_of:
            return (self._place_of[layer],)
        return tuple(each.place for each in folded if layer.startswith(f"{each.scope}/"))


class StatedPlaces:
    """Where a baseline lets ops be.

    Attributes:
        defaults: the place of each part.
        exceptions: what is elsewhere, perhaps by the names and towers of another baseline.
        devices: what symbols stand for there.
    """

    def __init__(
        self, defaults: Mapping[str, str], exceptions: Exceptions, devices: Devices
    ) -> None:
        self.defaults = defaults
        self.exceptions = exceptions
        self.devices = devices

    def of(self, address: Address) -> Mapping[str, Allowance]:
        """The devices of an address, which may be of all layers or types."""
        found: dict[str, Allowance] = {}
        for place, number in self._looked_up(address).items():
            device = self.devices.of(place, address)
            if device in found and ANY_NUMBER not in (number, found[device].number):
                number += found[device].number
            found[device] = Allowance(number, place)
        return found

    def _looked_up(self, address: Address) -> Mapping[str, int]:
        part, tower, layer, kind = address
        places = exception_for(
            self.exceptions, part, tower, [(layer, kind), (layer, None), (None, kind)]
        )
        if places is None:
            of_all = address._replace(tower=NO_TOWER)
            each = self._narrower.get(address) or self._narrower.get(of_all) or [{}]
            if each[0] and all(other == each[0] for other in each):
                places = each[0]
        return {self.defaults[part]: ANY_NUMBER} if places is None else places

    @cached_property
    def _narrower(self) -> Mapping[Address, Sequence[Mapping[str, int]]]:
        """The lines of each layer or type, where another baseline may have one line of all."""
        found: dict[Address, list[Mapping[str, int]]] = defaultdict(list)
        for address, places in self.exceptions.items():
            if address.layer is not None and address.type is not None:
                found[address._replace(layer=None)].append(places)
                found[address._replace(type=None)].append(places)
        return found


def freed_and_filled_places(
    old: Mapping[str, Allowance], new: Mapping[str, Allowance]
) -> tuple[list[str], list[str]]:
    """The places at which there are fewer ops than were, and those at which there are more.

    Of a place that may have any number it is only known whether there are ops.
    """
    if elsewhere := [place for place in new if place not in old]:
        return list(old), elsewhere
    if any(was.number == ANY_NUMBER for was in old.values()):
        return [], []
    left = [
        place
        for place, was in old.items()
        if place not in new or ANY_NUMBER < new[place].number < was.number
    ]
    filled = [
        place
        for place, now in new.items()
        if now.number == ANY_NUMBER or now.number > old[place].number
    ]
    return left, filled


_Scopes = Mapping[str, Sequence[FoldedScope]]


@dataclass
class FoldedComparison:
    """Compares what is told by scope, and what the other lists of these scopes.

    Attributes:
        old: the one baseline.
        new: the other.
    """

    old: Baseline
    new: Baseline

    @property
    def old_single(self) -> tuple[HeldVariable, ...]:
        """The variables that the old one lists, of no scope that either tells as one."""
        return self._old[0]

    @property
    def new_single(self) -> tuple[HeldVariable, ...]:
        """Those of the new one."""
        return self._new[0]

    def new_name(self, old: str) -> str | None:
        """The new name of a variable that is told by scope; None if it is not."""
        scope = _scope_of(old, self._old[1])
        if scope is None or scope not in self._new_scopes:
            return None
        return self._new_scopes[scope] + old[len(scope) :]

    def changes(self) -> Changes:
        """What differs; where each variable is, only the other lines say."""
        found = Changes()
        before, after = self._old[1], self._new[1]
        for scope, was in before.items():
            new = self._new_scopes.get(scope)
            _compare(new or scope, was, [] if new is None else after[new], found)
        for scope in after.keys() - self._new_scopes.values():
            _compare(scope, [], after[scope], found)
        return found

    @cached_property
    def _old(self) -> tuple[tuple[HeldVariable, ...], _Scopes]:
        return self._parted(self.old)

    @cached_property
    def _new(self) -> tuple[tuple[HeldVariable, ...], _Scopes]:
        return self._parted(self.new)

    def _parted(self, page: Baseline) -> tuple[tuple[HeldVariable, ...], _Scopes]:
        """The variables that are listed, and the scopes, with what is listed of them."""
        folded = {each.scope for each in (*self.old.folded, *self.new.folded)}
        groups: dict[str, list[FoldedScope]] = defaultdict(list)
        for each in page.folded:
            groups[each.scope].append(each)
        single = []
        for variable in page.variables:
            scope = _scope_of(variable.name, folded)
            if scope is None:
                single.append(variable)
            else:
                size = variable.tensor.bytes or 0
                alone = FoldedScope(scope, 1, size, "", variable.place, variable.slots)
                groups[scope].append(alone)
        return tuple(single), groups

    @cached_property
    def _new_scopes(self) -> Mapping[str, str]:
        """What each scope is called now: those that are left and have as many are paired."""
        before, after = self._old[1], self._new[1]
        found = {scope: scope for scope in before if scope in after}
        left: dict[int, list[str]] = defaultdict(list)
        for scope, groups in after.items():
            if scope not in before:
                left[_count(groups)].append(scope)
        for scope, groups in before.items():
            if scope not in found and left[_count(groups)]:
                found[scope] = left[_count(groups)].pop(0)
        return found


def _scope_of(name: str, scopes: Container[str]) -> str | None:
    """The innermost of some scopes that a name is in; ``""`` is that of names without one."""
    path = name.split("/")[:-1]
    outer = ("/".join(path[:end]) for end in range(len(path), 0 if path else -1, -1))
    return next((scope for scope in outer if scope in scopes), None)


def _count(groups: Iterable[FoldedScope]) -> int:
    return sum(group.count for group in groups)


def _compare(
    scope: str, old: Sequence[FoldedScope], new: Sequence[FoldedScope], found: Changes
) -> None:
    what = f"variables of {scope}/*" if scope else "variables without a scope"
    change = Change("variable", what, _where(old), _where(new))
    before, after = _count(old), _count(new)
    if before != after:
        change = replace(change, note=f"were {before}" if before else "")
        (found.new_there if after > before else found.gone).append(change)
    elif _amounts(old) != _amounts(new):
        found.moved.append(change)
    elif _is_told(old) == _is_told(new) and _digests(old) != _digests(new):
        if len(old) == 1:
            found.notes.append(f"{what} have other forms, or another order")
        else:
            note = "dealt in another order, or others"
            found.moved.append(replace(change, note=note))


def _amounts(groups: Iterable[FoldedScope]) -> Counter[tuple[str, tuple[str, ...]]]:
    amounts = Counter[tuple[str, tuple[str, ...]]]()
    for group in groups:
        amounts[group.place, group.slots] += group.count
    return amounts


def _is_told(groups: Iterable[FoldedScope]) -> bool:
    """Whether the forms of any are told by a digest, so that they can be compared."""
    return any(group.digest for group in groups)


def _digests(groups: Iterable[FoldedScope]) -> set[tuple[str, tuple[str, ...], str]]:
    return {(group.place, group.slots, group.digest) for group in groups}


def _where(groups: Iterable[FoldedScope]) -> str:
    return join_and(f"{each.count} on {each.place}" for each in groups)


def compare_pages(old: Baseline, new: Baseline, old_name: str, new_name: str) -> Difference:
    """What differs between two baselines.

    Args:
        old: the one.
        new: the other.
        old_name: of its file, or of what it was made of.
        new_name: of the other.

    Raises:
        InputError: they are of two machines.
    """
    if old.machine != new.machine:
        raise InputError(
            old_name,
            f"is of the machine {old.machine}, and {new_name} of {new.machine}",
            "compare two of one machine; a program is placed on another with --machine",
        )
    return _Comparison(old, new).difference(old_name, new_name)


@dataclass
class _Comparison:
    """Compares by the names and towers of the new baseline."""

    old: Baseline
    new: Baseline

    def difference(self, old_name: str, new_name: str) -> Difference:
        """All that differs; variables come first."""
        old, new = self.old, self.new
        found = self._variables.changes()
        found.add(self._folded.changes())
        found.add(compared_towers(old.towers, new.towers, self._towers, {}))
        told: dict[ChangeKind, list[Address]] = defaultdict(list)
        for address in dict.fromkeys(self._addresses()):
            if way := self._way(address):
                told[way].append(address)
        for way in sorted(told, key=lambda way: (PARTS.index(way.part), way)):
            (found.new_there if way.is_new else found.moved).append(self._change(way, told[way]))
        found.new_there += self._new_parts()
        found.add(compared_types(old, new))
        difference = Difference(old_name, new_name, None, found.moved, found.new_there, found.gone)
        is_different = bool(difference)
        found.notes += other_conditions(old, new, is_different=is_different)
        crosses = crossings(old.copies, new.copies) if is_different else []
        return replace(difference, crosses=crosses, notes=found.notes)

    @cached_property
    def _folded(self) -> FoldedComparison:
        return FoldedComparison(self.old, self.new)

    @cached_property
    def _variables(self) -> VariableComparison:
        old = replace(self.old, variables=self._folded.old_single, folded=())
        return VariableComparison(old, self._folded.new_single, lambda _: 0, lambda _: None)

    @cached_property
    def _new_names(self) -> Mapping[str, str]:
        return {old: new for new, old in self._variables.old_names.items()}

    @cached_property
    def _new_layers(self) -> frozenset[str]:
        names = {variable.name for variable in self._folded.new_single}
        return frozenset(names - self._variables.old_names.keys())

    @cached_property
    def _towers(self) -> Mapping[int, int]:
        return pair_towers(self.old.towers, self.new.towers)

    @cached_property
    def _before(self) -> StatedPlaces:
        """What the old baseline says, by the names and towers of the new one."""
        towers = {old: new for new, old in self._towers.items()} | {NO_TOWER: NO_TOWER}
        exceptions = {}
        for (part, tower, layer, kind), places in self.old.exceptions.items():
            name = layer and self._new_names.get(layer, self._folded.new_name(layer))
            if tower in towers and (name is None) == (layer is None):
                exceptions[Address(part, towers[tower], name, kind)] = places
        return StatedPlaces(self.old.defaults, exceptions, Devices(self.new))

    @cached_property
    def _after(self) -> StatedPlaces:
        return StatedPlaces(self.new.defaults, self.new.exceptions, Devices(self.new))

    @cached_property
    def _old_types(self) -> Mapping[str, set[str]]:
        return types_by_part(self.old)

    @cached_property
    def _new_types(self) -> Mapping[str, set[str]]:
        return types_by_part(self.new)

    def _addresses(self) -> Iterator[Address]:
        """Those of which lines of either tell; where all ops are towers', of each of them."""
        parts = [part for part in self.new.defaults if part in self.old.defaults]
        for part in parts:
            yield from self._of_default(part)
        for address in (*self._before.exceptions, *self.new.exceptions):
            if address.part not in parts:
                continue
            if address.tower == NO_TOWER and f"shared {address.part}" in PARTS and self.new.towers:
                towers = range(len(self.new.towers))
                yield from (address._replace(tower=tower) for tower in towers)
            else:
                yield address

    def _of_default(self, part: str) -> Iterator[Address]:
        """All of a part; one by one where either says a symbol, which may be true of some only."""
        whole = Address(part, NO_TOWER, None, None)
        places = {self.old.defaults[part], self.new.defaults[part]}
        if len(places) > 1 and VARIABLE in places and self._folded.new_single:
            yield from (whole._replace(layer=each.name) for each in self._folded.new_single)
        elif len(places) > 1 and TOWER in places and self.new.towers:
            towers = range(len(self.new.towers))
            yield from (whole._replace(tower=tower) for tower in towers)
        else:
            yield whole

    def _way(self, address: Address) -> ChangeKind | None:
        """Which way ops have gone; None if they have not, or are there no more."""
        part, tower, layer, kind = address
        is_counted = kind is not None and kind not in GLUE
        now = self.new.types.get((part, tower)) or self._new_types.get(part)
        if is_counted and now and kind not in now:
            return None
        before, after = self._allowed_before(address), self._after.of(address)
        left, filled = freed_and_filled_places(before, after)
        if not filled:
            return None
        types = {each for old in self._old_parts(part) for each in self._old_types.get(old, ())}
        is_new = not left or layer in self._new_layers
        if is_counted and types and kind not in types:
            is_new = True
        said = self._after.devices.said
        there = {said(device, address, before[device].place) for device in left or before}
        here = {said(device, address) for device in filled}
        return ChangeKind(part, " or ".join(sorted(there)), " or ".join(sorted(here)), is_new)

    def _allowed_before(self, address: Address) -> Mapping[str, Allowance]:
        found = [
            self._before.of(address._replace(part=part)) for part in self._old_parts(address.part)
        ]
        if len(found) == 1:
            return found[0]
        return {
            device: each._replace(number=ANY_NUMBER)
            for places in found
            for device, each in places.items()
        }

    def _new_parts(self) -> Iterator[Change]:
        for part, place in self.new.defaults.items():
            if not self._old_parts(part):
                where = OWN if place == TOWER else place
                yield Change("ops", part, "", where, note="the old one has none")

    def _old_parts(self, part: str) -> list[str]:
        """What a part may have been: of one tower, what is shared and what is its own are one."""
        parts = [part]
        if (len(self.old.towers) < 2) != (len(self.new.towers) < 2):
            parts += SAME_WITH_ONE_TOWER.get(part, ())
        return [part for part in parts if part in self.old.defaults]

    def _change(self, way: ChangeKind, addresses: Sequence[Address]) -> Change:
        towers = sorted({each.tower for each in addresses} - {NO_TOWER})
        old, new = way.old, way.new
        if len(towers) == 1:
            device = self.new.towers[towers[0]]
            old, new = old.replace(OWN, device), new.replace(OWN, device)
        what = way.part
        if all(each.tower != NO_TOWER for each in addresses):
            what += f" of tower {ranges(towers)}"
        layers = [each.layer for each in addresses]
        what += layer_suffix(layer for layer in layers if layer) if None not in layers else ""
        kinds = sorted({each.type or "" for each in addresses})
        notes = [] if "" in kinds else [first_few(kinds)]
        if way.is_new:
            notes.append(f"the rest is on {old}")
        return Change("ops", what, "" if way.is_new else old, new, note="; ".join(notes))
