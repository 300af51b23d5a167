"""Changes as they are collected: what has moved, is new and is gone, and notes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from placement_checks.core.baseline.difference import Change

_MOST_NAMED = 3


@dataclass
class Changes:
    """What differs, so far.

    Attributes:
        moved: what is elsewhere.
        new_there: what the baseline does not have.
        gone: what only the baseline has.
        notes: what has changed without being elsewhere.
    """

    moved: list[Change] = field(default_factory=list)
    new_there: list[Change] = field(default_factory=list)
    gone: list[Change] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, others: Changes) -> None:
        """Take in others, behind those that are there."""
        self.moved += others.moved
        self.new_there += others.new_there
        self.gone += others.gone
        self.notes += others.notes


def some(texts: Sequence[str]) -> str:
    """The first few of them."""
    return ", ".join(texts[:_MOST_NAMED]) + (", ..." if len(texts) > _MOST_NAMED else "")
