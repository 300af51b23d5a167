"""Infer which tensors hold rows, from the values that a whole script fed to its first step.

A script feeds tensors without declaring which of them hold the rows of each tower. Three steps
find out:

1. `match_tensors` matches the fed tensors of the program and the reference. The same code builds
   both programs, so counterparts have the same last part of the name, dtype and row shape. Several
   such tensors are matched in the building order of the graph.
2. The lengths of their first axes give the batch sizes of both programs: most tensors have this
   pair of lengths. A tensor with a multiple of these lengths has several entries for each row,
   like a batch of sentences that is fed as one list of words.
3. All other tensors, such as learning rates and initial states, are fed the recorded values.

Values that random ops draw, such as dropout masks, are fed like rows (`random_tensors`), so that
both programs use the same values.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from placement_checks.analysis.towers.analysis import analyze
from placement_checks.analysis.towers.inputs import towers_reading
from placement_checks.core.errors import CannotRun
from placement_checks.core.ids import TowerIndex
from placement_checks.core.op_types import RANDOM
from placement_checks.core.placement import producer_of
from placement_checks.run.preconditions import ancestors, gradient_tensors
from placement_checks.run.runnable import RunnableProgram
from placement_checks.run.session import ProgramSession
from placement_checks.util.text import join_and

Values = Mapping[str, npt.NDArray[Any]]

_UNIQUE_SUFFIX = re.compile(r"_\d+$")  # TensorFlow appends it to a name that exists already


class RowInput(NamedTuple):
    """Tensors that are fed the same rows.

    Attributes:
        name: the name of the rows in a batch.
        towers: the tensors of the program: one for each tower, or one for all.
        reference: the tensor of the reference.
        per_row: the number of entries on the first axis of a tensor that belong to one row.
        rows: the recorded rows of all towers; if ``per_row`` is above 1, the second axis holds the
            entries of a row.
    """

    name: str
    towers: Sequence[str]
    reference: str
    per_row: int
    rows: npt.NDArray[Any]


@dataclass(frozen=True)
class InferredInputs:
    """How rows are fed to two scripts.

    Attributes:
        rows: the number of rows that the towers were fed together.
        reference_rows: the number of rows that the reference was fed.
        any_batch_size: whether the reference can be fed any number of rows.
        split: the number of rows of each tower; empty if the program splits the batch.
        inputs: the tensors that are fed rows.
        tower_values: the other values that the program is fed.
        reference_values: the other values that the reference is fed.
        unequal_scalars: scalars in the model of the reference that differ from the program's.
    """

    rows: int
    reference_rows: int
    any_batch_size: bool
    split: Sequence[int]
    inputs: Sequence[RowInput]
    tower_values: Values
    reference_values: Values
    unequal_scalars: Sequence[str] = ()


def infer_inputs(
    towers: RunnableProgram,
    reference: RunnableProgram,
    random_values: Values,
    reference_random_values: Values,
) -> InferredInputs:
    """Infer the rows of a program and its reference, and the tensors that take them.

    Args:
        towers: the program, with the values that it was fed.
        reference: the program for one GPU, with the values that it was fed.
        random_values: the values that random ops of the program drew on these feeds.
        reference_random_values: the values that random ops of the reference drew.

    Raises:
        CannotRun: the recorded values do not identify the rows.
    """
    pairs, tower_values, reference_values = match_tensors(
        towers, reference, random_values, reference_random_values
    )
    rows, reference_rows = _batch_sizes(pairs, towers.name)
    row_pairs, value_pairs = [], []
    for pair in pairs:
        per_row = _entries_per_row(pair, rows, reference_rows)
        if per_row is not None:
            row_pairs.append((pair, per_row))
        elif pair.can_share_value:
            value_pairs.append(pair)
        elif not pair.reference.is_random:
            lengths = join_and(map(_length, pair.towers))
            names = join_and(f"'{fed.tensor}'" for fed in pair.towers)
            raise CannotRun(
                f"cannot identify the rows: {towers.name} is fed {lengths} for {names} and "
                f"{reference.name} {_length(pair.reference)} for '{pair.reference.tensor}', but "
                f"other tensors are fed {rows} and {reference_rows}; give --batch"
            )
    _check_rows_differ([pair for pair, _ in row_pairs])
    split = _tower_rows(row_pairs)
    has_rank = any(array.ndim for array in reference_values.values())
    reference_values = {
        **reference_values,
        **{pair.reference.tensor: pair.value(pair.reference) for pair in value_pairs},
    }
    return InferredInputs(
        rows=rows,
        reference_rows=reference_rows,
        any_batch_size=all(pair.reference.any_length for pair, _ in row_pairs)
        and not has_rank
        and not _contains_batch_size(reference_values, {rows, reference_rows, *split}),
        split=split,
        inputs=[_row_input(pair, per_row, rows) for pair, per_row in row_pairs],
        tower_values={
            **tower_values,
            **{fed.tensor: pair.value(fed) for pair in value_pairs for fed in pair.towers},
        },
        reference_values=reference_values,
        unequal_scalars=[pair.reference.tensor for pair in value_pairs if pair.scalars_differ],
    )


def random_tensors(program: RunnableProgram, seconds: float) -> dict[str, npt.NDArray[Any]]:
    """Return the values that random ops draw for losses and gradients, by tensor name.

    The program runs once, on the recorded feeds. Random ops in loops, in branches that do not run
    and in bodies of functions are omitted, because their outputs cannot be fed.

    Args:
        program: a program with recorded feeds.
        seconds: the time limit of the run.
    """
    ops = program.placement.ops
    # Losses too, because the program may lose the gradients of a tower.
    roots = [*gradient_tensors(program), *program.placement.step.objectives]
    names = [
        output.name
        for name in ancestors(program, roots, program.built.fed)
        if ops[name].type in RANDOM and not ops[name].caller
        for output in program.graph.get_operation_by_name(name).outputs
    ]
    if not names:
        return {}
    with ProgramSession(program, seconds) as session:
        session.initialize({})
        values = session.fetch(names, program.built.fed)
    return {
        name: np.asarray(value)
        for name, value in zip(names, values, strict=True)
        if value is not None
    }


class FedTensor(NamedTuple):
    """A tensor that is fed.

    Attributes:
        tensor: its name.
        array: the recorded value.
        row: the shape of a row in the graph; None for an axis of any length.
        dtype: the name of its dtype.
        tower: the index of the only tower that reads it, or None.
        any_length: whether its first axis may have any length.
        is_random: whether a random op yields it.
        in_model: whether losses or gradients depend on it.
    """

    tensor: str
    array: npt.NDArray[Any]
    row: tuple[int | None, ...]
    dtype: str
    tower: TowerIndex | None
    any_length: bool
    is_random: bool
    in_model: bool


class MatchedTensors(NamedTuple):
    """A tensor of the reference, and its counterparts: one for each tower, or one for all."""

    towers: Sequence[FedTensor]
    reference: FedTensor

    @property
    def may_have_rows(self) -> bool:
        return bool(self.reference.array.ndim and all(self.lengths))

    @property
    def lengths(self) -> tuple[int, int]:
        """The lengths of the first axis: summed over all towers, and in the reference."""
        return sum(len(fed.array) for fed in self.towers), len(self.reference.array)

    @property
    def can_share_value(self) -> bool:
        """Whether all shapes are equal and, unless random ops yield them, all towers' values."""
        first = self.towers[0]
        return all(fed.array.shape == self.reference.array.shape for fed in self.towers) and (
            first.is_random or all(np.array_equal(first.array, fed.array) for fed in self.towers)
        )

    def value(self, fed: FedTensor) -> npt.NDArray[Any]:
        """Return the value to feed to one of the tensors, if they hold no rows.

        Scalars keep their recorded values, except for floats outside of the model, such as
        learning rates: these may grow with the number of GPUs, which is not a mistake.
        """
        keeps = not fed.array.ndim and (fed.in_model or fed.array.dtype.kind != "f")
        return fed.array if keeps else self.towers[0].array

    @property
    def scalars_differ(self) -> bool:
        """Whether it is a scalar in the model that differs between the two programs."""
        first, fed = self.towers[0], self.reference
        return not fed.array.ndim and fed.in_model and bool(first.array != fed.array)


