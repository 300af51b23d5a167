"""Reported losses: how often a number counts the loss of each tower."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.steps import Program, Value, add_n, apply, mean, split, square, total

from placement_checks.analysis.variables.reported_losses import ReportedLosses, reported_losses
from placement_checks.core.ids import TowerIndex
from placement_checks.core.missing import Missing

FACTORS = st.sampled_from([0.0, 0.125, 0.5, 1.0, 3.0])


def losses_of(
    towers: int, report: Callable[[Sequence[Value]], Value]
) -> tuple[ReportedLosses, str]:
    """A step with a number that is made of the losses of its towers, and this number."""
    made = Program()
    w = made.variable("w", (3,))
    parts = split(made.placeholder("x", (None, 3)), towers)
    losses = []
    for i, x in enumerate(parts):
        with made.tower(i):
            errors = mean(square(total(x * w.read(), 1)))
            losses.append(errors + apply("L2Loss", w.read()) * 0.1)
    gradient = add_n([made.gradient(loss, w) for loss in losses])
    number = report(losses).op
    made.train(w.descend(0.1, gradient))
    return reported_losses(made.placement()), number


@given(st.lists(FACTORS, min_size=2, max_size=4), FACTORS.filter(bool))
def test_the_factors_of_the_losses(factors: Sequence[float], common: float) -> None:
    losses, number = losses_of(
        len(factors),
        lambda values: add_n([v * f for v, f in zip(values, factors, strict=True)]) * common,
    )

    used = [tower for tower, factor in enumerate(factors) if factor]
    assert losses.towers(number) == sum(1 << tower for tower in used)
    if used:
        expected = {TowerIndex(i): pytest.approx(f * common) for i, f in enumerate(factors)}
        counts = losses.counts(number)
        assert not isinstance(counts, Missing)
        assert counts == expected


def test_a_function_of_all_losses_has_no_factors() -> None:
    losses, number = losses_of(2, lambda values: square(values[0] + values[1]))

    assert losses.towers(number) == 0b11
    assert losses.counts(number) == {}


def test_unequal_factors_beside_a_function_of_a_loss_are_unknown() -> None:
    losses, number = losses_of(2, lambda values: square(values[0]) + values[1])

    assert losses.towers(number) == 0b11
    assert isinstance(losses.counts(number), Missing)


def test_a_mean_shows_the_value_of_each_tower() -> None:
    losses, number = losses_of(2, lambda values: add_n(values) / 2)
    other, of_one = losses_of(2, lambda values: values[1] * 0.5)

    value = losses.of_one_tower("tower_1/AddV2")
    assert value is not None
    assert value[1] == 1
    assert losses.shows_all_of(number, value[0])
    single = other.of_one_tower("tower_0/AddV2")
    assert single is not None
    assert not other.shows_all_of(of_one, single[0])
