"""What a run of the command gave."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Ran(NamedTuple):
    status: int
    out: str
    err: str

    @property
    def words(self) -> str:
        """What was printed, without the ends of its lines."""
        return " ".join(self.out.split())


Run = Callable[..., Ran]
