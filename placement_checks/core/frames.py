"""Source lines of the user."""

from __future__ import annotations

from typing import NamedTuple


class Frame(NamedTuple):
    """A source line of the user in a stack, such as the stack of an op's creation."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"
