"""Programs: a builder function, the step that it returns, and the graph that it builds.

A `Target` is a text of the user, parsed. A `Loadable` is a program or graph that is not built yet:
mostly a `Program`, whose function is called in this process, or a `Script`, which runs in its own
process. A `CapturedProgram` is built.
"""

from __future__ import annotations

import inspect
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, final, runtime_checkable

from placement_checks.core.builder_result import is_in_graph, parse_builder_result
from placement_checks.core.cluster_spec import RecordedServer
from placement_checks.core.errors import InputError, UsageError
from placement_checks.core.machines import GpuLimit, Machine
from placement_checks.core.missing import FixedGpus, Missing
from placement_checks.core.op_types import OVERWRITES, PASSES_VALUE, RESTORES, is_update
from placement_checks.core.placement import Placement, producer_of
from placement_checks.core.ranks import RankRecord
from placement_checks.core.target import NONE, Arguments, Loadable, Script, Target
from placement_checks.util.text import did_you_mean, join_and, printable

if TYPE_CHECKING:
    import numpy as np


# `batch(rng, n)`: arrays of n rows by the names of the inputs.
BatchFunction: TypeAlias = "Callable[[np.random.Generator, int], Mapping[str, Any]]"
# A batch function, a target that names one, or a saved case.
Batch: TypeAlias = "str | Path | BatchFunction | None"
# Whatever a user may name or pass as a program; `targets.forms.resolve` makes it `Loadable`.
TargetLike: TypeAlias = "str | Path | Loadable | LiveGraph | Callable[..., object]"

_NO_LOADER = Missing("it cannot be built again")
_KERAS = frozenset({"keras", "tf_keras"})
_ANY = {"options": inspect.Parameter("options", inspect.Parameter.VAR_KEYWORD)}


@dataclass(frozen=True, repr=False)
class Step:
    """A training step, as a builder may return it. A mapping with these keys is equivalent.

    Attributes:
        train_op: the op or tensor of one training step.
        loss: a scalar tensor, or a list with one for each tower.
        inputs: a mapping of names to placeholders for each tower, or a single mapping.
        gradients: ``[(gradient, variable)]``, if the apply op does not show them.
        config: a ``ConfigProto`` or a mapping of its fields.
        policy: deviations that the program declares, ``{rule: {field: value}}``.
    """

    train_op: Any = None
    loss: Any = None
    inputs: Sequence[Mapping[str, Any]] | Mapping[str, Any] | None = None
    gradients: Sequence[tuple[Any, Any]] | None = None
    config: Any = None
    policy: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __repr__(self) -> str:
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        given = (
            f"{name}={_described(value)}"
            for name, value in values.items()
            if value is not None and not (isinstance(value, Mapping) and not value)
        )
        return printable(f"Step({', '.join(given)})")

    @property
    def soft(self) -> bool:
        """Whether the session allows soft placement."""
        if isinstance(self.config, Mapping):
            return bool(self.config.get("allow_soft_placement", False))
        return bool(getattr(self.config, "allow_soft_placement", False))

    @staticmethod
    def from_result(returned: object, program: str) -> Step:
        """Parse the result of a builder. Unknown keys of a mapping are ignored.

        In a tuple or list, ops that update variables are the step, and scalar float tensors are
        losses; see `core.builder_result.Returned`.

        Raises:
            InputError: the result is not None, an op, a tensor, a `Step`, a mapping, nor a tuple
                or list with ops or tensors.
        """
        if returned is None:
            return Step()
        if isinstance(returned, Step):
            step = returned
        elif isinstance(returned, Mapping):
            keys = {entry.name for entry in fields(Step)}
            step = Step(**{key: value for key, value in returned.items() if key in keys})
        elif is_in_graph(returned):
            step = Step(train_op=returned)
        elif isinstance(returned, list | tuple) and (parts := parse_builder_result(returned)):
            step = Step(parts.train_ops or None, parts.losses or None)
        else:
            raise InputError(
                program,
                f"the builder returned {_described(returned)}, which does not describe a step",
                "return nothing, the train op, or a mapping such as {'train_op': …, 'loss': …}",
            )
        if not isinstance(step.policy, Mapping) or not all(
            isinstance(values, Mapping) for values in step.policy.values()
        ):
            raise InputError(
                program,
                f"its policy is {_described(step.policy)}",
                "write it like {'variables-on-host': {'device': '/gpu:0'}}",
            )
        return step


