"""Means over the rows of a tower, accepted in place of the means over all rows.

Batch normalization divides the rows of a tower by statistics of these rows. If this is accepted, a
mean over rows that is combined with rows, or that an op takes which is not linear, becomes an atom
``MeanOf``: the mean of a part is then equal to the mean of all rows. Whether such means normalize
rows is known only from the whole value (`unaccepted_means`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from placement_checks.step.kinds import ONE, AtomId, Form, Kind, Monomial, Status
from placement_checks.step.parts import Part, finest, within
from placement_checks.util.walks import walk

if TYPE_CHECKING:
    from placement_checks.step.terms import OpType, Terms

_ROOTS = frozenset({"Pow", "Rsqrt", "Sqrt"})


def unaccepted_means(terms: Terms, forms: Iterable[Form]) -> frozenset[AtomId]:
    """The means over rows in forms that belong to no normalization of rows.

    Normalized rows are multiplied or divided by their deviation, a root of a mean. All means that
    the deviation is computed from belong to the normalization. A penalty on the variance of the
    rows, or a threshold at their mean, is another function of a tower's rows than of all rows.
    """
    forms = set(forms)
    atoms = [*terms.all_atoms_in(forms)]
    means = {each for each in atoms if terms[each].op == "MeanOf"}
    if not means:
        return frozenset()
    forms.update(operand for each in atoms for operand in terms[each].operands)
    factors = {each for form in forms for each in _factors_of_rows(terms, form)}

    def below(atom: AtomId) -> Iterable[AtomId]:
        is_end = terms[atom].op == "MeanOf" or terms[atom].status.kind is not Kind.STATISTIC
        return () if is_end else terms.atoms_of_operands(atom)

    deviations = {terms.of(each) for each in walk(factors, below) if terms[each].op in _ROOTS}
    normalizing = means.intersection(terms.all_atoms_in(deviations))
    normalized = {row for mean in normalizing for row in _rows_of(terms, mean)}
    return frozenset(mean for mean in means if not normalized.issuperset(_rows_of(terms, mean)))


def _rows_of(terms: Terms, mean: AtomId) -> Iterator[AtomId]:
    """The rows that a mean is taken of. Means of different shapes may have the same rows."""

    def below(atom: AtomId) -> Iterable[AtomId]:
        return () if terms[atom].status.kind is Kind.ROWS else terms.atoms_of_operands(atom)

    return (each for each in walk([mean], below) if terms[each].status.kind is Kind.ROWS)


def _factors_of_rows(terms: Terms, form: Form) -> Iterator[AtomId]:
    """The atoms that rows are multiplied or divided by."""
    for (base, factors), _ in terms.summands(form):
        if terms[base].status.kind is Kind.ROWS:
            yield from (each for each, _ in factors)
            if terms[base].op in ("Mul", "RealDiv"):
                yield from terms.atoms_of_operands(base)


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
