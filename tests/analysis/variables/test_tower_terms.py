"""Values as terms, and the towers whose rows they are computed from."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from support.steps import (
    Program,
    Value,
    add_n,
    concat,
    mean,
    rows_of,
    split,
    square,
    to_float,
    total,
)

from placement_checks.analysis.variables.tower_terms import TowerTerms, tower_terms
from placement_checks.core.ids import TowerIndex
from placement_checks.core.missing import Missing

Parts = Callable[[Program], Sequence[Value]]


def of_split(program: Program) -> Sequence[Value]:
    return split(program.placeholder("x", (None, 3)), 2)


def of_placeholders(program: Program) -> Sequence[Value]:
    return [program.placeholder("x", (None, 3), i) for i in (0, 1)]


def of_one_iterator(program: Program) -> Sequence[Value]:
    iterator = program.iterator()
    return [program.draw(iterator, {"x": (3,)}, i)[0] for i in (0, 1)]


def of_whole_batch(program: Program) -> Sequence[Value]:
    return [program.placeholder("x", (None, 3))] * 2


def terms_of(
    parts_of: Parts, values: Callable[[Sequence[Value], Sequence[Value]], Sequence[Value]]
) -> tuple[TowerTerms, Sequence[str]]:
    """The terms of a program, and values that are made of the towers' inputs and losses."""
    made = Program()
    w = made.variable("w", (3,))
    parts = parts_of(made)
    losses = []
    for i, x in enumerate(parts):
        with made.tower(i):
            losses.append(mean(square(total(x * w.read(), 1))))
    found = [each.op for each in values(parts, losses)]
    gradients = [made.gradient(loss, w) for loss in losses]
    made.train(w.descend(0.1, add_n(gradients) / 2))
    return tower_terms(made.placement()), found


def towers_of(terms: TowerTerms, tensor: str) -> int:
    form = terms.form(tensor)
    assert not isinstance(form, Missing)
    return terms.towers_of(form)


@pytest.mark.parametrize("parts_of", [of_split, of_placeholders, of_one_iterator, of_whole_batch])
def test_the_towers_of_losses(parts_of: Parts) -> None:
    terms, names = terms_of(parts_of, lambda _, losses: [*losses, add_n(losses)])

    assert [towers_of(terms, name) for name in names] == [0b01, 0b10, 0b11]


def test_joined_rows_are_rows_of_each_tower() -> None:
    terms, (joined,) = terms_of(of_split, lambda parts, _: [concat(parts)])

    assert towers_of(terms, joined) == 0b11


def test_the_number_of_rows_is_no_value_of_the_rows() -> None:
    terms, (scaled,) = terms_of(
        of_placeholders, lambda parts, losses: [losses[0] * to_float(rows_of(parts[1]))]
    )

    assert towers_of(terms, scaled) == 0b01


def test_values_of_rows_without_variables_are_not_computed() -> None:
    terms, (value,) = terms_of(
        of_placeholders, lambda parts, losses: [losses[0] / total(parts[1])]
    )
    form = terms.form(value)

    assert not isinstance(form, Missing)
    assert terms.towers_of(form) == 0b11
    assert terms.towers_computing(form) == 0b01


def test_losses_are_equal_but_for_their_parts() -> None:
    terms, names = terms_of(of_split, lambda _, losses: losses)
    forms = [terms.form(name) for name in names]

    assert forms[0] != forms[1]
    assert not isinstance(forms[1], Missing)
    assert terms.as_of_first_tower(forms[1], TowerIndex(1)) == forms[0]
