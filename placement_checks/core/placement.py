"""A placement: for every op the device that the program requested, and the assigned one.

Needs no TensorFlow: `loading` reads placements from graphs, a test can build one by hand.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from operator import attrgetter
from typing import Any, Final, Literal, NamedTuple, TypeVar, cast, final

from placement_checks.core.devices import Device
from placement_checks.core.machines import Machine
from placement_checks.core.missing import Missing
from placement_checks.core.strategies import Strategy
from placement_checks.core.variables import Variables
from placement_checks.util.text import plural, printable

TRAINABLE = "trainable_variables"  # tf.compat.v1.GraphKeys.TRAINABLE_VARIABLES
GLOBAL = "variables"  # tf.compat.v1.GraphKeys.GLOBAL_VARIABLES

NOT_ASKED: Final = Missing("no placer was asked")
Placer = Literal["phantom", "session", "log"]  # who assigned devices
MAX_REFUSALS = 50  # in one graph; the placer stops at each, and is then asked again


class Op(NamedTuple):
    """One op.

    Attributes:
        name: unique in the graph; ops of a function body are named ``call/body op``.
        type: TensorFlow's op type, such as ``MatMul``.
        requested: the device that the program requested; false where it requested none.
        inputs: ``op``, ``op:1`` or ``^op`` (a control edge), as a GraphDef has them.
        assigned: where the placer put it; None where it was not placed.
        colocated: names of the ops it is bound to (``_class``), its own left out.
        fallback_reason: why it did not get the requested device; ``""`` where it did.
        fell_with_another: whether the reason is another op, which it is bound to.
        caller: the op whose function body it is in; ``""`` for an op of the graph itself.
    """

    name: str
    type: str
    requested: Device = Device()
    inputs: Sequence[str] = ()
    assigned: Device | None = None
    colocated: Sequence[str] = ()
    fallback_reason: str = ""
    fell_with_another: bool = False
    caller: str = ""

    def __repr__(self) -> str:
        asks = f"asks for {self.requested.short}" if self.requested else "asks for no device"
        where = f"on {self.assigned.short}" if self.assigned else "not placed"
        return printable(f"Op({self.name} ({self.type}): {asks}, {where})")


class Kind(NamedTuple):
    """What many ops have in common: their type, and the devices that they request and have."""

    type: str
    requested: Device
    assigned: Device | None


class Refusal(NamedTuple):
    """An op that the placer refused to place, with its message."""

    op: str
    message: str


class Frame(NamedTuple):
    """A line of the user's that had a part in building an op."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class Tensor(NamedTuple):
    """One output of an op.

    Attributes:
        dtype: its name, such as ``float32``.
        shape: its static shape; an unknown dimension is None, and so is a shape of unknown rank.
    """

    dtype: str
    shape: tuple[int | None, ...] | None

    @property
    def bytes(self) -> int | None:
        """Its size in bytes; None where a dimension is unknown, or the length of its strings."""
        bits = _bits(self.dtype)
        if not bits or self.shape is None or None in self.shape:
            return None
        return math.ceil(math.prod(dim or 0 for dim in self.shape) * bits / 8)


@cache
def _bits(dtype: str) -> int:
    """The size of one value; 0 where values differ in size."""
    return 8 if dtype == "bool" else int((re.findall(r"\d+", dtype) or [0])[0])


class Body(NamedTuple):
    """The body of a function that an op is given, such as the one a dataset maps."""

    digest: str


class Details:
    """What else is known of a single op. This base class knows nothing.

    It is looked up when a rule needs it: to read it for every op costs as much as placing.
    """

    def frames(self, _op: str) -> Sequence[Frame]:
        """The user's source lines that built the op, the outermost first."""
        return ()

    def device_line(self, _op: str) -> Frame | None:
        """The user's ``with tf.device(…)``, or device function, that decided what it asks for."""
        return None

    def outputs(self, _op: str) -> Sequence[Tensor]:
        """What the op yields; empty where that is not known."""
        return ()

    def attributes(self, _op: str) -> Mapping[str, Any]:
        """The attributes that make up what the op computes; numbers, texts, tuples and `Body`."""
        return {}

    def value(self, _op: str) -> tuple[Any, ...] | None:
        """The dtype, shape and values of a constant; None if it is large or no constant."""
        return None

    def forward_op(self, _op: str) -> str:
        """The op whose gradient a backward op computes; ``""`` where that is not known."""
        return ""

    def parts_of_keras(self, _op: str) -> Collection[str]:
        """The parts of Keras that the op was made by, of `core.op_types`."""
        return ()


class StepOps(NamedTuple):
    """What is known of one training step, by the names of ops and tensors.

    Attributes:
        train_op: the ops that the program calls one step; empty if it names none.
        train_ops: the ops that optimisers have put into the collection TRAIN_OP.
        losses: the losses that the program reports.
        inputs: the placeholders that it lists, those of each tower together.
        objectives: what it took gradients of, one entry a call, in their order.
        gradients: the ops that yield the gradients of an objective, by the objective's name.
        taken: the ops that yield the gradients it took by a variable, by the variable's name.
        update_ops: the ops of the collection UPDATE_OPS.
        counters: the variables of the collection GLOBAL_STEP.
        backward: the ops that were built while gradients were taken; None where only their names
            show it.
        session: the session configuration, as a mapping; None if the program gives none.
        traced: whether it is a function of TensorFlow 2, which no session runs.
    """

    train_op: Sequence[str] = ()
    train_ops: Sequence[str] = ()
    losses: Sequence[str] = ()
    inputs: Sequence[Sequence[str]] = ()
    objectives: Sequence[str] = ()
    gradients: Mapping[str, Sequence[str]] = {}
    taken: Mapping[str, Sequence[str]] = {}
    update_ops: Sequence[str] = ()
    counters: Sequence[str] = ()
    backward: Collection[str] | None = None
    session: Mapping[str, Any] | None = None
    traced: bool = False


