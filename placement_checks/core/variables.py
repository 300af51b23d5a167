"""The variables of a placement, and whether they are on a given device."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from placement_checks.core.devices import Device
from placement_checks.core.missing import Missing
from placement_checks.util.text import listed, plural, printable

_NAMED = 3  # variables of one device that a line names


class Variable(NamedTuple):
    """One variable.

    Attributes:
        name: the name of its op, without ``:0``.
        dtype: such as ``float32``; ``""`` if only a log names the variable.
        shape: the static shape. Unknown dimensions are None; a shape of unknown rank is None.
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...] | None


class _Placed(Protocol):
    """The part of `core.placement.Op` that this module uses."""

    @property
    def assigned(self) -> Device | None: ...


class Variables(tuple[Variable, ...]):
    """The variables of a placement with their devices, in the order of building."""

    _ops: Mapping[str, _Placed]
    _assigned: Literal[True] | Missing

    def __new__(
        cls,
        variables: Iterable[Variable] = (),
        ops: Mapping[str, _Placed] | None = None,
        assigned: Literal[True] | Missing = True,
    ) -> Variables:
        """Create from a list of variables.

        Args:
            variables: the variables.
            ops: the ops of the placement by name.
            assigned: True if the ops have assigned devices; else the reason.
        """
        made = super().__new__(cls, variables)
        made._ops = ops or {}
        made._assigned = assigned
        return made

    def on(self, *devices: Device | str) -> OnDevice:
        """Whether all variables are assigned to a device: ``assert variables.on("/cpu:0")``.

        Args:
            devices: full or partial device names. Each variable must be on one of them.

        Raises:
            InputError: a text is not a device name.
        """
        patterns = [Device.parse(each) if isinstance(each, str) else each for each in devices]
        there: list[Variable] = []
        elsewhere: dict[Variable, Device | None] = {}
        for variable in self:
            op = self._ops.get(variable.name)
            device = op.assigned if op else None
            if device and any(device.matches(pattern) for pattern in patterns):
                there.append(variable)
            else:
                elsewhere[variable] = device
        return OnDevice(tuple(patterns), there, elsewhere, self._assigned)

    def __repr__(self) -> str:
        names = ", ".join([*(each.name for each in self[:_NAMED]), *["…"][: len(self) > _NAMED]])
        return printable(f"Variables({plural(len(self), 'variable')}: {names})")


@dataclass(frozen=True, repr=False)
class OnDevice:
    """The answer of `Variables.on`, which is false if there are no variables or no devices."""

    devices: Sequence[Device]  # the given devices
    there: Sequence[Variable]  # the variables on one of these devices
    # The other variables with their devices; None for a variable that is not placed.
    elsewhere: Mapping[Variable, Device | None]
    assigned: Literal[True] | Missing  # True if devices were assigned; else the reason

    def __bool__(self) -> bool:
        return bool(self.there) and not self.elsewhere

    def __repr__(self) -> str:
        return printable(f"<{self._answer}>")

    @property
    def _answer(self) -> str:
        total = len(self.there) + len(self.elsewhere)
        where = " or ".join(device.short or str(device) for device in self.devices)
        if not total:
            return f"no variables, so none on {where}"
        if not self.assigned:
            return f"the devices of the variables are unknown: {self.assigned}"
        if not self.elsewhere:
            return f"{'all ' if total > 1 else ''}{plural(total, 'variable')} on {where}"
        groups: dict[Device | None, list[str]] = defaultdict(list)
        for variable, device in self.elsewhere.items():
            groups[device].append(variable.name)
        parts = (
            f"{listed(names, _NAMED)} {f'on {device.short}' if device else 'not placed'}"
            for device, names in groups.items()
        )
        return f"{len(self.elsewhere):,} of {plural(total, 'variable')} not on {where}: " + (
            "; ".join(parts)
        )
