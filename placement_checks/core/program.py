"""Programs: a builder function, the step that it returns, and the graph that it builds."""

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
# A batch function, a target that names one, or a saved case.
Batch: TypeAlias = "str | Path | BatchFunction | None"
# A builder function, or the name of a program as on the command line.
Target: TypeAlias = "str | Path | Program | Script | WatchedCode | Callable[..., object]"

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
    def of(returned: object, program: str) -> Step:
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
class Program:
    """A builder function and its origin.

    Attributes:
        name: the name in reports.
        build: the function. It builds into the default graph or a graph of its own.
        folder: the directory of its source lines; None for all code outside of libraries.
        function: the user's function, if ``build`` is a wrapper for it.
        given: the arguments that the target names.
        argv: the command-line arguments, for flags.
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
        """Whether both programs are the same function of the user, with the same arguments."""
        same = (self.function or self.build) is (other.function or other.build)
        return same and self.given == other.given

    @staticmethod
    def of(build: Callable[..., object]) -> Program:
        """The program of a function, such as one that a test has imported.

        Raises:
            UsageError: ``build`` is not callable.
        """
        if not callable(build):
            raise UsageError(
                _described(build),
                "is not a program",
                "give the function that builds the graph, not what it returns; a tf.Graph, the "
                "path of a saved graph, or a target such as 'train.py:build_towers'",
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
        if missing:
            raise self._requires(missing)
        return arguments

    def _requires(self, missing: Sequence[inspect.Parameter]) -> InputError:
        names = [parameter.name for parameter in missing]
        fix = "give it a default, or wrap it in a function that takes at most num_gpus"
        if self.function is not None and all(map(_by_keyword, missing)):
            values = ", ".join(f"{name}=…" for name in names)
            fix = f"add ({values}) to the function's name, or give it a default"
        return InputError(
            self.name,
            f"the builder requires {' and '.join(map(repr, names))}, which it is not given",
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
    """A gradient by the names of its tensors; ``indices`` is ``""`` for a dense gradient."""

    values: str
    indices: str = ""


class AppliedGradient(NamedTuple):
    """A gradient that a variable receives, declared by the program or passed to an optimizer.

    Attributes:
        gradient: None if the variable gets no gradient, or if it is in a body.
        variable: the name of the op that holds the variable.
        optimizer: the class of the optimizer; ``""`` if the gradient is only declared.
        in_body: whether the gradient is in the body of a branch, loop or function.
    """

    gradient: Gradient | None
    variable: str
    optimizer: str
    in_body: bool = False


@dataclass(frozen=True)
class InitialState:
    """The initial values of the variables of a graph, by the names of ops.

    Attributes:
        initializers: the initializer op of each variable.
        local_initializers: the initializer op of each local variable, which may depend on other
            variables.
        values: the initial values of variables without an initializer op.
        tables: the ops that fill lookup tables.
        mirrors: by copy of another replica, the variable that it mirrors.
        unsynchronized: variables that each replica changes on its own, such as those of a metric,
            and that are combined when read.
    """

    initializers: Mapping[str, str] = field(default_factory=dict)
    local_initializers: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
    tables: Sequence[str] = ()
    mirrors: Mapping[str, str] = field(default_factory=dict)
    unsynchronized: frozenset[str] = frozenset()

    @property
    def compared(self) -> Set[str]:
        """The variables with initial values, except local ones, such as those of a metric."""
        return self.initializers.keys() | self.values.keys()


@final
@dataclass(frozen=True, eq=False)
class BuiltProgram:
    """A program as built for a number of GPUs, or read from a file.

    Objects of TensorFlow are used by the rooms that import TensorFlow only.

    Attributes:
        program: the builder or script; missing for a file, which cannot be built again.
        gpus: the number of GPUs.
        requested: the placement with the requested devices.
        step: the step that the builder returned.
        graph_def: the ``GraphDef``, which is never changed.
        graph: the ``tf.Graph``; None for a file.
        initial: the initial values of the variables.
        applied: the gradients that the program declares or passed to optimizers.
        for_gpus: returns the same program for another number of GPUs, built once.
        fed: the values fed to the first training step, arrays by the names of tensors (``x:0``);
            empty if the program was not captured, or feeds nothing.
        turns: the number of different training steps that alternate, as in GANs.
        notes: notes for reports, besides the verdicts.
        gradients_inside: if all gradients are taken inside a loop or another op: where, with the
            fix; else ``""``.
        machine: the cluster of the server that the program created; None without a server.
        on_one_host: a program of several workers, rebuilt for one host with all their GPUs, so
            that it can run; None for any other program.
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
        """The name in reports."""
        return self.requested.program


@dataclass(eq=False)
class WatchedCode:
    """The code of a ``with watch()`` block. It is a target after the block has ended.

    Attributes:
        name: the name in reports.
        built: the program at its first training step; None while the block runs.
    """

    name: str
    built: BuiltProgram | None = None