_T = TypeVar("_T")


@final
@dataclass(frozen=True, eq=False, repr=False)
class Placement:
    """Where the ops of one program are.

    Two are equal if both have the same ops, by their names, on the same assigned devices. One that
    was not placed, or not read in full, is equal to itself alone: nobody knows where its ops are.

    Attributes:
        program: what it is called in reports.
        ops: every op by name, in the order in which the graph was built.
        variables: the variables among them.
        collections: names of variables by the key of their collection (`TRAINABLE`, `GLOBAL`).
        machine: the devices it was placed on; None for a placement that was only requested.
        gpus: for how many GPUs the program was built; 0 if that is not known.
        placer: who assigned the devices: ``phantom``, ``session``, ``log``, or None.
        soft: whether soft placement was allowed.
        assigned: whether devices were assigned; else why not.
        requested: whether requests and inputs are known; else why only what was assigned is.
        all_devices: whether the machine has no more devices than ``machine`` has; else why it may.
        complete: whether all was read; else why what was not read in full keeps no rule.
        refusals: the ops that the placer refused; the others are then placed softly.
        step: what is known of its training step.
        strategy: the strategy that made it for several replicas; None where none is known to.
        details: looks up what else is known of an op.
    """

    program: str
    ops: Mapping[str, Op]
    variables: Variables = field(default=Variables())
    collections: Mapping[str, Sequence[str]] = field(default_factory=dict)
    machine: Machine | None = None
    gpus: int = 0
    placer: Placer | None = None
    soft: bool = False
    assigned: Literal[True] | Missing = NOT_ASKED
    requested: Literal[True] | Missing = True
    all_devices: Literal[True] | Missing = True
    complete: Literal[True] | Missing = True
    refusals: Sequence[Refusal] = ()
    step: StepOps = field(default=StepOps())
    strategy: Strategy | None = None
    details: Details = field(default=Details())
    _cache: dict[Any, Any] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        bound = Variables(self.variables, self.ops, self.assigned)
        object.__setattr__(self, "variables", bound)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Placement):
            return NotImplemented
        return self is other or (
            bool(self.assigned and other.assigned and self.complete and other.complete)
            and self.places == other.places
        )

    def __repr__(self) -> str:
        where = f" on {self.machine}" if self.machine else ""
        how = f", {self.placer}" if self.assigned else f", not placed: {self.assigned}"
        ops, variables = plural(len(self.ops), "op"), plural(len(self.variables), "variable")
        return printable(f"Placement({self.program}{where}{how}: {ops}, {variables})")

    @cached_property
    def by_number(self) -> Sequence[Op]:
        """The ops by their number, which is their place in the order of building."""
        return tuple(self.ops.values())

    @cached_property
    def places(self) -> Mapping[str, tuple[Device, ...]]:
        """The assigned devices of each op that has any: one, or in a log several in their order.

        An op that is not assigned is left out.
        """
        devices_of: dict[str, set[Device]] = defaultdict(set)
        for op in self.ops.values():
            if op.assigned:
                devices_of[op.name].add(op.assigned)
        return {name: tuple(sorted(devices)) for name, devices in devices_of.items()}

    @cached_property
    def kinds(self) -> Mapping[Kind, int]:
        """How many ops there are of each kind; kinds are few, so ask them what they can tell."""
        kinds = Counter(map(attrgetter("type", "requested", "assigned"), self.ops.values()))
        return {Kind(*kind): ops for kind, ops in kinds.items()}

    def with_assigned(self, ops: Mapping[str, Op]) -> Placement:
        """The same requests, with assigned devices; what is `cached` of them is kept."""
        return self.knowing(ops=ops, assigned=True)

    def knowing(self, **known: Any) -> Placement:
        """The same requests, of which more is known; what is `cached` of them is kept."""
        other = replace(self, **known)
        vars(other)["_cache"] = self._cache
        return other

    def cached(self, make: Callable[[Placement], _T]) -> _T:
        """``make(self)``, computed once: what several rules want to know of what is requested.

        It may not depend on assigned devices.
        """
        if make not in self._cache:
            self._cache[make] = make(self)
        return cast(_T, self._cache[make])

    @cached_property
    def collected(self) -> Mapping[str, frozenset[str]]:
        """The collections, to look names up in."""
        return {key: frozenset(names) for key, names in self.collections.items()}

    @cached_property
    def colocations(self) -> Mapping[str, Sequence[str]]:
        """The ops that are bound to an op by ``_class``, by its name."""
        bound: dict[str, list[str]] = defaultdict(list)
        for op in self.ops.values():
            for name in op.colocated:
                bound[name].append(op.name)
        return bound

    def assigned_to(self, pattern: Device) -> Iterator[Op]:
        """The ops that the placer put on a device that matches ``pattern``."""
        return (op for op in self.ops.values() if op.assigned and op.assigned.matches(pattern))

    def where(self, op: str) -> str | None:
        """The user's innermost source line that built ``op``, as ``file:line``."""
        frames = self.details.frames(op)
        return str(frames[-1]) if frames else None


def producer_of(source: str) -> str:
    """The op that an input names: ``conv:1`` and ``^conv`` are both of ``conv``."""
    return source.removeprefix("^").partition(":")[0]
