"""A program and its reference in their sessions, with the same variables and the same rows.

What the reference computes: on a batch, on parts of it, and on rows in another order.

How programs are run to be compared.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from placement_checks.core.errors import InputError
from placement_checks.core.measurement import Array, Arrays, Elements, Sample, Trial
from placement_checks.numerics.block_statistics import measure_noise, weighted_mean
from placement_checks.numerics.reducing import build_trial, select_all
from placement_checks.run.feeding.batches import Case
from placement_checks.run.feeding.interface import Batch, Feeding
from placement_checks.run.session import ProgramSession, Values
from placement_checks.util.progress import track

_MAX_SINGLE_ROWS = 128  # each is a run


class ReferenceRuns:
    """The program for one GPU, beside one that has so many towers."""

    def __init__(self, reference: ProgramSession, feeding: Feeding, towers: int) -> None:
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
        return weighted_mean(((part, self.gradients(batch, part)) for part in parts), rows)

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
            Sample(rows, select_all(gradients, elements))
            for rows, gradients in self._on_parts(batch, parts)
        ]

    def _on_parts(
        self, batch: Batch, parts: Sequence[tuple[int, ...]]
    ) -> Iterator[tuple[tuple[int, ...], Values]]:
        """On parts of a batch; those after one that it does not take are left out."""
        with contextlib.suppress(InputError):
            for rows in track(parts, "part"):
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
                    yield how_moved, select_all(found, elements)

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


class PairedSessions:
    """Both sessions.

    Attributes:
        towers: that of the program.
        reference: that of its reference.
        reference_runs: what the reference gives for other rows.
        feeding: of both.
        start: the values of the variables that both begin with.
        batches: all rows that were drawn.
        on_parts: whether the reference computes on the rows of each tower alone, and the mean of
            that is expected.
    """

    def __init__(
        self,
        towers: ProgramSession,
        reference: ProgramSession,
        feeding: Feeding,
        *,
        scale: float,
        seed: int,
        orders: int,
    ) -> None:
        """Nothing is run yet.

        Args:
            towers: the session of the program.
            reference: that of its reference.
            feeding: of both.
            scale: what the gradients of the program are multiplied by on purpose.
            seed: of the rows.
            orders: in how many other orders of the rows the noise is measured.
        """
        self.towers = towers
        self.reference = reference
        self.reference_runs = ReferenceRuns(reference, feeding, towers.program.gpus)
        self.feeding = feeding
        self.start: Mapping[str, npt.NDArray[Any]] = {}
        self.batches: list[Batch] = []
        self.on_parts = False
        self._scale = scale
        self._orders = orders
        self._rng = np.random.default_rng(seed)

    def both(self, batch: Batch) -> Iterator[tuple[ProgramSession, Batch]]:
        """Each program with its feeds."""
        yield self.towers, self.feeding.to_towers(batch)
        yield self.reference, self.to_reference(batch)

    def to_reference(self, batch: Batch) -> Batch:
        """The feeds of the reference: all rows, or those of the first tower."""
        rows = self.reference_runs.split(self.feeding.rows)[0] if self.on_parts else None
        return self.feeding.to_reference(batch, rows)

    def begin(self, case: Case | None) -> None:
        """Give the variables of both programs the same values."""
        self.reference.begin({})
        first = self.reference.program.built.initial.compared
        values = {name: value for name, value in self.reference.values().items() if name in first}
        if case and case.start:
            self.start = case.first(values)
        else:
            trained = self.reference.program.gradient_tensors.gradients
            self.start = {
                name: _compact(self._varied(value) if name in trained else value)
                for name, value in values.items()
            }
        self.reference.load(self.start)
        self.towers.begin(self.start)

    def batch(self, rows: int) -> Batch:
        """Rows that were not yet fed, kept for the case that may be saved."""
        batch = self.feeding.batch(self._rng, rows)
        self.batches.append(batch)
        return batch

    def orders(self, rows: int) -> list[list[int]]:
        """Other orders of the rows, in which the noise is measured; they stay with a tower."""
        parts = self.reference_runs.split(rows) if self.on_parts else [range(rows)]
        return [
            [row for part in parts for row in self._in_another_order(part)]
            for _ in range(self._orders)
        ]

    def _in_another_order(self, rows: Sequence[int]) -> list[int]:
        """One that is not theirs, which would show no noise; two rows have but one."""
        given = list(rows)
        while True:
            order: list[int] = self._rng.permutation(given).tolist()
            if order != given or len(given) < 2:
                return order

    def expected(self, batch: Batch, rows: int, order: Sequence[int] | None = None) -> Values:
        """The gradients that the program should have on one batch."""
        if self.on_parts:
            return self.reference_runs.mean_over_towers(batch, rows, order)
        return self.reference_runs.gradients(batch, order)

    def expected_step(
        self, batch: Batch, order: Sequence[int] | None = None, *, with_gradients: bool
    ) -> Values:
        """Let the reference take the step that the program should take.

        Returns:
            The gradients before it, if they are wanted.
        """
        rows = self.feeding.rows
        gradients = self.expected(batch, rows, order) if with_gradients or self.on_parts else {}
        if self.on_parts:
            applied = self.reference.as_gradients(gradients)
            self.reference.step({**self.to_reference(batch), **applied})
        else:
            self.reference.step(self.feeding.to_reference(batch, order))
        return gradients if with_gradients else {}

    def gradients(self, batch: Batch, rows: int) -> Trial:
        """The gradients of both programs on one batch."""
        found = self.towers.gradients(self.feeding.to_towers(batch))
        expected = self.expected(batch, rows)
        orders = self.orders(rows)
        noise = measure_noise(expected, (self.expected(batch, rows, order) for order in orders))
        if self._scale != 1:
            found = {name: value / np.float64(self._scale) for name, value in found.items()}
        split = self.feeding.split if rows == self.feeding.rows else ()
        return build_trial(rows, split, expected, found, noise)

    def _varied(self, value: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Values that differ, for those that are all alike: zeros hide what they multiply."""
        if value.size < 2 or np.any(value != value.flat[0]):
            return value
        size = max(1.0, abs(float(value.flat[0])))
        return (value + size * self._rng.uniform(0.05, 0.15, value.shape)).astype(value.dtype)


def _compact(value: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The same values; of those that are all alike, one is kept.

    The slots of an optimiser take more room than the weights, and most begin with zeros.
    """
    first = np.array(value.reshape(-1)[:1])
    if value.size > 1 and value.dtype.kind not in "OSU" and np.all(value == first):
        return np.broadcast_to(first.reshape(()), value.shape)
    return value


@dataclass(frozen=True)
class Conditions:
    """How programs are run.

    Attributes:
        rows: of the global batch; 0 for as many as the placeholders are made for, or a few.
        shares: the parts of the batch for each tower; empty for equal ones.
        scale: what the gradients of the program are multiplied by on purpose.
        statistics_per_tower: whether the reference is to compute on the rows of each tower alone.
        steps: how many are taken.
        steps_on_parts: whether steps are taken where the reference computes on the rows of each
            tower; its own statistics are then those of one of them.
        seconds: that one run may take.
        seed: of the batches.
    """

    rows: int = 0
    shares: Sequence[int] = ()
    scale: float = 1.0
    statistics_per_tower: bool = False
    steps: int = 3
    steps_on_parts: bool = False
    seconds: float = 60.0
    seed: int = 0
