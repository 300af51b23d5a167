"""Values that are not known, with reason and fix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Missing:
    """The reason why a value is not known.

    It is false, so that ``if evidence.trace:`` narrows the type.

    Attributes:
        reason: a clause, such as "no reference is given".
        fix: the remedy, such as ``--reference TARGET --batch TARGET``; or ``""``.
    """

    reason: str
    fix: str = ""

    def __bool__(self) -> Literal[False]:
        return False

    def __str__(self) -> str:
        return f"{self.reason} ({self.fix})" if self.fix else self.reason


class NotApplicable(Missing):
    """The reason why a rule that compares towers does not apply: there is one tower."""

    __slots__ = ()
