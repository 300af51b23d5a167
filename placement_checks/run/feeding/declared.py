"""Batches: asked of the user's batch function or made up, and cut into the parts of towers.

What a program is fed where it does not say so, and the batch names its placeholders.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from placement_checks.core.errors import CannotRun, InputError
from placement_checks.core.op_types import PLACEHOLDERS
from placement_checks.core.placement import producer_of
from placement_checks.core.program import BatchFunction
from placement_checks.core.script import Script
from placement_checks.core.user_code import users_code
from placement_checks.graph.op_origins import dims
from placement_checks.run.feeding.batches import Case
from placement_checks.run.feeding.interface import Batch, Split
from placement_checks.run.runnable import RunnableProgram
from placement_checks.util.text import did_you_mean, join_and, plural

_UNIQUE_SUFFIX = re.compile(r"_\d+$")  # TensorFlow's ending of a name that is taken


def inputs_from_batch_names(
    program: RunnableProgram, make: BatchFunction | None, rows: int
) -> RunnableProgram:
    """The program, fed the whole batch if each key of that is the name of a placeholder in it.

    The replicas of a strategy are fed their parts, if each has an argument of every such name.
    """
    if program.inputs or make is None:
        return program
    names = _batch_keys(make, rows)
    ops = program.placement.ops
    of_replicas = [
        dict(_tensors_by_argument(tensors)) for tensors in program.placement.step.inputs
    ]
    if names and len(of_replicas) > 1 and all(set(names) <= each.keys() for each in of_replicas):
        return replace(
            program, inputs=[{name: each[name] for name in names} for each in of_replicas]
        )
    if not names or not all(
        producer_of(name) in ops and ops[producer_of(name)].type in PLACEHOLDERS for name in names
    ):
        return program
    return replace(
        program, inputs=[{name: f"{producer_of(name)}:0" for name in names}], shared=True
    )


def _tensors_by_argument(tensors: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Tensors of one replica by the names of the arguments, which TensorFlow numbers."""
    for tensor in tensors:
        name = producer_of(tensor)
        yield _UNIQUE_SUFFIX.sub("", name), tensor if ":" in tensor else f"{tensor}:0"


def _batch_keys(make: BatchFunction, rows: int) -> list[str]:
    """The names of the arrays in a batch; none if there is no batch of so many rows."""
    try:
        with users_code("", "the batch function", None):
            return [str(name) for name in make(np.random.default_rng(0), rows)]
    except InputError:
        return []  # told where the batch is wanted in earnest


MIN_ROWS = 16  # rows of a batch that is not fixed
_MIN_ROWS_PER_TOWER = 4  # rows of a tower, at least


