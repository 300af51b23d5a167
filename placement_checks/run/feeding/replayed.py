"""Feed whole scripts the rows of their recorded first step, in other orders.

Batches have the recorded sizes, because other sizes may fail: a script may depend on a batch size
that its placeholders do not fix. If the reference was fed more rows than requested, it
is fed the requested rows several times.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt

from placement_checks.core.errors import CannotRun, InputError
from placement_checks.run.feeding.batches import Case
from placement_checks.run.feeding.inferred import InferredInputs, RowInput
from placement_checks.run.feeding.interface import Batch, Feeding, Split
from placement_checks.util.text import plural


class ReplayedFeeding:
    """Feeds recorded rows to a script and its reference. Implements `interface.Feeding`.

    Attributes:
        rows: the number of rows in the global batch.
        generated: True; the user gave no rows.
        uneven_rows: 0; no batch of another size is fed.
        split: the rows of each tower; empty if the program splits the batch.
        parts: the rows of each tower; if the program splits the batch, as even as possible.
        takes_all: whether the reference takes the rows of all towers at once.
        takes_all_once: whether the reference takes these rows at once, and each row only once.
        takes_parts: whether the reference takes the rows of each tower.
        reference_rows: the number of rows that the reference was fed.
        any_batch_size: whether the reference can be fed any number of rows.
        same_size: whether the reference was fed as many rows as the towers together.
        unequal_scalars: scalars in the model of the reference that differ from the program's.
    """

    generated = True
    uneven_rows = 0

    def __init__(
        self, reference: str, inputs: InferredInputs, gpus: int, case: Case | None
    ) -> None:
        """Find the rows of each tower, and whether the reference takes them.

        Args:
            reference: the name of the reference in messages.
            inputs: the tensors that are fed, and the recorded rows.
            gpus: the number of towers.
            case: a saved case, with batches to feed in place of the recorded rows.
        """
        self._name = reference
        self._inputs = inputs
        self._case = case and case.rewound()
        self.rows = inputs.rows
        self.reference_rows = inputs.reference_rows
        self.any_batch_size = inputs.any_batch_size
        self.unequal_scalars = inputs.unequal_scalars
        self.same_size = inputs.rows == inputs.reference_rows
        ends = np.cumsum(inputs.split)[:-1] if inputs.split else gpus
        parts = np.array_split(np.arange(inputs.rows), ends)
        self.parts: Split = tuple(tuple(part.tolist()) for part in parts if part.size)
        self.split: Split = self.parts if inputs.split else ()
        self.takes_all = self._repetitions(inputs.rows) > 0
        self.takes_all_once = self._repetitions(inputs.rows) == 1
        self.takes_parts = all(self._repetitions(len(part)) > 0 for part in self.parts)

    def _repetitions(self, rows: int) -> int:
        """Return how often a batch of the reference repeats the rows; 0 if they do not fit."""
        times, rest = divmod(self.reference_rows, rows)
        return int(self.any_batch_size) if rest else times

    def repeat_rows(self, rows: Sequence[int]) -> list[int]:
        """Return the rows, repeated until there are more than the reference was fed."""
        return [*rows] * (self.reference_rows // len(rows) + 1)

    def batch(self, rng: np.random.Generator, rows: int) -> Batch:
        """Return all recorded rows in a random order, or the next batch of the case."""
        if self._case:
            return self._case(rng, rows)
        order = rng.permutation(rows)
        return {each.name: each.rows[order] for each in self._inputs.inputs}

    def to_reference(self, batch: Batch, rows: Sequence[int] | None = None) -> Batch:
        """Return the feeds of the reference for the given rows, in this order.

        The default is all rows, or the rows of the first tower if the reference does not take all.

        Raises:
            InputError: the reference does not take this number of rows.
        """
        if rows is None:
            rows = range(self.rows) if self.takes_all else self.parts[0]
        order = np.tile(np.asarray(rows), self._repetitions(len(rows)))
        if not order.size:
            raise InputError(
                self._name,
                f"it takes {plural(self.reference_rows, 'row')}, and not {len(rows)}",
                "let its placeholders take any number",
            )
        return {
            **self._inputs.reference_values,
            **{each.reference: _select_rows(each, batch, order) for each in self._inputs.inputs},
        }

    def to_towers(self, batch: Batch) -> Batch:
        """Return the feeds of the program."""
        feeds = dict(self._inputs.tower_values)
        for each in self._inputs.inputs:
            parts = [range(self.rows)] if len(each.towers) == 1 else self.parts
            for tensor, rows in zip(each.towers, parts, strict=True):
                feeds[tensor] = _select_rows(each, batch, np.asarray(rows))
        return feeds


def _select_rows(each: RowInput, batch: Batch, order: npt.NDArray[np.intp]) -> npt.NDArray[Any]:
    """Return rows of a batch in the shape of the tensor."""
    rows = batch[each.name][order]
    return rows.reshape(-1, *rows.shape[2:]) if each.per_row > 1 else rows


def error_context(feeding: Feeding) -> AbstractContextManager[None]:
    """Return the context for runs on these rows, which handles InputError.

    The user did not request replayed rows, so an error is only a reason not to compare.
    """
    return input_errors_as_reasons() if isinstance(feeding, ReplayedFeeding) else nullcontext()


@contextlib.contextmanager
def input_errors_as_reasons() -> Iterator[None]:
    """Convert errors of a run that the user did not request to reasons for a missing result.

    Raises:
        CannotRun: the body raised an InputError.
    """
    try:
        yield
    except InputError as error:
        raise CannotRun(error.fault, error.fix) from None
