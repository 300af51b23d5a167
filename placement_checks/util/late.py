"""Sequences that are computed when they are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any


class Late(Sequence[Any]):
    """A sequence that is computed once, when it is first read.

    Args:
        compute: returns the elements.
    """

    def __init__(self, compute: Callable[[], Sequence[Any]]) -> None:
        self._compute = compute

    @cached_property
    def _elements(self) -> Sequence[Any]:
        return self._compute()

    def __getitem__(self, index: Any) -> Any:
        return self._elements[index]

    def __len__(self) -> int:
        return len(self._elements)

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]