def match_tensors(
    towers: RunnableProgram,
    reference: RunnableProgram,
    random_values: Values,
    reference_random_values: Values,
) -> tuple[list[MatchedTensors], Values, Values]:
    """Match the fed tensors of a program and its reference.

    Tensors are matched by name and row shape. The remaining tensors are matched by row shape, and
    then by name and axes of fixed length: rows may be padded to the longest row of their batch.

    Args:
        towers: the program, with the values that it was fed.
        reference: the program for one GPU, with the values that it was fed.
        random_values: the values that random ops of the program drew on these feeds.
        reference_random_values: the values that random ops of the reference drew.

    Returns:
        The matches, and the values that only the program and only the reference is fed.

    Raises:
        CannotRun: a tensor that may hold rows has no counterpart.
    """
    unmatched = _fed_tensors(towers, random_values)
    unmatched_in_reference = _fed_tensors(reference, reference_random_values)
    pairs: list[MatchedTensors] = []
    for key in (_name_and_shape, _shape, _name_and_free_shape):
        matches = list(_matches(unmatched, unmatched_in_reference, key, towers.gpus))
        matched = {fed.tensor for pair in matches for fed in pair.towers}
        matched_in_reference = {pair.reference.tensor for pair in matches}
        unmatched = [fed for fed in unmatched if fed.tensor not in matched]
        unmatched_in_reference = [
            fed for fed in unmatched_in_reference if fed.tensor not in matched_in_reference
        ]
        pairs += matches
    return (
        pairs,
        _unmatched_values(towers, unmatched, reference, unmatched_in_reference),
        _unmatched_values(reference, unmatched_in_reference, towers, unmatched),
    )


