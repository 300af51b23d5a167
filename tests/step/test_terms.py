"""The algebra of terms: properties of drawn forms."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise, permutations
from random import Random

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.fuzzing import examples

from placement_checks.step.kinds import ROWS, Form, Kind, Origin, RowExtent, Shape, Status
from placement_checks.step.normal_forms import slices_along
from placement_checks.step.op_types import op_type
from placement_checks.step.parts import WHOLE, Cut, Part, are_all_rows, cut_range
from placement_checks.step.terms import Terms

COUNT = 3
PARTS: list[Part] = [(Cut("split", number, COUNT),) for number in range(COUNT)]
Leaf = Callable[[Terms, Part], Form]


def _terms() -> Terms:
    return Terms(op_type)


def _leaf(terms: Terms, name: str, part: Part) -> Form:
    status = Status(Kind.ROWS, 0)
    return terms.atom("Leaf", (name,), (), (ROWS, 2), part=part, status=status)


def _variable(terms: Terms, name: str) -> Form:
    return terms.atom("Var", (name,), (), ())


def _op(terms: Terms, op: str, form: Form) -> Form:
    return terms.build(op, (), (form,), terms.shape(form), None)


def _total(terms: Terms, form: Form) -> Form:
    return terms.build("Sum", ((0, 1), False), (form,), (), None)


NUMBERS = st.sampled_from([0.5, -1.0, 2.0, 0.1, 1 / 3, 7.0])


def scalars() -> st.SearchStrategy[Leaf]:
    """Scalars that do not depend on rows."""
    return st.one_of(
        NUMBERS.map(lambda number: lambda terms, _: terms.number(number)),
        st.sampled_from("abc").map(lambda name: lambda terms, _: _variable(terms, name)),
    )


def tensors() -> st.SearchStrategy[Leaf]:
    """Tensors with rows of a part, made row by row."""

    def extend(inner: st.SearchStrategy[Leaf]) -> st.SearchStrategy[Leaf]:
        types = st.sampled_from(["Relu", "Tanh", "Sigmoid", "Exp"])
        return st.one_of(
            st.builds(lambda op, x: lambda t, p: _op(t, op, x(t, p)), types, inner),
            st.builds(
                lambda x, y: lambda t, p: t.add((x(t, p), 1.0), (y(t, p), 2.0)), inner, inner
            ),
            st.builds(lambda x, s: lambda t, p: t.product(x(t, p), s(t, p)), inner, scalars()),
            st.builds(
                lambda x, y: lambda t, p: t.build("Mul", (), (x(t, p), y(t, p)), (ROWS, 2), None),
                inner,
                inner,
            ),
        )

    leaves = st.sampled_from("xy").map(lambda name: lambda t, p: _leaf(t, name, p))
    return st.recursive(leaves, extend, max_leaves=4)


@given(st.lists(st.tuples(tensors(), NUMBERS), min_size=1, max_size=4), st.randoms())
@settings(max_examples=examples(50))
def test_sums_do_not_depend_on_the_order(
    summands: list[tuple[Leaf, float]], order: Random
) -> None:
    """Addition is commutative and associative."""
    terms = _terms()
    made = [(leaf(terms, WHOLE), number) for leaf, number in summands]
    total = terms.add(*made)
    order.shuffle(made)
    step_by_step = terms.number(0.0)
    for form, number in made:
        step_by_step = terms.add((step_by_step, 1.0), (form, number))
    assert total == terms.add(*made) == step_by_step


@given(scalars(), scalars(), scalars(), tensors())
@settings(max_examples=examples(50))
def test_products_of_scalars(a: Leaf, b: Leaf, c: Leaf, x: Leaf) -> None:
    """Products are commutative, associative, and distribute over sums."""
    terms = _terms()
    one, two, three, tensor = (each(terms, WHOLE) for each in (a, b, c, x))
    assert terms.product(one, two) == terms.product(two, one)
    left = terms.product(terms.product(one, two), three)
    assert left == terms.product(one, terms.product(two, three))
    total = terms.add((one, 1.0), (two, 1.0))
    apart = terms.add((terms.product(one, tensor), 1.0), (terms.product(two, tensor), 1.0))
    assert terms.product(total, tensor) == apart


@given(scalars(), tensors())
@settings(max_examples=examples(50))
def test_inverse(a: Leaf, x: Leaf) -> None:
    """A scalar times its inverse is 1."""
    terms = _terms()
    scalar, tensor = a(terms, WHOLE), x(terms, WHOLE)
    inverse = terms.inverse(scalar)
    assert inverse is not None
    assert terms.product(scalar, inverse) == terms.number(1.0)
    assert terms.product(terms.product(tensor, scalar), inverse) == tensor


@given(st.integers(1, 500), st.integers(1, 500), st.sampled_from([1, -1]), st.floats(1e-5, 1.0))
def test_numbers_up_to_rounding(one: int, other: int, sign: int, change: float) -> None:
    """Numbers that differ by roundings of float32 are equal, and other numbers are not."""
    terms = _terms()
    number = sign * min(one, other) / max(one, other)
    value = terms.number(number)
    assert value == terms.number(float(np.float32(number)))
    assert value == terms.number(number * (1 + 1.2e-7))
    assert value != terms.number(number * (1 + change))
    assert value != terms.number(-number)


def test_large_numbers_up_to_rounding() -> None:
    """Of two close fractions, the first one stands for both."""
    terms = _terms()
    assert terms.number(131072.8515625) == terms.number(131072.84375)


def test_numbers_of_both_signs() -> None:
    """A number and the negative inverse of it do not take each other's place."""
    terms = _terms()
    number = 0.712345678
    before = terms.number(number)
    terms.number(-1 / number)
    assert terms.number(number * (1 + 1e-7)) == before


