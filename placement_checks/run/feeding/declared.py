"""Feed programs that declare their inputs: batches of the user's function, or random rows.

A builder returns its inputs as a mapping of names to placeholders for each tower, or one mapping
for all towers. The batch function returns arrays by the same names, with the rows of the global
batch as the first axis. The rows are cut into consecutive parts, one for each tower; a program
with one mapping for all towers gets the whole batch and splits it itself. A reference for one GPU
gets the whole batch, too. Scalars are fed to all towers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from placement_checks.core.errors import CannotRun, InputError
from placement_checks.core.measurement import Arrays
from placement_checks.core.op_types import PLACEHOLDERS
from placement_checks.core.placement import producer_of, with_output
from placement_checks.core.program import BatchFunction
from placement_checks.core.user_code import users_code
from placement_checks.graph.details import static_shape
from placement_checks.run.feeding.batches import Case, batch_size
from placement_checks.run.feeding.interface import PASS_BATCH, Feeding, argument_name
from placement_checks.run.runnable import RunnableProgram
from placement_checks.util.text import did_you_mean, join_and, plural

MIN_ROWS = 16  # in a batch without a fixed size
_MIN_ROWS_PER_TOWER = 4


class DeclaredFeeding(Feeding):
    """Feeds programs that declare their inputs, and their reference if there is one.

    A program that splits batches itself and takes any batch size gets a second, uneven batch.
    """

    def __init__(
        self,
        towers: RunnableProgram,
        reference: RunnableProgram | None,
        batch_function: BatchFunction | None,
        *,
        rows: int = 0,
        shares: Sequence[int] = (),
        min_rows: int = MIN_ROWS,
        same_towers: bool = False,
    ) -> None:
        """Choose the batch size and each tower's part.

        Args:
            towers: the program.
            reference: the program for one GPU, if there is one.
            batch_function: returns the rows; random rows by default.
            rows: the size of the global batch; by default the fixed size of the placeholders, the
                size of the saved case, or at least ``min_rows``.
            shares: the relative parts of the towers; equal by default.
            min_rows: the smallest batch if no size is fixed.
            same_towers: whether the reference has the same towers, which are fed the same rows.

        Raises:
            InputError: the programs, the batch size and the shares contradict each other.
            CannotRun: a program declares no inputs, or the reference does not have the same
                towers.
        """
        self._name = getattr(batch_function, "__qualname__", "") or "the batch function"
        self._batch_function = batch_function
        saved = 0
        if isinstance(batch_function, Case):
            saved = batch_function.rows
            self._name = batch_function.name or self._name
            # A case is fed several times: for the trace, the measurement and the timing.
            self._batch_function = batch_function.rewound()
        self._programs = [
            _with_inputs(program, batch_function, saved or rows or MIN_ROWS)
            for program in (towers, reference)
            if program
        ]
        self.same_towers = same_towers
        _check_inputs(*self._programs, same_towers=same_towers)
        towers = self._towers = self._programs[0]
        self._reference = self._programs[-1]
        self.generated = batch_function is None
        if self.generated:
            _check_names(towers, self._reference)
        self._shares = list(shares) or [1] * len(towers.inputs)
        if len(self._shares) != len(towers.inputs):
            raise InputError(
                "gradients-equal.shares",
                f"names {plural(len(self._shares), 'tower')}, but {towers.name} has inputs for "
                f"{len(towers.inputs)}",
                "give one number per tower",
                is_predicate=True,
            )
        fixed = self._fixed_batch_size()
        self.reference_rows = max(1, _fixed_rows(self._reference, self._reference.inputs[0]))
        total = towers.gpus if towers.has_shared_inputs else sum(self._shares)
        smallest = max(min_rows, _MIN_ROWS_PER_TOWER * total)
        self.rows = rows or fixed or saved or total * -(-smallest // total)
        rows_text = plural(self.rows, "row")
        if fixed and fixed != self.rows:
            raise InputError(
                f"a batch of {rows_text}", f"the programs take {fixed}", "omit the number"
            )
        if self.rows % total:
            raise InputError(
                towers.name,
                f"{rows_text} cannot be split evenly among its {plural(total, 'tower')}",
                f"take a multiple of {total}, such as {total * _MIN_ROWS_PER_TOWER}",
            )
        if not towers.has_shared_inputs:
            ends = np.cumsum([0, *self._shares]) * self.rows // sum(self._shares)
            self.split = tuple(tuple(range(begin, end)) for begin, end in pairwise(ends.tolist()))
        elif total > 1 and not fixed and not rows:
            self.uneven_rows = self.rows + 1

    def _fixed_batch_size(self) -> int:
        """Return the size of the global batch that the placeholders require; 0 for any size.

        If the placeholders of the towers have unequal sizes, these sizes become the shares.

        Raises:
            InputError: the two programs require different sizes.
        """
        has_reference = len(self._programs) > 1
        expected = [_fixed_rows(self._reference, each) for each in self._reference.inputs]
        single = sum(expected) if has_reference and all(expected) else 0
        sizes = [_fixed_rows(self._towers, mapping) for mapping in self._towers.inputs]
        if not all(sizes):
            return single
        if not self._towers.has_shared_inputs and len(set(sizes)) > 1:
            self._shares = sizes
        total = sum(sizes)
        if single and single != total:
            raise InputError(
                self._reference.name,
                f"it takes batches of {single} rows, but {self._towers.name} takes {total}",
                "build both for the same global batch, or with None in the placeholders' shapes",
            )
        return total

    def batch(self, rng: np.random.Generator, rows: int) -> Arrays:
        """Return the arrays of one batch by name; arrays of rank 0 hold no rows."""
        mappings = (mapping for program in self._programs for mapping in program.inputs)
        names = sorted({name for mapping in mappings for name in mapping})
        if self._batch_function is None:
            return {name: self._random_rows(name, rng, rows) for name in names}
        fix = (
            "it is called with a numpy.random.Generator and the number of rows of the global batch"
        )
        with users_code(self._name, f"batch(rng, {rows})", None, fix):
            returned = self._batch_function(rng, rows)
            if not isinstance(returned, Mapping):
                raise InputError(
                    self._name,
                    f"it returned {type(returned).__name__}",
                    f"return arrays by the names of the inputs: {join_and(names)}",
                )
            arrays = {str(name): self._array(str(name), value) for name, value in returned.items()}
        for name in names:
            if name not in arrays:
                raise InputError(
                    self._name,
                    f"it returned no array for the input '{name}'",
                    did_you_mean(name, arrays)
                    or (f"add it to {join_and(sorted(arrays))}" if arrays else "")
                    or f"return arrays by the names of the inputs: {join_and(names)}",
                )
            array = arrays[name]
            if array.ndim and len(array) != rows:
                raise InputError(
                    self._name,
                    f"it returned {plural(len(array), 'row')} for '{name}' instead of {rows}",
                    "return as many rows as requested; arrays without rows have rank 0",
                )
        return arrays

    def _array(self, name: str, value: Any) -> npt.NDArray[Any]:
        kind = type(value).__name__
        try:
            array = np.asarray(value)
        except ValueError as error:
            reason = str(error).partition(".")[0]
            if isinstance(value, list | tuple) and kind in ("list", "tuple"):
                kind += f" of rows of different shapes ({reason})"
        else:
            if array.dtype != object or array.ndim:
                return array
        raise InputError(
            self._name,
            f"the value it returned for '{name}' is not an array, but a {kind}",
            "return a dense array with rows of one shape, such as padded rows",
        )

    def _random_rows(self, name: str, rng: np.random.Generator, rows: int) -> npt.NDArray[Any]:
        candidates = [(each, names) for each in self._programs for names in each.inputs]
        program, mapping = next((each, names) for each, names in candidates if name in names)
        tensor = program.graph.get_tensor_by_name(mapping[name])
        sizes = static_shape(tensor.shape)
        fault = f"cannot make random rows for the input '{name}' of {program.name}"
        if sizes is None:
            raise CannotRun(f"{fault}: its shape is not known", PASS_BATCH)
        if not sizes:
            raise CannotRun(f"{fault}: it is one number for all rows", PASS_BATCH)
        shape = [rows, *(size or 1 for size in sizes[1:])]
        dtype = tensor.dtype.base_dtype
        if dtype.is_floating or dtype.is_complex:
            return rng.normal(size=shape).astype(dtype.as_numpy_dtype)
        if dtype.is_integer or dtype == tf.bool:  # 0 and 1 are valid classes and words everywhere
            return rng.integers(0, 2, size=shape).astype(dtype.as_numpy_dtype)
        raise CannotRun(f"{fault}: its dtype is {dtype.name}", PASS_BATCH)

    def to_reference(self, batch: Arrays, rows: Sequence[int] | None = None) -> Arrays:
        """Return the feeds of the reference for the given rows, in this order; by default for all.

        If its placeholders require a larger batch, they are fed these rows several times.
        """
        reference = self._reference
        if rows and not self.same_towers:
            rows = [*rows] * self.repetitions(len(rows))
        chosen = _select_rows(batch, rows)
        if not self.same_towers:
            return _feeds(reference, reference.inputs[0], chosen)
        if batch_size(chosen) not in (0, self.rows, self.uneven_rows):
            raise InputError(
                reference.name,
                f"can only be run on all {self.rows} rows of a batch",
                is_predicate=True,
            )
        return self._tower_feeds(reference, chosen)

    def repetitions(self, rows: int) -> int:
        times, rest = divmod(self.reference_rows, rows)
        return 1 if rest or not times else times

    def to_towers(self, batch: Arrays) -> Arrays:
        return self._tower_feeds(self._towers, batch)

    def _tower_feeds(self, program: RunnableProgram, batch: Arrays) -> Arrays:
        """Return the feeds of a program: the parts of its towers, or one batch for all."""
        feeds: dict[str, npt.NDArray[Any]] = {}
        split = [None] if program.has_shared_inputs else self.split
        for mapping, rows in zip(program.inputs, split, strict=True):
            feeds |= _feeds(program, mapping, _select_rows(batch, rows))
        return feeds


def _with_inputs(
    program: RunnableProgram, batch_function: BatchFunction | None, rows: int
) -> RunnableProgram:
    """Declare inputs for a program that has none, if the batch names its placeholders.

    If each replica of a strategy has an argument for every name in the batch, each replica is fed
    its part. Otherwise, if every name is a placeholder, the program is fed the whole batch.

    A batch of ``rows`` rows is requested to find the names.
    """
    if program.inputs or batch_function is None:
        return program
    if isinstance(batch_function, Case):  # each program asks for the first batch
        batch_function = batch_function.rewound()
    try:
        with users_code("", "the batch function", None):
            names = [str(name) for name in batch_function(np.random.default_rng(0), rows)]
    except InputError:  # `DeclaredFeeding.batch` reports the error
        return program
    if not names:
        return program
    replicas = [
        {argument_name(program.placement, tensor): with_output(tensor) for tensor in tensors}
        for tensors in program.placement.step.inputs
    ]
    if len(replicas) > 1 and all(set(names) <= tensors.keys() for tensors in replicas):
        inputs = [{name: tensors[name] for name in names} for tensors in replicas]
        return replace(program, inputs=inputs)
    ops = program.placement.ops
    producers = {name: producer_of(name) for name in names}
    if all(op in ops and ops[op].type in PLACEHOLDERS for op in producers.values()):
        inputs = [{name: f"{op}:0" for name, op in producers.items()}]
        return replace(program, inputs=inputs)
    return program


def _check_inputs(*programs: RunnableProgram, same_towers: bool) -> None:
    """Check that all programs have inputs, and that the reference has inputs for one tower.

    With ``same_towers``, the reference must have inputs for as many towers as the program.
    """
    for program in programs:
        if program.inputs:
            continue
        if program.built.program and program.built.program.in_own_process:
            raise CannotRun(
                f"{program.name} was fed no tensor that can hold rows, and its input pipeline "
                "delivered no rows in time"
            )
        raise CannotRun(
            f"{program.name} declares no inputs",
            "return them from the function that builds the "
            "graph: {'inputs': [{'x': x, 'y': y}, …]}",
        )
    towers = programs[0]
    for reference in programs[1:]:
        if same_towers:
            own, other = (
                (each.has_shared_inputs, len(each.inputs)) for each in (towers, reference)
            )
            if own != other:
                raise CannotRun(
                    f"cannot compare numbers: {towers.name} has inputs for "
                    f"{plural(own[1], 'tower')}, but {reference.name} for {other[1]}"
                )
            continue
        if reference.has_shared_inputs:
            continue
        raise InputError(
            reference.name,
            f"it has inputs for {len(reference.inputs)} towers, but a reference has one tower",
            "name the program for one GPU as the reference",
        )


def _check_names(towers: RunnableProgram, reference: RunnableProgram) -> None:
    """Check that the inputs of both programs have the same names.

    The programs get the same random rows only for inputs of the same name.

    Raises:
        CannotRun: an input of one program has no counterpart in the other.
    """
    own, expected = (
        sorted({name for mapping in program.inputs for name in mapping})
        for program in (towers, reference)
    )
    if own != expected:
        raise CannotRun(
            f"{towers.name} has the inputs {join_and(own)}, and {reference.name} "
            f"{join_and(expected)}, so random rows would differ between them",
            "give the inputs the same names in both programs, or pass a function that returns "
            "rows for all of these names: --batch train.py:batch",
        )


def _select_rows(batch: Arrays, rows: Sequence[int] | None) -> Arrays:
    if rows is None:
        return batch
    return {name: array[list(rows)] if array.ndim else array for name, array in batch.items()}


def _feeds(program: RunnableProgram, mapping: Mapping[str, str], arrays: Arrays) -> Arrays:
    """Return the arrays by the tensors that they are fed to.

    Raises:
        InputError: the shape or dtype of an array does not fit its placeholder.
    """
    feeds = {}
    for name, tensor_name in mapping.items():
        array, tensor = arrays[name], program.graph.get_tensor_by_name(tensor_name)
        mismatch = ""
        if not tensor.shape.is_compatible_with(array.shape):
            shape = static_shape(tensor.shape)
            mismatch = f"the array has shape {array.shape}, the placeholder {shape}"
        elif (tensor.dtype == tf.string) != (array.dtype.kind in "OSU"):
            mismatch = f"the array holds {array.dtype}, the placeholder takes {tensor.dtype.name}"
        elif lost := _lost_value(array, tensor.dtype.base_dtype):
            mismatch = f"the array holds {lost}, which {tensor.dtype.base_dtype.name} cannot hold"
        if mismatch:
            raise InputError(
                f"input '{name}' of {program.name}",
                mismatch,
                "let the batch function return arrays that the placeholder takes",
            )
        feeds[tensor_name] = array
    return feeds


def _lost_value(array: npt.NDArray[Any], dtype: tf.DType) -> str:
    """Return a value that TensorFlow would change silently, such as 0.5 for an integer.

    Floating-point numbers may be rounded. ``""`` if there is no such value.
    """
    if not (dtype.is_floating or dtype.is_integer or dtype.is_bool) or dtype.is_quantized:
        return ""
    if array.dtype.kind in "mM":  # dates and durations
        return str(array.dtype)
    if dtype.is_floating:
        wrong = np.imag(array) != 0 if np.iscomplexobj(array) else np.False_
    else:
        with np.errstate(invalid="ignore"):
            wrong = array.astype(dtype.as_numpy_dtype) != array
    return f"{array[wrong].flat[0]} ({array.dtype})" if np.any(wrong) else ""


def _fixed_rows(program: RunnableProgram, mapping: Mapping[str, str]) -> int:
    """Return the number of rows that the placeholders of a mapping require; 0 for any number."""
    shapes = [
        static_shape(program.graph.get_tensor_by_name(tensor).shape) for tensor in mapping.values()
    ]
    first = {shape[0] for shape in shapes if shape}
    return first.pop() or 0 if len(first) == 1 else 0
