"""How op types act on the rows of a batch, and on sums over rows.

A function is proved to be equal on all rows and on the parts of towers only if it is. NumPy runs
each program, so that a wrong expectation fails, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from support.steps import (
    Program,
    Value,
    add_n,
    apply,
    compare,
    concat,
    differences,
    largest,
    mean,
    relu,
    reshape,
    rows_of,
    split,
    split_by_sizes,
    square,
    stack,
    stop_gradient,
    to_float,
    total,
)

from placement_checks.step.comparison import State, StepEquality
from placement_checks.step.terms import Assumption

WIDTH = 3
Function = Callable[[Value], Value]
Combine = Callable[[Sequence[Value]], Value]


def _program(loss: Function, towers: int, combine: Combine) -> Program:
    """The program that trains a vector, given products of rows with its elements."""
    program = Program()
    x, w = program.placeholder("x", (None, WIDTH)), program.variable("w", (WIDTH,))
    parts = split(x, towers) if towers > 1 else [x]
    gradients = [program.gradient(loss(rows * w.read()), w) for rows in parts]
    program.train(w.descend(0.1, combine(gradients)))
    return program


def _check(towers: Program, one: Program, *, is_equal: bool) -> StepEquality:
    found = compare(towers, one)
    (answer,) = found.variables.values()
    is_proved = answer.state is State.PROVED
    assert (is_proved and Assumption.OWN_STATISTICS not in found.assumed) is is_equal, answer
    assert (differences(towers, one, found, (4, 4), 0)["w"] < 1e-5) is is_equal
    return found


# --- functions of rows ---


def _columns_first(h: Value) -> Value:
    """The rows on axis 1 of three."""
    return apply("Transpose", reshape(h, [-1, WIDTH, 1]), [1, 0, 2])


def _integers(h: Value) -> Value:
    """Integers from 0 to 2, one for each row."""
    return apply("Cast", apply("Sigmoid", total(h, 1)) * 3.0, DstT="int32")


def _axis(h: Value) -> Value:
    """The axis 0, which is no constant."""
    return apply("Cast", apply("Greater", total(square(h)), 1e9), DstT="int32")


def _pad(
    h: Value, rows: int, columns: int, *more: float, type_: str = "Pad", **mode: str
) -> Value:
    return apply(type_, h, np.array([[rows, 0], [columns, 0]], np.int32), *more, **mode)


def _normalized(h: Value, is_training: bool) -> tuple[Value, Value]:
    """Rows after batch normalization, and the variance of each column."""
    columns, settings = reshape(h, [-1, 1, 1, WIDTH]), [[1.0, 2.0, 3.0], [0.1] * 3, [0.0] * 3]
    operands = columns, *settings, [0.5, 1.0, 1.5]
    made = apply("FusedBatchNormV3", *operands, is_training=is_training)
    return made, Value(h.program, f"{made.op}:2")


def _table(*shape: int) -> Value:
    return np.arange(1.0, 1.0 + math.prod(shape)).reshape(shape)  # type: ignore[return-value]


# Whether each row of the result has one row.
OF_ROWS: dict[str, tuple[bool, Function]] = {
    "contrast of images": (
        True,
        lambda h: apply("AdjustContrastv2", reshape(h, [-1, 1, 3, 1]), 2.0),
    ),
    "contrast of one image": (
        False,
        lambda h: apply("AdjustContrastv2", reshape(h, [-1, 3, 1]), 2.0),
    ),
    "rows of the rest": (
        True,
        lambda h: largest(reshape(reshape(h, [-1, 3, 1]), [rows_of(h), -1]), 1),
    ),
    "diagonals": (True, lambda h: apply("MatrixBandPart", reshape(h, [-1, 3, 1]), 1, 0)),
    "diagonal": (False, lambda h: apply("MatrixBandPart", h, 1, 0)),
    "choice of rows": (
        True,
        lambda h: apply("Select", apply("Greater", total(h, 1), 0.0), h, h * 0.5),
    ),
    # Axes that move.
    "sum of columns that come first": (True, lambda h: total(_columns_first(h), 0)),
    "sum of rows that come second": (False, lambda h: total(_columns_first(h), 1)),
    "maximum of columns that come first": (
        True,
        lambda h: total(largest(_columns_first(h), 0), 1),
    ),
    "sum of rows after a maximum": (False, lambda h: total(largest(_columns_first(h), 0), 0)),
    "maximum that stays": (
        True,
        lambda h: total(largest(_columns_first(h), 0, keeps=True), [0, 2]),
    ),
    "sum of rows after a maximum that stays": (
        False,
        lambda h: total(largest(_columns_first(h), 0, keeps=True), 1),
    ),
    "sum of a stack": (True, lambda h: total(stack([h, relu(h)], 0), 0)),
    "sum of rows of a stack": (False, lambda h: total(stack([h, relu(h)], 0), 1)),
    "stack of columns": (True, lambda h: total(stack([h, relu(h)], 2), 1)),
    "joined columns": (True, lambda h: concat([h, relu(h)], 1)),
    "slices of columns that come first": (
        True,
        lambda h: total(apply("Slice", _columns_first(h), [1, 0, 0], [2, -1, -1]), 0),
    ),
    "elements of all rows": (True, lambda h: reshape(h, [-1])),
    "rows after an axis of one": (True, lambda h: total(reshape(h, [1, -1, 3]), [0, 2])),
    "sums of rows after an axis of one": (False, lambda h: total(reshape(h, [1, -1, 3]), 1)),
    "rows as columns": (False, lambda h: total(reshape(h, [3, -1]), 0)),
    "number of rows as the last extent": (
        False,
        lambda h: total(reshape(h, stack([3, rows_of(h)])), 0),
    ),
    "two rows for each row": (
        True,
        lambda h: total(reshape(concat([h, relu(h)], 1), [-1, 3]), 1),
    ),
    # Softmax and matrices, along the last axes.
    "softmax of rows": (True, lambda h: square(apply("Softmax", h)) * h),
    "softmax of columns": (
        False,
        lambda h: h * apply("Transpose", apply("Softmax", apply("Transpose", h, [1, 0])), [1, 0]),
    ),
    "greatest column": (True, lambda h: to_float(apply("ArgMax", h, 1)) * total(h, 1)),
    "greatest row": (False, lambda h: to_float(apply("ArgMax", h, 0)) * h),
    "norm of rows": (True, lambda h: apply("EuclideanNorm", h, np.array([1], np.int32))),
    "norm of columns": (False, lambda h: apply("EuclideanNorm", h, np.array([0], np.int32))),
    # Products of matrices.
    "product with a matrix": (True, lambda h: h @ _table(3, 2)),
    "product with a transposed matrix": (
        True,
        lambda h: apply("MatMul", h, _table(2, 3), transpose_b=True),
    ),
    "sums of a product with the transposed rows": (
        True,
        lambda h: total(apply("MatMul", _table(2, 3), h, transpose_b=True), 0),
    ),
    "sums over rows of a product": (
        False,
        lambda h: total(apply("MatMul", _table(2, 3), h, transpose_b=True), 1),
    ),
    "covariance": (False, lambda h: apply("MatMul", h, h, transpose_a=True)),
    "similarities of rows": (False, lambda h: apply("MatMul", h, h, transpose_b=True)),
    "product of two matrices of each row": (
        True,
        lambda h: apply("BatchMatMulV2", reshape(h, [-1, 3, 1]), reshape(h, [-1, 1, 3])),
    ),
    "product of a matrix with a matrix of each row": (
        True,
        lambda h: apply("BatchMatMulV2", _table(2, 3), reshape(h, [-1, 3, 1])),
    ),
    "products with several matrices": (
        True,
        lambda h: total(
            apply("BatchMatMulV2", _table(4, 1, 2, 3), reshape(h, [-1, 3, 1])), [0, 2, 3]
        ),
    ),
    "sums over rows of products with several matrices": (
        False,
        lambda h: total(apply("BatchMatMulV2", _table(4, 1, 2, 3), reshape(h, [-1, 3, 1])), 1),
    ),
    "einsum with a matrix": (
        True,
        lambda h: apply("Einsum", h, _table(3, 2), equation="bi,ij->jb"),
    ),
    "einsum of each row": (True, lambda h: apply("Einsum", h, relu(h), equation="bi,bj->bij")),
    "einsum over rows": (False, lambda h: apply("Einsum", h, relu(h), equation="bi,bj->ij")),
    "einsum of pairs of rows": (
        False,
        lambda h: apply("Einsum", h, relu(h), equation="bi,ci->bc"),
    ),
    "sum over rows of an einsum": (
        False,
        lambda h: total(apply("Einsum", h, _table(3, 2), equation="bi,ij->jb"), 1),
    ),
    # Lookups.
    "chosen columns": (True, lambda h: apply("GatherV2", h, [2, 0], 1)),
    "chosen rows": (False, lambda h: apply("GatherV2", h, [2, 0], 0)),
    "rows after lookups of columns": (
        True,
        lambda h: total(apply("GatherV2", _columns_first(h), [[0, 2]], 0), [0, 1, 3]),
    ),
    "sums of rows after lookups of columns": (
        False,
        lambda h: total(apply("GatherV2", _columns_first(h), [[0, 2]], 0), 2),
    ),
    "lookups in a table": (
        True,
        lambda h: h * total(apply("GatherV2", _table(4, 2), _integers(h), 0), 1, keeps=True),
    ),
    "lookups in columns of a table": (
        True,
        lambda h: total(apply("GatherV2", _table(2, 4), _integers(h), 1), 0) * total(h, 1),
    ),
    "sums of lookups in columns of a table": (
        False,
        lambda h: total(apply("GatherV2", _table(2, 4), _integers(h), 1), 1) * square(total(h)),
    ),
    "lookups in each row": (
        True,
        lambda h: apply("GatherV2", h, reshape(_integers(h), [-1, 1]), 1, batch_dims=1),
    ),
    "lookups of rows in rows": (False, lambda h: apply("GatherV2", h, _integers(h), 0)),
    "vectors of integers": (
        True,
        lambda h: h * apply("OneHot", _integers(h), 3, 1.5, 0.5, axis=-1),
    ),
    "columns of integers": (
        True,
        lambda h: (
            total(apply("OneHot", _integers(h), 3, 1.5, 0.5, axis=0) * _table(3, 1), 0)
            * total(h, 1)
        ),
    ),
    # Ops along an axis.
    "padded columns": (True, lambda h: _pad(h, 0, 1)),
    "padded rows": (False, lambda h: _pad(h, 1, 0)),
    "padded on all sides": (False, lambda h: apply("Pad", h, np.ones((2, 2), np.int32))),
    "columns of two sizes": (
        True,
        lambda h: (
            split_by_sizes(h, [1, 2], 2, axis=1)[1] * split_by_sizes(h, [1, 2], 2, axis=1)[0]
        ),
    ),
    "maxima of halves of columns": (
        True,
        lambda h: largest(reshape(concat([h, relu(h)], 1), stack([rows_of(h) * 2, -1])), 1),
    ),
    "last columns": (True, lambda h: apply("Slice", h, [0, 1], [-1, -1]) * [1.0, 2.0]),
    "columns padded with ones": (True, lambda h: _pad(h, 0, 1, 1.0, type_="PadV2")),
    "mirrored columns": (True, lambda h: _pad(h, 0, 1, type_="MirrorPad", mode="REFLECT")),
    "mirrored rows": (False, lambda h: _pad(h, 1, 0, type_="MirrorPad", mode="REFLECT")),
    "rolled columns": (True, lambda h: apply("Roll", h, 1, 1) * h),
    "rolled rows": (False, lambda h: apply("Roll", h, 1, 0) * h),
    "sums of columns up to each column": (True, lambda h: apply("Cumsum", h, 1)),
    "sums of rows up to each row": (False, lambda h: apply("Cumsum", h, 0)),
    "sums up to each row, along an axis that is no constant": (
        False,
        lambda h: apply("Cumsum", h, _axis(h)),
    ),
    "rows rolled along an axis that is no constant": (
        False,
        lambda h: apply("Roll", h, 1, _axis(h)) * h,
    ),
    "products of columns up to each column": (True, lambda h: apply("Cumprod", h, 1)),
    "products of rows up to each row": (False, lambda h: apply("Cumprod", h, 0)),
    "repeated columns": (True, lambda h: apply("Tile", h, [1, 2])),
    "reversed sequences": (
        True,
        lambda h: (
            apply("ReverseSequence", h, _integers(h) + 1, batch_dim=0, seq_dim=1) * _table(3)
        ),
    ),
    "a reversed sequence of rows": (
        False,
        lambda h: (
            apply("ReverseSequence", total(h, 1, keeps=True), [3], batch_dim=1, seq_dim=0) * h
        ),
    ),
    "batch normalization with given statistics": (True, lambda h: _normalized(h, False)[0]),
    "batch normalization with the rows' statistics": (False, lambda h: _normalized(h, True)[0]),
    "spread of the rows": (False, lambda h: h * _normalized(h, True)[1]),
    "given spread": (True, lambda h: h * _normalized(h, False)[1]),
    # Numbers of elements.
    "whole parts": (True, lambda h: to_float(apply("Cast", h * 3.0, DstT="int32")) * h),
    "share of the sum": (False, lambda h: h / (total(square(h)) + 1.0)),
    "distance from the mean": (False, lambda h: h - mean(h, 0)),
    "product with the sum": (False, lambda h: h * total(h)),
    "product with the maximum": (False, lambda h: h * largest(h)),
}
# Whether the function of the sum of two gradients is the sum of the function of each.
OF_SUMS: dict[str, tuple[bool, Function]] = {
    "negative": (True, lambda g: -g),
    "multiple": (True, lambda g: g * 0.3 + g),
    "element by element": (True, lambda g: g * _table(3) / (_table(3) + 1.0)),
    "sum of elements": (True, total),
    "mean of elements": (True, mean),
    "difference of elements": (True, lambda g: g - mean(g)),
    "sums up to each element": (True, lambda g: apply("Cumsum", g, 0)),
    "padded with zeros": (True, lambda g: apply("Pad", g, np.array([[1, 2]], np.int32))),
    "mirrored": (
        True,
        lambda g: apply("MirrorPad", g, np.array([[1, 0]], np.int32), mode="REFLECT"),
    ),
    "repeated": (True, lambda g: apply("Tile", g, [2])),
    "rolled": (True, lambda g: apply("Roll", g, 1, 0)),
    "reversed": (True, lambda g: apply("ReverseV2", g, [0])),
    "broadcast": (True, lambda g: apply("BroadcastTo", g, [2, 3])),
    "of another shape": (True, lambda g: reshape(g, [3, 1])),
    "transposed": (True, lambda g: apply("Transpose", reshape(g, [3, 1]), [1, 0])),
    "slice": (True, lambda g: g[1:]),
    "joined": (True, lambda g: concat([g, g * 0.5])),
    "columns": (True, lambda g: concat([reshape(g, [3, 1]), reshape(g, [3, 1]) * 0.5], 1)),
    "stacked": (True, lambda g: stack([g, g * 0.5], 1)),
    "stop of gradients": (True, stop_gradient),
    "product with a matrix": (True, lambda g: reshape(g, [1, 3]) @ _table(3, 2)),
    "einsum with a matrix": (
        True,
        lambda g: apply("Einsum", g, _table(3, 2), equation="i,ij->j"),
    ),
    "choice by numbers": (
        True,
        lambda g: apply("SelectV2", g.program.add("Greater", _table(3), 1.5), g, g * 0.5),
    ),
    "plus a number": (False, lambda g: g + 0.5),
    "inverse": (False, lambda g: 1.0 / (g + 10.0)),
    "square": (False, square),
    "product": (False, lambda g: g * mean(g)),
    "positive part": (False, relu),
    "absolute value": (False, lambda g: apply("Abs", g)),
    "least": (False, lambda g: apply("Minimum", g, 0.01)),
    "greatest element": (False, largest),
    "norm": (False, lambda g: apply("EuclideanNorm", g, np.array([0], np.int32))),
    "product of elements": (False, lambda g: apply("Prod", g, np.array([0], np.int32))),
    "products up to each element": (False, lambda g: apply("Cumprod", g, 0)),
    "padded with ones": (
        False,
        lambda g: apply("PadV2", g, np.array([[1, 2]], np.int32), 1.0),
    ),
    "joined with numbers": (False, lambda g: concat([g, g.program.tensor(_table(2))])),
    "stacked with numbers": (False, lambda g: stack([g, g.program.tensor(_table(3))])),
    "product of two matrices": (False, lambda g: reshape(g, [1, 3]) @ reshape(g, [3, 1])),
    "einsum of two": (False, lambda g: apply("Einsum", g, g, equation="i,j->ij")),
    "choice by a sum": (False, lambda g: apply("SelectV2", apply("Greater", g, 0.0), g, g * 0.5)),
    "softmax": (False, lambda g: apply("Softmax", g)),
    "whole numbers": (
        False,
        lambda g: to_float(apply("Cast", g * 10.0, DstT="int32")),
    ),
    "mean of whole numbers": (
        False,
        lambda g: to_float(mean(apply("Cast", g * 99.0, DstT="int32"))),
    ),
    "one of two whole parts": (
        False,
        lambda g: to_float(apply("Cast", g * 100.0, DstT="int32") // 2),
    ),
}


@pytest.mark.parametrize("name", OF_ROWS)
def test_functions_of_each_row(name: str) -> None:
    """The mean of a function of each row is the mean of the means of two towers."""
    is_of_rows, function = OF_ROWS[name]

    def programs(towers: int) -> Program:
        return _program(lambda h: mean(relu(function(h))), towers, _mean)

    _check(programs(2), programs(1), is_equal=is_of_rows)


def _mean(gradients: Sequence[Value]) -> Value:
    return add_n(gradients) / float(len(gradients))


@pytest.mark.parametrize("name", OF_SUMS)
def test_functions_of_sums(name: str) -> None:
    """Towers may add up linear functions of their gradients, and no others."""
    is_linear, function = OF_SUMS[name]

    def combined(gradients: Sequence[Value]) -> Value:
        results = [function(gradient) for gradient in gradients]
        weights: Any = _table(*(dim or 0 for dim in results[0].shape))
        return add_n([total(result * weights) for result in results])

    def programs(towers: int) -> Program:
        return _program(lambda h: total(apply("Sin", h)), towers, combined)

    _check(programs(2), programs(1), is_equal=is_linear)
