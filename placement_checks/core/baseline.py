"""Baselines: the expected devices of a program, and differences from them.

An op has an *address*: its part of the step, tower, layer and type. The address does not depend on
the op's name or device. A part has a default place; addresses at other places are exceptions. A
place is a short device name, or a symbol.

`Difference` is the result of a comparison; `Changes` collects its entries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, Literal, NamedTuple

from placement_checks.core.devices import Device
from placement_checks.core.placement import Tensor

TOWER: Final = "tower"  # symbol: the device of the tower
VARIABLE: Final = "variable"  # symbol: the device of the layer's variable
NOWHERE: Final = "nowhere"
SYMBOLS: Final = frozenset({TOWER, VARIABLE})
NO_TOWER: Final = -1
ANY_NUMBER: Final = 0

# In the order of a baseline file.
PARTS: Final = (
    *("input", "shared input", "forward", "shared forward", "backward", "shared backward"),
    *("average", "apply", "update", "evaluate", "shared evaluate", "summaries"),
    *("reads", "init", "save", "other"),
)
# Parts with ops that differ between versions of TensorFlow. These ops are not counted.
UNCOUNTED_PARTS: Final = frozenset({"reads", "init", "save", "other"})


class Address(NamedTuple):
    """The address of an op; in an exception, a pattern for addresses."""

    part: str  # the part of the step, one of `PARTS`
    tower: int  # the tower's number; -1 for no tower, or in an exception for all towers
    layer: str | None  # the variable of the layer; `""` for no layer, None for all layers
    type: str | None  # the op type; None for all types


@dataclass(frozen=True)
class HeldVariable:
    """A variable and its device."""

    name: str  # the name of its op
    tensor: Tensor  # its dtype and shape
    place: str  # its device
    slots: tuple[str, ...] = ()  # the device of each slot, sorted
    # The loss terms that its update minimizes, such as `mean`; `""` if not known.
    objective: str = ""

    @property
    def form(self) -> str:
        """``float32[4,?]``; ``float32`` if the rank is unknown."""
        return dtype_and_shape(self.tensor)


class Copies(NamedTuple):
    """Copies between two devices in a step; ``unknown`` counts copies of unknown size."""

    copies: int
    bytes: int
    unknown: int


@dataclass(frozen=True)
class Baseline:
    """The expected devices of a program.

    Attributes:
        program, machine: the names of the program and the machine.
        placer: the source of the placement.
        soft: whether soft placement was allowed.
        versions: the versions of placement_checks and TensorFlow.
        variables: the variables in the order of data flow; slots are listed with their variable.
        towers: the device of each tower.
        defaults: the default device of each part.
        exceptions: for each address, its devices with the number of ops on each device. If there
            is a single device, the number of ops is not limited.
        types: for each part and tower, the number of ops of each type.
        copies: the copies in a step, by source and destination.
    """

    program: str
    machine: str
    placer: str
    soft: bool = False
    versions: Mapping[str, str] = field(default_factory=dict)
    variables: tuple[HeldVariable, ...] = ()
    towers: tuple[str, ...] = ()
    defaults: Mapping[str, str] = field(default_factory=dict)
    exceptions: Mapping[Address, Mapping[str, int]] = field(default_factory=dict)
    types: Mapping[tuple[str, int], Mapping[str, int]] = field(default_factory=dict)
    copies: Mapping[tuple[str, str], Copies] = field(default_factory=dict)


def dtype_and_shape(tensor: Tensor) -> str:
    """Format dtype and shape: ``float32[4,?]``."""
    if tensor.shape is None:
        return tensor.dtype
    dims = ",".join("?" if dim is None else str(dim) for dim in tensor.shape)
    return f"{tensor.dtype}[{dims}]"


@lru_cache(maxsize=65536)
def device_text(device: Device | None) -> str:
    """Format a device for baselines: ``/gpu:0``, ``/job:ps/task:0/cpu:0``."""
    if device is None:
        return NOWHERE
    short = device.short.replace("/replica:0", "")
    return short.replace("/device:CPU:", "/cpu:").replace("/device:GPU:", "/gpu:")


ChangedObject = Literal["variable", "slots", "tower", "objective", "ops", "types"]


@dataclass(frozen=True)
class Change:
    """A change of device or objective, or an object that only one side has."""

    kind: ChangedObject  # the kind of object
    what: str  # the object in words, such as `forward of tower 0, layer head/a`
    old: str  # the device or objective in the baseline; `""` if it is new
    new: str  # the present device or objective; `""` if it is gone
    ops: Sequence[str] = ()  # the names of the ops or variables
    note: str = ""  # further information, shown in parentheses
    where: str | None = None  # the user's line that built the first op; None if unknown
    rules: Sequence[str] = ()  # the rules that the change breaks


class Crossing(NamedTuple):
    """Copies between two devices that have increased."""

    source: str
    to: str
    old: Copies
    new: Copies


@dataclass(frozen=True)
class Difference:
    """The difference between a placement and a baseline; false if the placement is as expected."""

    old: str  # the name of the baseline
    new: str  # the program that was compared with it
    same: int  # the number of ops on the devices that the baseline states
    # Objects on other devices, and variables with other objectives: variables, slots, towers,
    # objectives, then ops by part.
    moved: Sequence[Change] = ()
    new_there: Sequence[Change] = ()  # objects that the baseline lacks
    gone: Sequence[Change] = ()  # objects that only the baseline has
    # The pairs of devices between which a step copies more than before.
    crosses: Sequence[Crossing] = ()
    notes: Sequence[str] = field(default=())  # changes that move no object to another device
    is_partial: bool = False  # whether one of the placements was not read in full

    def __bool__(self) -> bool:
        return bool(self.moved or self.new_there or self.gone)


_MOST_NAMED = 3


@dataclass
class Changes:
    """Changes while they are collected; see `Difference` for the attributes."""

    moved: list[Change] = field(default_factory=list)
    new_there: list[Change] = field(default_factory=list)
    gone: list[Change] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, others: Changes) -> None:
        """Append other changes."""
        self.moved += others.moved
        self.new_there += others.new_there
        self.gone += others.gone
        self.notes += others.notes


def first_few(texts: Sequence[str]) -> str:
    """Join the first few texts."""
    return ", ".join(texts[:_MOST_NAMED]) + (", ..." if len(texts) > _MOST_NAMED else "")
