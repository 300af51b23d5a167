"""The sessions of a program and its reference, with equal variables and equal rows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from placement_checks.core.errors import InputError
from placement_checks.core.measurement import Array, Arrays, Elements, Sample, Trial
from placement_checks.numerics.sampling import (
    build_trial,
    measure_noise,
    select_all,
    weighted_mean,
)
from placement_checks.run.feeding.batches import Case
from placement_checks.run.feeding.interface import Feeding
from placement_checks.run.session import ProgramSession
from placement_checks.util.progress import track

_MAX_SINGLE_ROWS = 128  # each row needs a run


@dataclass(frozen=True)
class Conditions:
    """How programs are run to be compared.

    Attributes:
        rows: the size of the global batch; 0 for the fixed size of the placeholders, or else a
            small one.
        shares: the relative parts of the towers in a batch; empty for equal parts.
        scale: the factor on the program's gradients that the user declares as intended.
        statistics_per_tower: whether the reference computes on the rows of each tower separately.
        steps: the number of training steps.
        steps_on_parts: whether steps are taken if the reference computes on the rows of each tower
            separately. Its running statistics then come from one tower.
        seconds: the time limit of one run.
        seed: the seed of the batches.
    """

    rows: int = 0
    shares: Sequence[int] = ()
    scale: float = 1.0
    statistics_per_tower: bool = False
    steps: int = 3
    steps_on_parts: bool = False
    seconds: float = 60.0
    seed: int = 0


class PairedSessions:
    """The sessions of a program and its reference.

    Attributes:
        towers: the session of the program.
        reference: the session of the reference.
        reference_runs: runs of the reference on selected rows.
        feeding: converts batches to the feeds of both programs.
        start: the initial values of the variables, equal in both programs.
        batches: all batches so far.
        on_parts: whether the reference computes on the rows of each tower, and the mean of these
            gradients is expected; else it computes on all rows.
    """

    def __init__(
        self,
        towers: ProgramSession,
        reference: ProgramSession,
        feeding: Feeding,
        conditions: Conditions,
        *,
        orders: int,
    ) -> None:
        """Store the sessions without running anything.

        Args:
            towers: the session of the program.
            reference: the session of the reference.
            feeding: converts batches to the feeds of both programs.
            conditions: the scale of the gradients and the seed.
            orders: in how many other orders of the rows the noise is measured.
        """
        self.towers = towers
        self.reference = reference
        self.reference_runs = ReferenceRuns(reference, feeding, towers.program.gpus)
        self.feeding = feeding
        self.start: Mapping[str, npt.NDArray[Any]] = {}
        self.batches: list[Arrays] = []
        self.on_parts = False
        self._scale = conditions.scale
        self._orders = orders
        self._rng = np.random.default_rng(conditions.seed)

    def initialize(self, case: Case | None) -> None:
        """Give the variables of both programs equal values: the values of the case, if any."""
        self.reference.initialize({})
        compared = self.reference.program.built.initial.compared
        values = {
            name: value for name, value in self.reference.values().items() if name in compared
        }
        if case and case.start:
            self.start = case.initial_values(values)
        else:
            trained = self.reference.program.gradients.by_variable
            self.start = {
                name: _compact(self._vary(value) if name in trained else value)
                for name, value in values.items()
            }
        self.reference.load(self.start)
        self.towers.initialize(self.start)

    def _vary(self, value: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Add noise to an array of equal elements, because zeros hide their factors."""
        if value.size < 2 or np.any(value != value.flat[0]):
            return value
        size = max(1.0, abs(float(value.flat[0])))
        return (value + size * self._rng.uniform(0.05, 0.15, value.shape)).astype(value.dtype)

    def batch(self, rows: int) -> Arrays:
        """Return a new batch, and store it for the case that may be saved."""
        batch = self.feeding.batch(self._rng, rows)
        self.batches.append(batch)
        return batch

    def both(self, batch: Arrays) -> Iterator[tuple[ProgramSession, Arrays]]:
        """Yield each session with its feeds."""
        yield self.towers, self.feeding.to_towers(batch)
        yield self.reference, self.to_reference(batch)

    def to_reference(self, batch: Arrays) -> Arrays:
        """Return the feeds of the reference: all rows, or the rows of the first tower."""
        rows = self.reference_runs.split(self.feeding.rows)[0] if self.on_parts else None
        return self.feeding.to_reference(batch, rows)

    def orders(self, rows: int) -> list[list[int]]:
        """Return other orders of the rows; if `on_parts`, rows stay in their tower."""
        parts = self.reference_runs.split(rows) if self.on_parts else [range(rows)]
        return [
            [row for part in parts for row in self._shuffle(part)] for _ in range(self._orders)
        ]

    def _shuffle(self, rows: Sequence[int]) -> list[int]:
        """Return the rows in a different order, because the same order would show no noise."""
        given = list(rows)
        while True:
            order: list[int] = self._rng.permutation(given).tolist()
            if order != given or len(given) < 2:
                return order

    def gradients(self, batch: Arrays, rows: int) -> Trial:
        """Return the gradients of both programs on one batch."""
        found = self.towers.gradients(self.feeding.to_towers(batch))
        expected = self.expected(batch, rows)
        orders = self.orders(rows)
        noise = measure_noise(expected, (self.expected(batch, rows, order) for order in orders))
        if self._scale != 1:
            found = {name: value / np.float64(self._scale) for name, value in found.items()}
        split = self.feeding.split if rows == self.feeding.rows else ()
        return build_trial(rows, split, expected, found, noise)

    def expected(self, batch: Arrays, rows: int, order: Sequence[int] | None = None) -> Arrays:
        """Return the gradients that the program should have on one batch."""
        if self.on_parts:
            return self.reference_runs.mean_over_towers(batch, rows, order)
        return self.reference_runs.gradients(batch, order)

    def expected_step(
        self, batch: Arrays, order: Sequence[int] | None = None, *, with_gradients: bool
    ) -> Arrays:
        """Let the reference take the step that the program should take.

        Returns:
            The gradients before the step if ``with_gradients``, else nothing.
        """
        rows = self.feeding.rows
        gradients = self.expected(batch, rows, order) if with_gradients or self.on_parts else {}
        if self.on_parts:
            applied = self.reference.gradient_feeds(gradients)
            self.reference.step({**self.to_reference(batch), **applied})
        else:
            self.reference.step(self.feeding.to_reference(batch, order))
        return gradients if with_gradients else {}


