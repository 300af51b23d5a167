"""The interface of everything that feeds rows to a program and its reference."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np

from placement_checks.core.errors import CannotRun
from placement_checks.core.measurement import Arrays
from placement_checks.core.placement import Placement, producer_of
from placement_checks.util.text import join_and

Split = tuple[tuple[int, ...], ...]
PASS_BATCH = "pass a function that returns rows: --batch train.py:batch"  # a fix
_UNIQUE_SUFFIX = re.compile(r"_\d+$")  # TensorFlow appends it to a name that exists already


class Feeding(ABC):
    """Converts batches to the feeds of a program and its reference.

    Attributes:
        rows: the number of rows in a global batch.
        generated: whether the rows are random or recorded, instead of given by the user.
        uneven_rows: the number of rows in a second batch, which the towers cannot share evenly; 0
            if there is no second batch.
        split: the rows of each tower in a batch of `rows`; empty if the program splits the batch.
        reference_rows: the number of rows that each run of the reference has, because its
            placeholders have a fixed size; 1 if it accepts single rows.
        same_towers: whether the reference has the same towers as the program, instead of one GPU.
    """

    rows: int
    generated: bool
    uneven_rows: int = 0
    split: Split = ()
    reference_rows: int = 1
    same_towers: bool = False

    @abstractmethod
    def batch(self, rng: np.random.Generator, rows: int) -> Arrays:
        """Return the arrays of one batch by name.

        Raises:
            InputError: the batch function raised, or returned arrays that cannot be fed.
            CannotRun: no random rows can be generated for an input.
        """

    @abstractmethod
    def to_reference(self, batch: Arrays, rows: Sequence[int] | None = None) -> Arrays:
        """Return the feeds of the reference for the given rows, in this order; by default all.

        Raises:
            InputError: the reference does not accept these rows.
        """

    @abstractmethod
    def repetitions(self, rows: int) -> int:
        """Return how often a run of the reference repeats a number of rows; 0 if they do not fit.

        A reference may require a larger batch.
        """

    @abstractmethod
    def to_towers(self, batch: Arrays) -> Arrays:
        """Return the feeds of the program."""

    def error_context(self) -> AbstractContextManager[None]:
        """Return the context for runs on these rows; a subclass may convert InputErrors."""
        return nullcontext()


def argument_name(placement: Placement, tensor: str) -> str:
    """Return the name of the argument of a fed tensor; it is the same in all towers.

    The graph of a session does not show which placeholders belong to one argument: there,
    the name has no scope, and not the number that TensorFlow appends to a name that exists.
    """
    known = placement.step.arguments.get(tensor)
    return known or _UNIQUE_SUFFIX.sub("", producer_of(tensor).rpartition("/")[2])


def check_rows_differ(batch: Arrays, fix: str = PASS_BATCH) -> None:
    """Check that at least two rows of a batch differ; otherwise ``fix`` is in the error.

    Raises:
        CannotRun: all rows are equal.
    """
    arrays = {name: array for name, array in batch.items() if array.ndim and len(array) > 1}
    if arrays and all(np.all(array == array[:1]) for array in arrays.values()):
        names = join_and(f"'{name}'" for name in arrays)
        raise CannotRun(
            f"all rows that are fed to {names} are equal, so a mistake with single rows would not "
            "show",
            fix,
        )
