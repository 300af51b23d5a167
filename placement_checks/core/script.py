"""A whole program, as `python train.py …` runs it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace

from placement_checks.core.arguments import for_gpus, uses_gpus

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
