"""Infer which tensors hold rows, from the values that a whole script fed to its first step.

A script feeds tensors without declaring which tensors hold the rows of each tower. They are found
in three steps:

1. `match_tensors` matches the fed tensors of the program and the reference. The same code builds
   both programs, so counterparts have the same dtype, the same row shape and the same last part of
   the name. If several tensors agree in all of these, they are matched in building order.
2. Each tensor has two lengths: the length of its first axis in the program, summed over the
   towers, and in the reference. The pair of lengths that most tensors have is taken as the batch
   sizes. If both lengths of a tensor are the same multiple of the batch sizes, the tensor has
   several entries for each row, such as the four corners of a box.
3. All other tensors, such as learning rates and initial states, are fed the recorded values.

Values that random ops draw, such as dropout masks, are fed like rows (`random_tensors`), so that
both programs use the same values.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from placement_checks.analysis.towers.analysis import analyze
from placement_checks.analysis.towers.inputs import towers_reading
from placement_checks.core.errors import CannotRun
from placement_checks.core.ids import TowerIndex
from placement_checks.core.measurement import Arrays
from placement_checks.core.op_types import RANDOM
from placement_checks.core.placement import COMPONENT, producer_of
from placement_checks.run.feeding.interface import PASS_BATCH, argument_name, check_rows_differ
from placement_checks.run.runnable import RunnableProgram
from placement_checks.run.session import ProgramSession
from placement_checks.util.progress import step
from placement_checks.util.text import join_and

_RANDOM_SECONDS = 60.0  # time limit of the run that fetches the values of random ops


class RowInput(NamedTuple):
    """Tensors that are fed the same rows.

    Attributes:
        towers: the tensors of the program: one for each tower, or one for all.
        reference: the tensor of the reference, which is also the name of the rows in a batch.
        per_row: the number of entries on the first axis of a tensor that belong to one row.
        rows: the recorded rows of all towers; if ``per_row`` is above 1, the second axis holds the
            entries of a row.
    """

    towers: Sequence[str]
    reference: str
    per_row: int
    rows: npt.NDArray[Any]


@dataclass(frozen=True)
class InferredInputs:
    """How rows are fed to two scripts.

    Attributes:
        rows: the number of rows that were fed to all towers in total.
        reference_rows: the number of rows that the reference was fed.
        any_batch_size: whether the reference can be fed any number of rows.
        split: the number of rows of each tower; empty if the program itself splits the batch.
        inputs: the tensors that are fed rows.
        tower_values: the other values that the program is fed.
        reference_values: the other values that the reference is fed.
        unequal_scalars: the tensors of the reference that are scalars in the model, and that the
            two programs were fed with different values.
    """

    rows: int
    reference_rows: int
    any_batch_size: bool
    split: Sequence[int]
    inputs: Sequence[RowInput]
    tower_values: Arrays
    reference_values: Arrays
    unequal_scalars: Sequence[str] = ()


class FedTensor(NamedTuple):
    """A tensor that is fed."""

    tensor: str  # its name
    array: npt.NDArray[Any]  # the recorded value
    row: tuple[int | None, ...]  # the shape of a row in the graph; None for an axis of any length
    dtype: str  # the name of its dtype
    tower: TowerIndex | None  # the index of the only tower that reads it, or None
    any_length: bool  # whether its first axis may have any length
    is_random: bool  # whether a random op yields it
    in_model: bool  # whether losses or gradients depend on it
    argument: str  # the name of the argument that it stands for

    @property
    def name_and_kind(self) -> tuple[Hashable, ...]:
        """Properties that a tensor shares with its counterpart, except for the shape of a row."""
        return self.argument, *self.kind

    @property
    def kind(self) -> tuple[Hashable, ...]:
        return self.dtype, self.is_random, self.array.ndim


# Properties that counterparts share, tried in this order. The last key has None for axes of any
# length, because rows may be padded to the longest row of their batch.
_KEYS: Sequence[Callable[[FedTensor], Hashable]] = (
    lambda fed: (fed.name_and_kind, fed.array.shape[1:]),
    lambda fed: (fed.kind, fed.array.shape[1:]),
    lambda fed: (fed.name_and_kind, fed.row),
)


class FedProgram:
    """A program and the values that it was fed.

    Attributes:
        program: the program, with recorded feeds.
        tensors: by name, the fed tensors and the outputs of random ops, in the building order of
            the graph.
    """

    def __init__(self, program: RunnableProgram, random_values: Arrays) -> None:
        """Describe the recorded feeds of a program, and the values of `random_tensors`."""
        self.program = program
        analysis = analyze(program.placement)
        number = analysis.flow.number
        in_model = _model_ops(program, ())
        tensors = []
        for name, value in {**program.built.fed, **random_values}.items():
            op, _, output = name.partition(":")
            if op not in number:
                continue
            dtype, shape = program.placement.details.outputs(op)[int(output or 0)]
            array = np.asarray(value)
            tensor = f"{op}:{output or 0}"
            tower = analysis.tower_of[number[op]]
            if tower is None:
                readers = towers_reading(analysis, tensor)
                tower = min(readers) if len(readers) == 1 else None
            fed = FedTensor(
                tensor=tensor,
                array=array,
                row=(None,) * max(array.ndim - 1, 0) if shape is None else tuple(shape[1:]),
                dtype=dtype,
                tower=tower,
                any_length=shape is None or (len(shape) > 0 and shape[0] is None),
                is_random=name in random_values,
                in_model=op in in_model,
                argument=argument_name(program.placement, tensor),
            )
            tensors.append(fed)
        tensors.sort(key=lambda fed: (number[producer_of(fed.tensor)], fed.tensor))
        self.tensors = {fed.tensor: fed for fed in tensors}

    def composite_input(self) -> str:
        """Return the name of a sparse or ragged tensor that is fed; ``""`` if there is none.

        `tf.sparse_placeholder` and `tf.ragged.placeholder` create a placeholder for each component
        in one scope.
        """
        scopes: defaultdict[str, dict[str, str]] = defaultdict(dict)  # the dtype of each part
        known = self.program.placement.step.arguments
        for tensor, fed in self.tensors.items():
            scope, _, part = known.get(tensor, producer_of(tensor)).rpartition("/")
            scopes[scope][part] = fed.dtype
        for scope, parts in scopes.items():
            is_sparse = "values" in parts and parts.get("indices") == parts.get("shape") == "int64"
            is_named = any(part.startswith((COMPONENT, "row_splits_")) for part in parts)
            if scope and (is_sparse or is_named):
                return scope
        return ""


def random_tensors(program: RunnableProgram) -> dict[str, npt.NDArray[Any]]:
    """Return the values that random ops draw for losses and gradients, by tensor name.

    The program runs once, on the recorded feeds. Random ops in loops, in branches that do not run
    and in bodies of functions are omitted, because their outputs cannot be fed.
    """
    ops = program.placement.ops
    names = [
        output.name
        for name in _model_ops(program, program.built.fed)
        if ops[name].type in RANDOM and not ops[name].caller
        for output in program.graph.get_operation_by_name(name).outputs
    ]
    if not names:
        return {}
    with ProgramSession(program, _RANDOM_SECONDS) as session, step("random numbers"):
        session.initialize({})
        values = session.fetch(names, program.built.fed)
    return {
        name: np.asarray(value)
        for name, value in zip(names, values, strict=True)
        if value is not None
    }


def _model_ops(program: RunnableProgram, fed: Collection[str]) -> list[str]:
    """Return the ops that gradients or losses depend on.

    Losses count too, because not every gradient may be readable.
    """
    return program.ancestors([*program.gradients.tensors, *program.placement.step.objectives], fed)


def infer_inputs(towers: FedProgram, reference: FedProgram) -> InferredInputs:
    """Infer the rows of a program and its reference, and the tensors that are fed rows.

    Raises:
        CannotRun: the recorded values do not identify the rows.
    """
    for each in (towers, reference):
        if composite := each.composite_input():
            raise CannotRun(
                f"{each.program.name} is fed '{composite}', a sparse or ragged tensor, and its "
                "rows cannot be divided among towers",
                "feed a dense array, such as padded rows",
            )
    pairs, tower_values, reference_values = match_tensors(towers, reference)
    names = towers.program.name, reference.program.name
    rows, reference_rows = _batch_sizes(pairs, names[0])
    any_batch_size = not any(array.ndim for array in reference_values.values())
    with_rows: list[tuple[MatchedTensors, int]] = []
    unequal_scalars = []
    for pair in pairs:
        per_row = pair.entries_per_row(rows, reference_rows)
        if per_row:
            with_rows.append((pair, per_row))
        elif pair.can_share_value:
            tower_values |= {fed.tensor: pair.value(fed) for fed in pair.towers}
            reference_values[pair.reference.tensor] = pair.value(pair.reference)
            if pair.scalars_differ:
                unequal_scalars.append(pair.reference.tensor)
        elif not pair.reference.is_random:
            raise CannotRun(
                f"cannot match the rows of {names[0]} and {names[1]}: {names[0]} feeds "
                f"{_lengths(pair.towers)} to {_names(pair.towers)}, and {names[1]} feeds "
                f"{_lengths([pair.reference])} to {_names([pair.reference])}, but other inputs "
                f"get {rows} rows in {names[0]} and {reference_rows} in {names[1]}",
                PASS_BATCH,
            )
    check_rows_differ(
        {
            pair.reference.tensor: np.concatenate([fed.array for fed in pair.towers])
            for pair, _ in with_rows
            if not pair.reference.is_random
        }
    )
    split = _tower_rows(with_rows)
    any_batch_size &= all(pair.reference.any_length for pair, _ in with_rows)
    sizes = {rows, reference_rows, *split}
    return InferredInputs(
        rows=rows,
        reference_rows=reference_rows,
        any_batch_size=any_batch_size and not _contains_batch_size(reference_values, sizes),
        split=split,
        inputs=[_row_input(pair, per_row, rows) for pair, per_row in with_rows],
        tower_values=tower_values,
        reference_values=reference_values,
        unequal_scalars=unequal_scalars,
    )


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

    def entries_per_row(self, rows: int, reference_rows: int) -> int:
        """Return how many entries of the first axis belong to one row; 0 if there are no rows."""
        if not self.may_have_rows:
            return 0
        entries = self.lengths[1] // reference_rows
        if not entries or self.lengths != (entries * rows, entries * reference_rows):
            return 0
        return 0 if any(len(fed.array) % entries for fed in self.towers) else entries

    @property
    def can_share_value(self) -> bool:
        """Whether one value can be fed to all of these tensors.

        All shapes must be equal. The values of all towers must be equal too, unless random ops
        yield the values.
        """
        first = self.towers[0]
        return all(fed.array.shape == self.reference.array.shape for fed in self.towers) and (
            first.is_random or all(np.array_equal(first.array, fed.array) for fed in self.towers)
        )

    def value(self, fed: FedTensor) -> npt.NDArray[Any]:
        """Return the value to feed to one of the tensors, if they hold no rows.

        A scalar that is in the model or is not a float gets its recorded value, unless a random op
        draws it. Any other tensor gets the value of the first tower. For example, a learning rate
        may grow with the number of GPUs, and a random number may decide in each tower whether a
        layer is left out. Neither is a mistake.
        """
        is_setting = fed.in_model or fed.array.dtype.kind != "f"
        keeps = not fed.array.ndim and not fed.is_random and is_setting
        return fed.array if keeps else self.towers[0].array

    @property
    def scalars_differ(self) -> bool:
        """Whether the tensors are scalars in the model that differ between the two programs."""
        first, fed = self.towers[0], self.reference
        is_setting = not fed.array.ndim and fed.in_model and not fed.is_random
        return is_setting and bool(first.array != fed.array)


def match_tensors(
    towers: FedProgram, reference: FedProgram
) -> tuple[list[MatchedTensors], dict[str, npt.NDArray[Any]], dict[str, npt.NDArray[Any]]]:
    """Match the fed tensors of a program and its reference.

    Returns:
        The matches, the values that only the program is fed, and the values that only the
        reference is fed.

    Raises:
        CannotRun: a tensor that may hold rows has no counterpart.
    """
    left, left_in_reference = dict(towers.tensors), dict(reference.tensors)
    pairs: list[MatchedTensors] = []
    for key in _KEYS:
        matches = list(
            _matches(left.values(), left_in_reference.values(), key, towers.program.gpus)
        )
        pairs += matches
        for pair in matches:
            del left_in_reference[pair.reference.tensor]
            for fed in pair.towers:
                del left[fed.tensor]
    return (
        pairs,
        _unmatched_values(towers.program, left, reference.program, left_in_reference),
        _unmatched_values(reference.program, left_in_reference, towers.program, left),
    )


def _matches(
    tower_tensors: Iterable[FedTensor],
    reference_tensors: Iterable[FedTensor],
    key: Callable[[FedTensor], Hashable],
    gpus: int,
) -> Iterator[MatchedTensors]:
    """Match each tensor of the reference with tensors of the program that have the same key.

    A tensor of the reference is matched with one tensor, or with one tensor for each tower.
    """
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
    """Group tensors by input: the first group has the first tensor of each tower, and so on.

    If there is one tensor for each tower, the tower that reads a tensor may be unknown. The
    tensors are then assumed to be in the order of the towers.
    """
    by_tower = [[fed for fed in tensors if fed.tower == tower] for tower in range(gpus)]
    if any(len(of_tower) != per_tower for of_tower in by_tower):
        if per_tower > 1:
            return []
        by_tower = [[fed] for fed in tensors]
    return list(zip(*by_tower, strict=True))


def _unmatched_values(
    program: RunnableProgram,
    unmatched: Mapping[str, FedTensor],
    other: RunnableProgram,
    unmatched_in_other: Mapping[str, FedTensor],
) -> dict[str, npt.NDArray[Any]]:
    """Return the values that only one program is fed: scalars, and arrays of equal elements.

    Raises:
        CannotRun: the elements of an array differ, so that it may hold rows.
    """
    needed = program.ancestors([*program.gradients.tensors, *program.placement.step.train_op], ())
    given = [
        fed
        for fed in unmatched.values()
        if not fed.is_random and producer_of(fed.tensor) in needed
    ]
    unclear = [fed for fed in given if np.any(fed.array != fed.array.reshape(-1)[:1])]
    if not unclear:
        return {fed.tensor: fed.array for fed in given}
    first = unclear[0]
    row = first.array.shape[1:]
    for fed in unmatched_in_other.values():
        other_row = fed.array.shape[1:]
        if fed.name_and_kind == first.name_and_kind and row != other_row:
            raise CannotRun(
                f"'{first.tensor}' is fed rows of the shape {[*row]}, and '{fed.tensor}' of "
                f"{other.name} rows of {[*other_row]}",
                "pad rows to one length, or shuffle by a seed",
            )
    raise CannotRun(
        f"{program.name} is fed {_names(unclear)}, without a unique counterpart in {other.name}",
        PASS_BATCH,
    )


def _names(tensors: Iterable[FedTensor]) -> str:
    return join_and(f"'{fed.tensor}'" for fed in tensors)


def _lengths(tensors: Iterable[FedTensor]) -> str:
    return join_and(len(fed.array) if fed.array.ndim else fed.array for fed in tensors)


def _batch_sizes(pairs: Sequence[MatchedTensors], program: str) -> tuple[int, int]:
    """Return the numbers of rows that were fed to the program and to the reference.

    This is the pair of lengths that most tensors have. If some tensors take any number of rows,
    only these count, because tensors such as class weights have a fixed size. The lengths of
    tensors of the highest rank break ties.
    """
    fed = [pair for pair in pairs if pair.may_have_rows and not pair.reference.is_random]
    fed = [pair for pair in fed if pair.reference.any_length] or fed
    if not fed:
        raise CannotRun(f"no tensor that is fed to {program} has rows", PASS_BATCH)
    counts = Counter(pair.lengths for pair in fed)
    _, preferred = max((pair.reference.array.ndim, pair.lengths) for pair in fed)
    return max(counts, key=lambda sizes: (counts[sizes], sizes == preferred, -sizes[0]))


def _contains_batch_size(values: Arrays, sizes: set[int]) -> bool:
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
            f"'{other.towers[0].tensor}' are fed parts of different sizes",
            PASS_BATCH,
        )
    return next(iter(splits), ())


def _row_input(pair: MatchedTensors, per_row: int, rows: int) -> RowInput:
    recorded = np.concatenate([fed.array for fed in pair.towers])
    if per_row > 1:
        recorded = recorded.reshape(rows, per_row, *recorded.shape[1:])
    return RowInput([fed.tensor for fed in pair.towers], pair.reference.tensor, per_row, recorded)
