"""Counts the ops of a placement by address and device, and builds a baseline of the counts.

`Spread` holds the counts. `build_baseline` chooses for each part of the step the place where most
of its ops are, and lists the addresses of ops at other places as exceptions.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, Final, NamedTuple

from placement_checks.analysis.addresses import addresses
from placement_checks.analysis.step.transfers import copies, transfers
from placement_checks.analysis.towers.analysis import analyze
from placement_checks.analysis.variables.gradient_flow import gradient_flow
from placement_checks.analysis.variables.objectives import objectives
from placement_checks.analysis.variables.slots import find_slots
from placement_checks.core.baseline import (
    ANY_NUMBER,
    NO_TOWER,
    NOWHERE,
    SYMBOLS,
    TOWER,
    UNCOUNTED_PARTS,
    VARIABLE,
    Address,
    Baseline,
    Copies,
    HeldVariable,
    device_text,
)
from placement_checks.core.devices import Device
from placement_checks.core.errors import InputError
from placement_checks.core.op_types import GLUE, NO_OP
from placement_checks.core.placement import Op, Placement, Tensor
from placement_checks.core.versions import versions

NO_LAYER: Final = -1
_TOWER_PARTS = ("forward", "backward")

# The place to choose as the default of a part, if several places match equally many of its ops.
# Each of these symbols gives the reason why the ops of this part are on their devices.
_PREFERRED: Mapping[str, str] = {
    **dict.fromkeys(("input", "forward", "backward", "evaluate"), TOWER),
    **dict.fromkeys(("apply", "reads", "init"), VARIABLE),
}


class Group(NamedTuple):
    """The address of some ops, with indices instead of names."""

    part: str  # the part of the step
    tower: int  # the index of the tower; -1 for none
    # The index of the variable that the layer is named after; -1 for none. If this variable is a
    # slot, it is replaced by the variable that the slot belongs to.
    layer: int
    type: str  # the type of the ops


class OpDevice(NamedTuple):
    """The device of some ops, and whether the variable of their layer is on the same device."""

    device: str
    is_with_variable: bool


class Spread:
    """The numbers of ops on each device, by address.

    Ops that only wait for others (`NoOp`) are omitted: the placer puts them wherever most of their
    inputs are.

    Raises:
        InputError: the placement lacks assigned devices, requested devices or a machine.

    Attributes:
        placement: the placement.
        names: the names of its ops.
        towers: for each tower, the device with most of its forward ops. If several devices have
            equally many, it is the one of these with most of the backward ops.
        groups: the number of ops on each device, by address.
        slot_owners: the variable that each optimizer slot belongs to, by the name of the slot.
    """

    def __init__(self, placement: Placement) -> None:
        if not placement.requested:
            raise InputError(placement.program, str(placement.requested))
        if not placement.assigned or not placement.placer:
            raise InputError(placement.program, str(placement.assigned))
        if placement.machine is None:
            raise InputError(
                placement.program,
                "is placed on an unknown machine",
                'name the machine: --machine "gpu*2"',
                is_predicate=True,
            )
        self.placement = placement
        self._addresses = addresses(placement)
        self._ops = placement.by_number
        self.names = list(placement.ops)
        self._number = analyze(placement).flow.number
        self._devices = [op.assigned for op in self._ops]
        self.slot_owners = find_slots(placement).owner_of
        owner = {self._number[slot]: self._number[name] for slot, name in self.slot_owners.items()}
        self._layers = [
            NO_LAYER if layer is None else owner.get(layer, layer)
            for layer in self._addresses.layers
        ]
        rows = Counter(self._rows())
        by_tower: list[dict[str, list[int]]] = [{} for _ in range(self._addresses.tower_count)]
        self.groups: dict[Group, dict[OpDevice, int]] = defaultdict(dict)
        for (part, tower, layer, kind, device, is_with_variable), number in rows.items():
            if part == "variable" or kind == NO_OP:
                continue
            op_device = OpDevice(device_text(device), is_with_variable)
            self.groups[Group(part, tower, layer, kind)][op_device] = number
            if part in _TOWER_PARTS and tower != NO_TOWER:
                counts = by_tower[tower].setdefault(op_device.device, [0, 0])
                counts[_TOWER_PARTS.index(part)] += number
        self.towers = [
            max(places, key=lambda place: (places[place], place)) if places else NOWHERE
            for places in by_tower
        ]

    def _rows(self) -> Iterator[tuple[str, int, int, str, Device | None, bool]]:
        """Yields the address and device of each op."""
        found, devices = self._addresses, self._devices
        with_variable = [
            layer is not None and devices[layer] is device
            for layer, device in zip(found.layers, devices, strict=True)
        ]
        types = [op.type for op in self._ops]
        towers = [NO_TOWER if tower is None else tower for tower in found.towers]
        columns = (found.parts, towers, self._layers, types, devices, with_variable)
        return zip(*columns, strict=True)

    def ops_at(
        self, wanted: Mapping[Group, set[OpDevice]]
    ) -> Mapping[tuple[Group, OpDevice], list[Op]]:
        """Returns the ops on the wanted devices of each wanted address."""
        found: dict[tuple[Group, OpDevice], list[Op]] = defaultdict(list)
        for op, (part, tower, layer, kind, device, is_with_variable) in zip(
            self._ops, self._rows(), strict=True
        ):
            group = Group(part, tower, layer, kind)
            if group in wanted:
                op_device = OpDevice(device_text(device), is_with_variable)
                if op_device in wanted[group]:
                    found[group, op_device].append(op)
        return found

    def variable_name(self, layer: int) -> str:
        """The name of a layer's variable; ``""`` for none."""
        return "" if layer == NO_LAYER else self.names[layer]

    @cached_property
    def variables(self) -> Sequence[HeldVariable]:
        """The variables in the order of data flow, each with its slots."""
        depth, owners = self._addresses.depth, self.slot_owners
        places: dict[str, list[str]] = defaultdict(list)
        for slot, name in owners.items():
            places[name].append(self._place(slot))
        unread = len(self.names)
        return [
            HeldVariable(
                name,
                Tensor(variable.dtype, variable.shape),
                self._place(name),
                tuple(sorted(places[name])),
            )
            for _, name, variable in sorted(
                (depth.get(self._number[variable.name], unread), variable.name, variable)
                for variable in self.placement.variables
                if variable.name not in owners
            )
        ]

    def update_line(self, variable: str) -> str:
        """The user's source line of a trained variable's update; ``""`` without one."""
        analysis = analyze(self.placement)
        trained = gradient_flow(self.placement).trained[variable]
        updates = analysis.updates.select_for_one_step(trained)
        lines = (self.placement.where(analysis.flow.names[each.op]) for each in updates)
        return next((str(line) for line in lines if line), "")

    def _place(self, op: str) -> str:
        return device_text(self._devices[self._number[op]])

    @cached_property
    def copies(self) -> Mapping[tuple[str, str], Copies]:
        """The copies of one step, by source and destination."""
        return {
            (device_text(each.source), device_text(each.to)): Copies(
                each.copies, each.bytes, each.unknown
            )
            for each in transfers(copies(self.placement))
        }


