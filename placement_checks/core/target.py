"""Targets: what a user names to check, and programs that run like ``python train.py …``.

Arguments may depend on the number of GPUs: ``--num_gpus={gpus} --gpu_list={gpu_list}``, or
``train.py:build(depth=50, n={gpus})``.
"""

from __future__ import annotations

import ast
import shlex
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias

from placement_checks.core.missing import FixedGpus, Missing
from placement_checks.core.settings import DEFAULT_LIMIT, DEFAULTS, Settings

GPUS = "{gpus}"  # Python parses it as a set with the name ``gpus``
GPU_LIST = "{gpu_list}"
EACH_GPU = "{each_gpu}"


def for_gpus(text: str, gpus: int) -> str:
    """Replace ``{gpus}`` by the number of GPUs and ``{gpu_list}`` by ``0,1,…``."""
    return text.replace(GPUS, str(gpus)).replace(GPU_LIST, ",".join(map(str, range(gpus))))


def arguments_for_gpus(text: str, gpus: int) -> list[str]:
    """The command-line arguments that a text stands for: one, or one for each ``{each_gpu}``."""
    if EACH_GPU not in text:
        return [for_gpus(text, gpus)]
    return [for_gpus(text.replace(EACH_GPU, str(gpu)), gpus) for gpu in range(gpus)]


def uses_gpus(text: str) -> bool:
    """Whether a text contains ``{gpus}`` or ``{gpu_list}``."""
    return GPUS in text or GPU_LIST in text


@dataclass(frozen=True)
class Arguments:
    """Keyword arguments of a target's function, as literals that may contain ``{gpus}``.

    The literals are stored as text, so that each call gets new lists, and 1 differs from True.

    Attributes:
        literals: sorted pairs of a name and a literal in the form of `ast.unparse`.
    """

    literals: tuple[tuple[str, str], ...] = ()

    @property
    def names(self) -> Collection[str]:
        return [name for name, _ in self.literals]

    @property
    def uses_gpus(self) -> bool:
        """Whether an argument depends on the number of GPUs."""
        return any(uses_gpus(literal) for _, literal in self.literals)

    def for_gpus(self, gpus: int) -> dict[str, Any]:
        """The values for a call of the function for ``gpus`` GPUs."""
        return {name: value_of(literal, gpus) for name, literal in self.literals}


def value_of(literal: str, gpus: int) -> Any:
    """Evaluate a literal for ``gpus`` GPUs.

    Raises:
        ValueError, TypeError: the text is not a literal.
    """
    return ast.literal_eval(_NumberOfGpus(gpus).visit(ast.parse(literal, mode="eval")))


NONE = Arguments()


class _NumberOfGpus(ast.NodeTransformer):
    """Replaces ``{gpus}``, and ``{gpu_list}`` within strings."""

    def __init__(self, gpus: int) -> None:
        self._gpus = gpus

    def visit_Set(self, node: ast.Set) -> ast.AST:
        is_number = ast.unparse(node) == GPUS
        return ast.Constant(self._gpus) if is_number else self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, str):
            return ast.Constant(for_gpus(node.value, self._gpus))
        return node


class Loadable:
    """A program that can be built, or a graph that can be read (`capture.programs.load`).

    `targets.forms.resolve` returns one of these subclasses for anything that users name or pass:

    * `core.program.Program`: a function that is called in this process;
    * `Script`: a program that runs in a process of its own;
    * `Target`: a saved graph, or a function that is not imported yet;
    * `core.program.WatchedCode` and `core.program.BuiltGraph`: what is built already.
    """

    in_own_process: ClassVar[bool] = False  # whether it runs in a process of its own

    @property
    def takes_num_gpus(self) -> bool:
        """Whether it gets the number of GPUs."""
        return False

    @property
    def v1(self) -> bool:
        """Whether ``import tensorflow`` gives the program TensorFlow 1."""
        return False

    @property
    def why_fixed(self) -> Missing | None:
        """Why it cannot be built for another number of GPUs; None if it can."""
        return Missing("it cannot be built again")

    def is_same(self, other: object) -> bool:
        """Whether both are the same code with the same arguments."""
        return self is other