class DeclaredFeeding:
    """How arrays get into a program that says what to feed, and its reference, if there is one.

    Attributes:
        rows: of a global batch that can be cut evenly.
        made_up: whether nobody gives the rows.
        odd: of one that cannot, for a program that splits the batch itself and is not said to
            take batches of one size; else 0.
        split: the rows of each tower, for a batch of `rows`; empty where the program splits.
    """

    def __init__(
        self,
        towers: RunnableProgram,
        reference: RunnableProgram | None,
        make: BatchFunction | None,
        *,
        rows: int = 0,
        shares: Sequence[int] = (),
        fewest: int = MIN_ROWS,
    ) -> None:
        some_rows = make.rows if isinstance(make, Case) else rows or MIN_ROWS
        towers = inputs_from_batch_names(towers, make, some_rows)
        reference = reference and inputs_from_batch_names(reference, make, some_rows)
        _check_inputs(towers, reference)
        self._programs = [towers, reference] if reference else [towers]
        self._towers = towers
        self._reference = reference or towers
        # A case is fed more than once: to be traced, measured, and timed for other rows.
        self._make = make.rewound() if isinstance(make, Case) else make
        self.made_up = make is None
        name = make.name if isinstance(make, Case) else getattr(make, "__qualname__", "")
        self._name = name or "the batch function"
        self._parts = list(shares) or [1] * len(towers.inputs)
        if len(self._parts) != len(towers.inputs):
            raise InputError(
                "gradients-equal.shares",
                f"names {plural(len(self._parts), 'tower')}, and {towers.name} has inputs for "
                f"{len(towers.inputs)}",
                "give one number per tower",
            )
        fixed = self._fixed()
        total = sum(self._parts) if not towers.shared else towers.gpus
        saved = make.rows if isinstance(make, Case) else 0
        some = total * -(-max(fewest, _MIN_ROWS_PER_TOWER * total) // total)
        self.rows = rows or fixed or saved or some
        _check_rows(towers.name, self.rows, fixed, total)
        self.odd = 0 if fixed or rows or not towers.shared or total == 1 else self.rows + 1
        self.split: Split = () if towers.shared else self._cut(self.rows)

    def _cut(self, rows: int) -> Split:
        ends = np.cumsum([0, *self._parts]) * rows // sum(self._parts)
        return tuple(tuple(range(begin, end)) for begin, end in pairwise(ends.tolist()))

    def _fixed(self) -> int:
        """The rows of the global batch that placeholders are made for; 0 if they take any.

        Raises:
            InputError: the programs are made for different batches.
        """
        paired = len(self._programs) > 1
        single = _fixed_rows(self._reference, self._reference.inputs[0]) if paired else 0
        sizes = [_fixed_rows(self._towers, mapping) for mapping in self._towers.inputs]
        if not self._towers.shared and all(sizes):
            self._parts = sizes if len(set(sizes)) > 1 else self._parts
        total = sum(sizes) if all(sizes) else 0
        if single and total and single != total:
            raise InputError(
                self._reference.name,
                f"it takes batches of {single} rows, and {self._towers.name} of {total}",
                "build both for the same global batch, or with None in the placeholders' shapes",
            )
        return single or total

    def batch(self, rng: np.random.Generator, rows: int) -> dict[str, npt.NDArray[Any]]:
        """The arrays of one batch, those of rank 0 whole.

        Raises:
            InputError: the batch function raised, or returned what cannot be fed.
        """
        mappings = (mapping for program in self._programs for mapping in program.inputs)
        wanted = {name for mapping in mappings for name in mapping}
        if self._make is None:
            return {name: self._made_up(name, rng, rows) for name in sorted(wanted)}
        fix = "it is called with a numpy.random.Generator and the rows of the global batch"
        with users_code(self._name, f"batch(rng, {rows})", None, fix):
            returned = self._make(rng, rows)
            if not isinstance(returned, Mapping):
                raise InputError(
                    self._name,
                    f"it returned {type(returned).__name__}",
                    f"return arrays by the names of the inputs: {join_and(sorted(wanted))}",
                )
            arrays = {str(name): self._array(str(name), value) for name, value in returned.items()}
        for name in sorted(wanted - arrays.keys()):
            raise InputError(
                self._name,
                f"it returned no array for the input '{name}'",
                did_you_mean(name, arrays) or f"it returned {join_and(sorted(arrays))}",
            )
        for name in sorted(wanted):
            array = arrays[name]
            if array.ndim and len(array) != rows:
                raise InputError(
                    self._name,
                    f"it returned {plural(len(array), 'row')} for '{name}' instead of {rows}",
                    "return as many rows as are asked for; what is not per row has rank 0",
                )
        return arrays

    def _array(self, name: str, value: Any) -> npt.NDArray[Any]:
        try:
            return np.asarray(value)
        except ValueError as error:
            raise InputError(
                self._name,
                f"what it returned for '{name}' is not an array: {str(error).partition('.')[0]}",
                "return rows of one shape",
            ) from None

    def _made_up(self, name: str, rng: np.random.Generator, rows: int) -> npt.NDArray[Any]:
        """Rows that are all different, for an input that a batch function does not give."""
        program, tensor = self._placeholder(name)
        sizes = dims(tensor.shape)
        if sizes is None:
            raise CannotRun(f"the shape of the input '{name}' is not known; give --batch")
        if not sizes:
            raise CannotRun(f"the input '{name}' is one number for all rows; give --batch")
        shape = [rows, *(size or 1 for size in sizes[1:])]
        dtype = tensor.dtype.base_dtype
        if dtype.is_floating or dtype.is_complex:
            return rng.normal(size=shape).astype(dtype.as_numpy_dtype)
        if dtype.is_integer or dtype == tf.bool:  # 0 and 1 are classes and words of any model
            return rng.integers(0, 2, size=shape).astype(dtype.as_numpy_dtype)
        raise CannotRun(f"{program} takes {dtype.name} for '{name}'; give --batch")

    def _placeholder(self, name: str) -> tuple[str, Any]:
        for program in self._programs:
            for mapping in program.inputs:
                if name in mapping:
                    return program.name, program.graph.get_tensor_by_name(mapping[name])
        raise KeyError(name)

    def to_reference(self, batch: Batch, rows: Sequence[int] | None = None) -> Batch:
        """The feeds of the reference, for all rows or for some in the order returned."""
        return _feeds(self._reference, self._reference.inputs[0], _select_rows(batch, rows))

    def to_towers(self, batch: Batch) -> Batch:
        """The feeds of the program: its part for each tower, or all for one shared mapping."""
        feeds: dict[str, npt.NDArray[Any]] = {}
        split = [None] if self._towers.shared else self.split
        for mapping, rows in zip(self._towers.inputs, split, strict=True):
            feeds |= _feeds(self._towers, mapping, _select_rows(batch, rows))
        return feeds


def _check_inputs(towers: RunnableProgram, reference: RunnableProgram | None) -> None:
    """Check that both programs say what to feed, and the reference as one for one GPU."""
    for program in (towers, reference) if reference else (towers,):
        if not program.inputs and isinstance(program.built.program, Script):
            raise CannotRun(
                f"{program.name} was fed nothing that could hold rows, and took none from a "
                "pipeline in time"
            )
        if not program.inputs:
            raise CannotRun(
                f"{program.name} does not say what to feed; return it from the function that "
                "builds the graph: {'inputs': [{'x': x, 'y': y}, …]}"
            )
    if reference and not reference.shared:
        raise InputError(
            reference.name,
            f"it has inputs for {len(reference.inputs)} towers, and a reference has one",
            "name the program for one GPU as the reference",
        )


def _check_rows(program: str, rows: int, fixed: int, total: int) -> None:
    """Check that a global batch is of the ``fixed`` size, if any, and cut into ``total`` parts."""
    if fixed and fixed != rows:
        raise InputError(
            f"a batch of {plural(rows, 'row')}",
            f"the programs take {fixed}",
            "leave the number out",
        )
    if rows % total:
        raise InputError(
            program,
            f"{plural(rows, 'row')} cannot be cut for its {plural(total, 'tower')}",
            f"take a multiple of {total}, such as {total * _MIN_ROWS_PER_TOWER}",
        )


def _select_rows(batch: Batch, rows: Sequence[int] | None) -> Batch:
    if rows is None:
        return batch
    return {name: array[list(rows)] if array.ndim else array for name, array in batch.items()}


def _feeds(program: RunnableProgram, mapping: Mapping[str, str], arrays: Batch) -> Batch:
    """The arrays by the tensors that they are fed to.

    Raises:
        InputError: a shape does not fit.
    """
    feeds = {}
    for name, tensor in mapping.items():
        shape = program.graph.get_tensor_by_name(tensor).shape
        if not shape.is_compatible_with(arrays[name].shape):
            raise InputError(
                f"input '{name}' of {program.name}",
                f"the array has shape {arrays[name].shape}, the placeholder {dims(shape)}",
                "let the batch function return what the placeholder takes",
            )
        dtype = program.graph.get_tensor_by_name(tensor).dtype
        if (dtype == tf.string) != (arrays[name].dtype.kind in "OSU"):
            raise InputError(
                f"input '{name}' of {program.name}",
                f"the array holds {arrays[name].dtype}, the placeholder takes {dtype.name}",
                "let the batch function return what the placeholder takes",
            )
        feeds[tensor] = arrays[name]
    return feeds


def _fixed_rows(program: RunnableProgram, mapping: Mapping[str, str]) -> int:
    """The rows that placeholders of one mapping are made for; 0 if they take any number."""
    shapes = [dims(program.graph.get_tensor_by_name(tensor).shape) for tensor in mapping.values()]
    first = {shape[0] for shape in shapes if shape}
    return first.pop() or 0 if len(first) == 1 else 0
