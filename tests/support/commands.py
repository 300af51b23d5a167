"""The result of a run of the command."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Ran(NamedTuple):
    status: int
    out: str
    err: str

    @property
    def words(self) -> str:
        """Standard output with single spaces instead of line breaks."""
        return " ".join(self.out.split())


Run = Callable[..., Ran]
