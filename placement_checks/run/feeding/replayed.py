"""Batches for watched programs: the rows that were seen, in another order each time."""

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


@contextlib.contextmanager
def input_errors_as_reasons() -> Iterator[None]:
    """Turn what fails into a reason why nothing is known: the user has asked for no such run.

    Raises:
        CannotRun: something failed.
    """
    try:
        yield
    except InputError as error:
        raise CannotRun(str(error)) from None


def error_context(feeding: Feeding) -> AbstractContextManager[None]:
    """What a failure means where programs run on these rows."""
    return input_errors_as_reasons() if isinstance(feeding, ReplayedFeeding) else nullcontext()


class ReplayedFeeding:
    """How arrays get into two watched programs, in the sizes that they were fed.

    Nobody knows of another size that it is right: a program may have written it down, though its
    placeholders take any. For fewer rows than the reference was fed it takes them several times.

    Attributes:
        rows: of the global batch.
        made_up: whether nobody gives the rows.
        odd: 0, as no other number of rows is fed.
        split: the rows of each tower; empty where the program splits.
        parts: the rows of each tower, as even as they can be where the program splits.
        takes_all: whether the reference takes the rows of all towers at once.
        takes_all_once: whether it takes them, and each once.
        takes_parts: whether it takes those of each tower.
        of_reference: the rows that it was fed when it was watched.
        takes_any_number: whether it can be fed any number of rows.
        same_size: whether it was fed as many rows as the towers together.
        not_alike: numbers in its model that it is fed, which are not those of the program.
    """

    made_up = True
    odd = 0

    def __init__(
        self, reference: str, inputs: InferredInputs, gpus: int, case: Case | None
    ) -> None:
        """What is fed.

        Args:
            reference: what the reference is called.
            inputs: what the rows are.
            gpus: how many towers the program has.
            case: the batches, if they are saved ones.
        """
        self._name = reference
        self._inputs = inputs
        self._case = case and case.rewound()
        self.rows = inputs.rows
        self.of_reference = inputs.of_reference
        self.takes_any_number = inputs.any_number
        self.not_alike = inputs.not_alike
        self.same_size = inputs.rows == inputs.of_reference
        ends = np.cumsum(inputs.split)[:-1] if inputs.split else gpus
        cut = np.array_split(np.arange(inputs.rows), ends)
        self.parts: Split = tuple(tuple(part.tolist()) for part in cut if part.size)
        self.split: Split = self.parts if inputs.split else ()
        self.takes_all = self._times(inputs.rows) > 0
        self.takes_all_once = self._times(inputs.rows) == 1
        self.takes_parts = all(self._times(len(part)) > 0 for part in self.parts)

    def _times(self, rows: int) -> int:
        """How often the reference is fed so many rows at once; 0 if it takes no such number."""
        times, rest = divmod(self._inputs.of_reference, rows)
        return times if not rest else int(self._inputs.any_number)

    def more_often(self, rows: Sequence[int]) -> list[int]:
        """Some rows so many times over that the reference is fed more than it was."""
        return [*rows] * (self._inputs.of_reference // len(rows) + 1)

    def batch(self, rng: np.random.Generator, rows: int) -> Batch:
        """All rows that were seen, in another order; their entries stay together."""
        if self._case:
            return self._case(rng, rows)
        order = rng.permutation(rows)
        return {each.name: each.rows[order] for each in self._inputs.inputs}

    def to_reference(self, batch: Batch, rows: Sequence[int] | None = None) -> Batch:
        """The feeds of the reference, for some rows in the order given.

        By default for all, or those of the first tower if it does not take all.

        Raises:
            InputError: it takes no such number of rows.
        """
        if rows is None:
            rows = range(self.rows) if self.takes_all else self.parts[0]
        order = np.tile(np.asarray(rows), self._times(len(rows)))
        if not order.size:
            raise InputError(
                self._name,
                f"it takes {plural(self._inputs.of_reference, 'row')}, and not {len(rows)}",
                "let its placeholders take any number",
            )
        return {
            **self._inputs.to_reference,
            **{each.reference: _select_rows(each, batch, order) for each in self._inputs.inputs},
        }

    def to_towers(self, batch: Batch) -> Batch:
        """The feeds of the program."""
        return {**self._inputs.to_towers, **dict(self._of_towers(batch))}

    def _of_towers(self, batch: Batch) -> Iterator[tuple[str, npt.NDArray[Any]]]:
        for each in self._inputs.inputs:
            parts = [range(self.rows)] if len(each.towers) == 1 else self.parts
            for tensor, rows in zip(each.towers, parts, strict=True):
                yield tensor, _select_rows(each, batch, np.asarray(rows))


def _select_rows(each: RowInput, batch: Batch, order: npt.NDArray[np.intp]) -> npt.NDArray[Any]:
    """Some rows of a batch, in the shape of the tensor."""
    rows = batch[each.name][order]
    return rows.reshape(-1, *rows.shape[2:]) if each.per_row > 1 else rows
