"""Feed whole scripts the rows of their recorded first step, in other orders.

Batches have the recorded sizes, because other sizes may fail: a script may depend on a batch size
that its placeholders do not fix. If the reference was fed more rows than requested, it
is fed the requested rows several times.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import numpy.typing as npt

from placement_checks.core.errors import CannotRun, InputError
from placement_checks.core.measurement import Arrays
from placement_checks.run.feeding.batches import Case
from placement_checks.run.feeding.inferred import InferredInputs, RowInput
from placement_checks.run.feeding.interface import Feeding, Split
from placement_checks.util.text import plural


class ReplayedFeeding(Feeding):
    """Feeds recorded rows to a script and its reference.

    Attributes:
        inputs: the tensors that are fed, and the recorded rows.
        parts: the rows of each tower. If the program itself splits the batch, the parts are as
            even as possible.
        takes_all: whether the reference accepts the rows of all towers at once.
        takes_all_once: whether the reference accepts the rows of all towers at once, without
            repeating rows.
        takes_parts: whether the reference accepts the rows of each tower.
        same_size: whether the reference was fed as many rows as the towers together.
    """

    generated = True

    def __init__(
        self, reference: str, inputs: InferredInputs, gpus: int, case: Case | None
    ) -> None:
        """Find the rows of each tower, and whether the reference accepts them.

        Args:
            reference: the name of the reference in messages.
            inputs: the tensors that are fed, and the recorded rows.
            gpus: the number of towers.
            case: a saved case, with batches to feed in place of the recorded rows.
        """
        self._name = reference
        self._case = case and case.rewound()
        self.inputs = inputs
        self.rows = inputs.rows
        self.same_size = inputs.rows == inputs.reference_rows
        ends = np.cumsum(inputs.split)[:-1] if inputs.split else gpus
        parts = np.array_split(np.arange(inputs.rows), ends)
        self.parts: Split = tuple(tuple(part.tolist()) for part in parts if part.size)
        self.split = self.parts if inputs.split else ()
        self.takes_all = self.repetitions(inputs.rows) > 0
        self.takes_all_once = self.repetitions(inputs.rows) == 1
        self.takes_parts = all(self.repetitions(len(part)) > 0 for part in self.parts)

    def repetitions(self, rows: int) -> int:
        times, rest = divmod(self.inputs.reference_rows, rows)
        return int(self.inputs.any_batch_size) if rest else times

    @property
    def recorded(self) -> Arrays:
        """The recorded rows in their order."""
        return {each.reference: each.rows for each in self.inputs.inputs}

    def batch(self, rng: np.random.Generator, rows: int) -> Arrays:
        """Return all recorded rows in a random order, or the next batch of the case."""
        if self._case:
            return self._case(rng, rows)
        order = rng.permutation(rows)
        return {name: recorded[order] for name, recorded in self.recorded.items()}

    def to_reference(self, batch: Arrays, rows: Sequence[int] | None = None) -> Arrays:
        """Return the feeds of the reference for the given rows, in this order.

        The default is all rows; if the reference does not accept all, the rows of the first tower.
        """
        if rows is None:
            rows = range(self.rows) if self.takes_all else self.parts[0]
        order = np.tile(np.asarray(rows), self.repetitions(len(rows)))
        if not order.size:
            raise InputError(
                self._name,
                f"it takes {plural(self.inputs.reference_rows, 'row')}, not {len(rows)}",
                "let its placeholders take any number",
            )
        return {
            **self.inputs.reference_values,
            **{each.reference: _select_rows(each, batch, order) for each in self.inputs.inputs},
        }

    def to_towers(self, batch: Arrays) -> Arrays:
        feeds = dict(self.inputs.tower_values)
        for each in self.inputs.inputs:
            parts = [range(self.rows)] if len(each.towers) == 1 else self.parts
            for tensor, rows in zip(each.towers, parts, strict=True):
                feeds[tensor] = _select_rows(each, batch, np.asarray(rows))
        return feeds

    def error_context(self) -> AbstractContextManager[None]:
        """Return the context for runs on these rows: the user did not request them."""
        return input_errors_as_reasons()


def _select_rows(each: RowInput, batch: Arrays, order: npt.NDArray[np.intp]) -> npt.NDArray[Any]:
    """Return rows of a batch in the shape of the tensor."""
    rows = batch[each.reference][order]
    return rows.reshape(-1, *rows.shape[2:]) if each.per_row > 1 else rows


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