class ReferenceRuns:
    """Runs of the reference on selected rows of a batch, in any order."""

    def __init__(self, reference: ProgramSession, feeding: Feeding, towers: int) -> None:
        self._reference = reference
        self._feeding = feeding
        self._towers = towers

    def gradients(self, batch: Arrays, rows: Sequence[int] | None = None) -> Arrays:
        """Return the gradients on the given rows, in this order; by default on all."""
        return self._reference.gradients(self._feeding.to_reference(batch, rows))

    def losses(self, batch: Arrays, rows: Sequence[int] | None = None) -> list[float]:
        """Return the losses on the given rows, by default on all; each summed to a scalar."""
        names = list(self._reference.program.placement.step.objectives)
        values = self._reference.run(names, self._feeding.to_reference(batch, rows))
        return [float(np.sum(np.asarray(value, np.float64))) for value in values]

    def mean_over_towers(
        self, batch: Arrays, rows: int, order: Sequence[int] | None = None
    ) -> dict[str, Array]:
        """Return the mean over the gradients on the rows of each tower.

        Args:
            batch: the batch.
            rows: the number of its rows.
            order: the rows in another order, to be split among the towers.

        Raises:
            InputError: the reference does not take the rows of one tower.
        """
        order = range(rows) if order is None else order
        parts = [[order[row] for row in part] for part in self.split(rows)]
        return weighted_mean(((part, self.gradients(batch, part)) for part in parts), rows)

    def split(self, rows: int) -> Sequence[tuple[int, ...]]:
        """Return the rows of each tower; the last part may be the rest of an uneven batch."""
        if self._feeding.split and rows == self._feeding.rows:
            return self._feeding.split
        size = rows // self._towers
        return [tuple(range(at, min(at + size, rows))) for at in range(0, rows, size)]

    def per_tower(
        self, batch: Arrays, rows: int, elements: Mapping[str, Elements]
    ) -> list[Sample]:
        """Return some elements of the gradients on the rows of each tower."""
        return self._samples(batch, self.split(rows), elements)

    def per_row(self, batch: Arrays, rows: int, elements: Mapping[str, Elements]) -> list[Sample]:
        """Return some elements of the gradients on every single row; none for large batches."""
        singles = [(row,) for row in range(rows)] if rows <= _MAX_SINGLE_ROWS else []
        return self._samples(batch, singles, elements)

    def _samples(
        self,
        batch: Arrays,
        parts: Sequence[tuple[int, ...]],
        elements: Mapping[str, Elements],
    ) -> list[Sample]:
        """Return the gradients on each part, up to the first part that cannot be fed."""
        samples = []
        with contextlib.suppress(InputError):
            for rows in track(parts, "part"):
                samples.append(Sample(rows, select_all(self.gradients(batch, rows), elements)))
        return samples

    def shifted(
        self, batch: Arrays, rows: int, elements: Mapping[str, Elements]
    ) -> Iterator[tuple[str, Arrays]]:
        """Yield gradients with the rows of one input shifted against the other inputs.

        Yields:
            A description of the shift, and some elements of the gradients.
        """
        names = sorted(name for name, array in batch.items() if array.ndim)
        if len(names) == 2:
            others, shifted_names = f"'{names[0]}'", names[1:]
        else:
            others, shifted_names = "the others", names if len(names) > 2 else []
        for name in shifted_names:
            for how, order in self._shifts(rows).items():
                with contextlib.suppress(InputError):
                    gradients = self.gradients({**batch, name: batch[name][order]})
                    description = f"the rows of '{name}' {how} against {others}"
                    yield description, select_all(gradients, elements)

    def _shifts(self, rows: int) -> dict[str, npt.NDArray[np.int_]]:
        """Return orders of rows: shifted by one row or by a tower's rows, or within each tower."""
        order = np.arange(rows)
        size = max(1, rows // self._towers)
        distances = sorted({1, -1, size, -size}, key=abs)
        shifts = {f"moved by {distance}": np.roll(order, distance) for distance in distances}
        if rows % size == 0:
            for distance in (1, -1):
                within = np.roll(order.reshape(-1, size), distance, axis=1).ravel()
                shifts[f"moved by {distance} within each tower"] = within
        return shifts


def _compact(value: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return an array of equal elements as a broadcast scalar, other arrays as they are.

    The slots of an optimizer are larger than the weights, and most start with zeros.
    """
    first = np.array(value.reshape(-1)[:1])
    if value.size > 1 and value.dtype.kind not in "OSU" and np.all(value == first):
        return np.broadcast_to(first.reshape(()), value.shape)
    return value
