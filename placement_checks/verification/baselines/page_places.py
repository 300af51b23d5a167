"""Where a baseline lets ops be, by its lines alone, and the devices that its symbols stand for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from placement_checks.core.baseline.values import (
    ANY_NUMBER,
    NO_TOWER,
    TOWER,
    VARIABLE,
    Address,
    Baseline,
)
from placement_checks.verification.baselines.allowed import excepted
from placement_checks.verification.baselines.telling import OWN

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


class SaidPlaces:
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
        places = excepted(
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


def left_and_filled(
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
