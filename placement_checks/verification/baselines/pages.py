"""Compares two baselines by their lines, which do not say how many ops are where."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from placement_checks.core.baseline.difference import Change, Difference
from placement_checks.core.baseline.values import (
    ANY_NUMBER,
    NO_TOWER,
    PARTS,
    TOWER,
    VARIABLE,
    Address,
    Baseline,
)
from placement_checks.core.baseline.words import ranges
from placement_checks.core.errors import InputError
from placement_checks.core.op_types import GLUE
from placement_checks.verification.baselines.allowed import SAME_WITH_ONE_TOWER
from placement_checks.verification.baselines.changes import some
from placement_checks.verification.baselines.conditions import (
    compared_towers,
    compared_types,
    crossings,
    other_conditions,
)
from placement_checks.verification.baselines.folded_pages import FoldedComparison
from placement_checks.verification.baselines.page_places import (
    Allowance,
    Devices,
    SaidPlaces,
    left_and_filled,
)
from placement_checks.verification.baselines.pairing import pair_towers
from placement_checks.verification.baselines.telling import (
    OWN,
    Way,
    layers_told,
    types_by_part,
)
from placement_checks.verification.baselines.variables import VariableComparison


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
        told: dict[Way, list[Address]] = defaultdict(list)
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
    def _before(self) -> SaidPlaces:
        """What the old baseline says, by the names and towers of the new one."""
        towers = {old: new for new, old in self._towers.items()} | {NO_TOWER: NO_TOWER}
        exceptions = {}
        for (part, tower, layer, kind), places in self.old.exceptions.items():
            name = layer and self._new_names.get(layer, self._folded.new_name(layer))
            if tower in towers and (name is None) == (layer is None):
                exceptions[Address(part, towers[tower], name, kind)] = places
        return SaidPlaces(self.old.defaults, exceptions, Devices(self.new))

    @cached_property
    def _after(self) -> SaidPlaces:
        return SaidPlaces(self.new.defaults, self.new.exceptions, Devices(self.new))

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

    def _way(self, address: Address) -> Way | None:
        """Which way ops have gone; None if they have not, or are there no more."""
        part, tower, layer, kind = address
        is_counted = kind is not None and kind not in GLUE
        now = self.new.types.get((part, tower)) or self._new_types.get(part)
        if is_counted and now and kind not in now:
            return None
        before, after = self._allowed_before(address), self._after.of(address)
        left, filled = left_and_filled(before, after)
        if not filled:
            return None
        types = {each for old in self._old_parts(part) for each in self._old_types.get(old, ())}
        is_new = not left or layer in self._new_layers
        if is_counted and types and kind not in types:
            is_new = True
        said = self._after.devices.said
        there = {said(device, address, before[device].place) for device in left or before}
        here = {said(device, address) for device in filled}
        return Way(part, " or ".join(sorted(there)), " or ".join(sorted(here)), is_new)

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

    def _change(self, way: Way, addresses: Sequence[Address]) -> Change:
        towers = sorted({each.tower for each in addresses} - {NO_TOWER})
        old, new = way.old, way.new
        if len(towers) == 1:
            device = self.new.towers[towers[0]]
            old, new = old.replace(OWN, device), new.replace(OWN, device)
        what = way.part
        if all(each.tower != NO_TOWER for each in addresses):
            what += f" of tower {ranges(towers)}"
        layers = [each.layer for each in addresses]
        what += layers_told(layer for layer in layers if layer) if None not in layers else ""
        kinds = sorted({each.type or "" for each in addresses})
        notes = [] if "" in kinds else [some(kinds)]
        if way.is_new:
            notes.append(f"the rest is on {old}")
        return Change("ops", what, "" if way.is_new else old, new, note="; ".join(notes))
