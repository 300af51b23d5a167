"""Which tensors that a program feeds stand for which of its reference.

Both are built by the same code, so a tensor of the one is known in the other by the end of its
name, its dtype and the shape of a row; where there are several, by the order of building.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from placement_checks.analysis.inputs import towers_reading
from placement_checks.analysis.tower_analysis import analyse
from placement_checks.core.errors import CannotRun
from placement_checks.core.placement import producer_of
from placement_checks.run.preconditions import ancestors, gradient_tensors
from placement_checks.run.runnable import RunnableProgram
from placement_checks.util.text import joined

Values = Mapping[str, npt.NDArray[Any]]

_COPY = re.compile(r"_\d+$")  # TensorFlow's ending of a name that is taken


class Fed(NamedTuple):
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


class Pair(NamedTuple):
    """Tensors of the program, one for each tower or one for all, and that of the reference."""

    towers: Sequence[Fed]
    reference: Fed

    @property
    def has_rows(self) -> bool:
        """Whether there may be rows in what both are fed."""
        return bool(self.reference.array.ndim and all(self.lengths))

    @property
    def lengths(self) -> tuple[int, int]:
        """Those of the first axes of what both programs are fed, of all towers together."""
        return sum(len(fed.array) for fed in self.towers), len(self.reference.array)

    def value(self, fed: Fed) -> npt.NDArray[Any]:
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


def paired(
    towers: RunnableProgram, reference: RunnableProgram, drawn: Values, drawn_alone: Values
) -> tuple[list[Pair], Values, Values]:
    """The pairs, and what else each program is fed, which does not depend on rows.

    Args:
        towers: the program; it and the reference know what they were fed.
        reference: the same for one GPU.
        drawn: what the random ops of the program drew.
        drawn_alone: what those of the reference drew.

    Raises:
        CannotRun: some tensor has no counterpart, or it is not clear which that is.
    """
    left, alone = _fed(towers, drawn), _fed(reference, drawn_alone)
    pairs: list[Pair] = []
    for looks in (_name, _shape, _lengthless):
        found = list(_alike(left, alone, looks, towers.gpus))
        left = _without(left, [fed for pair in found for fed in pair.towers])
        alone = _without(alone, [pair.reference for pair in found])
        pairs += found
    rest = _others(towers, left, reference, alone)
    return pairs, rest, _others(reference, alone, towers, left)


def _fed(program: RunnableProgram, drawn: Values) -> list[Fed]:
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
        found.append(Fed(tensor, array, row, dtype, tower, is_free, tensor in drawn, op in behind))
    return sorted(found, key=lambda fed: (number[producer_of(fed.tensor)], fed.tensor))


def _full(tensor: str) -> str:
    return tensor if ":" in tensor else f"{tensor}:0"


def _end(fed: Fed) -> str:
    return _COPY.sub("", producer_of(fed.tensor).rpartition("/")[2])


def _name(fed: Fed) -> Hashable:
    return _end(fed), _shape(fed)


def _shape(fed: Fed) -> Hashable:
    return fed.dtype, fed.drawn, fed.array.ndim, fed.array.shape[1:]


def _kind(fed: Fed) -> Hashable:
    return _end(fed), fed.dtype, fed.drawn, fed.array.ndim


def _lengthless(fed: Fed) -> Hashable:
    """As `_name`, of rows of any length, such as those padded to the longest of their batch."""
    return _kind(fed), fed.row


def _alike(
    several: Sequence[Fed], alone: Sequence[Fed], looks: Callable[[Fed], Hashable], gpus: int
) -> Iterator[Pair]:
    """The pairs of those that look alike: as many in both programs, or as many for each tower."""
    candidates: dict[Hashable, list[Fed]] = defaultdict(list)
    for fed in several:
        candidates[looks(fed)].append(fed)
    counterparts: dict[Hashable, list[Fed]] = defaultdict(list)
    for fed in alone:
        counterparts[looks(fed)].append(fed)
    for look, references in counterparts.items():
        if len(candidates[look]) == len(references):
            groups: Sequence[Sequence[Fed]] = [[fed] for fed in candidates[look]]
        elif len(candidates[look]) == gpus * len(references):
            groups = _by_place(candidates[look], len(references), gpus)
        else:
            groups = []
        for group, counterpart in zip(groups, references, strict=False):
            if len({fed.array.shape[1:] for fed in group}) == 1:
                yield Pair(group, counterpart)


def _by_place(found: Sequence[Fed], number: int, gpus: int) -> list[Sequence[Fed]]:
    """Tensors of all towers, those together that come at the same place in each; or none.

    Where it is not seen for which tower a tensor is, the towers' come one after another.
    """
    of_towers = [[fed for fed in found if fed.tower == tower] for tower in range(gpus)]
    if any(len(of_tower) != number for of_tower in of_towers):
        if number > 1:
            return []
        of_towers = [[fed] for fed in found]
    return list(zip(*of_towers, strict=True))


def _without(some: Sequence[Fed], used: Sequence[Fed]) -> list[Fed]:
    tensors = {fed.tensor for fed in used}
    return [fed for fed in some if fed.tensor not in tensors]


def _others(
    program: RunnableProgram, left: Sequence[Fed], other: RunnableProgram, theirs: Sequence[Fed]
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
        names = joined(f"'{fed.tensor}'" for fed in unclear)
        raise CannotRun(
            f"it is not clear what stands in {other.name} for {names}, which {program.name} is "
            "fed; give --batch"
        )
    return {fed.tensor: fed.array for fed in given}


def _of_other_lengths(fed: Fed, other: RunnableProgram, theirs: Sequence[Fed]) -> str:
    """That what bears the name of a tensor in the other program has rows of another length."""
    for their in theirs:
        if _kind(their) == _kind(fed) and their.array.shape[1:] != fed.array.shape[1:]:
            of_one, of_other = ([*each.array.shape[1:]] for each in (fed, their))
            return (
                f"'{fed.tensor}' is fed rows of the shape {of_one}, and '{their.tensor}' of "
                f"{other.name} rows of {of_other}; pad rows to one length, or shuffle by a seed"
            )
    return ""
