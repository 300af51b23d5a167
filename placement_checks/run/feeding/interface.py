"""The interface of everything that feeds rows to a program and its reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Batch = Mapping[str, npt.NDArray[Any]]
Split = tuple[tuple[int, ...], ...]


class Feeding(Protocol):
    """Converts batches to the feeds of a program and its reference.

    Attributes:
        rows: the number of rows in a global batch.
        generated: whether the user gave no rows.
        uneven_rows: the number of rows in a second batch, which the towers cannot share evenly; 0
            if there is no second batch.
        split: the rows of each tower in a batch of `rows`; empty if the program splits the batch.
    """

    @property
    def rows(self) -> int: ...
    @property
    def generated(self) -> bool: ...
    @property
    def uneven_rows(self) -> int: ...
    @property
    def split(self) -> Split: ...

    def batch(self, rng: np.random.Generator, rows: int) -> Batch:
        """Return the arrays of one batch by name."""

    def to_reference(self, batch: Batch, rows: Sequence[int] | None = None) -> Batch:
        """Return the feeds of the reference for the given rows, by default for all."""

    def to_towers(self, batch: Batch) -> Batch:
        """Return the feeds of the program."""
