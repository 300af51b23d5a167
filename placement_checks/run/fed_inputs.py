"""What a builder would have returned as inputs, found in what the first step was fed.

A watched program says nowhere which of the tensors that it feeds hold rows, nor for which tower.
Both programs are built by the same code, so a tensor of the one is known in the other by the end
of its name, its dtype and the shape of a row; where there are several, by the order of building.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from placement_checks.core.errors import CannotRun
from placement_checks.run.fed_pairs import Fed, Pair, Values, paired
from placement_checks.run.runnable import RunnableProgram
from placement_checks.util.text import joined


class RowInput(NamedTuple):
    """Tensors that are fed rows.

    Attributes:
        name: what the rows are called in a batch.
        towers: the tensors of the program: one for each tower, or one for all.
        reference: that of the reference.
        per_row: how many entries of the first axis of a tensor belong to one row.
        rows: those seen, of all towers; those of several entries have an axis of them.
    """

    name: str
    towers: Sequence[str]
    reference: str
    per_row: int
    rows: npt.NDArray[Any]


@dataclass(frozen=True)
class FedInputs:
    """How rows get into two programs that were watched.

    Attributes:
        rows: of the global batch.
        of_reference: the rows that the reference was fed.
        any_number: whether the reference takes other numbers of rows.
        split: the rows of each tower; empty where the program splits all of them itself.
        inputs: what is fed rows.
        to_towers: what else the program is fed, always the same.
        to_reference: what else the reference is.
        not_alike: of this, numbers in the model that are not those of the program.
    """

    rows: int
    of_reference: int
    any_number: bool
    split: Sequence[int]
    inputs: Sequence[RowInput]
    to_towers: Values
    to_reference: Values
    not_alike: Sequence[str] = ()


def fed_inputs(
    towers: RunnableProgram, reference: RunnableProgram, drawn: Values, drawn_alone: Values
) -> FedInputs:
    """What the rows of a program and of its reference are, and where they are fed.

    Args:
        towers: the program; it and the reference know what they were fed.
        reference: the same for one GPU.
        drawn: what the random ops of the program drew when it was fed that.
        drawn_alone: what those of the reference drew.

    Raises:
        CannotRun: that is not clear.
    """
    pairs, left, left_alone = paired(towers, reference, drawn, drawn_alone)
    rows, of_reference = _numbers_of_rows(pairs, towers.name)
    factors = [_entries_per_row(pair, rows, of_reference) for pair in pairs]
    in_rows = [
        (pair, factor) for pair, factor in zip(pairs, factors, strict=True) if factor is not None
    ]
    same = []
    for pair, factor in zip(pairs, factors, strict=True):
        if factor is None and _is_same(pair):
            same.append(pair)
        elif factor is None and not pair.reference.drawn:
            raise CannotRun(
                f"it is not clear what the rows are: {_fed(towers, pair)} and {reference.name} "
                f"{_size(pair.reference)} for '{pair.reference.tensor}', where other tensors are "
                f"fed {rows} and {of_reference}; give --batch"
            )
    _check_rows_differ([pair for pair, _ in in_rows])
    to_towers = {fed.tensor: pair.value(fed) for pair in same for fed in pair.towers}
    to_reference = {pair.reference.tensor: pair.value(pair.reference) for pair in same}
    split = _split(in_rows)
    return FedInputs(
        rows=rows,
        of_reference=of_reference,
        any_number=all(pair.reference.takes_any_number for pair, _ in in_rows)
        and not any(array.ndim for array in left_alone.values())
        and not _count_rows({**to_reference, **left_alone}, {rows, of_reference, *split}),
        split=split,
        inputs=[_row_input(pair, factor, rows) for pair, factor in in_rows],
        to_towers={**left, **to_towers},
        to_reference={**left_alone, **to_reference},
        not_alike=[pair.reference.tensor for pair in same if pair.numbers_differ],
    )


def _fed(program: RunnableProgram, pair: Pair) -> str:
    lengths = joined(map(_size, pair.towers))
    names = joined(f"'{fed.tensor}'" for fed in pair.towers)
    return f"{program.name} is fed {lengths} for {names}"


def _size(fed: Fed) -> str:
    return str(len(fed.array) if fed.array.ndim else fed.array)


def _numbers_of_rows(pairs: Sequence[Pair], program: str) -> tuple[int, int]:
    """How many rows the program and the reference were fed.

    That is what most tensors have, of those that take any number if there are some: weights of
    classes and the like are of a fixed size. Of as many, it is what those of more dimensions have.
    """
    fed = [pair for pair in pairs if pair.has_rows and not pair.reference.drawn]
    free = [pair for pair in fed if pair.reference.takes_any_number]
    numbers = Counter(pair.lengths for pair in free or fed)
    if not numbers:
        raise CannotRun(f"nothing that {program} is fed has rows; give --batch")
    ranks = [(pair.reference.array.ndim, pair.lengths) for pair in free or fed]
    return max(numbers, key=lambda some: (numbers[some], max(ranks)[1] == some, -some[0]))


def _entries_per_row(pair: Pair, rows: int, of_reference: int) -> int | None:
    """How many entries of the first axis belong to one row; None if that is no axis of rows."""
    if not pair.has_rows:
        return None
    entries, rest = divmod(pair.lengths[0], rows)
    is_whole = entries and not rest and all(not len(fed.array) % entries for fed in pair.towers)
    return entries if is_whole and pair.lengths[1] == entries * of_reference else None


def _is_same(pair: Pair) -> bool:
    """Whether both programs can be fed the same: one value, or arrays of one shape."""
    if any(fed.array.shape != pair.reference.array.shape for fed in pair.towers):
        return False
    first = pair.towers[0]
    return first.drawn or all(np.array_equal(first.array, fed.array) for fed in pair.towers)


def _check_rows_differ(pairs: Sequence[Pair]) -> None:
    """Check that something tells one row from another."""
    arrays = [
        np.concatenate([fed.array for fed in pair.towers])
        for pair in pairs
        if not pair.reference.drawn
    ]
    if all(np.all(array == array[:1]) for array in arrays):
        names = joined(f"'{pair.reference.tensor}'" for pair in pairs if not pair.reference.drawn)
        raise CannotRun(
            f"all rows that are fed to {names} are alike, so that nothing tells what became of "
            "one; give --batch"
        )


def _count_rows(values: Values, numbers: set[int]) -> bool:
    """Whether a number that is fed says how many rows there are."""
    return any(
        not array.ndim and array.dtype.kind in "iuf" and array > 1 and float(array) in numbers
        for array in values.values()
    )


def _split(pairs: Sequence[tuple[Pair, int]]) -> Sequence[int]:
    """The rows of each tower, where it has tensors of its own."""
    splits = {
        tuple(len(fed.array) // factor for fed in pair.towers): pair
        for pair, factor in pairs
        if len(pair.towers) > 1
    }
    if len(splits) > 1:
        some, others, *_ = splits.values()
        raise CannotRun(
            f"it is not clear what the rows of each tower are: '{some.towers[0].tensor}' and "
            f"'{others.towers[0].tensor}' are fed parts of other sizes; give --batch"
        )
    return next(iter(splits), ())


def _row_input(pair: Pair, per_row: int, rows: int) -> RowInput:
    seen = np.concatenate([fed.array for fed in pair.towers])
    if per_row > 1:
        seen = seen.reshape(rows, per_row, *seen.shape[1:])
    tensors = [fed.tensor for fed in pair.towers]
    return RowInput(pair.reference.tensor, tensors, pair.reference.tensor, per_row, seen)