def place_matches(place: str, group: Group, op_device: OpDevice, spread: Spread) -> bool:
    """Whether the device of ops matches a place in a baseline. A place is a device or a symbol."""
    if place == TOWER:
        return group.tower != NO_TOWER and spread.towers[group.tower] == op_device.device
    return op_device.is_with_variable if place == VARIABLE else op_device.device == place


def choose_place(group: Group, op_device: OpDevice, spread: Spread, default: str) -> str:
    """Returns the place that a baseline states for ops on a device.

    The first of these that matches the device is chosen: ``default``, a symbol, the device itself.
    """
    places = (default, TOWER, VARIABLE, op_device.device)
    return next(place for place in places if place_matches(place, group, op_device, spread))


def baseline_from_placement(placement: Placement) -> Baseline:
    """Returns the baseline of a placement.

    Raises:
        InputError: the placement lacks assigned devices, requested devices or a machine.
    """
    return build_baseline(Spread(placement))


def build_baseline(spread: Spread) -> Baseline:
    """Returns the baseline of counted ops."""
    defaults, texts = _defaults(spread), objectives(spread.placement)
    return replace(
        summarize(spread),
        variables=tuple(
            replace(each, objective=texts.get(each.name, "")) for each in spread.variables
        ),
        defaults=defaults,
        exceptions=_exceptions(spread, defaults),
        copies=spread.copies,
    )


