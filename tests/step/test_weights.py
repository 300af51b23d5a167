from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.steps import (
    Program,
    Value,
    add_n,
    apply,
    compare,
    largest,
    mean,
    square,
    stack,
    total,
)

from placement_checks.step.comparison import State
from placement_checks.step.kinds import Cause
from placement_checks.step.weights import Weights

NUMBERS = st.sampled_from([0.125, 0.25, 1 / 3, 0.5, 1.0, 2.0, 7.0, -1.0])


def program(numbers: Sequence[float], penalties: Sequence[float]) -> Program:
    """Towers with gradients, and penalties in their losses, that are multiplied by numbers."""
    made = Program()
    w = made.variable("w", (3,))
    gradients: list[Value] = []
    for i, (number, penalty) in enumerate(zip(numbers, penalties, strict=True)):
        with made.tower(i):
            x = made.placeholder("x", (None, 3), None if len(numbers) == 1 else i)
            loss = mean(square(total(x * w.read(), 1))) + apply("L2Loss", w.read()) * penalty
            gradients.append(made.gradient(loss, w) * number)
    made.train(w.descend(0.1, add_n(gradients) if len(gradients) > 1 else gradients[0]))
    return made


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=2, max_size=4), NUMBERS, NUMBERS)
def test_the_weights_of_towers(
    towers: list[tuple[float, float]], number: float, penalty: float
) -> None:
    numbers, penalties = zip(*towers, strict=True)
    one_gpu = program([number], [penalty])

    found = compare(program(numbers, penalties), one_gpu)

    expected = [each * len(numbers) / number for each in numbers]
    decay = sum(one * other for one, other in zip(numbers, penalties, strict=True))
    if found.variables["w"].state is State.PROVED:
        assert expected == pytest.approx([1.0] * len(numbers))
        assert decay == pytest.approx(number * penalty)
        return
    weights = found.weights["w"]
    assert isinstance(weights, Weights)
    (term,) = weights.examples
    by_part = [term.ratios[part] for part in sorted(term.ratios)]
    assert by_part * (len(numbers) // len(by_part)) == pytest.approx(expected)
    assert term.is_mean
    for each in weights.penalties:
        assert each.coefficient / each.expected == pytest.approx(decay / (number * penalty))


def test_gradients_behind_other_ops_have_no_weights() -> None:
    def of(towers: int) -> Program:
        made = Program()
        w = made.variable("w", (3,))
        changes = []
        for i in range(towers):
            with made.tower(i):
                x = made.placeholder("x", (None, 3), None if towers == 1 else i)
                gradient = made.gradient(mean(square(total(x * w.read(), 1))), w)
                changes.append(apply("Tanh", gradient))
        made.train(w.descend(0.1, add_n(changes) / 2.0 if towers > 1 else changes[0]))
        return made

    weights = compare(of(2), of(1)).weights["w"]

    assert isinstance(weights, Cause)
    assert weights.op == "Tanh"


@pytest.mark.parametrize("kind", ["sign", "stack"])
def test_gradients_that_ops_combine_or_take_the_sign_of_have_no_weights(kind: str) -> None:
    """The sign of a sum is the sign of a mean, and the first operand is not all of a stack."""

    def of(towers: int) -> Program:
        made = Program()
        w = made.variable("w", (3,))
        gradients = []
        for i in range(towers):
            with made.tower(i):
                x = made.placeholder("x", (None, 3), None if towers == 1 else i)
                gradients.append(made.gradient(mean(square(total(x * w.read(), 1))), w))
        if kind == "sign":
            change = apply("Sign", add_n(gradients) if towers > 1 else gradients[0])
        else:
            change = largest(stack(gradients), 0)
        made.train(w.descend(0.1, change))
        return made

    weights = compare(of(2), of(1)).weights["w"]

    assert isinstance(weights, Cause)
    assert weights.op == ("Sign" if kind == "sign" else "Pack")


@pytest.mark.parametrize(
    ("scaling", "ratio"), [("clip", 2.0), ("larger clip", 1.0), ("norm", None), ("mean", 1.0)]
)
def test_factors_that_depend_on_gradients(scaling: str, ratio: float | None) -> None:
    """The sum is clipped by a norm, by a norm for a sum, or divided by its norm."""

    def of(towers: int) -> Program:
        made = Program()
        w = made.variable("w", (3,))
        gradients = []
        for i in range(towers):
            with made.tower(i):
                x = made.placeholder("x", (None, 3), None if towers == 1 else i)
                gradients.append(made.gradient(mean(square(total(x * w.read(), 1))), w))
        gradient = add_n(gradients) if towers > 1 else gradients[0]
        if scaling == "mean":
            gradient = gradient / float(towers)
        inverse = apply("RealDiv", 1.0, apply("Sqrt", total(square(gradient))))
        if scaling == "norm":
            made.train(w.descend(0.1, gradient * inverse))
            return made
        bound = 0.5 * towers if scaling == "larger clip" else 0.5
        gradient = gradient * (apply("Minimum", inverse, 1.0 / bound) * bound)
        if scaling == "larger clip":
            gradient = gradient / float(towers)
        made.train(w.descend(0.1, gradient))
        return made

    found = compare(of(2), of(1))

    weights = found.weights.get("w", Weights())
    if ratio is None:
        assert isinstance(weights, Cause)
        return
    assert isinstance(weights, Weights)
    assert all(
        each == pytest.approx(ratio) for term in weights.examples for each in term.ratios.values()
    )
    assert bool(weights.examples) is (scaling != "mean")
