"""Means over the rows of a tower, accepted in place of the means over all rows.

Batch normalization divides the rows of a tower by statistics of these rows. If this is accepted, a
mean over rows that is combined with rows, or that an op takes which is not linear, becomes an atom
``MeanOf``: the mean of a part is then equal to the mean of all rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from placement_checks.step.kinds import ONE, Form, Kind, Monomial, Status
from placement_checks.step.parts import Part, finest, within

if TYPE_CHECKING:
    from placement_checks.step.terms import OpType, Terms


def with_means(
    terms: Terms, op: str, op_type: OpType, operands: tuple[Form, ...]
) -> tuple[Form, ...]:
    """Operands with means over rows as statistics, unless the op is linear in them."""
    kinds = [_kind_of_means(terms, operand) for operand in operands]
    if not any(kinds):
        return operands
    if op in ("Mul", "RealDiv"):
        parts = [bool(terms.parts(operand)) for operand in operands]
        is_linear = Kind.MEAN in kinds and parts.count(True) == 1
    else:
        is_linear = not op_type.is_elementwise
    return tuple(
        [
            _means_as_statistics(terms, operand)
            if kind is Kind.ROWS or (kind is Kind.MEAN and not is_linear)
            else operand
            for operand, kind in zip(operands, kinds, strict=True)
        ]
    )


def _kind_of_means(terms: Terms, form: Form) -> Kind | None:
    """``MEAN`` for a form of means, ``ROWS`` if it has rows too, None without means."""
    part = finest(terms.parts(form))
    if part is None:
        return None
    found = None
    for monomial, number in terms.summands(form):
        if terms.is_backward_monomial(monomial):
            return None
        kind = terms.status_of(monomial, part).kind
        if kind is Kind.ROWS:
            return Kind.ROWS if len(terms.summands(form)) > 1 else None
        if _as_mean(terms, monomial, number, part) is not None:
            found = Kind.MEAN
    return found


def _as_mean(
    terms: Terms, monomial: Monomial, number: float, part: Part
) -> tuple[Form, Form] | None:
    """A monomial as the mean of a sum over rows, times a factor; None if it is none."""
    base, factors = monomial
    sums = [x for x in (base, *(x for x, _ in factors)) if terms[x].finest == part]
    sums = [x for x in sums if terms[x].op != "Rows"]
    if len(sums) != 1 or terms[sums[0]].status.kind is not Kind.SUM:
        return None
    rest = tuple((x, power) for x, power in factors if x != sums[0])
    if sums[0] != base and (base != ONE or (sums[0], 1) not in factors):
        return None
    inverse = [
        (x, k) for x, k in rest if terms[x].op == "Rows" and within(part, terms[x].part or ())
    ]
    if not inverse and terms.constant(terms.rows(part)) is None:
        return None
    if inverse and (len(inverse) > 1 or inverse[0][1] != -1):
        return None
    factor = terms.product(terms.form({(ONE, rest): number}), terms.rows(part))
    return terms.of(sums[0]), factor


def _means_as_statistics(terms: Terms, form: Form) -> Form:
    """A form with its means over rows as atoms of their own."""
    part = finest(terms.parts(form))
    total = []
    for monomial, number in terms.summands(form):
        found = None if part is None else _as_mean(terms, monomial, number, part)
        if found is None:
            total.append((terms.form({monomial: 1.0}), number))
            continue
        inner, factor = found
        shape = terms.shape(inner)
        status = Status(Kind.STATISTIC)
        mean = terms.atom("MeanOf", (), (inner,), shape, status=status)
        total.append((terms.product(mean, factor), 1.0))
    return terms.add(*total)
