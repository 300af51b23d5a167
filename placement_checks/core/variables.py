"""The variables of a placement, and whether they are where a test says."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from placement_checks.core.devices import Device
from placement_checks.core.missing import Missing
from placement_checks.util.text import join_and, plural, printable

_NAMED = 3  # variables of one device that a line names


class Variable(NamedTuple):
    """One variable.

    Attributes:
        name: that of its op, without ``:0``.
        dtype: its name, such as ``float32``; ``""`` where only a log names the variable.
        shape: its static shape; an unknown dimension is None, and so is a shape of unknown rank.
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...] | None


class _Placed(Protocol):
    """An op, as far as this module knows it."""

    @property
    def assigned(self) -> Device | None: ...


class Variables(tuple[Variable, ...]):
    """The variables of a placement in the order of building, which knows where they are."""

    _ops: Mapping[str, _Placed]
    _assigned: Literal[True] | Missing

    def __new__(
        cls,
        variables: Iterable[Variable] = (),
        ops: Mapping[str, _Placed] | None = None,
        assigned: Literal[True] | Missing = True,
    ) -> Variables:
        """Make them of a list.

        Args:
            variables: all of them.
            ops: the ops by name; that of a variable says where it is.
            assigned: whether devices were assigned to these; else why not.
        """
        made = super().__new__(cls, variables)
        made._ops = ops or {}
        made._assigned = assigned
        return made

    def on(self, *devices: Device | str) -> OnDevice:
        """Whether the placer put all of them on a device: ``assert variables.on("/cpu:0")``.

        Args:
            devices: whole or partial names; with several, each variable is on one of them.

        Raises:
            InputError: one is not the name of a device.
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
    """Whether variables are on a device. False too where there are none, or nobody placed them.

    Attributes:
        devices: those that were named.
        there: the variables that are on one of them.
        elsewhere: the others, with their devices; None for one that was not placed.
        assigned: whether devices were assigned; else why not.
    """

    devices: Sequence[Device]
    there: Sequence[Variable]
    elsewhere: Mapping[Variable, Device | None]
    assigned: Literal[True] | Missing

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
            return f"not known where the variables are: {self.assigned}"
        if not self.elsewhere:
            return f"{'all ' if total > 1 else ''}{plural(total, 'variable')} on {where}"
        groups: dict[Device | None, list[str]] = defaultdict(list)
        for variable, device in self.elsewhere.items():
            groups[device].append(variable.name)
        told = (
            f"{_names(names)} on {device.short}" if device else f"{_names(names)} not placed"
            for device, names in groups.items()
        )
        return f"{len(self.elsewhere):,} of {plural(total, 'variable')} not on {where}: " + (
            "; ".join(told)
        )


def _names(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return join_and([*names[:_NAMED], *([f"{more:,} more"] if more > 0 else [])])