@given(st.integers(1, 60), st.integers(1, 60))
def test_fractions(numerator: int, denominator: int) -> None:
    """A quotient in float32 is the fraction; its multiples are whole."""
    terms = _terms()
    rounded = float(np.float32(numerator) / np.float32(denominator))
    assert terms.number(rounded) == terms.number(numerator / denominator)
    assert terms.scaled(terms.number(rounded), denominator) == terms.number(numerator)


@given(tensors(), st.permutations(range(COUNT)), NUMBERS)
@settings(max_examples=examples(50))
def test_sums_of_parts(x: Leaf, order: list[int], weight: float) -> None:
    """Sums over all parts are the sum over all rows, in any order, and only then."""
    terms = _terms()
    parts = [(_total(terms, x(terms, PARTS[number])), weight) for number in order]
    whole = terms.scaled(_total(terms, x(terms, WHOLE)), weight)
    assert terms.add(*parts) == whole
    assume(terms.summands(whole))  # sums of zeros are equal, however many they are
    assert terms.add(*parts[:-1]) != whole
    assert terms.add(*parts[:-1], parts[0]) != whole
    (first, _), *others = parts
    assert terms.add((first, weight * 1.001), *others) != whole


@given(tensors(), tensors())
@settings(max_examples=examples(50))
def test_parts_that_differ_do_not_merge(x: Leaf, y: Leaf) -> None:
    """Sums over parts of different functions stay apart."""
    terms = _terms()
    assume(x(terms, WHOLE) != y(terms, WHOLE))
    forms = [_total(terms, leaf(terms, part)) for leaf, part in zip((x, x, y), PARTS, strict=True)]
    total = terms.add(*((form, 1.0) for form in forms))
    assert total != _total(terms, x(terms, WHOLE))
    assert total != _total(terms, y(terms, WHOLE))


@given(tensors(), tensors(), NUMBERS)
@settings(max_examples=examples(50))
def test_other_part(x: Leaf, y: Leaf, number: float) -> None:
    """Replacing a part is a homomorphism, and yields what is built from the other part."""
    terms = _terms()
    first, second = PARTS[:2]
    one, two = x(terms, first), y(terms, first)
    assert terms.with_part(one, first, second) == x(terms, second)
    assert terms.with_part(one, first, WHOLE) == x(terms, WHOLE)
    total = terms.with_part(terms.add((one, 1.0), (two, number)), first, second)
    apart = [terms.with_part(each, first, second) for each in (one, two)]
    assert total == terms.add((apart[0], 1.0), (apart[1], number))
    assert terms.with_part(x(terms, second), first, WHOLE) == x(terms, second)


