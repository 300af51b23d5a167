"""What the reference computes: on a batch, on parts of it, and on rows in another order."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from placement_checks.core.errors import InputError
from placement_checks.core.measurement import Array, Arrays, Sample
from placement_checks.run.feeding import Batch, Feeding
from placement_checks.run.session import ProgramSession

_MAX_SINGLE_ROWS = 128  # each is a run


class ReferenceRuns:
    """The program for one GPU, beside one that has so many towers."""

    def __init__(self, reference: ProgramSession, feeding: Feeding, towers: int) -> None:
        self._reference = reference
        self._feeding = feeding
        self._towers = towers

    def gradients(self, batch: Batch, rows: Sequence[int] | None = None) -> dict[str, Array]:
        """Its gradients on all rows, or on some in the order given."""
        found = self._reference.gradients(self._feeding.to_reference(batch, rows))
        return {name: np.asarray(value, np.float64) for name, value in found.items()}

    def per_tower(self, batch: Batch, rows: int) -> list[Sample]:
        """On the rows of each tower, those that are left over last."""
        split = list(self._feeding.split)
        if not split or rows != self._feeding.rows:
            size = rows // self._towers
            split = [tuple(range(at, min(at + size, rows))) for at in range(0, rows, size)]
        return list(self._samples(batch, split))

    def per_row(self, batch: Batch, rows: int) -> list[Sample]:
        """On every row by itself."""
        singles = [(row,) for row in range(rows)] if rows <= _MAX_SINGLE_ROWS else []
        return list(self._samples(batch, singles))

    def _samples(self, batch: Batch, parts: Sequence[tuple[int, ...]]) -> Iterator[Sample]:
        """On parts of a batch; those after one that it does not take are left out."""
        with contextlib.suppress(InputError):
            for rows in parts:
                yield Sample(rows, self.gradients(batch, rows))

    def shifted(self, batch: Batch, rows: int) -> Iterator[tuple[str, Arrays]]:
        """With one input's rows moved against those of the others, by what was done."""
        names = sorted(name for name, array in batch.items() if array.ndim)
        others = f"'{names[0]}'" if len(names) == 2 else "the others"
        for name in names[1:] if len(names) == 2 else names if len(names) > 2 else ():
            for how, order in self._moves(rows).items():
                with contextlib.suppress(InputError):
                    found = self.gradients({**batch, name: batch[name][order]})
                    yield f"the rows of '{name}' {how} against {others}", found

    def _moves(self, rows: int) -> dict[str, npt.NDArray[np.int_]]:
        """Orders of rows moved by one or by a tower's part, in the batch or in each tower."""
        order = np.arange(rows)
        size = max(1, rows // self._towers)
        shifts = sorted({1, -1, size, -size}, key=abs)
        moves = {f"moved by {by}": np.roll(order, by) for by in shifts}
        if rows % size == 0:
            for by in (1, -1):
                within = np.roll(order.reshape(-1, size), by, axis=1).ravel()
                moves[f"moved by {by} within each tower"] = within
        return moves
