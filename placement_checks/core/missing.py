"""Values that are not known, with reason and fix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Missing:
    """The reason why a value is not known.

    A `Missing` is false, so that ``if evidence.trace:`` narrows the type.

    Attributes:
        reason: a clause, such as "the train op is unknown".
        fix: the remedy, a clause, or ``""``.
        option: the options that supply the value, such as ``--reference TARGET --batch TARGET``,
            or ``""``.
    """

    reason: str
    fix: str = ""
    option: str = ""

    def __bool__(self) -> Literal[False]:
        return False

    def __str__(self) -> str:
        fix = f"; {self.fix}" if self.fix else ""
        return f"{self.reason}{fix}" + (f" ({self.option})" if self.option else "")


class FixedGpus(Missing):
    """The reason why a program can only be built for one number of GPUs: its code sets it."""

    __slots__ = ()


class NotApplicable(Missing):
    """The reason why a rule that compares towers does not apply: there is one tower."""

    __slots__ = ()
