"""Tensors of equal elements, such as zeros like a batch: they have the rows of the batch."""

from __future__ import annotations

from collections.abc import Callable
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
    reshape,
    rows_of,
    split,
    square,
    stack,
    to_float,
    total,
)

from placement_checks.step.comparison import State

WIDTH, ROWS = 3, 12


def _integers(x: Value) -> Value:
    return apply("Cast", x, DstT="int32")


# An op on ones like a batch, with a matrix of weights.
OPS: dict[str, Callable[[Value, Value], Value]] = {
    "MatMul": lambda x, w: x @ w,
    "Einsum": lambda x, w: apply("Einsum", x, w, equation="ij,jk->ik"),
    "Shape": lambda x, w: total(w) * to_float(apply("Shape", x)[0]),
    "Pack": lambda x, w: stack([x, x], 1) * total(w),
    "Transpose": lambda x, w: apply("Transpose", x, np.array([1, 0], np.int32)) * total(w),
    "ExpandDims": lambda x, w: apply("ExpandDims", x, 0) * total(w),
    "Reshape": lambda x, w: reshape(x, [-1]) * total(w),
    "Tile": lambda x, w: apply("Tile", x, np.array([1, 2], np.int32)) * total(w),
    "Softmax": lambda x, w: apply("Softmax", x) * total(w),
    "Sum": lambda x, w: total(x, 1) * total(w),
    "Max": lambda x, w: largest(x, 1) * total(w),
    "Mean": lambda x, w: mean(x, 1) * total(w),
    "L2Loss": lambda x, w: apply("L2Loss", x) * total(w),
    "OneHot": lambda x, w: apply("OneHot", _integers(x), 4, 1.0, 0.0, axis=-1) * total(w),
    "GatherV2": lambda x, w: apply("GatherV2", w, _integers(x), 0),
    "Cumsum": lambda x, w: apply("Cumsum", x, 1) * total(w),
    "ArgMax": lambda x, w: to_float(apply("ArgMax", x, 1)) + total(w),
    "BroadcastTo": lambda x, w: apply("BroadcastTo", total(w), apply("Shape", x)),
    "Pad": lambda x, w: apply("Pad", x, np.array([[0, 0], [1, 1]], np.int32)) * total(w),
    "Roll": lambda x, w: apply("Roll", x, 1, 1) * total(w),
    "ReverseV2": lambda x, w: apply("ReverseV2", x, np.array([1], np.int32)) * total(w),
    "Slice": lambda x, w: apply("Slice", x, [0, 0], [-1, 2]) * total(w),
    "ConcatV2": lambda x, w: concat([x, x], 1) * total(w),
    "rows after rows": lambda x, w: concat([x, x], 0) * total(w),
}
FILLED: dict[str, Callable[[Value], Value]] = {
    "zeros": lambda x: apply("ZerosLike", x),
    "ones": lambda x: apply("ZerosLike", x) + 1.0,
    "ones of columns": lambda x: apply("ZerosLike", x) + np.ones((1, WIDTH)),
    "function": lambda x: apply("Tanh", apply("ZerosLike", x)) + 1.0,
    "function of ones": lambda x: apply("Relu", apply("ZerosLike", x) + np.ones((1, WIDTH))),
    "difference": lambda x: x - x,
    "product": lambda x: x * 0.0,
}


def _program(towers: int, loss: Callable[[Value, Value], Value], rows: int | None) -> Program:
    """The mean of the gradients of the towers' losses, and an error of each row."""
    program = Program()
    w = program.variable("w", (WIDTH, 2))
    x = program.placeholder("x", (rows, WIDTH))
    losses = [
        mean(square(part @ w.read())) + loss(part, w.read()) * 0.1
        for part in (split(x, towers) if towers > 1 else [x])
    ]
    gradients = [program.gradient(each, w) for each in losses]
    program.train(w.descend(0.1, add_n(gradients) / float(towers)))
    return program


