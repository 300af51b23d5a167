"""Programs: a function that builds a graph, what it returns about a step, and what it built."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, final

from placement_checks.core.builder_result import is_in_graph, parse_builder_result
from placement_checks.core.errors import InputError, UsageError
from placement_checks.core.machines import Machine
from placement_checks.core.missing import Missing
from placement_checks.core.placement import Placement
from placement_checks.core.script import NONE, Arguments, Script
from placement_checks.util.text import did_you_mean, join_and, printable

if TYPE_CHECKING:
    import numpy as np


# `batch(rng, n)`: arrays of n rows by the names of the inputs.
BatchFunction: TypeAlias = "Callable[[np.random.Generator, int], Mapping[str, Any]]"
# What a call may name: a batch function itself, a target that names one, or a saved case.
Batch: TypeAlias = "str | Path | BatchFunction | None"
# A program: its builder, or as the command line names it.
Target: TypeAlias = "str | Path | Program | Script | WatchedCode | Callable[..., object]"

_ANY = {"options": inspect.Parameter("options", inspect.Parameter.VAR_KEYWORD)}


@dataclass(frozen=True, repr=False)
class Step:
    """What a builder may return. A plain mapping with these keys does as well.

    Attributes:
        train_op: one training step, an op or tensor.
        loss: a scalar tensor, or a list with one for each tower.
        inputs: one mapping of names to placeholders for each tower, or a single one.
        gradients: ``[(gradient, variable)]``, where the apply op does not show them.
        config: a ``ConfigProto`` or a mapping of its fields.
        policy: ``{rule: {field: value}}``, what this program does differently on purpose.
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
        """Whether its session allows soft placement."""
        if isinstance(self.config, Mapping):
            return bool(self.config.get("allow_soft_placement", False))
        return bool(getattr(self.config, "allow_soft_placement", False))

    @staticmethod
    def of(returned: object, program: str) -> Step:
        """Read what a builder returned; what is not known is ignored.

        In a tuple or list, the ops that update variables are the step, and scalar tensors of
        floats the losses; `Returned` says which exactly.

        Raises:
            InputError: it is neither None, an op or tensor, a tuple or list with one in it, a
                `Step` nor a mapping.
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
class Program:
    """A builder and where it comes from.

    Attributes:
        name: what it is called in reports.
        build: the function; it builds into the current default graph or one of its own.
        folder: where its source lines are looked for; None for "wherever the user's code is".
        function: the user's own function, where ``build`` calls it as its file was loaded.
        given: the arguments that the target names.
        argv: those of its command line, which flags are read from.
    """

    name: str
    build: Callable[..., object]
    folder: Path | None = None
    function: Callable[..., object] | None = None
    given: Arguments = NONE
    argv: Sequence[str] = ()

    def __repr__(self) -> str:
        return printable(f"Program({self.name})")

    def is_same_function(self, other: Program) -> bool:
        """Whether both are the same function of the user, with the same arguments."""
        same = (self.function or self.build) is (other.function or other.build)
        return same and self.given == other.given

    @staticmethod
    def of(build: Callable[..., object]) -> Program:
        """The program of a function, such as one that a test has imported.

        Raises:
            UsageError: it is not a function.
        """
        if not callable(build):
            raise UsageError(
                _described(build),
                "is not a program",
                "give the function that builds the graph, not what it returns; a tf.Graph, the "
                "path of a saved graph, or a target such as 'train.py:build_towers'",
            )
        name = getattr(build, "__qualname__", type(build).__qualname__)
        try:
            folder = Path(inspect.getfile(inspect.unwrap(build))).resolve().parent
        except TypeError:  # a callable object or a partial
            folder = None
        return Program(name, build, folder)

    @property
    def takes_num_gpus(self) -> bool:
        """Whether its builder is told the number of GPUs: by ``{gpus}``, or as ``num_gpus``."""
        return self.given.uses_gpus or self._is_passed_num_gpus

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
        """The arguments for a call of the builder.

        Raises:
            InputError: it requires another argument than num_gpus and those of the target.
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
        if missing:
            raise self._requires(missing)
        return arguments

    def _requires(self, missing: Sequence[inspect.Parameter]) -> InputError:
        names = [parameter.name for parameter in missing]
        fix = "give it a default, or wrap it in a function that takes at most num_gpus"
        if self.function is not None and all(map(_by_keyword, missing)):
            values = ", ".join(f"{name}=…" for name in names)
            fix = f"give {values} in brackets behind the function's name, or give it a default"
        return InputError(
            self.name,
            f"the builder requires {' and '.join(map(repr, names))}, which it is not given",
            fix,
        )

    def check_given(self, by_position: int = 0) -> None:
        """Check that the function takes what the target gives it.

        Args:
            by_position: how many arguments it is given besides, by position.

        Raises:
            InputError: it takes no argument of such a name.
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
                    f"{near and f'{near} '}it takes {join_and(takes) or 'none by name'}",
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


def _described(value: object) -> str:
    text = repr(value)
    return f"{text[:60]}… ({type(value).__name__})" if len(text) > 60 else text


class Gradient(NamedTuple):
    """The names of the tensors that make up a gradient; a dense one has no indices."""

    values: str
    indices: str = ""


class AppliedGradient(NamedTuple):
    """The gradient that a variable receives, as the program declares it or its optimiser got it.

    Attributes:
        gradient: None where there is none, or it is in a body.
        variable: the name of the op that holds the variable.
        optimizer: the class of the optimiser; ``""`` where it is only declared.
        in_body: whether the gradient is in the body of a branch, loop or function.
    """

    gradient: Gradient | None
    variable: str
    optimizer: str
    in_body: bool = False


@dataclass(frozen=True)
class InitialState:
    """How the variables of a graph get their first values, by the names of ops.

    Attributes:
        initializers: the ops that give variables their first values, by variable.
        local_initializers: those of local variables, which may be made of the others.
        values: the first values of variables that no op initialises, by variable.
        tables: the ops that fill lookup tables.
        mirrors: the copies of variables for other replicas, each with the variable.
        unsynchronised: variables that replicas change apart, such as a metric's, and that mean
            something only when they are brought together.
    """

    initializers: Mapping[str, str] = field(default_factory=dict)
    local_initializers: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
    tables: Sequence[str] = ()
    mirrors: Mapping[str, str] = field(default_factory=dict)
    unsynchronised: frozenset[str] = frozenset()

    @property
    def compared(self) -> Set[str]:
        """The variables that get first values, but for local ones, such as a metric's."""
        return self.initializers.keys() | self.values.keys()