@dataclass(frozen=True, repr=False)
class Program(Loadable):
    """A builder function and its origin.

    Attributes:
        name: the name in reports.
        build: the function. It builds into the default graph or a graph of its own.
        folder: its directory. If it is in ``site-packages``, its files are the user's code.
        function: the user's function, if ``build`` is a wrapper for it.
        target: the target that names the function, or None.
        argv: the command-line arguments, for flags.
        visible_gpus: the value of CUDA_VISIBLE_DEVICES that its import has set; None without one.
    """

    name: str
    build: Callable[..., object]
    folder: Path | None = None
    function: Callable[..., object] | None = None
    target: Target | None = None
    argv: Sequence[str] = ()
    visible_gpus: str | None = None

    def __repr__(self) -> str:
        return printable(f"Program({self.name})")

    @property
    def given(self) -> Arguments:
        """The arguments that the target names."""
        return self.target.arguments if self.target else NONE

    def is_same(self, other: object) -> bool:
        """Whether both programs are the same function of the user, with the same arguments."""
        if not isinstance(other, Program):
            return False
        same = (self.function or self.build) is (other.function or other.build)
        return same and self.given == other.given

    @staticmethod
    def from_function(build: Callable[..., object]) -> Program:
        """The program of a function, such as one that a test has imported.

        Raises:
            UsageError: ``build`` is not callable, or is a model or layer of Keras.
        """
        if not callable(build):
            raise UsageError(
                _described(build),
                "is not a program",
                "pass the function that builds the graph, not its result; or a tf.Graph, the path "
                "of a saved graph, or a target such as 'train.py:build_towers'",
                is_predicate=True,
            )
        if any(str(base.__module__).partition(".")[0] in _KERAS for base in type(build).__mro__):
            raise UsageError(
                _described(build),
                "is a part of Keras, not the function that builds the program",
                "pass a function that returns it with its data: def build(): return "
                "{'model': model, 'x': x, 'y': y, 'batch': 64}",
                is_predicate=True,
            )
        name = getattr(build, "__qualname__", type(build).__qualname__)
        try:
            folder = Path(inspect.getfile(inspect.unwrap(build))).resolve().parent
        except TypeError:  # a callable object or a partial
            folder = None
        return Program(name, build, folder)

    @property
    def takes_num_gpus(self) -> bool:
        """Whether the builder gets the number of GPUs, by ``{gpus}`` or as ``num_gpus``."""
        return self.given.uses_gpus or self._is_passed_num_gpus

    @property
    def why_fixed(self) -> Missing | None:
        """Why it cannot be built for another number of GPUs; None if it can."""
        if self.takes_num_gpus:
            return None
        if "num_gpus" in self.given.names:
            return Missing("the target sets num_gpus", option="write num_gpus={gpus} there")
        return FixedGpus("the builder has no argument num_gpus")

    @property
    def _is_passed_num_gpus(self) -> bool:
        if self.given.uses_gpus or "num_gpus" in self.given.names:
            return False
        parameters = self._parameters().values()
        return any(
            parameter.kind is parameter.VAR_KEYWORD
            or (parameter.name == "num_gpus" and _by_keyword(parameter))
            for parameter in parameters
        )

    def arguments(self, num_gpus: int) -> dict[str, Any]:
        """The keyword arguments for a call of the builder.

        Raises:
            InputError: the builder requires an argument that is not ``num_gpus`` and not named by
                the target.
        """
        arguments = self.given.for_gpus(num_gpus)
        if self._is_passed_num_gpus:
            arguments["num_gpus"] = num_gpus
        missing = [
            parameter
            for parameter in self._parameters().values()
            if parameter.default is parameter.empty
            and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
            and not (parameter.name in arguments and _by_keyword(parameter))
        ]
        if not missing:
            return arguments
        names = [parameter.name for parameter in missing]
        fix = "give it a default, or wrap it in a function that takes at most num_gpus"
        if self.function is not None and all(map(_by_keyword, missing)):
            values = ", ".join(f"{name}=…" for name in names)
            fix = f"add ({values}) to the function's name, or give it a default"
        raise InputError(
            self.name,
            f"the builder requires {' and '.join(map(repr, names))}, which the target lacks",
            fix,
        )

    def check_given(self, by_position: int = 0) -> None:
        """Check that the function accepts the arguments that the target names.

        Args:
            by_position: the number of further arguments, which are passed by position.

        Raises:
            InputError: the function lacks a parameter of that name.
        """
        parameters = self._parameters(unknown=_ANY).values()
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            return
        named = list(filter(_by_keyword, list(parameters)[by_position:]))
        takes = [parameter.name for parameter in named]
        for name in self.given.names:
            if name not in takes:
                near = did_you_mean(name, takes)
                raise InputError(
                    self.name,
                    f"the function takes no '{name}'",
                    f"{near and f'{near} '}it takes {join_and(takes) or 'no arguments by name'}",
                )

    def _parameters(
        self, *, unknown: Mapping[str, inspect.Parameter] = MappingProxyType({})
    ) -> Mapping[str, inspect.Parameter]:
        try:
            return inspect.signature(self.build).parameters
        except (TypeError, ValueError):  # a builtin without a signature
            return unknown


