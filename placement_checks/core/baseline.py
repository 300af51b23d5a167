"""What a baseline says: where everything of a program sits.

Ops have *addresses*, which no name, number or device decides: the part of the step, the tower,
the layer and the type. A part has a default place, and the addresses that are elsewhere are
exceptions. A place is a device in short, or a symbol.

How a placement differs from a baseline.

Changes as they are collected: what has moved, is new and is gone, and notes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, Literal, NamedTuple

from placement_checks.core.devices import Device
from placement_checks.core.placement import Tensor

TOWER: Final = "tower"  # the device of the address's tower
VARIABLE: Final = "variable"  # where the address's variable is
NOWHERE: Final = "nowhere"
SYMBOLS: Final = frozenset({TOWER, VARIABLE})
NO_TOWER: Final = -1
ANY_NUMBER: Final = 0

# In the order in which a baseline lists them.
PARTS: Final = (
    *("input", "shared input", "forward", "shared forward", "backward", "shared backward"),
    *("average", "apply", "update", "evaluate", "shared evaluate", "summaries"),
    *("reads", "init", "save", "other"),
)
# Their ops differ from version to version of TensorFlow, and are not counted.
UNCOUNTED_PARTS: Final = frozenset({"reads", "init", "save", "other"})


class Address(NamedTuple):
    """Where an op stands in a program; in an exception, of which ops it tells.

    Attributes:
        part: of the step, one of `PARTS`.
        tower: its number; -1 for none, and in an exception for all.
        layer: the variable; ``""`` for none, None for all.
        type: of the op; None for all.
    """

    part: str
    tower: int
    layer: str | None
    type: str | None


@dataclass(frozen=True)
class HeldVariable:
    """A variable, and where it is.

    Attributes:
        name: that of its op.
        tensor: its dtype and shape.
        place: its device.
        slots: the devices of its slots, one each, sorted.
    """

    name: str
    tensor: Tensor
    place: str
    slots: tuple[str, ...] = ()

    @property
    def form(self) -> str:
        """``float32[4,?]``; ``float32`` where the rank is unknown."""
        return dtype_and_shape(self.tensor)


@dataclass(frozen=True)
class FoldedScope:
    """Variables of one scope that sit alike.

    Attributes:
        scope: what their names begin with; ``""`` for all that have no scope.
        count: how many they are.
        bytes: of all whose size is known.
        digest: of their forms and of their places in the order of the scope.
        place: their device.
        slots: the devices of the slots of each.
    """

    scope: str
    count: int
    bytes: int
    digest: str
    place: str
    slots: tuple[str, ...] = ()


class Copies(NamedTuple):
    """What a step copies from one place to another; ``unknown`` counts those of unknown size."""

    copies: int
    bytes: int
    unknown: int


@dataclass(frozen=True)
class Baseline:
    """Where everything of a program sits.

    Attributes:
        program, machine: what it is, and what it was placed on.
        placer: who placed it.
        soft: whether soft placement was allowed.
        versions: of placement_checks and TensorFlow.
        variables: in the order of data flow, without slots.
        folded: those beyond the first hundreds, by scope.
        towers: the device of each.
        defaults: the place of each part.
        exceptions: what is elsewhere: the places, each with the number of ops that may be there.
            A single place has any number.
        types: how many ops of each type a part has, by part and tower.
        copies: what a step copies, by source and destination.
    """

    program: str
    machine: str
    placer: str
    soft: bool = False
    versions: Mapping[str, str] = field(default_factory=dict)
    variables: tuple[HeldVariable, ...] = ()
    folded: tuple[FoldedScope, ...] = ()
    towers: tuple[str, ...] = ()
    defaults: Mapping[str, str] = field(default_factory=dict)
    exceptions: Mapping[Address, Mapping[str, int]] = field(default_factory=dict)
    types: Mapping[tuple[str, int], Mapping[str, int]] = field(default_factory=dict)
    copies: Mapping[tuple[str, str], Copies] = field(default_factory=dict)


def dtype_and_shape(tensor: Tensor) -> str:
    """The dtype and shape as text: ``float32[4,?]``."""
    if tensor.shape is None:
        return tensor.dtype
    dims = ",".join("?" if dim is None else str(dim) for dim in tensor.shape)
    return f"{tensor.dtype}[{dims}]"


@lru_cache(maxsize=65536)
def device_text(device: Device | None) -> str:
    """A device as baselines write it: ``/gpu:0``, ``/job:ps/task:0/cpu:0``."""
    if device is None:
        return NOWHERE
    short = device.short.replace("/replica:0", "")
    return short.replace("/device:CPU:", "/cpu:").replace("/device:GPU:", "/gpu:")


Kind = Literal["variable", "slots", "tower", "ops", "types"]


@dataclass(frozen=True)
class Change:
    """What is elsewhere, or on one side alone.

    Attributes:
        kind: what it is about.
        what: in words, such as ``forward of tower 0, layer head/a``.
        old: where it was; ``""`` where it was not.
        new: where it is; ``""`` where it is not.
        ops: the names of the ops, or of the variables.
        note: what else there is to know, in brackets.
        where: the user's line that built the first op; None where that is not known.
        rules: those that it breaks.
    """

    kind: Kind
    what: str
    old: str
    new: str
    ops: Sequence[str] = ()
    note: str = ""
    where: str | None = None
    rules: Sequence[str] = ()


class Crossing(NamedTuple):
    """What a step copies from one place to another, where that has grown."""

    source: str
    to: str
    old: Copies
    new: Copies


@dataclass(frozen=True)
class Difference:
    """How a placement differs from a baseline; true where anything sits elsewhere.

    Attributes:
        old: what the baseline is called.
        new: the program that was compared with it.
        same: how many ops are where the baseline says.
        moved: what is elsewhere: variables, slots, towers, then ops by part.
        new_there: what the baseline does not have.
        gone: what only the baseline has.
        crosses: what a step copies now and did not before.
        notes: what has changed without being elsewhere.
    """

    old: str
    new: str
    same: int
    moved: Sequence[Change] = ()
    new_there: Sequence[Change] = ()
    gone: Sequence[Change] = ()
    crosses: Sequence[Crossing] = ()
    notes: Sequence[str] = field(default=())

    def __bool__(self) -> bool:
        return bool(self.moved or self.new_there or self.gone)


_MOST_NAMED = 3


@dataclass
class Changes:
    """What differs, so far.

    Attributes:
        moved: what is elsewhere.
        new_there: what the baseline does not have.
        gone: what only the baseline has.
        notes: what has changed without being elsewhere.
    """

    moved: list[Change] = field(default_factory=list)
    new_there: list[Change] = field(default_factory=list)
    gone: list[Change] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, others: Changes) -> None:
        """Take in others, behind those that are there."""
        self.moved += others.moved
        self.new_there += others.new_there
        self.gone += others.gone
        self.notes += others.notes


def first_few(texts: Sequence[str]) -> str:
    """The first few of them."""
    return ", ".join(texts[:_MOST_NAMED]) + (", ..." if len(texts) > _MOST_NAMED else "")