def _fed_tensors(program: RunnableProgram, random_values: Values) -> list[FedTensor]:
    """Return the tensors that a program is fed, in the building order of its graph."""
    analysis = analyze(program.placement)
    number = analysis.flow.number
    values = {
        name if ":" in name else f"{name}:0": array for name, array in program.built.fed.items()
    }
    roots = [*gradient_tensors(program), *program.placement.step.objectives]
    in_model = set(ancestors(program, roots, ()))
    tensors = []
    for tensor, array in {**values, **random_values}.items():
        op, _, output = tensor.partition(":")
        if op not in number:
            continue
        dtype, shape = program.placement.details.outputs(op)[int(output)]
        tower = analysis.tower_of[number[op]]
        if tower is None:
            readers = towers_reading(analysis, tensor)
            tower = min(readers) if len(readers) == 1 else None
        array = np.asarray(array)
        tensors.append(
            FedTensor(
                tensor=tensor,
                array=array,
                row=(None,) * max(array.ndim - 1, 0) if shape is None else tuple(shape[1:]),
                dtype=dtype,
                tower=tower,
                any_length=shape is None or (len(shape) > 0 and shape[0] is None),
                is_random=tensor in random_values,
                in_model=op in in_model,
            )
        )
    return sorted(tensors, key=lambda fed: (number[producer_of(fed.tensor)], fed.tensor))


def _name_and_shape(fed: FedTensor) -> Hashable:
    return _base_name(fed), _shape(fed)


def _shape(fed: FedTensor) -> Hashable:
    return fed.dtype, fed.is_random, fed.array.ndim, fed.array.shape[1:]


def _name_and_free_shape(fed: FedTensor) -> Hashable:
    return _name_and_rank(fed), fed.row


def _name_and_rank(fed: FedTensor) -> Hashable:
    return _base_name(fed), fed.dtype, fed.is_random, fed.array.ndim


def _base_name(fed: FedTensor) -> str:
    return _UNIQUE_SUFFIX.sub("", producer_of(fed.tensor).rpartition("/")[2])


def _matches(
    tower_tensors: Sequence[FedTensor],
    reference_tensors: Sequence[FedTensor],
    key: Callable[[FedTensor], Hashable],
    gpus: int,
) -> Iterator[MatchedTensors]:
    """Match each tensor of the reference with one of equal key, or with one for each tower."""
    candidates: defaultdict[Hashable, list[FedTensor]] = defaultdict(list)
    for fed in tower_tensors:
        candidates[key(fed)].append(fed)
    counterparts: defaultdict[Hashable, list[FedTensor]] = defaultdict(list)
    for fed in reference_tensors:
        counterparts[key(fed)].append(fed)
    for common, references in counterparts.items():
        groups: Sequence[Sequence[FedTensor]] = []
        if len(candidates[common]) == len(references):
            groups = [[fed] for fed in candidates[common]]
        elif len(candidates[common]) == gpus * len(references):
            groups = _group_by_tower(candidates[common], len(references), gpus)
        for group, counterpart in zip(groups, references, strict=False):
            if len({fed.array.shape[1:] for fed in group}) == 1:
                yield MatchedTensors(group, counterpart)


def _group_by_tower(
    tensors: Sequence[FedTensor], per_tower: int, gpus: int
) -> list[Sequence[FedTensor]]:
    """Group the first tensors of all towers, the second tensors, and so on.

    If each tower has a single tensor, its tower may be unknown: the order of towers is assumed.
    """
    by_tower = [[fed for fed in tensors if fed.tower == tower] for tower in range(gpus)]
    if any(len(of_tower) != per_tower for of_tower in by_tower):
        if per_tower > 1:
            return []
        by_tower = [[fed] for fed in tensors]
    return list(zip(*by_tower, strict=True))


