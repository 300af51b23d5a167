"""How the ops of a placement are spread over devices, by their addresses."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from placement_checks.analysis.addresses import addresses
from placement_checks.analysis.transfers import copies, transfers
from placement_checks.core.baseline.values import NOWHERE, Copies, HeldVariable, place_of
from placement_checks.core.devices import Device
from placement_checks.core.errors import InputError
from placement_checks.core.op_types import NO_OP
from placement_checks.core.placement import Op, Placement, Tensor

NONE = -1
_OF_TOWERS = ("forward", "backward")


class Group(NamedTuple):
    """Ops of one address.

    Attributes:
        part: what they do in a step.
        tower: its number; -1 for none.
        layer: the number of the variable, which is that of its variable for a slot; -1 for none.
        type: theirs.
    """

    part: str
    tower: int
    layer: int
    type: str


class Site(NamedTuple):
    """A device, and whether the variable of the op is there too."""

    place: str
    is_beside: bool


class Spread:
    """Where the ops of each address are.

    Ops that compute nothing and only wait are left out: where they are, the placer decides by how
    much is where.

    Raises InputError where nobody assigned devices, or requests are not known.

    Attributes:
        placement: whose ops they are.
        names: of the ops.
        towers: the device of each tower: that of most of its forward ops, and
            if two have as many, of more of the backward ops.
        groups: how many ops of each address are where.
    """

    def __init__(self, placement: Placement) -> None:
        if not placement.requested:
            raise InputError(placement.program, str(placement.requested))
        if not placement.assigned or not placement.placer:
            raise InputError(placement.program, str(placement.assigned))
        if placement.machine is None:
            raise InputError(
                placement.program, "is placed on no known machine", 'name it: --machine "gpu*2"'
            )
        self.placement = placement
        self._addresses = addresses(placement)
        self._ops = placement.by_number
        self.names = list(placement.ops)
        self._number = dict(zip(self.names, range(len(self.names)), strict=True))
        self._devices = [op.assigned for op in self._ops]
        slots = self._addresses.slot_of
        owner = {self._number[slot]: self._number[name] for slot, name in slots.items()}
        self._layers = [owner.get(layer, layer) for layer in self._addresses.layers]
        rows = Counter(self._rows())
        of_tower: list[dict[str, list[int]]] = [{} for _ in range(self._addresses.tower_count)]
        self.groups: dict[Group, dict[Site, int]] = defaultdict(dict)
        for (part, tower, layer, kind, device, is_beside), number in rows.items():
            if part == "variable" or kind == NO_OP:
                continue
            group, site = Group(part, tower, layer, kind), Site(place_of(device), is_beside)
            self.groups[group][site] = number
            if part in _OF_TOWERS and tower != NONE:
                counts = of_tower[tower].setdefault(site.place, [0, 0])
                counts[_OF_TOWERS.index(part)] += number
        self.towers = [
            max(places, key=lambda place: (places[place], place)) if places else NOWHERE
            for places in of_tower
        ]

    def _rows(self) -> Iterator[tuple[str, int, int, str, Device | None, bool]]:
        """Of each op its address, its device, and whether its variable is there too."""
        found, devices = self._addresses, self._devices
        beside = [
            layer != NONE and devices[layer] is device
            for layer, device in zip(found.layers, devices, strict=True)
        ]
        types = [op.type for op in self._ops]
        return zip(found.parts, found.towers, self._layers, types, devices, beside, strict=True)

    def ops_of(self, wanted: Mapping[Group, set[Site]]) -> Mapping[tuple[Group, Site], list[Op]]:
        """The ops at the sites of each address that are wanted."""
        found: dict[tuple[Group, Site], list[Op]] = defaultdict(list)
        for op, (part, tower, layer, kind, device, is_beside) in zip(
            self._ops, self._rows(), strict=True
        ):
            group = Group(part, tower, layer, kind)
            if group in wanted and (site := Site(place_of(device), is_beside)) in wanted[group]:
                found[group, site].append(op)
        return found

    @property
    def idle_ops(self) -> int:
        """How many ops are in no group: variables, and what only waits."""
        return len(self.names) - sum(sum(sites.values()) for sites in self.groups.values())

    def name_of(self, layer: int) -> str:
        """The name of a layer's variable; ``""`` for none."""
        return "" if layer == NONE else self.names[layer]

    @cached_property
    def variables(self) -> Sequence[HeldVariable]:
        """The variables in the order of data flow; slots are with the variable they are for."""
        depth, slot_of = self._addresses.depth, self._addresses.slot_of
        slots: dict[str, list[str]] = defaultdict(list)
        for slot, name in slot_of.items():
            slots[name].append(self._place(slot))
        never = len(self.names)
        return [
            HeldVariable(
                name,
                Tensor(variable.dtype, variable.shape),
                self._place(name),
                tuple(sorted(slots[name])),
            )
            for _, name, variable in sorted(
                (depth.get(self._number[variable.name], never), variable.name, variable)
                for variable in self.placement.variables
                if variable.name not in slot_of
            )
        ]

    def _place(self, op: str) -> str:
        return place_of(self._devices[self._number[op]])

    @cached_property
    def copies(self) -> Mapping[tuple[str, str], Copies]:
        """What a step copies, by source and destination."""
        return {
            (place_of(each.source), place_of(each.to)): Copies(
                each.copies, each.bytes, each.unknown
            )
            for each in transfers(copies(self.placement))
        }