@final
@dataclass(frozen=True, eq=False)
class BuiltProgram:
    """What one call of a builder made, or what a saved graph holds.

    TensorFlow's objects are opaque outside of the modules that load, place and run.

    Attributes:
        program: the builder or script; missing for a graph, which cannot be built again.
        gpus: how many GPUs it was built for.
        requested: the devices that it requests.
        step: what the builder returned.
        graph_def: its ``GraphDef``, which is never changed.
        graph: its ``tf.Graph``; None for a file.
        initial: how its variables get their first values.
        applied: the gradients that the program declares, and that optimisers were called with.
        for_gpus: the same program for another number of GPUs, which is built once.
        fed: what its first training step was fed, arrays by the names of tensors (``x:0``); empty
            where it was not watched, or feeds nothing.
        turns: how many different training steps it takes in turn, as adversaries do.
        notes: what is said of it in reports beside the rules.
        gradients_inside: where its gradients are taken, if they are all inside of a loop or of
            another op, and what to do; else ``""``.
        machine: the cluster that it made a server of; None where it made none.
        on_one_host: of several workers the same on one host that has all of their GPUs, which can
            be run; None for any other program.
    """

    program: Program | Script | Missing
    gpus: int
    requested: Placement = field(repr=False)
    step: Step = field(repr=False)
    graph_def: Any = field(repr=False)
    graph: Any = field(repr=False)
    initial: InitialState = field(repr=False)
    applied: Sequence[AppliedGradient] = field(repr=False)
    for_gpus: Callable[[int], BuiltProgram | Missing] = field(repr=False)
    fed: Mapping[str, Any] = field(default_factory=dict, repr=False)
    turns: int = 1
    notes: Sequence[str] = ()
    gradients_inside: str = ""
    machine: Machine | None = None
    on_one_host: BuiltProgram | None = None

    @property
    def name(self) -> str:
        """What it is called in reports."""
        return self.requested.program


@dataclass(eq=False)
class WatchedCode:
    """The code of a ``with watch()`` block, which is a target when the block has ended.

    Attributes:
        name: what it is called in reports.
        built: what it built until its first training step; None while the block runs.
    """

    name: str
    built: BuiltProgram | None = None
