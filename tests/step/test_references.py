"""Programs for one GPU that write the same loss in another way: no step is reported to differ.

NumPy runs both, so that equal losses are equal, and other losses are not.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from support.steps import (
    Handle,
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
    rows_of,
    split,
    square,
    to_float,
    total,
)

from placement_checks.step.comparison import State

WIDTH, RATE = 3, 0.1
Loss = Callable[[Value, Value], Value]


def _program(
    loss: Loss, towers: int = 1, update: Callable[[Handle, Value], Value] | None = None
) -> Program:
    """The program that trains a vector, given products with its elements and labels."""
    program = Program()
    x, y = program.placeholder("x", (None, WIDTH)), program.placeholder("y", (None,))
    w = program.variable("w", (WIDTH,))
    parts = zip(split(x, towers), split(y, towers), strict=True) if towers > 1 else [(x, y)]
    gradients = [program.gradient(loss(rows * w.read(), labels), w) for rows, labels in parts]
    average = add_n(gradients) / float(towers) if towers > 1 else gradients[0]
    program.train(update(w, average) if update else w.descend(RATE, average))
    return program


def _clipped(w: Handle, gradient: Value, scale: float = 1.0) -> Value:
    """Descend by a gradient with a norm of at most 0.01, computed from its multiple."""
    scaled = gradient * scale
    norm = apply("Sqrt", total(square(scaled)))
    factor = apply("Minimum", 1.0 / norm, 1 / (0.01 * scale)) * (0.01 * scale)
    return w.descend(RATE, scaled * factor / scale)


def _error(h: Value, y: Value) -> Value:
    return total(h, 1) - y


_SIDES = np.array([[0, 0], [1, 1]], np.int32)


def _weighted_softmax(h: Value) -> Value:
    return mean(apply("Softmax", h) * np.arange(3.0))


EQUAL: dict[str, tuple[State, Loss, Loss]] = {
    "square of the negative error": (
        State.PROVED,
        lambda h, y: mean(square(_error(h, y))),
        lambda h, y: mean(square(y - total(h, 1))),
    ),
    "product of the negative error": (
        State.PROVED,
        lambda h, y: mean(square(_error(h, y))),
        lambda h, y: mean((-_error(h, y)) * (-_error(h, y))),
    ),
    "absolute value of the negative error": (
        State.PROVED,
        lambda h, y: mean(apply("Abs", _error(h, y))),
        lambda h, y: mean(apply("Abs", y - total(h, 1))),
    ),
    "half of the positive part of the double": (
        State.UNKNOWN,
        lambda h, _: mean(relu(h)),
        lambda h, _: mean(relu(h * 2.0)) * 0.5,
    ),
    "columns that are joined in another order": (
        State.UNKNOWN,
        lambda h, _: mean(square(concat([h, h * 2.0], 1))),
        lambda h, _: mean(square(concat([h * 2.0, h], 1))),
    ),
    "columns that are rolled the other way": (
        State.UNKNOWN,
        lambda h, _: mean(apply("Roll", h, 1, 1) * h),
        lambda h, _: mean(apply("Roll", h, 2, 1) * h),
    ),
    "other numbers beside columns": (
        State.UNKNOWN,
        lambda h, _: mean(relu(apply("PadV2", h, _SIDES, 1.0))),
        lambda h, _: mean(relu(apply("PadV2", h, _SIDES, 2.0))),
    ),
    "divisor of a whole part": (
        State.UNKNOWN,
        lambda h, _: mean(h) * (1.0 + (1.0 / to_float(rows_of(h))) // 2.0),
        lambda h, _: mean(h) * (1.0 + (1.0 / to_float(rows_of(h))) // 3.0),
    ),
    "softmax of logits and of their differences": (
        State.UNKNOWN,
        lambda h, _: _weighted_softmax(h - largest(h, 1, keeps=True) * 2.0),
        lambda h, _: _weighted_softmax(h - largest(h, 1, keeps=True)),
    ),
    "choice that is known": (
        State.PROVED,
        lambda h, _: apply("SelectV2", h.program.add("Less", 0.0, 1.0), mean(relu(h)), mean(h)),
        lambda h, _: mean(relu(h)),
    ),
    "other choice that is known": (
        State.PROVED,
        lambda h, _: apply("SelectV2", h.program.add("Less", 1.0, 0.0), mean(h), mean(relu(h))),
        lambda h, _: mean(relu(h)),
    ),
    "third of the greatest triple": (
        State.UNKNOWN,
        lambda h, _: mean(largest(h, 1)),
        lambda h, _: mean(largest(h * 3.0, 1)) / 3.0,
    ),
    "sum of two multiples": (
        State.UNKNOWN,
        lambda h, _: mean(relu(h) + relu(h * 2.0)),
        lambda h, _: mean(relu(h) * 3.0),
    ),
    "comparison of a multiple": (
        State.UNKNOWN,
        lambda h, _: mean(apply("Select", apply("Greater", h, 0.0), h, h * 0.5)),
        lambda h, _: mean(apply("Select", apply("Greater", h * 2.0, 0.0), h, h * 0.5)),
    ),
    "logarithm of a multiple": (
        State.UNKNOWN,
        lambda h, _: mean(apply("Log", apply("Exp", h))),
        lambda h, _: mean(apply("Log", apply("Exp", h) * 2.0)),
    ),
}
OTHER: dict[str, tuple[Loss, Loss]] = {
    "half": (
        lambda h, y: mean(square(_error(h, y))),
        lambda h, y: mean(square(_error(h, y))) * 0.5,
    ),
    "function of the double": (
        lambda h, _: mean(apply("Tanh", h * 2.0)),
        lambda h, _: mean(apply("Tanh", h)),
    ),
    "softmax of the double": (
        lambda h, _: _weighted_softmax(h * 2.0),
        lambda h, _: _weighted_softmax(h),
    ),
    "one of two joined columns": (
        lambda h, _: mean(square(concat([h, h * 2.0], 1))),
        lambda h, _: mean(square(concat([h, h], 1))),
    ),
    "square of another sum": (
        lambda h, y: mean(square(total(h, 1) - y * 2.0)),
        lambda h, y: mean(square(total(h, 1) - y)),
    ),
}


def _check(towers: Program, one: Program, expected: State) -> None:
    found = compare(towers, one)
    (answer,) = found.variables.values()
    assert answer.state is expected, answer
    differs = differences(towers, one, found, (4, 4), 0)["w"] > 1e-4
    assert differs is (expected is State.DIFFERS)


@pytest.mark.parametrize("name", EQUAL)
def test_the_same_loss_in_another_way(name: str) -> None:
    state, loss, other = EQUAL[name]

    _check(_program(loss, 2), _program(other), state)


@pytest.mark.parametrize("name", OTHER)
def test_another_loss(name: str) -> None:
    loss, other = OTHER[name]

    _check(_program(loss, 2), _program(other), State.DIFFERS)


def test_a_gradient_that_is_scaled_clipped_and_scaled_back() -> None:
    def scaled(w: Handle, gradient: Value) -> Value:
        return _clipped(w, gradient, 2.0)

    loss = EQUAL["square of the negative error"][1]

    _check(_program(loss, 2, scaled), _program(loss, 1, _clipped), State.UNKNOWN)


def test_the_same_loss_of_reversed_columns() -> None:
    def reversed_columns(h: Value, y: Value) -> Value:
        columns = apply("ReverseV2", h, np.array([1], np.int32))
        return mean(square(total(relu(columns) * np.arange(3.0), 1) - y))

    _check(_program(reversed_columns, 2), _program(reversed_columns), State.PROVED)


def test_the_loss_of_reversed_rows_combines_rows() -> None:
    def reversed_rows(h: Value, y: Value) -> Value:
        return mean(square(total(apply("ReverseV2", h, np.array([0], np.int32)), 1) - y))

    found = compare(_program(reversed_rows, 2), _program(reversed_rows))

    assert {answer.state for answer in found.variables.values()} == {State.UNKNOWN}
