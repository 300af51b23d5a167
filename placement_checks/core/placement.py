"""Placements: the requested and the assigned device of every op of a program.

Needs no TensorFlow: the room `graph` reads placements from graphs, and tests build them by hand.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from operator import attrgetter
from typing import Any, Final, Literal, NamedTuple, TypeVar, cast, final

from placement_checks.core.devices import Device
from placement_checks.core.frames import Frame
from placement_checks.core.machines import Machine
from placement_checks.core.missing import Missing
from placement_checks.core.op_types import COLLECTIVES
from placement_checks.core.strategies import Strategy
from placement_checks.core.variables import Variables
from placement_checks.util.text import plural, printable

TRAINABLE = "trainable_variables"  # tf.compat.v1.GraphKeys.TRAINABLE_VARIABLES
GLOBAL = "variables"  # tf.compat.v1.GraphKeys.GLOBAL_VARIABLES

NOT_ASKED: Final = Missing("devices were not assigned", "use place(…) instead of requested(…)")
Placer = Literal["phantom", "session", "log"]  # the source of assigned devices
MAX_REFUSALS = 50  # per graph; each refusal needs another run of the placer
_MAX_REFUSED_TASKS = 20_000  # in all these runs, which take a millisecond for each task


class Op(NamedTuple):
    """One op.

    Attributes:
        name: the name, unique in the graph. Ops in a function body are named ``call/body op``.
        type: TensorFlow's op type, such as ``MatMul``.
        requested: the requested device; false if the program requests none.
        inputs: ``op``, ``op:1`` or ``^op`` (a control edge), as in a GraphDef. An op in a function
            body reads the inputs of the call instead of the function's arguments.
        assigned: the assigned device; None if the op was not placed.
        colocated: the names of other ops in the op's colocation groups (``_class``).
        fallback_reason: why the op did not get the requested device; ``""`` if it did.
        fell_with_another: whether another op of its colocation group prevents the requested
            device.
        caller: the op that calls the function whose body has this op; ``""`` outside of functions.
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
        asks = f"requests {self.requested.short}" if self.requested else "requests no device"
        where = f"on {self.assigned.short}" if self.assigned else "not placed"
        return printable(f"Op({self.name} ({self.type}): {asks}, {where})")


class OpKind(NamedTuple):
    """The type, requested device and assigned device that many ops share."""

    type: str
    requested: Device
    assigned: Device | None


