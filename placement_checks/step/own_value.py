"""A variable's value after a step: how often its own old value counts, and the rest.

A weight decay lets the old value count less. It may be added to the gradient or to the change of
the variable. Or it follows the step, and multiplies the rest, too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from math import isclose
from typing import NamedTuple

from placement_checks.step.kinds import NUMBER, ONE, AtomId, Form, Monomial
from placement_checks.step.terms import Terms, are_close

_ROUNDING, _FLOAT32 = 1e-2, 1e-6  # relative: of a small decay, and of other numbers
_NOTHING = 1e-12


class OwnValue(NamedTuple):
    """A form, split into multiples of a variable's own value, and the rest.

    Attributes:
        counts: how often the own value counts, by the scalars that multiply it.
        rest: the other terms.
    """

    counts: Mapping[Monomial, float]
    rest: Form

    @staticmethod
    def split(terms: Terms, form: Form, own: AtomId | None) -> OwnValue:
        """Split a form. Small parts of the own value count like the rest of it."""
        counts, rest = defaultdict[Monomial, float](float), defaultdict[Monomial, float](float)
        for (base, factors), number in terms.summands(form):
            factors = tuple([each for each in factors if terms[each[0]].op != "SmallPart"])
            others = tuple([each for each in factors if each != (own, 1)])
            scalars = ONE, others
            is_own = base == own or (base == ONE and others != factors)
            if is_own and not terms.is_backward_monomial(scalars) and not terms.parts_of(scalars):
                counts[scalars] += number
            else:
                rest[base, factors] += number
        return OwnValue(counts, terms.form(rest))

    def decays(self, start: float) -> Mapping[Monomial, float]:
        """How much more often than ``start`` times the own value counts."""
        found = {**self.counts, NUMBER: self.counts.get(NUMBER, 0.0) - start}
        return {scalars: number for scalars, number in found.items() if abs(number) > _NOTHING}


def ratio_of_decays(
    ours: Mapping[Monomial, float], theirs: Mapping[Monomial, float]
) -> float | None:
    """How many times a decay is another one; None if it is no multiple.

    Products of several small decays are left out.
    """
    ratios = [ours[each] / number for each, number in theirs.items() if each in ours]
    if not ratios or len(ratios) < len(theirs):
        return None
    if not all(isclose(ratio, ratios[0], rel_tol=_ROUNDING) for ratio in ratios):
        return None
    noise = max(_FLOAT32, min(_ROUNDING, _FLOAT32 / min(map(abs, theirs.values()))))
    return (
        1.0 if isclose(ratios[0], 1.0, rel_tol=noise) and len(ours) == len(theirs) else ratios[0]
    )


def steps_of(terms: Terms, ours: OwnValue, theirs: OwnValue) -> tuple[Form, Form]:
    """The rests of two values, or the steps before decays after them, if these are more alike.

    They are more alike if they are equal, or if simpler numbers make them equal.
    """
    rests = ours.rest, theirs.rest
    products = [
        terms.times(one.rest, terms.form(other.counts))
        for one, other in ((ours, theirs), (theirs, ours))
    ]
    if not (ours.counts and theirs.counts) or rests[0] == rests[1]:
        return rests
    if products[0] is not None and products[0] == products[1]:
        return ours.rest, ours.rest
    kept = [terms.constant(terms.form(each.counts)) for each in (ours, theirs)]
    if not (kept[0] and kept[1]):
        return rests
    steps = terms.scaled(rests[0], 1 / kept[0]), terms.scaled(rests[1], 1 / kept[1])
    return min(rests, steps, key=lambda pair: _unlikeness(terms, *pair))


def _unlikeness(terms: Terms, one: Form, other: Form) -> tuple[int, float]:
    """How many coefficients differ, and how far their ratios are from whole numbers."""
    numbers = [sorted(abs(number) for _, number in terms.summands(each)) for each in (one, other)]
    ratios = [max(x / y, y / x) for x, y in zip(*numbers, strict=False)]
    differing = sum(not are_close([ratio, 1.0]) for ratio in ratios)
    return differing, sum(abs(ratio - round(ratio)) for ratio in ratios)