def summarize(spread: Spread) -> Baseline:
    """Returns a baseline without variables, places and copies, as `compare` needs it."""
    placement = spread.placement
    types: dict[tuple[str, int], Counter[str]] = defaultdict(Counter)
    for group, op_devices in spread.groups.items():
        if group.type not in GLUE and group.part not in UNCOUNTED_PARTS:
            types[group.part, group.tower][group.type] += sum(op_devices.values())
    return Baseline(
        placement.program,
        str(placement.machine),
        str(placement.placer),
        placement.soft,
        {name: version for name, version in versions().items() if version is not None},
        towers=tuple(spread.towers),
        types=types,
    )


def _defaults(spread: Spread) -> dict[str, str]:
    """For each part the device or symbol that matches most of its ops."""
    votes: dict[str, Counter[str]] = defaultdict(Counter)
    for group, op_devices in spread.groups.items():
        for op_device, number in op_devices.items():
            for place in (op_device.device, TOWER, VARIABLE):
                if place_matches(place, group, op_device, spread):
                    votes[group.part][place] += number

    def weight(part: str, place: str) -> tuple[Any, ...]:
        is_preferred = place == _PREFERRED.get(part)
        return votes[part][place], is_preferred, place not in SYMBOLS, place

    return {part: max(places, key=partial(weight, part)) for part, places in votes.items()}


def _exceptions(spread: Spread, defaults: Mapping[str, str]) -> dict[Address, dict[str, int]]:
    """The addresses with ops that are not at the default place, in as few lines as possible."""
    elsewhere = {
        (group.part, group.layer, group.type)
        for group, op_devices in spread.groups.items()
        for op_device in op_devices
        if not place_matches(defaults[group.part], group, op_device, spread)
    }
    by_tower: dict[tuple[str, str, str], dict[int, dict[str, int]]] = defaultdict(dict)
    types: dict[Hashable, set[str]] = defaultdict(set)
    layers: dict[Hashable, set[str]] = defaultdict(set)
    for group, op_devices in spread.groups.items() if elsewhere else ():
        part, kind, layer = group.part, group.type, spread.variable_name(group.layer)
        types[part, layer].add(kind)
        layers[part, kind].add(layer)
        if (part, group.layer, kind) not in elsewhere:
            continue
        counts: Counter[str] = Counter()
        for op_device, number in op_devices.items():
            counts[choose_place(group, op_device, spread, defaults[part])] += number
        places = dict.fromkeys(counts, ANY_NUMBER) if len(counts) == 1 else dict(counts)
        by_tower[part, layer, kind][group.tower] = places
    exceptions: dict[Address, dict[str, int]] = {}
    for (part, layer, kind), places_of in by_tower.items():
        default = {defaults[part]: ANY_NUMBER}
        first = next(iter(places_of.values()))
        if all(places == first for places in places_of.values()):  # none is the default
            exceptions[Address(part, NO_TOWER, layer, kind)] = first
            continue
        # A line without a tower also applies to every tower that has no line of its own. So if
        # such a line is needed, every tower gets its own.
        needs_all = places_of.get(NO_TOWER, default) != default
        for tower, places in places_of.items():
            if needs_all or places != default:
                exceptions[Address(part, tower, layer, kind)] = places
    _join(exceptions, lambda address: address._replace(layer=None), layers)
    _join(exceptions, lambda address: address._replace(type=None), types)
    return exceptions


def _join(
    exceptions: dict[Address, dict[str, int]],
    widen: Callable[[Address], Address],
    all_of: Mapping[Hashable, set[str]],
) -> None:
    """Replaces equal lines by one, if they cover all layers of a type, or all types of a layer.

    Args:
        exceptions: the lines, which are changed.
        widen: returns the address for all layers, or for all types.
        all_of: all layers by part and type, or all types by part and layer.
    """
    equal: dict[tuple[Address, frozenset[tuple[str, int]]], list[Address]] = defaultdict(list)
    for address, places in exceptions.items():
        if address.layer is not None and address.type is not None:
            equal[widen(address), frozenset(places.items())].append(address)
    for (joined, _), joinable in equal.items():
        other = joined.type if joined.layer is None else joined.layer
        if 1 < len(joinable) == len(all_of[joined.part, other]):
            exceptions[joined] = exceptions[joinable[0]]
            for address in joinable:
                del exceptions[address]