def most_refusals(machine: Machine | None) -> int:
    """The number of times that the placer is asked for the refusals of a graph on a machine."""
    tasks = len(machine.tasks) if machine else 1
    return max(1, min(MAX_REFUSALS, _MAX_REFUSED_TASKS // max(tasks, 1)))


class Refusal(NamedTuple):
    """An op that the placer refused to place, with the placer's message."""

    op: str
    message: str


class Tensor(NamedTuple):
    """One output of an op.

    Attributes:
        dtype: such as ``float32``.
        shape: the static shape. Unknown dimensions are None; a shape of unknown rank is None.
    """

    dtype: str
    shape: tuple[int | None, ...] | None

    @property
    def bytes(self) -> int | None:
        """The size in bytes; None if a dimension is unknown, or for strings."""
        bits = _bits(self.dtype)
        if not bits or self.shape is None or None in self.shape:
            return None
        return math.ceil(math.prod(dim or 0 for dim in self.shape) * bits / 8)


@cache
def _bits(dtype: str) -> int:
    """The size of one value in bits; 0 for dtypes with values of different sizes."""
    return 8 if dtype == "bool" else int((re.findall(r"\d+", dtype) or [0])[0])


class Body(NamedTuple):
    """The body of a function attribute of an op, such as the function of a dataset's ``map``."""

    digest: str


class Details:
    """Further facts about single ops. This base class knows none.

    Rules look up these facts when needed: reading them for every op would take as long as placing.
    """

    def frames(self, _op: str) -> Sequence[Frame]:
        """The user's source lines that built the op, the outermost first."""
        return ()

    def device_line(self, _op: str) -> Frame | None:
        """The user's ``tf.device`` scope or device function that decided the requested device."""
        return None

    def outputs(self, _op: str) -> Sequence[Tensor]:
        """The outputs of the op; empty if unknown."""
        return ()

    def attributes(self, _op: str) -> Mapping[str, Any]:
        """Attributes that define the op's computation: numbers, strings, tuples and `Body`."""
        return {}

    def value(self, _op: str) -> tuple[Any, ...] | None:
        """The dtype, shape and elements of a constant; None for large constants and other ops."""
        return None

    def digest(self, _op: str) -> str:
        """A digest of a constant of any size; ``""`` for other ops and unknown values.

        Constants with the same digest have the same dtype, shape and elements, also in different
        programs.
        """
        return ""

    def custom_gradient(self, _op: str) -> str:
        """The name of the gradient function that a program has registered for this op alone.

        `tf.custom_gradient` and `tf.Graph.gradient_override_map` set it. ``""`` if the op has the
        gradient of its type.
        """
        return ""

    def forward_op(self, _op: str) -> str:
        """The forward op of a backward op; ``""`` if unknown."""
        return ""

    def parts_of_keras(self, _op: str) -> Collection[str]:
        """The parts of Keras that created the op, from `core.keras_parts`."""
        return ()


UNKNOWN_TENSOR: Final = "?"  # in a `GradientCall`; no op has this name


class GradientCall(NamedTuple):
    """One call of `tf.gradients`, of an optimizer's ``compute_gradients`` or of a gradient tape.

    Tensors are named ``op:0``. Values that are no tensors of the graph, such as the objective of a
    tape that belongs to another function, are `UNKNOWN_TENSOR`.

    Attributes:
        objectives: the tensors whose gradients are taken. The call takes the gradient of the sum
            of their products with ``weights``.
        weights: for each objective, the tensor of ``grad_ys`` or ``output_gradients``; ``""`` for
            ones.
        sources: for each source of the call, the name of its op if it is a variable, or else the
            tensor. Under a strategy, a traced function names the first copy of a variable.
        gradients: for each source, the tensors of its gradient: ``()`` if no objective depends on
            the source, ``(values,)``, or ``(values, indices)`` of `tf.IndexedSlices`.
        stopped: the tensors and variables of ``stop_gradients``, named as the sources.
        ops: the ops that the call built, or that were built for it in the meantime.
    """

    objectives: Sequence[str]
    weights: Sequence[str]
    sources: Sequence[str]
    gradients: Sequence[Sequence[str]]
    stopped: Sequence[str] = ()
    ops: Collection[str] = ()


COMPONENT = "component_"  # begins the last part of the name of a component in `StepOps.arguments`


class StepOps(NamedTuple):
    """One training step: names of its ops and tensors.

    Attributes:
        train_op: the ops that the program names as its step; empty if it names none.
        runs: the ops of ``train_op`` for each run of a session, if a program trains in several
            runs, in turns; empty if one run has all of them.
        train_ops: the ops that optimizers have added to the collection TRAIN_OP.
        losses: the losses that the program reports.
        inputs: the placeholders of each tower, if the program lists them.
        arguments: for each placeholder of ``inputs``, the name that it would have if the step had
            a single tower: placeholders of several towers with one name stand for one argument. It
            is known if a function is traced, or if the graphs of several processes are joined. The
            components of a sparse or ragged tensor are ``x/component_0`` and so on.
        gradient_calls: the calls that took gradients, in order. A gradient function may take
            gradients itself; this is part of the outer call. The next three fields and
            ``backward`` follow from it (`with_gradients`).
        objectives: the tensors whose gradients were computed, one entry per call, in order.
        gradients: for each objective, the ops that produce its gradients.
        gradients_by_variable: for each variable, the ops that produce gradients with respect to
            it.
        update_ops: the ops of the collection UPDATE_OPS.
        counters: the variables of the collection GLOBAL_STEP.
        backward: the ops that were built while gradients were computed; if None, the names of ops
            show which ops these are.
        session: the session configuration as a mapping; None if it is unknown.
        traced: whether the step is a ``tf.function``, which no session runs.
        applied_gradients: for each variable, the gradients that optimizers received, or that the
            program declares, as tensors; gradients in function bodies are left out.
        constants: the values of scalar variables that no op of the graph changes, such as a
            learning rate; unknown values are left out.
    """

    train_op: Sequence[str] = ()
    runs: Sequence[Sequence[str]] = ()
    train_ops: Sequence[str] = ()
    losses: Sequence[str] = ()
    inputs: Sequence[Sequence[str]] = ()
    arguments: Mapping[str, str] = {}
    gradient_calls: Sequence[GradientCall] = ()
    objectives: Sequence[str] = ()
    gradients: Mapping[str, Sequence[str]] = {}
    gradients_by_variable: Mapping[str, Sequence[str]] = {}
    update_ops: Sequence[str] = ()
    counters: Sequence[str] = ()
    backward: Collection[str] | None = None
    session: Mapping[str, Any] | None = None
    traced: bool = False
    applied_gradients: Mapping[str, Sequence[str]] = {}
    constants: Mapping[str, float] = {}

    def with_gradients(self, calls: Sequence[GradientCall]) -> StepOps:
        """Return the step with the calls that took gradients, and all that follows from them."""
        objectives: list[str] = []
        gradients: defaultdict[str, list[str]] = defaultdict(list)
        by_variable: defaultdict[str, list[str]] = defaultdict(list)
        for call in calls:
            of_call = [name for name in call.objectives if name != UNKNOWN_TENSOR]
            objectives += of_call
            for name in of_call:
                gradients[name] += ()  # also without any gradient
            for source, tensors in zip(call.sources, call.gradients, strict=True):
                if tensors and tensors[0] != UNKNOWN_TENSOR:
                    op = producer_of(tensors[0])
                    for name in of_call:
                        gradients[name].append(op)
                    if source != UNKNOWN_TENSOR:
                        by_variable[producer_of(source)].append(op)
        return self._replace(
            gradient_calls=calls,
            objectives=objectives,
            gradients=gradients,
            gradients_by_variable=by_variable,
            backward=frozenset[str]().union(*(call.ops for call in calls)),
        )


_T = TypeVar("_T")


@final
@dataclass(frozen=True, eq=False, repr=False)
class Placement:
    """The devices of all ops of a program.

    Two placements are equal if the same ops, by name, are assigned to the same devices. A
    placement without assigned devices, or a placement that was not read in full, equals only
    itself.

    Attributes:
        program: the name in reports.
        ops: every op by name, in the order of building.
        variables: the variables of the program.
        collections: names of variables by the key of their collection (`TRAINABLE`, `GLOBAL`).
        machine: the machine; None if no devices were assigned.
        gpus: the number of GPUs that the program was built for; 0 if unknown.
        placer: the source of assigned devices: ``phantom``, ``session``, ``log``, or None.
        soft: whether soft placement was allowed.
        assigned: True if devices were assigned; else the reason.
        requested: True if requested devices and inputs are known; else the reason.
        all_devices: True if all devices of the machine are known; else the reason, as for a log.
        complete: True if all ops were read; else the reason, and no rule is kept.
        refusals: the ops that strict placement refused. The other ops are then placed softly.
        step: the training step.
        strategy: the `tf.distribute` strategy of the program; None if unknown.
        results: the tensors that function bodies return, as in `Op.inputs`: for each op that calls
            functions, a sequence by the suffix of the body in the names of its ops: ``""`` for a
            call; ``/then``, ``/else`` and ``/branch0`` for branches; ``/cond`` and ``/body`` for
            a loop. The output with number n of a call, branch or loop has the result n of a body.
            A loop variable in a result is named as in ``loop_variables``.
        loop_variables: for each op in the body or the condition of a ``While`` op that reads loop
            variables, the loop variables by the number of the input. A loop variable is named as
            the output of the loop with its number: ``while:1``. It is the value at the start of
            an iteration. `Op.inputs` has the initial value, which is an input of the loop, in its
            place. Variables that the body returns as they are, such as tensors from outside of
            the loop, always have the initial value and are left out.
        details: looks up further facts about single ops.
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
    results: Mapping[str, Mapping[str, Sequence[str]]] = field(default_factory=dict)
    loop_variables: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
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
        """The ops by number, in the order of building."""
        return tuple(self.ops.values())

    @cached_property
    def places(self) -> Mapping[str, tuple[Device, ...]]:
        """The assigned devices by op, sorted; ops without an assigned device are left out.

        An op in a log may have several devices.
        """
        devices_of: dict[str, set[Device]] = defaultdict(set)
        for op in self.ops.values():
            if op.assigned:
                devices_of[op.name].add(op.assigned)
        return {name: tuple(sorted(devices)) for name, devices in devices_of.items()}

    @cached_property
    def kinds(self) -> Mapping[OpKind, int]:
        """The number of ops of each kind. There are few kinds, so loops over them are fast."""
        kinds = Counter(map(attrgetter("type", "requested", "assigned"), self.ops.values()))
        return {OpKind(*kind): ops for kind, ops in kinds.items()}

    def with_assigned(self, ops: Mapping[str, Op]) -> Placement:
        """The same requests with assigned devices, sharing the results of `cached`."""
        return self.with_fields(ops=ops, assigned=True)

    def with_fields(self, **fields: Any) -> Placement:
        """Return a copy with other fields replaced, which shares the results of `cached`."""
        other = replace(self, **fields)
        vars(other)["_cache"] = self._cache
        return other

    def cached(self, make: Callable[[Placement], _T]) -> _T:
        """Return ``make(self)``, computed once, for analyses that several rules need.

        The result may depend on requests only, not on assigned devices.
        """
        if make not in self._cache:
            self._cache[make] = make(self)
        return cast(_T, self._cache[make])

    @cached_property
    def collected(self) -> Mapping[str, frozenset[str]]:
        """The collections as sets."""
        return {key: frozenset(names) for key, names in self.collections.items()}

    @cached_property
    def colocations(self) -> Mapping[str, Sequence[str]]:
        """For each op, the names of ops that are colocated with it by ``_class``."""
        bound: dict[str, list[str]] = defaultdict(list)
        for op in self.ops.values():
            for name in op.colocated:
                bound[name].append(op.name)
        return bound

    @cached_property
    def collectives(self) -> Sequence[Sequence[str]]:
        """The groups of collectives that run together, because their keys are equal."""
        groups: dict[Hashable, list[str]] = defaultdict(list)
        for op in self.ops.values():
            if op.type in COLLECTIVES:
                attributes = self.details.attributes(op.name)
                keys = [
                    attributes.get(key) for key in ("shared_name", "group_key", "instance_key")
                ]
                inputs = [source for source in op.inputs if not source.startswith("^")]
                values = [self.details.value(producer_of(source)) for source in inputs[1:]]
                groups[op.type, *keys, *values].append(op.name)
        return list(groups.values())

    def assigned_to(self, pattern: Device) -> Iterator[Op]:
        """The ops that are assigned to a device that matches ``pattern``."""
        return (op for op in self.ops.values() if op.assigned and op.assigned.matches(pattern))

    def where(self, op: str) -> str | None:
        """The user's innermost source line that built ``op``, as ``file:line``."""
        frames = self.details.frames(op)
        return str(frames[-1]) if frames else None


def producer_of(source: str) -> str:
    """The op that an input names: ``conv`` for both ``conv:1`` and ``^conv``."""
    return source.removeprefix("^").partition(":")[0]


def with_output(tensor: str) -> str:
    """A tensor with the number of its output: ``conv:0`` for both ``conv`` and ``conv:0``."""
    return tensor if ":" in tensor else f"{tensor}:0"


def tensor_name(op: str, output: int) -> str:
    """The input that reads an output of an op: ``conv`` for the first output, then ``conv:1``."""
    return f"{op}:{output}" if output else op
