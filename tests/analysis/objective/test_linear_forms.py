from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placement_checks.analysis.objective.linear_forms import (
    ONE,
    Form,
    Weight,
    added,
    leaf,
    scaled,
)

_SYMBOLS = st.sampled_from(["loss scale", "learning rate", "norm"])
_NUMBERS = st.integers(-8, 8).filter(bool).map(float)


@st.composite
def weights(draw: st.DrawFn) -> Weight:
    """A coefficient with up to three factors."""
    powers = draw(st.dictionaries(_SYMBOLS, st.integers(-2, 2).filter(bool)))
    return Weight(draw(_NUMBERS), tuple(sorted(powers.items())))


@st.composite
def forms(draw: st.DrawFn) -> Form:
    """A sum of up to four weighted leaves."""
    leaves = draw(st.lists(st.tuples(st.integers(0, 3), weights()), max_size=4))
    return added(scaled(leaf(key), weight) for key, weight in leaves)


@given(weights(), weights())
def test_a_factor_and_its_inverse_cancel(one: Weight, other: Weight) -> None:
    product = one.times(other).times(other, -1)

    assert product.factors == one.factors
    assert product.coefficient == pytest.approx(one.coefficient)


@given(weights(), weights())
def test_products_commute(one: Weight, other: Weight) -> None:
    assert one.times(other) == other.times(one)


@given(forms(), forms(), weights())
def test_scaling_distributes_over_sums(one: Form, other: Form, weight: Weight) -> None:
    assert scaled(added([one, other]), weight) == added(
        [scaled(one, weight), scaled(other, weight)]
    )


@given(forms())
def test_one_changes_nothing(form: Form) -> None:
    assert scaled(form, ONE) == form


def test_division_by_zero_is_an_error() -> None:
    with pytest.raises(ZeroDivisionError):
        ONE.times(Weight(0.0), -1)
