"""What the reference computes: on a batch, on parts of it, and on rows in another order."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from placement_checks.core.errors import InputError
from placement_checks.core.measurement import Array, Arrays, Elements, Sample
from placement_checks.numerics.noise import mean_over
from placement_checks.numerics.reducing import taken_of
from placement_checks.run.feeds import Batch, Feeds
from placement_checks.run.session import ProgramSession, Values
from placement_checks.util.progress import counted

_MAX_SINGLE_ROWS = 128  # each is a run


class ReferenceRuns:
    """The program for one GPU, beside one that has so many towers."""

    def __init__(self, reference: ProgramSession, feeding: Feeds, towers: int) -> None:
        self._reference = reference
        self._feeding = feeding
        self._towers = towers

    def gradients(self, batch: Batch, rows: Sequence[int] | None = None) -> Values:
        """Its gradients on all rows, or on some in the order given."""
        return self._reference.gradients(self._feeding.to_reference(batch, rows))

    def mean_over_towers(
        self, batch: Batch, rows: int, order: Sequence[int] | None = None
    ) -> dict[str, Array]:
        """The mean of what it gives on the rows of each tower, or on others in their place.

        Raises:
            InputError: it does not take the rows of a tower.
        """
        order = range(rows) if order is None else order
        parts = [[order[row] for row in part] for part in self.split(rows)]
        return mean_over(((part, self.gradients(batch, part)) for part in parts), rows)

    def losses(self, batch: Batch, rows: Sequence[int] | None = None) -> list[float]:
        """The sums of what gradients are taken of, on all rows or on some."""
        names = list(self._reference.program.placement.step.objectives)
        values = self._reference.run(names, self._feeding.to_reference(batch, rows))
        return [float(np.sum(np.asarray(value, np.float64))) for value in values]

    def per_tower(self, batch: Batch, rows: int, elements: Mapping[str, Elements]) -> list[Sample]:
        """On the rows of each tower, those that are left over last."""
        return self._samples(batch, self.split(rows), elements)

    def per_row(self, batch: Batch, rows: int, elements: Mapping[str, Elements]) -> list[Sample]:
        """On every row by itself."""
        singles = [(row,) for row in range(rows)] if rows <= _MAX_SINGLE_ROWS else []
        return self._samples(batch, singles, elements)

    def split(self, rows: int) -> Sequence[tuple[int, ...]]:
        """The rows of each tower, and what is left over."""
        if self._feeding.split and rows == self._feeding.rows:
            return self._feeding.split
        size = rows // self._towers
        return [tuple(range(at, min(at + size, rows))) for at in range(0, rows, size)]

    def _samples(
        self,
        batch: Batch,
        parts: Sequence[tuple[int, ...]],
        elements: Mapping[str, Elements],
    ) -> list[Sample]:
        """Some elements of what it gives on parts of a batch."""
        return [
            Sample(rows, taken_of(gradients, elements))
            for rows, gradients in self._on_parts(batch, parts)
        ]

    def _on_parts(
        self, batch: Batch, parts: Sequence[tuple[int, ...]]
    ) -> Iterator[tuple[tuple[int, ...], Values]]:
        """On parts of a batch; those after one that it does not take are left out."""
        with contextlib.suppress(InputError):
            for rows in counted(parts, "part"):
                yield rows, self.gradients(batch, rows)

    def shifted(
        self, batch: Batch, rows: int, elements: Mapping[str, Elements]
    ) -> Iterator[tuple[str, Arrays]]:
        """With one input's rows moved against those of the others, by what was done."""
        names = sorted(name for name, array in batch.items() if array.ndim)
        others = f"'{names[0]}'" if len(names) == 2 else "the others"
        for name in names[1:] if len(names) == 2 else names if len(names) > 2 else ():
            for how, order in self._moves(rows).items():
                with contextlib.suppress(InputError):
                    found = self.gradients({**batch, name: batch[name][order]})
                    how_moved = f"the rows of '{name}' {how} against {others}"
                    yield how_moved, taken_of(found, elements)

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
