"""Unshared variables: towers have one each, as of a mirror that is broken."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from placement_checks.analysis.accumulators import accumulators
from placement_checks.analysis.layouts import layout
from placement_checks.analysis.tower_analysis import analyse
from placement_checks.core.devices import Device
from placement_checks.core.placement import Placement


class Unshared:
    """The unshared variables of a placement; `Placement.cached` keeps it.

    Each is read by one tower alone, another tower has one of the same form, and no sum makes them
    copies of one another. Those that get_variable makes were given names of their own: it is meant
    that each tower has them, on its GPU. Others have them because tf.Variable shares nothing.

    Attributes:
        tower_of: the number of the tower that reads each of them, by its name.
    """

    def __init__(self, placement: Placement) -> None:
        self._towers = analyse(placement).towers
        variables = layout(placement)
        apart = {*variables.copies, *analyse(placement).cached_inputs}
        apart |= accumulators(placement).tower_of.keys()
        named = made_by_get_variable(placement) - apart
        forms: dict[object, dict[str, int]] = defaultdict(dict)
        for variable in placement.variables:
            readers = variables.readers.get(variable.name, 0)
            if readers.bit_count() == 1 and variable.name in named:
                forms[variable[1:]][variable.name] = readers.bit_length() - 1
        self.tower_of: Mapping[str, int] = {
            name: tower
            for by_name in forms.values()
            for name, tower in by_name.items()
            if len(set(by_name.values())) > 1
        }

    def is_of(self, variable: str, device: Device | None) -> bool:
        """Whether a variable is unshared, and a device that of its tower."""
        tower = self.tower_of.get(variable)
        return (
            tower is not None
            and device is not None
            and any(device.matches(gpu) for gpu in self._towers[tower].devices)
        )


def made_by_get_variable(placement: Placement) -> frozenset[str]:
    """The variables that were given an initializer, as get_variable does, and no value."""
    parts = (name.partition("/Initializer/") for name in placement.ops)
    return frozenset(variable for variable, inside, _ in parts if inside)


def unshared(placement: Placement) -> Unshared:
    """The unshared variables of a placement, found once."""
    return placement.cached(Unshared)
