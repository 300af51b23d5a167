"""A program and its reference in their sessions, with the same variables and the same rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from placement_checks.core.measurement import Trial
from placement_checks.loading.saved_case import Case
from placement_checks.numerics.noise import noise_of
from placement_checks.numerics.reducing import trial_of
from placement_checks.run.feeding import Batch, Feeding
from placement_checks.run.reference_runs import ReferenceRuns
from placement_checks.run.session import ProgramSession

_ORDERS = 3  # other orders of the rows, in which the noise is measured


class PairedSessions:
    """Both sessions.

    Attributes:
        towers: that of the program.
        reference: that of its reference.
        reference_runs: what the reference gives for other rows.
        feeding: of both.
        start: the values of the variables that both begin with.
        batches: all rows that were drawn.
    """

    def __init__(
        self,
        towers: ProgramSession,
        reference: ProgramSession,
        feeding: Feeding,
        *,
        scale: float,
        seed: int,
    ) -> None:
        """Nothing is run yet.

        Args:
            towers: the session of the program.
            reference: that of its reference.
            feeding: of both.
            scale: what the gradients of the program are multiplied by on purpose.
            seed: of the rows.
        """
        self.towers = towers
        self.reference = reference
        self.reference_runs = ReferenceRuns(reference, feeding, towers.program.gpus)
        self.feeding = feeding
        self.start: Mapping[str, npt.NDArray[Any]] = {}
        self.batches: list[Batch] = []
        self._scale = scale
        self._rng = np.random.default_rng(seed)

    def both(self, batch: Batch) -> Iterator[tuple[ProgramSession, Batch]]:
        """Each program with its feeds."""
        yield self.towers, self.feeding.to_towers(batch)
        yield self.reference, self.feeding.to_reference(batch)

    def begin(self, case: Case | None) -> None:
        """Give the variables of both programs the same values."""
        self.reference.begin({})
        first = self.reference.program.built.initial.initializers
        values = {name: value for name, value in self.reference.values().items() if name in first}
        if case and case.start:
            self.start = case.first(values)
        else:
            trained = self.reference.program.gradient_tensors.gradients
            self.start = {
                name: _kept(self._varied(value) if name in trained else value)
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
        """Other orders of the rows, in which the noise is measured."""
        return [self._rng.permutation(rows).tolist() for _ in range(_ORDERS)]

    def gradients(self, batch: Batch, rows: int, *, mean_over_towers: bool = False) -> Trial:
        """The gradients of both programs on one batch.

        Args:
            batch: the rows.
            rows: how many they are.
            mean_over_towers: whether those that are expected are the mean of what the reference
                gives on the rows of each tower.
        """
        found = self.towers.gradients(self.feeding.to_towers(batch))
        expected = self.reference_runs.gradients(batch)
        orders = self.orders(rows)
        noise = noise_of(
            expected, (self.reference_runs.gradients(batch, order) for order in orders)
        )
        if mean_over_towers:
            expected = {**expected, **self.reference_runs.mean_over_towers(batch, rows)}
        if self._scale != 1:
            found = {name: value / np.float64(self._scale) for name, value in found.items()}
        split = self.feeding.split if rows == self.feeding.rows else ()
        return trial_of(rows, split, expected, found, noise)

    def _varied(self, value: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Values that differ, for those that are all alike: zeros hide what they multiply."""
        if value.size < 2 or np.any(value != value.flat[0]):
            return value
        size = max(1.0, abs(float(value.flat[0])))
        return (value + size * self._rng.uniform(0.05, 0.15, value.shape)).astype(value.dtype)


def _kept(value: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The same values; of those that are all alike, one is kept.

    The slots of an optimiser take more room than the weights, and most begin with zeros.
    """
    first = np.array(value.reshape(-1)[:1])
    if value.size > 1 and value.dtype.kind not in "OSU" and np.all(value == first):
        return np.broadcast_to(first.reshape(()), value.shape)
    return value
