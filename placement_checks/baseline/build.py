"""How the ops of a placement are spread over devices, by their addresses.

Makes a baseline of a placement: a default place for each part, and the exceptions.

Variables by the hundreds, told by their scopes.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Final, NamedTuple

from placement_checks.analysis.addresses import addresses
from placement_checks.analysis.step.transfers import copies, transfers
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
    FoldedScope,
    HeldVariable,
    device_text,
)
from placement_checks.core.devices import Device
from placement_checks.core.errors import InputError
from placement_checks.core.op_types import GLUE, NO_OP
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
            group, site = Group(part, tower, layer, kind), Site(device_text(device), is_beside)
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
            if group in wanted and (site := Site(device_text(device), is_beside)) in wanted[group]:
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
        return device_text(self._devices[self._number[op]])

    @cached_property
    def copies(self) -> Mapping[tuple[str, str], Copies]:
        """What a step copies, by source and destination."""
        return {
            (device_text(each.source), device_text(each.to)): Copies(
                each.copies, each.bytes, each.unknown
            )
            for each in transfers(copies(self.placement))
        }


MOST_LISTED: Final = 500
ScopeOf = Callable[[str], str | None]


def folded(
    variables: Sequence[HeldVariable],
) -> tuple[Sequence[HeldVariable], Sequence[FoldedScope]]:
    """The variables to list one by one, and the others by scope, if there are too many."""
    if len(variables) <= MOST_LISTED:
        return variables, ()
    return folded_by(variables, _scopes(variables))


def folded_by(
    variables: Iterable[HeldVariable], scope_of: ScopeOf
) -> tuple[Sequence[HeldVariable], Sequence[FoldedScope]]:
    """Those that sit alike in one scope as one; one that sits alone is listed.

    Args:
        variables: in the order of data flow.
        scope_of: of the name of a variable; None if it is not to be folded.
    """
    single: list[HeldVariable] = []
    scopes: dict[str, list[HeldVariable]] = defaultdict(list)
    for variable in variables:
        scope = scope_of(variable.name)
        (single if scope is None else scopes[scope]).append(variable)
    found: list[FoldedScope] = []
    for scope, members in scopes.items():
        alike: dict[tuple[str, tuple[str, ...]], list[tuple[int, HeldVariable]]] = defaultdict(
            list
        )
        for at, variable in enumerate(members):
            alike[variable.place, variable.slots].append((at, variable))
        for (place, slots), group in alike.items():
            if len(group) == 1:
                single.append(group[0][1])
                continue
            size = sum(variable.tensor.bytes or 0 for _, variable in group)
            found.append(FoldedScope(scope, len(group), size, _digest(group), place, slots))
    return single, found


def _scopes(variables: Iterable[HeldVariable]) -> ScopeOf:
    """The scopes to fold by: the innermost of which there are few enough."""
    paths = [variable.name.split("/")[:-1] for variable in variables]
    depth = max(map(len, paths))
    while depth > 1 and len({tuple(path[:depth]) for path in paths}) > MOST_LISTED:
        depth -= 1

    return lambda name: "/".join(name.split("/")[:-1][:depth])


def _digest(group: Iterable[tuple[int, HeldVariable]]) -> str:
    forms = "\n".join(f"{at} {variable.form}" for at, variable in group)
    return hashlib.sha256(forms.encode("utf-8", "backslashreplace")).hexdigest()[:8]


# Of two places that explain as many ops, that which says why they are there.
_PREFERRED: Mapping[str, str] = {
    **dict.fromkeys(("input", "forward", "backward", "evaluate"), TOWER),
    **dict.fromkeys(("apply", "reads", "init"), VARIABLE),
}


def build_baseline(spread: Spread) -> Baseline:
    """The baseline of a placement, without the versions of what has placed it."""
    variables, scopes = folded(spread.variables)
    defaults = _defaults(spread)
    return replace(
        summary_of(spread),
        variables=tuple(variables),
        folded=tuple(scopes),
        defaults=defaults,
        exceptions=_exceptions(spread, defaults),
        copies=spread.copies,
    )


def summary_of(spread: Spread) -> Baseline:
    """What a baseline says beside variables, places and copies: enough to compare with one."""
    placement = spread.placement
    return Baseline(
        placement.program,
        str(placement.machine),
        str(placement.placer),
        placement.soft,
        towers=tuple(spread.towers),
        types=_types(spread),
    )


def _defaults(spread: Spread) -> dict[str, str]:
    """For each part the device or symbol that is true of most of its ops."""
    votes: dict[str, Counter[str]] = defaultdict(Counter)
    for group, sites in spread.groups.items():
        for site, number in sites.items():
            for place in _true_of(group, site, spread):
                votes[group.part][place] += number

    return {part: _chosen(part, places) for part, places in votes.items()}


def _chosen(part: str, votes: Mapping[str, int]) -> str:
    def weight(place: str) -> tuple[Any, ...]:
        return votes[place], place == _PREFERRED.get(part), place not in SYMBOLS, place

    return max(votes, key=weight)


def place_matches(place: str, group: Group, site: Site, spread: Spread) -> bool:
    """Whether a place, as a baseline says it, is true of ops."""
    if place == TOWER:
        return group.tower != NONE and spread.towers[group.tower] == site.place
    return site.is_beside if place == VARIABLE else site.place == place


def _true_of(group: Group, site: Site, spread: Spread) -> Iterable[str]:
    """The device of ops, and the symbols that say the same."""
    yield site.place
    if group.tower != NONE and spread.towers[group.tower] == site.place:
        yield TOWER
    if site.is_beside:
        yield VARIABLE


def describe_device(group: Group, site: Site, spread: Spread, default: str) -> str:
    """How a baseline says where ops are: as the default of their part does, if that is true."""
    true = list(_true_of(group, site, spread))
    return next(place for place in (default, TOWER, VARIABLE, site.place) if place in true)


def _types(spread: Spread) -> dict[tuple[str, int], Counter[str]]:
    """How many ops of each type a part has, by part and tower."""
    types: dict[tuple[str, int], Counter[str]] = defaultdict(Counter)
    for group, sites in spread.groups.items():
        if group.type not in GLUE and group.part not in UNCOUNTED_PARTS:
            types[group.part, group.tower][group.type] += sum(sites.values())
    return types


def _exceptions(spread: Spread, defaults: Mapping[str, str]) -> dict[Address, dict[str, int]]:
    """What is not at its part's default place, in as few lines as say it."""
    elsewhere = {
        (group.part, group.layer, group.type)
        for group, sites in spread.groups.items()
        for site in sites
        if not place_matches(defaults[group.part], group, site, spread)
    }
    by_what: dict[tuple[str, str, str], dict[int, dict[str, int]]] = defaultdict(dict)
    kinds: dict[Hashable, set[str]] = defaultdict(set)
    layers: dict[Hashable, set[str]] = defaultdict(set)
    for group, sites in spread.groups.items() if elsewhere else ():
        what = group.part, spread.name_of(group.layer), group.type
        kinds[what[:2]].add(group.type)
        layers[group.part, group.type].add(what[1])
        if (group.part, group.layer, group.type) not in elsewhere:
            continue
        counts: Counter[str] = Counter()
        for site, number in sites.items():
            counts[describe_device(group, site, spread, defaults[group.part])] += number
        by_what[what][group.tower] = _counted(counts)
    exceptions: dict[Address, dict[str, int]] = {}
    for what, by_tower in by_what.items():
        part, layer, kind = what
        usual = {defaults[part]: ANY_NUMBER}
        first = next(iter(by_tower.values()))
        if all(places == first for places in by_tower.values()):
            if first != usual:
                exceptions[Address(part, NO_TOWER, layer, kind)] = first
            continue
        # A line without a tower is of all towers that have none of their own.
        all_told = by_tower.get(NO_TOWER, usual) != usual
        for tower, places in by_tower.items():
            if all_told or places != usual:
                exceptions[Address(part, tower, layer, kind)] = places
    _join(exceptions, lambda address: address._replace(layer=None), layers)
    _join(exceptions, lambda address: address._replace(type=None), kinds)
    return exceptions


def _counted(places: Mapping[str, int]) -> dict[str, int]:
    """The places; ops that are all in one may be any number."""
    return dict.fromkeys(places, ANY_NUMBER) if len(places) == 1 else dict(places)


def _join(
    exceptions: dict[Address, dict[str, int]],
    wider: Callable[[Address], Address],
    all_of: Mapping[Hashable, set[str]],
) -> None:
    """One line for all layers of a type, or all types of a layer, where these are alike.

    Args:
        exceptions: in which lines are joined.
        wider: gives the address of all layers, or of all types.
        all_of: what there is of these, by part and the other of the two.
    """
    alike: dict[tuple[Address, frozenset[tuple[str, int]]], list[Address]] = defaultdict(list)
    for address, places in exceptions.items():
        if address.layer is not None and address.type is not None:
            alike[wider(address), frozenset(places.items())].append(address)
    for (joined, _), similar in alike.items():
        other = joined.type if joined.layer is None else joined.layer
        if 1 < len(similar) == len(all_of[joined.part, other]):
            exceptions[joined] = exceptions[similar[0]]
            for address in similar:
                del exceptions[address]