def _unmatched_values(
    program: RunnableProgram,
    unmatched: Sequence[FedTensor],
    other: RunnableProgram,
    unmatched_in_other: Sequence[FedTensor],
) -> Values:
    """Return the values that only one program is fed: scalars, and arrays of equal elements.

    Raises:
        CannotRun: the elements of an array differ, so that it may hold rows.
    """
    roots = [*gradient_tensors(program), *program.placement.step.train_op]
    needed = set(ancestors(program, roots, ()))
    given = [fed for fed in unmatched if not fed.is_random and producer_of(fed.tensor) in needed]
    unclear = [fed for fed in given if np.any(fed.array != fed.array.reshape(-1)[:1])]
    if not unclear:
        return {fed.tensor: fed.array for fed in given}
    first = unclear[0]
    for fed in unmatched_in_other:
        shapes = [[*each.array.shape[1:]] for each in (first, fed)]
        if _name_and_rank(fed) == _name_and_rank(first) and shapes[0] != shapes[1]:
            raise CannotRun(
                f"'{first.tensor}' is fed rows of the shape {shapes[0]}, and '{fed.tensor}' of "
                f"{other.name} rows of {shapes[1]}; pad rows to one length, or shuffle by a seed"
            )
    names = join_and(f"'{fed.tensor}'" for fed in unclear)
    raise CannotRun(
        f"{program.name} is fed {names}, without a unique counterpart in {other.name}; give "
        "--batch"
    )


def _length(fed: FedTensor) -> str:
    return str(len(fed.array) if fed.array.ndim else fed.array)


def _batch_sizes(pairs: Sequence[MatchedTensors], program: str) -> tuple[int, int]:
    """Return the number of rows that the program and the reference were fed.

    This is the pair of lengths that most tensors have. If some tensors take any number of rows,
    only these count, because tensors such as class weights have a fixed size. The lengths of
    tensors of the highest rank break ties.
    """
    fed = [pair for pair in pairs if pair.may_have_rows and not pair.reference.is_random]
    fed = [pair for pair in fed if pair.reference.any_length] or fed
    if not fed:
        raise CannotRun(f"no tensor that is fed to {program} has rows; give --batch")
    counts = Counter(pair.lengths for pair in fed)
    _, preferred = max((pair.reference.array.ndim, pair.lengths) for pair in fed)
    return max(counts, key=lambda sizes: (counts[sizes], sizes == preferred, -sizes[0]))


def _entries_per_row(pair: MatchedTensors, rows: int, reference_rows: int) -> int | None:
    """Return how many entries of the first axis belong to one row; None if there are no rows."""
    if not pair.may_have_rows:
        return None
    entries, rest = divmod(pair.lengths[0], rows)
    is_whole = entries and not rest and all(not len(fed.array) % entries for fed in pair.towers)
    return entries if is_whole and pair.lengths[1] == entries * reference_rows else None


def _check_rows_differ(pairs: Sequence[MatchedTensors]) -> None:
    """Check that at least two rows differ."""
    pairs = [pair for pair in pairs if not pair.reference.is_random]
    arrays = [np.concatenate([fed.array for fed in pair.towers]) for pair in pairs]
    if all(np.all(array == array[:1]) for array in arrays):
        names = join_and(f"'{pair.reference.tensor}'" for pair in pairs)
        raise CannotRun(
            f"all rows that are fed to {names} are equal, so a mistake with single rows would not "
            "show; give --batch"
        )


def _contains_batch_size(values: Values, sizes: set[int]) -> bool:
    """Whether one of the scalars that are fed is a batch size."""
    return any(
        not array.ndim and array.dtype.kind in "iuf" and array > 1 and float(array) in sizes
        for array in values.values()
    )


def _tower_rows(pairs: Sequence[tuple[MatchedTensors, int]]) -> Sequence[int]:
    """Return the number of rows of each tower; empty if all towers share each tensor."""
    splits = {
        tuple(len(fed.array) // per_row for fed in pair.towers): pair
        for pair, per_row in pairs
        if len(pair.towers) > 1
    }
    if len(splits) > 1:
        one, other, *_ = splits.values()
        raise CannotRun(
            f"cannot identify the rows of each tower: '{one.towers[0].tensor}' and "
            f"'{other.towers[0].tensor}' are fed parts of different sizes; give --batch"
        )
    return next(iter(splits), ())


def _row_input(pair: MatchedTensors, per_row: int, rows: int) -> RowInput:
    recorded = np.concatenate([fed.array for fed in pair.towers])
    if per_row > 1:
        recorded = recorded.reshape(rows, per_row, *recorded.shape[1:])
    tensors = [fed.tensor for fed in pair.towers]
    return RowInput(pair.reference.tensor, tensors, pair.reference.tensor, per_row, recorded)