@dataclass(frozen=True)
class Target(Loadable):
    """A program, function, graph or log that a user names.

    It is made by `targets.forms.parse_target`.
    """

    # `program` for a whole program, `function` for a function in a program, `graph` for a saved
    # graph, or `log` for a placement log.
    kind: Literal["program", "function", "graph", "log"]
    name: str  # the text of the user, which names the target in reports
    path: str  # the file that is read, or the module that is imported
    function: str = ""  # the function, such as `Model.build`; `""` for other kinds
    arguments: Arguments = NONE  # the keyword arguments of the function

    @property
    def is_code(self) -> bool:
        """Whether the target is a whole program or a function."""
        return self.kind in ("program", "function")

    @property
    def why_fixed(self) -> Missing:
        """Why a saved graph cannot be built for another number of GPUs."""
        return Missing("a saved graph cannot be built for one GPU")


@dataclass(frozen=True)
class SourceTree:
    """A copy of a repository at a git revision, in a directory of its own."""

    root: Path  # the directory of the copy
    repository: Path  # the top directory of the repository
    revision: str  # the revision in the words of the user, such as `HEAD~1`
    commit: str  # the hash of its commit
    # The files of the copy that hold only a pointer of Git LFS, relative to `root`.
    pointers: tuple[str, ...] = ()

    def counterpart(self, path: Path) -> Path:
        """The path in the copy for a path in the repository; any other path is unchanged."""
        if not path.is_relative_to(self.repository) or path.is_relative_to(self.root):
            return path  # the copy may be in the repository, as TMPDIR may be
        return self.root / path.relative_to(self.repository)


# The rows of a program's first step that are read from its queues and iterators. Reading may take
# seconds. Runs need all rows. "of-towers" reads all rows if two towers might take the same rows,
# else none.
RowsToRead: TypeAlias = Literal["all", "of-towers", "none"]


@dataclass(frozen=True)
class Script(Loadable):
    """A program that runs in a process of its own until its first training step."""

    in_own_process: ClassVar[bool] = True

    target: Target  # a whole program or a function
    settings: Settings = DEFAULTS  # as `Settings.of_process` returns them
    eager: bool = False  # whether the target is a function that runs eagerly and builds no graph
    # The copy of the repository whose code is run; None for the working tree.
    tree: SourceTree | None = None
    # The rows of the first step that are read from queues and iterators. A function reads all
    # rows.
    rows: RowsToRead = field(default="all", compare=False)  # the program is the same

    @property
    def name(self) -> str:
        """The name in reports: target and arguments as typed."""
        return " ".join([self.target.name, *map(_quoted, self.settings.args)])

    @property
    def takes_num_gpus(self) -> bool:
        """Whether the number of GPUs occurs in the target, arguments or values."""
        args, values = self.settings.args, self.settings.let.values()
        texts = [self.target.name, *args, *values]
        return any(map(uses_gpus, texts)) or any(EACH_GPU in text for text in args)

    @property
    def v1(self) -> bool:
        """Whether ``import tensorflow`` gives the program TensorFlow 1."""
        return bool(self.settings.v1)

    @property
    def why_fixed(self) -> Missing | None:
        """Why it cannot be built for another number of GPUs; None if it can."""
        if self.takes_num_gpus:
            return None
        reason = "the program does not receive the number of GPUs"
        return FixedGpus(reason, option="write {gpus} in its arguments, or --let NAME={gpus}")

    def is_same(self, other: object) -> bool:
        """Whether both are the same program with the same settings."""
        return self == other

    @property
    def limit(self) -> float:
        """The time limit for the first training step, in seconds."""
        return DEFAULT_LIMIT if self.settings.limit is None else self.settings.limit

    def with_ranks(self, ranks: int) -> Script:
        """The same Horovod program with another number of ranks."""
        return replace(self, settings=replace(self.settings, horovod=ranks))

    def for_gpus(self, gpus: int) -> Script:
        """The program with arguments and values for ``gpus`` GPUs."""
        own = self.settings
        settings = replace(
            own,
            args=tuple(each for text in own.args for each in arguments_for_gpus(text, gpus)),
            let={name: for_gpus(value, gpus) for name, value in own.let.items()},
        )
        return replace(self, settings=settings)  # arguments in the target are replaced later


def _quoted(text: str) -> str:
    """Quote an argument for a shell. Braces need no quotes."""
    plain = text.replace("{", "").replace("}", "")
    return text if plain and shlex.quote(plain) == plain else shlex.quote(text)