def _check(loss: Callable[[Value, Value], Value], rows: int | None) -> tuple[State, float]:
    towers, one = _program(2, loss, rows), _program(1, loss, rows)
    found = compare(towers, one)
    with np.errstate(all="ignore"):
        difference = differences(towers, one, found, (ROWS // 2,) * 2, 0)["w"]
    return found.variables["w"].state, difference


@pytest.mark.parametrize(
    ("filled", "rows"),
    [
        *((filled, None) for filled in FILLED),
        *((filled, ROWS) for filled in ("zeros", "ones")),
        *(
            pytest.param(filled, ROWS, marks=pytest.mark.nightly)
            for filled in FILLED
            if filled not in ("zeros", "ones")
        ),
    ],
)
@pytest.mark.parametrize("op", OPS)
def test_sums_over_rows_of_equal_elements(op: str, filled: str, rows: int | None) -> None:
    """The mean of the towers' sums is half the sum of all rows: it is not proved."""

    def loss(x: Value, w: Value) -> Value:
        made = OPS[op](FILLED[filled](x), w) + total(w)
        return total(made) if made.shape else made

    state, difference = _check(loss, rows)
    assert state is not State.PROVED or difference < 1e-5
    assert state is not State.DIFFERS or difference > 1e-5


@pytest.mark.parametrize("filled", ["zeros", "ones"])
@pytest.mark.parametrize(
    "op", [each for each in OPS if each not in ("BroadcastTo", "Max", "Mean")]
)
def test_means_over_rows_of_equal_elements(op: str, filled: str) -> None:
    """The mean of the towers' means is the mean of all rows."""

    def loss(x: Value, w: Value) -> Value:
        made: Any = OPS[op](FILLED[filled](x), w)
        return (total(made) if made.shape else made) / to_float(rows_of(x))

    state, difference = _check(loss, None)
    assert state is State.PROVED
    assert difference < 1e-5


@pytest.mark.parametrize("rank", [1, 2])
def test_a_constant_zero_for_each_row(rank: int) -> None:
    """As in the cross entropy of sigmoids, if the number of rows is fixed."""

    def loss(x: Value, w: Value) -> Value:
        logits = total(x @ w, 1)
        made = logits if rank == 1 else reshape(logits, [*logits.shape, 1])
        zeros = np.zeros([dim or 0 for dim in made.shape], np.float32)
        return mean(apply("Select", apply("Greater", made, zeros), made, zeros))

    state, difference = _check(loss, ROWS)
    assert state is State.PROVED
    assert difference < 1e-5


@pytest.mark.parametrize("columns", [0, 1, 2])
@pytest.mark.parametrize("loss_of_penalty", [0, 1])
def test_ones_like_a_loss_count_its_rows(columns: int, loss_of_penalty: int) -> None:
    """As the losses of TensorFlow 1 count them, if one tower has the penalty in its loss."""

    def program(towers: int) -> Program:
        program = Program()
        w = program.variable("w", (WIDTH, 2))
        x = program.placeholder("x", (None, WIDTH))
        losses = []
        for number, part in enumerate(split(x, towers) if towers > 1 else [x]):
            rows = square(total(part @ w.read(), 1))
            if columns:
                rows = apply("ExpandDims", rows, 1) * np.arange(1.0, columns + 1.0)
            present = apply("Fill", apply("Shape", rows), 1.0)
            loss = apply("DivNoNan", total(rows), total(present)) / float(towers)
            if number == loss_of_penalty % towers:
                loss = add_n([loss, apply("L2Loss", w.read()) * 0.1])
            losses.append(loss)
        program.train(w.descend(0.1, add_n([program.gradient(each, w) for each in losses])))
        return program

    towers, one = program(2), program(1)
    found = compare(towers, one)
    assert found.variables["w"].state is State.PROVED
    assert differences(towers, one, found, (ROWS // 2,) * 2, 0)["w"] < 1e-5
