"""A value that is not known, with the reason and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Missing:
    """Why something is not known. It is false, so that ``if evidence.trace:`` narrows the type.

    Attributes:
        reason: a clause, such as "no reference is given".
        fix: what to do about it, such as ``--reference TARGET --batch TARGET``; or ``""``.
    """

    reason: str
    fix: str = ""

    def __bool__(self) -> Literal[False]:
        return False

    def __str__(self) -> str:
        return f"{self.reason} ({self.fix})" if self.fix else self.reason


class NotApplicable(Missing):
    """That a program has one tower, where a rule compares two."""

    __slots__ = ()
