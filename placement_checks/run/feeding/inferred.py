"""What a builder would have returned as inputs, found in what the first step was fed.

A watched program says nowhere which of the tensors that it feeds hold rows, nor for which tower.
Both programs are built by the same code, so a tensor of the one is known in the other by the end
of its name, its dtype and the shape of a row; where there are several, by the order of building.

Which tensors that a program feeds stand for which of its reference.

Both are built by the same code, so a tensor of the one is known in the other by the end of its
name, its dtype and the shape of a row; where there are several, by the order of building.

What the random ops behind losses and gradients draw, such as those of dropout.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from placement_checks.analysis.towers.analysis import analyse
from placement_checks.analysis.towers.inputs import towers_reading
from placement_checks.core.errors import CannotRun
from placement_checks.core.op_types import RANDOM
from placement_checks.core.placement import producer_of
from placement_checks.run.preconditions import ancestors, gradient_tensors
from placement_checks.run.runnable import RunnableProgram
from placement_checks.run.session import ProgramSession
from placement_checks.util.text import join_and

Values = Mapping[str, npt.NDArray[Any]]

_UNIQUE_SUFFIX = re.compile(r"_\d+$")  # TensorFlow's ending of a name that is taken


class FedTensor(NamedTuple):
    """A tensor that is fed.

    Attributes:
        tensor: its name.
        array: what it is fed.
        row: the shape of a row as the graph has it; None for a length that may be any.
        dtype: the name of its dtype.
        tower: the number of the only tower that it is for, or -1.
        takes_any_number: whether its first axis may have any length.
        drawn: whether a random op yields it, which is fed so that both programs draw alike.
        in_model: whether losses or gradients depend on it.
    """

    tensor: str
    array: npt.NDArray[Any]
    row: tuple[int | None, ...]
    dtype: str
    tower: int
    takes_any_number: bool
    drawn: bool
    in_model: bool


class MatchedTensors(NamedTuple):
    """Tensors of the program, one for each tower or one for all, and that of the reference."""

    towers: Sequence[FedTensor]
    reference: FedTensor

    @property
    def has_rows(self) -> bool:
        """Whether there may be rows in what both are fed."""
        return bool(self.reference.array.ndim and all(self.lengths))

    @property
    def lengths(self) -> tuple[int, int]:
        """Those of the first axes of what both programs are fed, of all towers together."""
        return sum(len(fed.array) for fed in self.towers), len(self.reference.array)

    def value(self, fed: FedTensor) -> npt.NDArray[Any]:
        """What one of the tensors is fed where all are fed the same.

        Numbers stay as they were, but for the rate of an update: it may grow with the number of
        GPUs, and no difference is meant to show for that.
        """
        own = not fed.array.ndim and (fed.in_model or fed.array.dtype.kind != "f")
        return fed.array if own else self.towers[0].array

    @property
    def numbers_differ(self) -> bool:
        """Whether it is a number in the model, which the programs are not fed alike."""
        first, fed = self.towers[0], self.reference
        return not fed.array.ndim and fed.in_model and bool(first.array != fed.array)


def match_tensors(
    towers: RunnableProgram, reference: RunnableProgram, drawn: Values, drawn_alone: Values
) -> tuple[list[MatchedTensors], Values, Values]:
    """The pairs, and what else each program is fed, which does not depend on rows.

    Args:
        towers: the program; it and the reference know what they were fed.
        reference: the same for one GPU.
        drawn: what the random ops of the program drew.
        drawn_alone: what those of the reference drew.

    Raises:
        CannotRun: some tensor has no counterpart, or it is not clear which that is.
    """
    left, alone = _fed_tensors(towers, drawn), _fed_tensors(reference, drawn_alone)
    pairs: list[MatchedTensors] = []
    for looks in (_name, _shape, _lengthless):
        found = list(_matches(left, alone, looks, towers.gpus))
        left = _without(left, [fed for pair in found for fed in pair.towers])
        alone = _without(alone, [pair.reference for pair in found])
        pairs += found
    rest = _unmatched_values(towers, left, reference, alone)
    return pairs, rest, _unmatched_values(reference, alone, towers, left)


def _fed_tensors(program: RunnableProgram, drawn: Values) -> list[FedTensor]:
    """What a program is fed, in the order in which its graph was built."""
    analysis = analyse(program.placement)
    number = analysis.flow.number
    values = {_full(name): array for name, array in program.built.fed.items()}
    roots = [*gradient_tensors(program), *program.placement.step.objectives]
    behind = set(ancestors(program, roots, ()))
    found = []
    for tensor, array in {**values, **drawn}.items():
        op, _, output = tensor.partition(":")
        if op not in number:
            continue
        outputs = program.placement.details.outputs(op)
        dtype, shape = outputs[int(output)]
        tower = analysis.tower_of[number[op]]
        if tower < 0:
            reading = towers_reading(analysis, tensor)
            tower = min(reading) if len(reading) == 1 else -1
        is_free = shape is None or (len(shape) > 0 and shape[0] is None)
        array = np.asarray(array)
        row = tuple(shape[1:]) if shape is not None else (None,) * max(array.ndim - 1, 0)
        found.append(
            FedTensor(tensor, array, row, dtype, tower, is_free, tensor in drawn, op in behind)
        )
    return sorted(found, key=lambda fed: (number[producer_of(fed.tensor)], fed.tensor))


def _full(tensor: str) -> str:
    return tensor if ":" in tensor else f"{tensor}:0"


def _base_name(fed: FedTensor) -> str:
    return _UNIQUE_SUFFIX.sub("", producer_of(fed.tensor).rpartition("/")[2])


def _name(fed: FedTensor) -> Hashable:
    return _base_name(fed), _shape(fed)


def _shape(fed: FedTensor) -> Hashable:
    return fed.dtype, fed.drawn, fed.array.ndim, fed.array.shape[1:]


def _kind(fed: FedTensor) -> Hashable:
    return _base_name(fed), fed.dtype, fed.drawn, fed.array.ndim


def _lengthless(fed: FedTensor) -> Hashable:
    """As `_name`, of rows of any length, such as those padded to the longest of their batch."""
    return _kind(fed), fed.row


def _matches(
    several: Sequence[FedTensor],
    alone: Sequence[FedTensor],
    looks: Callable[[FedTensor], Hashable],
    gpus: int,
) -> Iterator[MatchedTensors]:
    """The pairs of those that look alike: as many in both programs, or as many for each tower."""
    candidates: dict[Hashable, list[FedTensor]] = defaultdict(list)
    for fed in several:
        candidates[looks(fed)].append(fed)
    counterparts: dict[Hashable, list[FedTensor]] = defaultdict(list)
    for fed in alone:
        counterparts[looks(fed)].append(fed)
    for look, references in counterparts.items():
        if len(candidates[look]) == len(references):
            groups: Sequence[Sequence[FedTensor]] = [[fed] for fed in candidates[look]]
        elif len(candidates[look]) == gpus * len(references):
            groups = _group_by_tower(candidates[look], len(references), gpus)
        else:
            groups = []
        for group, counterpart in zip(groups, references, strict=False):
            if len({fed.array.shape[1:] for fed in group}) == 1:
                yield MatchedTensors(group, counterpart)


def _group_by_tower(
    found: Sequence[FedTensor], number: int, gpus: int
) -> list[Sequence[FedTensor]]:
    """Tensors of all towers, those together that come at the same place in each; or none.

    Where it is not seen for which tower a tensor is, the towers' come one after another.
    """
    of_towers = [[fed for fed in found if fed.tower == tower] for tower in range(gpus)]
    if any(len(of_tower) != number for of_tower in of_towers):
        if number > 1:
            return []
        of_towers = [[fed] for fed in found]
    return list(zip(*of_towers, strict=True))


def _without(some: Sequence[FedTensor], used: Sequence[FedTensor]) -> list[FedTensor]:
    tensors = {fed.tensor for fed in used}
    return [fed for fed in some if fed.tensor not in tensors]


def _unmatched_values(
    program: RunnableProgram,
    left: Sequence[FedTensor],
    other: RunnableProgram,
    theirs: Sequence[FedTensor],
) -> Values:
    """What only one program is fed: numbers, and arrays of one value, such as first states.

    Args:
        program: the one.
        left: what it is fed that nothing stands for.
        other: the other.
        theirs: what is left of it.

    Raises:
        CannotRun: something else is, which may hold rows.
    """
    roots = [*gradient_tensors(program), *program.placement.step.train_op]
    needed = set(ancestors(program, roots, ()))
    given = [fed for fed in left if not fed.drawn and producer_of(fed.tensor) in needed]
    unclear = [fed for fed in given if np.any(fed.array != fed.array.reshape(-1)[:1])]
    if unclear:
        if why := _of_other_lengths(unclear[0], other, theirs):
            raise CannotRun(why)
        names = join_and(f"'{fed.tensor}'" for fed in unclear)
        raise CannotRun(
            f"it is not clear what stands in {other.name} for {names}, which {program.name} is "
            "fed; give --batch"
        )
    return {fed.tensor: fed.array for fed in given}


def _of_other_lengths(fed: FedTensor, other: RunnableProgram, theirs: Sequence[FedTensor]) -> str:
    """That what bears the name of a tensor in the other program has rows of another length."""
    for their in theirs:
        if _kind(their) == _kind(fed) and their.array.shape[1:] != fed.array.shape[1:]:
            of_one, of_other = ([*each.array.shape[1:]] for each in (fed, their))
            return (
                f"'{fed.tensor}' is fed rows of the shape {of_one}, and '{their.tensor}' of "
                f"{other.name} rows of {of_other}; pad rows to one length, or shuffle by a seed"
            )
    return ""


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
class InferredInputs:
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


def infer_inputs(
    towers: RunnableProgram, reference: RunnableProgram, drawn: Values, drawn_alone: Values
) -> InferredInputs:
    """What the rows of a program and of its reference are, and where they are fed.

    Args:
        towers: the program; it and the reference know what they were fed.
        reference: the same for one GPU.
        drawn: what the random ops of the program drew when it was fed that.
        drawn_alone: what those of the reference drew.

    Raises:
        CannotRun: that is not clear.
    """
    pairs, left, left_alone = match_tensors(towers, reference, drawn, drawn_alone)
    rows, of_reference = _batch_sizes(pairs, towers.name)
    factors = [_entries_per_row(pair, rows, of_reference) for pair in pairs]
    in_rows = [
        (pair, factor) for pair, factor in zip(pairs, factors, strict=True) if factor is not None
    ]
    same = []
    for pair, factor in zip(pairs, factors, strict=True):
        if factor is None and _can_share_value(pair):
            same.append(pair)
        elif factor is None and not pair.reference.drawn:
            raise CannotRun(
                f"it is not clear what the rows are: {_fed_tensor(towers, pair)} and "
                f"{reference.name} "
                f"{_size(pair.reference)} for '{pair.reference.tensor}', where other tensors are "
                f"fed {rows} and {of_reference}; give --batch"
            )
    _check_rows_differ([pair for pair, _ in in_rows])
    to_towers = {fed.tensor: pair.value(fed) for pair in same for fed in pair.towers}
    to_reference = {pair.reference.tensor: pair.value(pair.reference) for pair in same}
    split = _tower_rows(in_rows)
    return InferredInputs(
        rows=rows,
        of_reference=of_reference,
        any_number=all(pair.reference.takes_any_number for pair, _ in in_rows)
        and not any(array.ndim for array in left_alone.values())
        and not _contains_batch_size({**to_reference, **left_alone}, {rows, of_reference, *split}),
        split=split,
        inputs=[_row_input(pair, factor, rows) for pair, factor in in_rows],
        to_towers={**left, **to_towers},
        to_reference={**left_alone, **to_reference},
        not_alike=[pair.reference.tensor for pair in same if pair.numbers_differ],
    )


def _fed_tensor(program: RunnableProgram, pair: MatchedTensors) -> str:
    lengths = join_and(map(_size, pair.towers))
    names = join_and(f"'{fed.tensor}'" for fed in pair.towers)
    return f"{program.name} is fed {lengths} for {names}"


def _size(fed: FedTensor) -> str:
    return str(len(fed.array) if fed.array.ndim else fed.array)


def _batch_sizes(pairs: Sequence[MatchedTensors], program: str) -> tuple[int, int]:
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


def _entries_per_row(pair: MatchedTensors, rows: int, of_reference: int) -> int | None:
    """How many entries of the first axis belong to one row; None if that is no axis of rows."""
    if not pair.has_rows:
        return None
    entries, rest = divmod(pair.lengths[0], rows)
    is_whole = entries and not rest and all(not len(fed.array) % entries for fed in pair.towers)
    return entries if is_whole and pair.lengths[1] == entries * of_reference else None


def _can_share_value(pair: MatchedTensors) -> bool:
    """Whether both programs can be fed the same: one value, or arrays of one shape."""
    if any(fed.array.shape != pair.reference.array.shape for fed in pair.towers):
        return False
    first = pair.towers[0]
    return first.drawn or all(np.array_equal(first.array, fed.array) for fed in pair.towers)


def _check_rows_differ(pairs: Sequence[MatchedTensors]) -> None:
    """Check that something tells one row from another."""
    arrays = [
        np.concatenate([fed.array for fed in pair.towers])
        for pair in pairs
        if not pair.reference.drawn
    ]
    if all(np.all(array == array[:1]) for array in arrays):
        names = join_and(
            f"'{pair.reference.tensor}'" for pair in pairs if not pair.reference.drawn
        )
        raise CannotRun(
            f"all rows that are fed to {names} are alike, so that nothing tells what became of "
            "one; give --batch"
        )


def _contains_batch_size(values: Values, numbers: set[int]) -> bool:
    """Whether a number that is fed says how many rows there are."""
    return any(
        not array.ndim and array.dtype.kind in "iuf" and array > 1 and float(array) in numbers
        for array in values.values()
    )


def _tower_rows(pairs: Sequence[tuple[MatchedTensors, int]]) -> Sequence[int]:
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


def _row_input(pair: MatchedTensors, per_row: int, rows: int) -> RowInput:
    seen = np.concatenate([fed.array for fed in pair.towers])
    if per_row > 1:
        seen = seen.reshape(rows, per_row, *seen.shape[1:])
    tensors = [fed.tensor for fed in pair.towers]
    return RowInput(pair.reference.tensor, tensors, pair.reference.tensor, per_row, seen)


def random_tensors(program: RunnableProgram, seconds: float) -> dict[str, npt.NDArray[Any]]:
    """What they draw in one run with what the program was fed, by the names of tensors.

    Those in loops, branches that are not taken and bodies of functions are left out: they cannot
    be fed.

    Args:
        program: what was fed is known of it.
        seconds: that one run may take.
    """
    ops = program.placement.ops
    # Also those of a tower whose gradients are lost.
    roots = [*gradient_tensors(program), *program.placement.step.objectives]
    behind = ancestors(program, roots, program.built.fed)
    names = [
        output.name
        for name in behind
        if ops[name].type in RANDOM and not ops[name].caller
        for output in program.graph.get_operation_by_name(name).outputs
    ]
    if not names:
        return {}
    with ProgramSession(program, seconds) as session:
        session.begin({})
        values = session.fetched(names, program.built.fed)
    return {
        name: np.asarray(value)
        for name, value in zip(names, values, strict=True)
        if value is not None
    }
