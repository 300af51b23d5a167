"""A placement: for every op what the program requested and what TensorFlow assigned.

Needs no TensorFlow: `capture` builds placements from graphs, a test can build one by hand.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from placement_checks.devices import LOCALHOST, Device
from placement_checks.machines import Machine

TRAINABLE = "trainable_variables"  # tf.compat.v1.GraphKeys.TRAINABLE_VARIABLES
GLOBAL = "variables"  # tf.compat.v1.GraphKeys.GLOBAL_VARIABLES

VARIABLE_TYPES = frozenset({"VarHandleOp", "VariableV2", "Variable", "AutoReloadVariable"})
FOLLOWERS = frozenset({"ReadVariableOp", "VarIsInitializedOp"})
MOST_REFUSALS = 50  # how often the placer is asked again after a refusal
_PASSES_ON = frozenset(
    {"Identity", "ReadVariableOp", "Enter", "RefEnter", "Switch", "RefSwitch", "Cast"}
)
_SHAPE_ONLY = frozenset({"Shape", "ShapeN", "Size", "Rank", "ZerosLike", "OnesLike"})
_NO_READ = re.compile(
    r"Assign|Apply|Scatter(?!Nd$)|IsInitialized|IsVariableInitialized|Save|Restore|Destroy"
    r"|VariableShape"
)


class Op(NamedTuple):
    """One op.

    Attributes:
        name: unique in the graph; ops of a function body are named ``call/body op``.
        type: TensorFlow's op type, such as ``MatMul``.
        requested: the device that the program asked for; false where it asked for none.
        inputs: ``op``, ``op:1`` or ``^op`` (a control edge), as a GraphDef has them.
        assigned: where the placer put it; None where no placer answered.
        colocated: names of the ops it is bound to (``_class``), its own left out.
        why_not: why it did not get the device it asked for; ``""`` where it did.
        bound: whether the reason is another op, which it is bound to.
        call: the op whose function body it is in; ``""`` for an op of the graph itself.
    """

    name: str
    type: str
    requested: Device = Device()
    inputs: Sequence[str] = ()
    assigned: Device | None = None
    colocated: Sequence[str] = ()
    why_not: str = ""
    bound: bool = False
    call: str = ""


class Variable(NamedTuple):
    """One variable; ``name`` is that of its op, without ``:0``. Unknown dimensions are None."""

    name: str
    dtype: str
    shape: tuple[int | None, ...] | None


class Refusal(NamedTuple):
    """An op that the placer would not place, with its own words."""

    op: str
    message: str


class Tower(NamedTuple):
    """The copy of the model on one device: which variables it reads, and by which op."""

    device: Device
    reads: Mapping[str, str]


class Frame(NamedTuple):
    """A line of the user's that had a part in building an op."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Placement:
    """Where the ops of one program are.

    Attributes:
        program: what it is called in reports.
        ops: every op by name, in the order in which the graph was built.
        variables: the variables among them.
        collections: names of variables by the key of their collection (`TRAINABLE`, `GLOBAL`).
        machine: the devices it was placed on; None for a placement that was only requested.
        placer: who assigned the devices: ``phantom``, ``session``, ``log``, or None for nobody.
        soft: whether the placer was allowed to go elsewhere than asked.
        unplaced: why nobody assigned devices.
        unasked: why requests and inputs are not known, and only what was assigned is.
        unlisted: why the machine may have more devices than ``machine`` has.
        refusals: what the placer would not place as asked; the rest is then placed softly.
        alone: the same program built for one GPU.
        not_alone: why there is no such build.
        policy: what the program does differently on purpose, ``{rule: {field: value}}``.
        frames: looks up the user's source lines of an op, the outermost first.
    """

    program: str
    ops: Mapping[str, Op] = field(repr=False)
    variables: Sequence[Variable] = field(default=(), repr=False)
    collections: Mapping[str, Sequence[str]] = field(default_factory=dict, repr=False)
    machine: Machine | None = None
    placer: str | None = None
    soft: bool = False
    unplaced: str = ""
    unasked: str = ""
    unlisted: str = ""
    refusals: Sequence[Refusal] = field(default=(), repr=False)
    alone: Placement | None = field(default=None, repr=False)
    not_alone: str = "it was not built for one GPU"
    policy: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    frames: Callable[[str], Sequence[Frame]] = field(default=lambda _op: (), repr=False)

    @cached_property
    def consumers(self) -> Mapping[str, Sequence[Op]]:
        """The ops that take an output of an op, by its name; control edges count."""
        found: dict[str, list[Op]] = defaultdict(list)
        for op in self.ops.values():
            for producer in {producer_of(source) for source in op.inputs}:
                found[producer].append(op)
        return found

    @cached_property
    def colocations(self) -> Mapping[str, Sequence[str]]:
        """The ops that are bound to an op by ``_class``, by its name."""
        found: dict[str, list[str]] = defaultdict(list)
        for op in self.ops.values():
            for name in op.colocated:
                found[name].append(op.name)
        return found

    def assigned_to(self, pattern: Device) -> Iterator[Op]:
        """The ops that the placer put on a device that matches ``pattern``."""
        return (op for op in self.ops.values() if op.assigned and op.assigned.matches(pattern))

    def where(self, op: str) -> str | None:
        """The user's outermost source line that built ``op``, as ``file:line``."""
        frames = self.frames(op)
        return str(frames[0]) if frames else None

    def readers(self, variable: str) -> Iterator[Op]:
        """The ops that compute with the value of a variable; copies of the value are followed.

        Assignments, optimiser updates, savers and the like do not compute with it.
        """
        seen = {variable}
        todo = [variable]
        while todo:
            for op in self.consumers.get(todo.pop(), ()):
                if op.name in seen:
                    continue
                seen.add(op.name)
                if op.type in _PASSES_ON:
                    todo.append(op.name)
                elif not _NO_READ.search(op.type):
                    yield op

    @cached_property
    def towers(self) -> Sequence[Tower]:
        """The GPUs whose ops compute with variables, in the order of their names.

        Known by where the program asked for these ops and by data flow, not by any name.
        """
        order = {name: position for position, name in enumerate(self.ops)}
        reads: dict[Device, dict[str, str]] = defaultdict(dict)
        for variable in self.variables:
            readers = [op for op in self.readers(variable.name) if op.requested.is_gpu]
            for op in sorted(readers, key=lambda op: order[op.name]):
                reads[tower_device(op)].setdefault(variable.name, op.name)
        return [Tower(device, reads[device]) for device in sorted(reads, key=_by_parts)]

    def influenced(self, sources: Iterable[str]) -> set[str]:
        """The ops whose values depend on the values of ``sources``.

        Neither control edges nor ops that take only the shape of a value pass an influence on.
        """
        todo = list(sources)
        seen: set[str] = set()
        while todo:
            name = todo.pop()
            for op in self.consumers.get(name, ()):
                if op.name in seen or op.type in _SHAPE_ONLY:
                    continue
                if any(producer_of(each) == name for each in op.inputs if each[0] != "^"):
                    seen.add(op.name)
                    todo.append(op.name)
        return seen


def tower_device(op: Op) -> Device:
    """The GPU that ``op`` asks for; one without a job is the local host's."""
    return op.requested if op.requested.job else op.requested.over(LOCALHOST)


def producer_of(source: str) -> str:
    """The op that an input names: ``conv:1`` and ``^conv`` are both of ``conv``."""
    return source.removeprefix("^").partition(":")[0]


def _by_parts(device: Device) -> tuple[str, int, str, int]:
    return (device.job or "", device.task or 0, device.type or "", device.index or 0)
