"""A whole program, as `python train.py …` runs it.

Arguments that depend on the number of GPUs: ``--num_gpus={gpus} --gpu_list={gpu_list}``.

Also those that a target gives its function: ``train.py:build(depth=50, n={gpus})``.
"""

from __future__ import annotations

import ast
import shlex
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

GPUS = "{gpus}"  # to Python, a set that holds a name
GPU_LIST = "{gpu_list}"


def for_gpus(text: str, gpus: int) -> str:
    """A text with the number of GPUs for ``{gpus}`` and ``0,1,…`` for ``{gpu_list}``."""
    return text.replace(GPUS, str(gpus)).replace(GPU_LIST, ",".join(map(str, range(gpus))))


def uses_gpus(text: str) -> bool:
    """Whether a text depends on the number of GPUs."""
    return GPUS in text or GPU_LIST in text


@dataclass(frozen=True)
class Arguments:
    """Literals, in which ``{gpus}`` stands for the number of GPUs.

    They are kept as text, so that each call gets lists of its own, and 1 is another than True.

    Attributes:
        literals: pairs of a name and a literal as `ast.unparse` writes it, sorted.
    """

    literals: tuple[tuple[str, str], ...] = ()

    @property
    def names(self) -> Collection[str]:
        """What the target names."""
        return [name for name, _ in self.literals]

    @property
    def uses_gpus(self) -> bool:
        """Whether one of them depends on the number of GPUs."""
        return any(uses_gpus(literal) for _, literal in self.literals)

    def for_gpus(self, gpus: int) -> dict[str, Any]:
        """The values for a call of the function."""
        return {name: value_of(literal, gpus) for name, literal in self.literals}


def value_of(literal: str, gpus: int) -> Any:
    """The value of a literal.

    Raises:
        ValueError, TypeError: it is none.
    """
    return ast.literal_eval(_NumberOfGpus(gpus).visit(ast.parse(literal, mode="eval")))


NONE = Arguments()


class _NumberOfGpus(ast.NodeTransformer):
    """Puts a number in place of ``{gpus}``, and within strings of ``{gpu_list}`` too."""

    def __init__(self, gpus: int) -> None:
        self._gpus = gpus

    def visit_Set(self, node: ast.Set) -> ast.AST:
        is_number = ast.unparse(node) == GPUS
        return ast.Constant(self._gpus) if is_number else self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, str):
            return ast.Constant(for_gpus(node.value, self._gpus))
        return node


DEFAULT_LIMIT = 300.0  # seconds until the first training step


@dataclass(frozen=True)
class Script:
    """A program that is run in a process of its own, until its first training step.

    In its arguments and values ``{gpus}`` stands for the number of GPUs, ``{gpu_list}`` for
    ``0,1,…``.

    Attributes:
        target: ``train.py``, ``package.train``, or a function of either, ``train.py:main``.
        args: the arguments of its command line.
        v1: whether it means TensorFlow 1 by ``import tensorflow``.
        let: pairs of a name and the value that it is given instead of the one in the source.
        limit: seconds that it may take until its first training step.
        eager: whether it is a function that is run eagerly, not built into a graph.
    """

    target: str
    args: tuple[str, ...] = ()
    v1: bool = False
    let: tuple[tuple[str, str], ...] = ()
    limit: float = DEFAULT_LIMIT
    eager: bool = False

    @property
    def name(self) -> str:
        """What it is called in reports: as it was typed."""
        return " ".join([self.target, *map(_quoted, self.args)])

    @property
    def uses_gpus(self) -> bool:
        """Whether it is told the number of GPUs."""
        texts = [self.target, *self.args, *(value for _, value in self.let)]
        return any(map(uses_gpus, texts))

    def for_gpus(self, gpus: int) -> Script:
        """The program as it is run for so many GPUs."""
        return replace(  # the target's own arguments are filled in where they are read
            self,
            args=tuple(for_gpus(text, gpus) for text in self.args),
            let=tuple((name, for_gpus(value, gpus)) for name, value in self.let),
        )


def _quoted(text: str) -> str:
    """An argument as a shell takes it; braces need no quotes."""
    plain = text.replace("{", "").replace("}", "")
    return text if plain and shlex.quote(plain) == plain else shlex.quote(text)
