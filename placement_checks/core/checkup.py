"""Checks of a machine: the results of ``placement-checks doctor``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

# ok: works. limited: works in part, or with a restriction. missing: programs cannot be checked.
State = Literal["ok", "limited", "missing"]


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check."""

    name: str  # the part that was checked, such as `placer`
    state: State  # whether it works
    found: str  # the facts found, in a clause
    fix: str = ""  # the remedy, a clause, or `""`


@dataclass(frozen=True)
class Checkup:
    """All checks of a machine, in the order of reports."""

    checks: Sequence[Check]

    @property
    def can_check(self) -> bool:
        """Whether programs can be checked: no part is missing."""
        return all(check.state != "missing" for check in self.checks)

    @property
    def status(self) -> int:
        """The exit status: 1 if a part is missing, else 0."""
        return int(not self.can_check)
