"""What programs are fed, and what is asked of whoever feeds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Batch = Mapping[str, npt.NDArray[Any]]
Split = tuple[tuple[int, ...], ...]


class Feeding(Protocol):
    """How arrays get into a program and its reference, wherever they come from.

    Attributes:
        rows: of a global batch.
        made_up: whether nobody gives the rows.
        odd: the rows of another batch, that cannot be cut evenly; 0 for none.
        split: the rows of each tower, for a batch of `rows`; empty where the program splits.
    """

    @property
    def rows(self) -> int: ...
    @property
    def made_up(self) -> bool: ...
    @property
    def odd(self) -> int: ...
    @property
    def split(self) -> Split: ...

    def batch(self, rng: np.random.Generator, rows: int) -> Batch:
        """The arrays of one batch."""

    def to_reference(self, batch: Batch, rows: Sequence[int] | None = None) -> Batch:
        """The feeds of the reference, for all rows or for some in the order returned."""

    def to_towers(self, batch: Batch) -> Batch:
        """The feeds of the program."""