def _by_keyword(parameter: inspect.Parameter) -> bool:
    return parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)


_ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # differs from run to run


def _described(value: object) -> str:
    text = _ADDRESS.sub("", repr(value))
    return f"{text[:60]}… ({type(value).__name__})" if len(text) > 60 else text


class Gradient(NamedTuple):
    """A gradient by the names of its tensors; ``indices`` is ``""`` for a dense gradient."""

    values: str
    indices: str = ""


class AppliedGradient(NamedTuple):
    """A gradient that a variable receives, declared by the program or passed to an optimizer."""

    gradient: Gradient | None  # the gradient; None if there is none, or if it is in a body
    variable: str  # the name of the op that holds the variable
    optimizer: str  # the class of the optimizer; `""` if the gradient is only declared
    in_body: bool = False  # whether the gradient is in the body of a branch, loop or function


@dataclass(frozen=True)
class InitialState:
    """The initial values of the variables of a graph, by the names of ops.

    Attributes:
        initializers: the initializer op of each variable.
        local_initializers: the initializer op of each local variable, which may depend on other
            variables.
        values: the initial values of variables without an initializer op.
        tables: the ops that fill lookup tables.
        mirrors: for each copy of a later replica, the variable that the copy mirrors.
        unsynchronized: variables that each replica changes separately, and that are combined when
            they are read, such as the variables of metrics.
    """

    initializers: Mapping[str, str] = field(default_factory=dict)
    local_initializers: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
    tables: Sequence[str] = ()
    mirrors: Mapping[str, str] = field(default_factory=dict)
    unsynchronized: frozenset[str] = frozenset()

    @property
    def compared(self) -> Set[str]:
        """The variables with initial values, except local variables, such as those of metrics."""
        return self.initializers.keys() | self.values.keys()


class ProgramGraph(Protocol):
    """The graph of a program; the room `graph` implements it."""

    @property
    def graph_def(self) -> Any:
        """The ``GraphDef``, which is never changed."""

    @property
    def live(self) -> Any:
        """The ``tf.Graph``; None if it does not belong to this process."""

    def read_placement(self, program: str, *, gpus: int, soft: bool) -> Placement:
        """The placement that the graph requests.

        Raises:
            InputError: the graph cannot be placed.
        """


