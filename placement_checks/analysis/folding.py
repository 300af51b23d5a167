"""Makes a baseline of a placement: a default place for each part, and the exceptions."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from placement_checks.analysis.folded_variables import folded
from placement_checks.analysis.spread import NONE, Group, Site, Spread
from placement_checks.core.baseline.values import (
    ANY_NUMBER,
    NO_TOWER,
    SYMBOLS,
    TOWER,
    UNCOUNTED_PARTS,
    VARIABLE,
    Address,
    Baseline,
)
from placement_checks.core.op_types import GLUE

# Of two places that explain as many ops, that which says why they are there.
_PREFERRED: Mapping[str, str] = {
    **dict.fromkeys(("input", "forward", "backward", "evaluate"), TOWER),
    **dict.fromkeys(("apply", "reads", "init"), VARIABLE),
}


def baseline_of(spread: Spread) -> Baseline:
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


def is_true(place: str, group: Group, site: Site, spread: Spread) -> bool:
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


def said(group: Group, site: Site, spread: Spread, default: str) -> str:
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
        if not is_true(defaults[group.part], group, site, spread)
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
            counts[said(group, site, spread, defaults[group.part])] += number
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
    for (joined, _), addresses in alike.items():
        other = joined.type if joined.layer is None else joined.layer
        if 1 < len(addresses) == len(all_of[joined.part, other]):
            exceptions[joined] = exceptions[addresses[0]]
            for address in addresses:
                del exceptions[address]
