"""The objective of a variable in words, read from one program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.steps import Handle, Program, Value, add_n, apply, concat, mean, square, total

from placement_checks.analysis.variables.objectives import objectives

Loss = Callable[[Value, Handle], Value]


def rows(x: Value, w: Handle) -> Value:
    """A value for each row."""
    return square(total(x * w.read(), 1))


def average(x: Value, w: Handle) -> Value:
    return mean(rows(x, w))


def objective(
    shares: Sequence[float],
    loss: Loss = average,
    update: Callable[[Program, Handle, Value], Value] | None = None,
) -> str | None:
    """The objective of towers whose gradients are multiplied by shares and added up."""
    made = Program()
    w = made.variable("w", (3,))
    gradients: list[Value] = []
    for i, share in enumerate(shares):
        with made.tower(i):
            x = made.placeholder("x", (None, 3), None if len(shares) == 1 else i)
            gradients.append(made.gradient(loss(x, w), w) * share)
    gradient = add_n(gradients) if len(gradients) > 1 else gradients[0]
    made.train(update(made, w, gradient) if update else w.descend(0.1, gradient))
    return objectives(made.placement()).get("w")


@pytest.mark.parametrize(
    ("shares", "text"),
    [
        ((1.0,), "mean"),
        ((0.5, 0.5), "mean"),
        ((1.0, 1.0), "2 mean"),
        ((0.25, 0.25), "1/2 mean"),
        ((0.75, 0.25), "3/4 mean on part 1 of 2 + 1/4 mean on part 2 of 2"),
        ((1.0, 0.0), "mean on part 1 of 2"),
        ((0.5, -0.5), "1/2 mean on part 1 of 2 + -1/2 mean on part 2 of 2"),
        ((0.123,), "0.123 mean"),
    ],
)
def test_the_coefficients_of_towers(shares: Sequence[float], text: str) -> None:
    assert objective(shares) == text


@given(st.sampled_from([Fraction(1, 2), Fraction(1), Fraction(3)]), st.integers(1, 6))
def test_an_average_does_not_depend_on_the_number_of_towers(share: Fraction, towers: int) -> None:
    text = objective([float(share / towers)] * towers)

    assert text == ("mean" if share == 1 else f"{share} mean")


LOSSES: dict[str, tuple[Loss, str]] = {
    "a sum over rows": (lambda x, w: total(rows(x, w)), "1/2 sum"),
    "a sum over columns, and a mean": (lambda x, w: mean(total(square(x * w.read()), 1)), "mean"),
    "a mean over columns, and a sum": (
        lambda x, w: total(mean(square(x * w.read()), 1)),
        "1/2 sum",
    ),
    "the root of a mean": (lambda x, w: apply("Sqrt", average(x, w)), "Sqrt on each part"),
    "a penalty": (
        lambda x, w: average(x, w) + apply("L2Loss", w.read()) * 0.25,
        "mean + 0.25 L2Loss(variable)",
    ),
    "a mean of several terms": (
        lambda x, w: mean(rows(x, w) + rows(x, w) * rows(x, w) * 0.25),
        "mean + 1/4 mean",
    ),
    "two terms": (lambda x, w: average(x, w) + mean(rows(x, w) * rows(x, w)), "mean (2 times)"),
    "terms with different coefficients": (
        lambda x, w: average(x, w) + mean(rows(x, w) * rows(x, w)) * 0.25,
        "mean + 1/4 mean",
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_the_terms_of_losses(name: str) -> None:
    loss, text = LOSSES[name]

    found = objective((0.5, 0.5), loss)

    assert sorted((found or "").split(" + ")) == sorted(text.split(" + "))


@pytest.mark.parametrize(
    ("shares", "text"),
    [
        ((0.5, 0.5), "mean"),
        ((1.0, 1.0), "2 mean"),
        ((0.75, 0.25), "3/4 mean on part 1 of 2 + 1/4 mean on part 2 of 2"),
    ],
)
def test_towers_with_different_models_have_one_mean(shares: Sequence[float], text: str) -> None:
    towers = count()

    def loss(x: Value, w: Handle) -> Value:
        return mean(rows(x, w) * rows(x, w)) if next(towers) else average(x, w)

    assert objective(shares, loss) == text


def test_a_penalty_names_the_number_of_other_variables() -> None:
    made = Program()
    w, v = made.variable("w", (3,)), made.variable("v", (3,))
    x = made.placeholder("x", (None, 3))
    loss = average(x, w) + apply("L2Loss", w.read() + v.read())
    made.train(w.descend(0.1, made.gradient(loss, w)))

    assert objectives(made.placement())["w"] == "mean + L2Loss(variable and 1 other)"


def momentum(made: Program, w: Handle, gradient: Value) -> Value:
    velocity = made.variable("velocity", (3,), is_trained=False)
    with made.after(velocity.assign(velocity.read() * 0.9 + gradient)):
        return w.assign_sub(velocity.read() * 0.1)


def rate_in_a_variable(made: Program, w: Handle, gradient: Value) -> Value:
    return w.assign_sub(made.variable("speed", is_trained=False).read() * gradient)


def normalized(_: Program, w: Handle, gradient: Value) -> Value:
    return w.assign_sub(gradient / apply("Sqrt", square(gradient) + 1.0))


def clipped(_: Program, w: Handle, gradient: Value) -> Value:
    norm = apply("Sqrt", total(square(gradient)))
    scale = apply("Minimum", apply("RealDiv", 1.0, norm), 1.0 / 16.0) * 16.0
    return w.assign_sub(gradient * scale * 0.1)


@pytest.mark.parametrize("update", [momentum, rate_in_a_variable, normalized, clipped])
def test_the_optimizer_of_a_program_is_not_part_of_the_objective(
    update: Callable[[Program, Handle, Value], Value],
) -> None:
    assert objective((1.0, 1.0), update=update) == "2 mean"


@pytest.mark.parametrize("kind", ["ResourceScatterAdd", "ResourceScatterSub"])
@pytest.mark.parametrize(("share", "text"), [(1.0, "2 mean"), (0.5, "mean")])
def test_the_rate_of_a_sparse_update_is_not_part_of_the_objective(
    kind: str, share: float, text: str
) -> None:
    made = Program()
    w, values, at = made.variable("w", (5, 2)), list[Value](), list[Value]()
    for i in (0, 1):
        with made.tower(i):
            ids = apply("Cast", total(made.placeholder("x", (None, 3), i), 1), DstT="int32")
            lookup = apply("GatherV2", w.read(), ids, 0)
            rows, numbers = made.gradient_of_rows(mean(square(total(lookup, 1))), lookup)
            values.append(rows * share)
            at.append(numbers)
    joined = apply("Neg", concat(values)) if kind == "ResourceScatterAdd" else concat(values)
    made.train(apply(kind, w, concat(at), joined * 0.1))

    assert objectives(made.placement())["w"] == text


def test_a_product_of_gradients_is_not_read() -> None:
    assert objective((0.5, 0.5), update=lambda _, w, g: w.descend(0.1, g * g)) is None


def test_a_loss_contains_the_loss_of_another_tower() -> None:
    made = Program()
    w = made.variable("w", (3,))
    losses, gradients = list[Value](), list[Value]()
    for i in (0, 1):
        with made.tower(i):
            x, y = made.placeholder("x", (None, 3), i), made.placeholder("y", (None,), i)
            losses.append(mean(square(total(x * w.read(), 1) - y)))
            whole = add_n([*losses, apply("L2Loss", w.read()) * 0.5])
            gradients.append(made.gradient(whole, w) * 0.5)
    made.train(w.descend(0.1, add_n(gradients)))

    assert (
        objectives(made.placement())["w"]
        == "mean + 1/2 mean on part 1 of 2 + 0.5 L2Loss(variable)"
    )