class Loader(Protocol):
    """Builds a program again."""

    def load_for_one_gpu(self) -> CapturedProgram | Missing:
        """Build the program for one GPU, or return the earlier build."""


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class CapturedProgram:
    """A program as built for a number of GPUs until its first training step, or read from a file.

    Attributes:
        name: the name in reports.
        program: the builder or script; missing for a file, which cannot be built again.
        gpus: the number of GPUs.
        source: the graph.
        soft: whether soft placement is allowed.
        step: the step that the builder returned, or that the program was about to run.
        initial: the initial values of the variables.
        applied: the gradients that the program declares or passed to optimizers.
        fed: the values fed to the first training step, arrays by the names of tensors (``x:0``);
            empty if the program was not captured, or feeds nothing.
        sets_fed_values: whether a run before the step set variables to fed values.
        step_count: the number of different training steps that alternate, as in GANs.
        notes: notes for reports, besides the verdicts.
        gradients_inside: the place and the fix if all gradients are taken inside a loop or another
            op; else ``""``.
        asked_for_gpus: whether the program asked for the number of GPUs, or takes it as an
            argument.
        visible: how many GPUs the program makes visible to its process; None if it hides none.
        server: the server that the program created as a task of a cluster; None without one.
        is_worker: whether the program's strategy covers several tasks of the cluster.
        rank: what the program did as one rank of a Horovod program; None for any other program.
        on_one_host: a program of several workers, rebuilt for one host with all their GPUs, so
            that it can run; None for any other program.
        loader: builds the same program for one GPU.
    """

    name: str
    program: Loadable | Missing = field(repr=False)
    gpus: int
    source: ProgramGraph = field(repr=False)
    soft: bool = False
    step: Step = field(default=Step(), repr=False)
    initial: InitialState = field(default=InitialState(), repr=False)
    applied: Sequence[AppliedGradient] = field(default=(), repr=False)
    fed: Mapping[str, Any] = field(default_factory=dict, repr=False)
    sets_fed_values: bool = False
    step_count: int = 1
    notes: Sequence[str] = ()
    gradients_inside: str = ""
    asked_for_gpus: bool = False
    visible: GpuLimit | None = None
    server: RecordedServer | None = None
    is_worker: bool = False
    rank: RankRecord | None = None
    on_one_host: CapturedProgram | None = None
    loader: Loader | Missing = _NO_LOADER

    @property
    def short_name(self) -> str:
        """The name without command-line arguments, for messages below the full name."""
        return self.program.target.name if isinstance(self.program, Script) else self.name

    @property
    def graph_def(self) -> Any:
        """The ``GraphDef``, which is never changed."""
        return self.source.graph_def

    @cached_property
    def requested(self) -> Placement:
        """The placement with the requested devices.

        Raises:
            InputError: the graph cannot be placed.
        """
        placement = self.source.read_placement(self.name, gpus=self.gpus, soft=self.soft)
        applied: dict[str, list[str]] = defaultdict(list)
        for received in self.applied:
            if received.gradient is not None:
                tensor = received.gradient.values.removesuffix(":0")
                applied[received.variable].append(tensor)
        step = placement.step._replace(
            applied_gradients=applied, constants=dict(self._constants(placement))
        )
        return replace(placement, step=step)

    def _constants(self, placement: Placement) -> Iterator[tuple[str, float]]:
        """The known values of scalar variables that no op changes after their initialization.

        Checkpoints are assumed to hold the initial values.
        """
        scalars = [each.name for each in placement.variables if each.shape == ()]
        ops, initial = placement.ops, self.initial
        initializers = {**initial.local_initializers, **initial.initializers}
        assigned: dict[str, list[str]] = {name: [] for name in scalars}
        for op in ops.values() if scalars else ():
            if is_update(op.type) and (variable := producer_of(op.inputs[0])) in assigned:
                source = _source(placement, op.inputs[1]) if op.type in OVERWRITES else ""
                if initializers.get(variable) == op.name and not self.sets_fed_values:
                    assigned[variable].insert(0, source)
                elif not source or ops[source].type not in RESTORES:
                    assigned[variable].append("")
        for name, sources in assigned.items():
            value = initial.values.get(name)
            if (
                not sources
                and value is not None
                and value.shape == ()
                and value.dtype.kind in "fiu"
            ):
                yield name, float(value)
            elif len(sources) == 1 and sources[0]:
                known = placement.details.value(sources[0])
                if known is not None and known[1] == () and isinstance(known[2], (int, float)):
                    yield name, float(known[2])

    @property
    def v1(self) -> bool:
        """Whether ``import tensorflow`` gives the program TensorFlow 1."""
        return self.program.v1 if self.program else False

    @property
    def gpu_limits(self) -> Iterator[GpuLimit]:
        """The settings by which TensorFlow uses only some GPUs; none for a rank of Horovod."""
        if self.rank is None:
            if self.visible is not None:
                yield self.visible
            yield from GpuLimit.of_session(self.requested.step.session or {})

    @property
    def machine(self) -> Machine | None:
        """The cluster of the server that the program created; None without a cluster."""
        if self.rank is not None:
            return Machine.of_ranks(self.rank.rank.size)
        if self.server is None or self.server.is_alone:
            return None
        machine = Machine.of_cluster(self.server.cluster, self.gpus)
        return replace(machine, stated_master=(self.server.job, self.server.task))


def _source(placement: Placement, tensor: str) -> str:
    """The op that computes a value, before ops that only pass it on."""
    name = producer_of(tensor)
    while (op := placement.ops[name]).type in PASSES_VALUE:
        name = producer_of(op.inputs[0])
    return name


@dataclass(eq=False)
class WatchedCode(Loadable):
    """The code of a ``with watch()`` block. It is a target after the block has ended.

    Attributes:
        name: the name in reports.
        built: the program at its first training step; None while the block runs.
    """

    name: str
    built: CapturedProgram | None = None


@runtime_checkable
class LiveGraph(Protocol):
    """A ``tf.Graph``, which this room does not import."""

    def as_graph_def(self) -> Any: ...


@dataclass(frozen=True, eq=False)
class BuiltGraph(Loadable):
    """A graph that the user has built and passes."""

    graph: LiveGraph

    @property
    def why_fixed(self) -> Missing:
        """Why the graph cannot be built for another number of GPUs."""
        return Missing("a graph cannot be built again for one GPU")