@given(tensors(), st.sampled_from("abc"), st.sampled_from("abc"))
@settings(max_examples=examples(50))
def test_rewriting_is_idempotent(x: Leaf, old: str, new: str) -> None:
    """A variable that was replaced is gone, so that replacing it again changes nothing."""
    terms = _terms()
    form, target = x(terms, WHOLE), _variable(terms, new)
    (source,) = [atom for atom in terms.atoms_in(_variable(terms, old)) if atom]

    def rewritten(before: Form) -> Form:
        return terms.rewrite(
            before,
            terms.memo("test", old, new),
            lambda atom: atom.varies,
            lambda atom, _: target if atom == source else None,
        )

    once = rewritten(form)
    assert rewritten(once) == once
    if old == new:
        assert once == form


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.data())
def test_slices_of_any_sizes(widths: list[int], data: st.DataObject) -> None:
    """Slices are all rows if they lie side by side, in any order, and if none is missing."""
    ends = np.cumsum([0, *widths])
    cuts = [
        cut_range(Fraction(int(a), int(ends[-1])), Fraction(int(b), int(ends[-1])))
        for a, b in pairwise(ends)
    ]
    for order in permutations(cuts):
        assert are_all_rows(order)
    if len(cuts) > 1:
        missing = data.draw(st.sampled_from(cuts))
        assert not are_all_rows([cut for cut in cuts if cut != missing])


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ((ROWS, 6), (4, 2, 3), (ROWS, 2, 3)),
        ((ROWS, 6), (8, 3), (RowExtent(2), 3)),
        ((ROWS, 6), (24,), (RowExtent(6),)),
        ((RowExtent(2), 3), (4, 6), (ROWS, 6)),
        ((ROWS, 6), (2, 12), None),
        ((ROWS, 6), (3, 8), None),
        ((ROWS, 6), (6, 4), None),
        ((2, ROWS, 3), (2, 12), (2, RowExtent(3))),
        ((2, ROWS, 3), (8, 3), None),
        ((2, ROWS, 3), (6, 4), None),
        ((2, ROWS, 3), (1, 2, 4, 3), (1, 2, ROWS, 3)),
    ],
)
def test_reshapes_to_a_fixed_number_of_rows(
    before: Shape, after: tuple[int, ...], expected: Shape
) -> None:
    """For 4 rows, rows stay rows if all axes before them stay together."""
    terms, part = _terms(), PARTS[0]
    terms.sizes[0, part] = 4
    assert before is not None
    status = Status(Kind.ROWS, next(i for i, dim in enumerate(before) if not isinstance(dim, int)))
    form = terms.atom("Leaf", ("x",), (), before, part=part, status=status)
    made = terms.build("Reshape", (after,), (form,), after, Origin(0, "reshape", "Reshape"))
    assert terms.shape(made) == (expected or after)


@pytest.mark.parametrize(
    ("stacked", "after", "axis", "is_known"),
    [
        (0, (2, 2, 2), 0, True),
        (0, (2, 2, 2), 1, False),
        (0, (2, 4), 0, True),
        (0, (2, 4), 1, False),
        (0, (4, 2), 0, False),
        (0, (4, 2), 1, False),
        (0, (1, 2, 4), 1, True),
        (1, (2, 2, 2), 1, True),
        (1, (2, 2, 2), 0, False),
        (1, (2, 2, 1, 2), 1, True),
        (1, (4, 2), 0, False),
        (1, (4, 2), 1, False),
    ],
)
def test_slices_of_reshaped_stacks(
    stacked: int, after: tuple[int, ...], axis: int, is_known: bool
) -> None:
    """The stacked tensors are the slices along the axis that a reshape makes of their axis."""
    terms = _terms()
    tensors = [terms.atom("Var", (name,), (), (2, 2)) for name in "ab"]
    stack = terms.build("Pack", (stacked,), tuple(tensors), (2, 2, 2), None)
    made = terms.build("Reshape", (after,), (terms.scaled(stack, 3.0),), after, None)
    expected = [terms.scaled(each, 3.0) for each in tensors] if is_known else None
    assert slices_along(terms, made, axis) == expected
