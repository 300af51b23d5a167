"""How a placement, or another baseline, differs from a baseline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from placement_checks.core.baseline.values import Copies

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
        new: the program that was compared with it, or the other baseline.
        same: how many ops are where the baseline says; None where two baselines are compared,
            which do not say it.
        moved: what is elsewhere: variables, slots, towers, then ops by part.
        new_there: what the baseline does not have.
        gone: what only the baseline has.
        crosses: what a step copies now and did not before.
        notes: what has changed without being elsewhere.
    """

    old: str
    new: str
    same: int | None
    moved: Sequence[Change] = ()
    new_there: Sequence[Change] = ()
    gone: Sequence[Change] = ()
    crosses: Sequence[Crossing] = ()
    notes: Sequence[str] = field(default=())

    def __bool__(self) -> bool:
        return bool(self.moved or self.new_there or self.gone)
