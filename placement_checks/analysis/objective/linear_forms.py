"""Linear forms: sums of leaves, each with a coefficient and symbolic factors.

A factor is a scalar tensor that is not a constant, such as a loss scale, with an integer power.
Factors of equal tensors cancel, such as a loss scale and the division by this loss scale.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from typing import Final, NamedTuple, TypeAlias

# Symbols with their powers, sorted; powers are never 0.
Factors: TypeAlias = tuple[tuple[str, int], ...]
# The coefficients, by leaf and factors.
Form: TypeAlias = Mapping[tuple[Hashable, Factors], float]


class Weight(NamedTuple):
    """A scalar: a coefficient times symbolic factors."""

    coefficient: float = 1.0
    factors: Factors = ()

    def times(self, other: Weight, power: int = 1) -> Weight:
        """Multiply by ``other``, or divide by it with the power -1.

        Raises:
            ZeroDivisionError: ``other`` is zero, and the power is negative.
        """
        powers: defaultdict[str, int] = defaultdict(int, self.factors)
        for symbol, exponent in other.factors:
            powers[symbol] += exponent * power
        factors = tuple(sorted((symbol, each) for symbol, each in powers.items() if each))
        return Weight(self.coefficient * other.coefficient**power, factors)


ONE: Final = Weight()


def leaf(key: Hashable) -> Form:
    """Return the form that consists of one leaf."""
    return {(key, ()): 1.0}


def scaled(form: Form, weight: Weight) -> Form:
    """Return a form times a scalar."""
    result: dict[tuple[Hashable, Factors], float] = {}
    for (key, factors), coefficient in form.items():
        product = Weight(coefficient, factors).times(weight)
        result[key, product.factors] = product.coefficient
    return result


def added(forms: Iterable[Form]) -> Form:
    """Return the sum of forms. A leaf that cancels stays, with the coefficient 0."""
    total: defaultdict[tuple[Hashable, Factors], float] = defaultdict(float)
    for form in forms:
        for key, coefficient in form.items():
            total[key] += coefficient
    return dict(total)
