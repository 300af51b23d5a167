"""Normal forms of ops: equal tensors become equal terms, however a program writes them.

Each function is named in the table `step.op_types`. A function of a whole op returns None if the
op is in its normal form. A function of a summand belongs to an op that is linear in its first
operand, and gets a tensor atom of this operand.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from placement_checks.step.kinds import NUMBER, ONE, AtomId, Dim, Form, Kind, RowExtent, Shape
from placement_checks.step.parts import WHOLE, Part, finest
from placement_checks.step.terms import Assumption, Build, Terms

# Sums with more summands are not multiplied out.
_MAX_SUMMANDS = 12


# --- single elements ---


def elementwise(build: Build) -> Form | None:
    """An op on single elements: a constant of equal elements becomes a number."""
    operands = _without_filled(build)
    if operands == build.operands:
        return None
    return build.terms.build(build.op, build.attrs, operands, build.shape, build.origin)


def _without_filled(build: Build) -> tuple[Form, ...]:
    """Replace constants of equal elements by numbers, where another operand has their shape."""
    terms, operands = build.terms, list(build.operands)
    for number, operand in enumerate(operands):
        atom = terms.single(operand)
        if atom is None or atom.op != "Const" or atom.shape is None or not atom.shape:
            continue
        _, elements = atom.attrs
        ranks = [
            len(terms.shape(other) or ())
            for other in build.operands
            if other != operand and terms.parts(other)
        ]
        has_shape = bool(ranks) and max(ranks) >= len(atom.shape)
        if len(elements) == 1 and isinstance(elements[0], float) and has_shape:
            operands[number] = terms.number(elements[0])
    return tuple(operands)


def even(build: Build) -> Form | None:
    """An op that does not depend on the sign: the first coefficient is positive."""
    terms = build.terms
    form = _without_sign(terms, build.operands[0])
    if form == build.operands[0]:
        return elementwise(build)
    return terms.build(build.op, build.attrs, (form,), build.shape, build.origin)


def _without_sign(terms: Terms, form: Form) -> Form:
    """A form, or its negative, so that the first coefficient is positive."""
    summands = terms.summands(form)
    return terms.scaled(form, -1.0) if summands and summands[0][1] < 0 else form


def product(build: Build) -> Form | None:
    """A product: scalars are taken out, and sums in the first factor are multiplied out.

    The first coefficient of a square's factors is positive.
    """
    terms = build.terms
    one, other = _without_filled(build)
    positive = _without_sign(terms, one)
    if one == other != positive:
        return terms.build(build.op, (), (positive, positive), build.shape, build.origin)
    made = terms.times(one, other)
    if made is not None:
        return made
    for x, y in ((one, other), (other, one)):
        filler = _filler(terms, x)
        if filler == 0.0:
            return terms.number(0.0)
        if terms.shape(x) == terms.shape(y) and filler == 1.0:
            return y
        stacked = _stacked_products(build, x, y)
        if stacked is not None:
            return stacked
    if len(terms.summands(one)) < len(terms.summands(other)):
        one, other = other, one
    return _multiplied_out(build, one, other)


def _stacked_products(build: Build, weights: Form, stack: Form) -> Form | None:
    """A stack with a known factor for each of its tensors: a stack of products."""
    terms = build.terms
    tensor, scalar = terms.scalars_taken_out(stack)
    atom, shape = terms.single(tensor), terms.shape(weights)
    if atom is None or atom.op != "Pack" or not shape or atom.shape is None:
        return None
    axis, count = atom.attrs[0] - len(atom.shape), len(atom.operands)
    if len(shape) < -axis or shape[axis] != count:
        return None
    factors = elements_of_line(terms, weights)
    if factors is None or len(factors) != count or len(shape) > len(atom.shape):
        return None
    products = zip(atom.operands, factors, strict=True)
    made = tuple([terms.product(*pair) for pair in products])
    packed = terms.build("Pack", atom.attrs, made, build.shape, build.origin)
    return terms.product(packed, scalar)


def elements_of_line(terms: Terms, form: Form) -> Sequence[Form] | None:
    """The elements of a tensor with one axis of any extent; None if they are unknown."""
    tensor, scalar = terms.scalars_taken_out(form)
    atom = terms.single(tensor)
    if atom is None or atom.shape is None or sum(dim != 1 for dim in atom.shape) > 1:
        return None
    found: Sequence[Form] | None = None
    if atom.op == "Const" and all(isinstance(each, float) for each in atom.attrs[1]):
        extents = [dim for dim in atom.shape if isinstance(dim, int)]
        numbers = [terms.number(each) for each in atom.attrs[1]]
        found = numbers * (max(extents, default=1) if len(numbers) == 1 else 1)
    elif atom.op == "Reshape":
        found = elements_of_line(terms, atom.operands[0])
    else:
        found = terms.vector(tensor)
    return None if found is None else [terms.product(each, scalar) for each in found]


def slices_along(terms: Terms, form: Form, axis: int) -> Sequence[Form] | None:
    """The tensors that are stacked along an axis; None if they are unknown.

    They may have another shape than the slices, with the same elements.
    """
    tensor, scalar = terms.scalars_taken_out(form)
    atom = terms.single(tensor)
    while atom is not None and atom.op == "Reshape" and len(atom.operands) == 1:
        inner, after = terms.shape(atom.operands[0]), atom.shape
        at = None if inner is None or after is None else _axis_before(inner, after, axis)
        if at is None:
            return None
        axis = at
        tensor, factor = terms.scalars_taken_out(atom.operands[0])
        scalar = terms.product(scalar, factor)
        atom = terms.single(tensor)
    if atom is None or atom.op != "Pack" or atom.attrs[0] != axis:
        return None
    return [terms.product(each, scalar) for each in atom.operands]


def _axis_before(before: Sequence[Dim], after: Sequence[Dim], axis: int) -> int | None:
    """The axis that a reshape keeps as an axis; None if it does not."""
    known = [dim for dim in (*before, *after) if isinstance(dim, int)]
    if len(known) < len(before) + len(after):
        return None
    outer = math.prod(known[len(before) : len(before) + axis])
    for at, extent in enumerate(before):
        if extent == after[axis] and math.prod(known[:at]) == outer:
            return at
    return None


def quotient(build: Build) -> Form | None:
    """A quotient: a scalar divisor is taken out."""
    terms = build.terms
    one, other = _without_filled(build)
    inverse = terms.inverse(other)
    if inverse is not None:
        return terms.times(one, inverse)
    if terms.constant(one) == 1.0 and terms.single(other) is not None:
        return None
    return _multiplied_out(build, one, other)


def _multiplied_out(build: Build, one: Form, other: Form) -> Form | None:
    """A product with, or quotient by, a single tensor: the sum over the summands of the first."""
    terms = build.terms
    if len(terms.summands(other)) != 1 or len(terms.summands(one)) > _MAX_SUMMANDS:
        return None
    if terms.single(one) is not None and terms.single(other) is not None:
        return None
    tensor, scalar = terms.scalars_taken_out(other)
    factor = scalar if build.op == "Mul" else terms.inverse(scalar)
    if factor is None:
        return None
    total = []
    for monomial, number in terms.summands(one):
        left = terms.tensor_of(monomial)
        if build.op == "Mul" and monomial[0] == ONE:
            made = tensor
        else:
            made = terms.build(build.op, (), (left, tensor), build.shape, build.origin)
        scale = terms.product(terms.scalar_factor(monomial), factor)
        total.append((terms.product(made, scale), number))
    return terms.add(*total)


def _filler(terms: Terms, form: Form) -> float | None:
    """The number that all elements are equal to; None if there is none."""
    atom = terms.single(form)
    return terms.constant(atom.operands[1]) if atom is not None and atom.op == "Fill" else None


def extent(build: Build) -> Form | None:
    """The extent of an axis, which may be known only for other operands."""
    return build.terms.extent(build.operands[0], build.attrs[0])


def choice(build: Build) -> Form | None:
    """A choice that does not depend on rows is linear in both values."""
    terms = build.terms
    condition, yes, no = build.operands
    known = terms.constant(condition) if build.op == "Conditional" else None
    if yes == no or known is not None:
        return yes if yes == no or known else no
    whole = _decided_by_all(terms, condition)
    if whole != condition:
        return terms.build(build.op, build.attrs, (whole, yes, no), build.shape, build.origin)
    if terms.parts(condition) or not terms.parts(yes) | terms.parts(no):
        return None
    sides = [
        terms.build("Chosen", (side,), (value, condition), build.shape, build.origin)
        for value, side in ((yes, True), (no, False))
    ]
    return terms.add(*((side, 1.0) for side in sides))


def _decided_by_all(terms: Terms, condition: Form) -> Form:
    """A decision of a tower as the decision of all rows, if this is accepted."""
    part = finest(terms.parts(condition))
    if not terms.accepts_decisions or not part or terms.shape(condition) != ():
        return condition
    if terms.status(condition, part).kind is Kind.UNKNOWN:
        return condition
    terms.assumed.add(Assumption.DECISIONS)
    return terms.with_part(condition, part, WHOLE)


def test_of_number(build: Build) -> Form | None:
    """Whether a tensor is finite: a factor does not matter."""
    terms = build.terms
    form = build.operands[0]
    summands = terms.summands(form)
    if len(summands) != 1 or summands[0][1] == 1.0 or summands[0][0] == NUMBER:
        return None
    operands = (terms.form({summands[0][0]: 1.0}),)
    return terms.build(build.op, build.attrs, operands, build.shape, build.origin)


def stopped(build: Build) -> Form | None:
    """A constant for gradients. Factors that do not depend on variables are taken out."""
    terms = build.terms
    total = []
    for (base, factors), number in terms.summands(build.operands[0]):
        moving = tuple((atom, power) for atom, power in factors if terms[atom].varies)
        fixed = tuple(factor for factor in factors if factor not in moving)
        inner = terms.form({(base, moving): 1.0})
        if terms[base].varies or moving:
            inner = terms.atom(
                "StopGradient", (), (inner,), terms.shape(inner), origin=build.origin
            )
        total.append((terms.product(inner, terms.form({(ONE, fixed): 1.0})), number))
    return terms.add(*total)


# --- sums and means ---


def total(build: Build) -> Form | None:
    """A sum: over axes of extent 1, another shape. Attributes: axes, whether they stay."""
    terms = build.terms
    axes, keeps = build.attrs
    form = build.operands[0]
    dims = terms.shape(form)
    if axes == () or not terms.summands(form):  # the sum of zeros is 0
        return form
    atom = terms.single(terms.scalars_taken_out(form)[0])
    if axes and atom is not None and atom.op == "Pack" and atom.attrs[0] in axes:
        return None
    if axes is None or dims is None or keeps or max(axes) >= len(dims):  # of equal elements
        return None
    if not any(dims[axis] == 1 for axis in axes):
        return None
    rest = tuple(dim for i, dim in enumerate(dims) if not (i in axes and dim == 1))
    left = tuple(
        axis - sum(dims[other] == 1 for other in axes if other < axis)
        for axis in axes
        if dims[axis] != 1
    )
    reshaped = terms.build("Reshape", (rest,), (form,), rest, build.origin)
    if not left:
        return reshaped
    return terms.build("Sum", (left, False), (reshaped,), build.shape, build.origin)


def total_of_summand(build: Build, base: AtomId) -> Form:
    """The sum of a join is the sum of the sums of its operands."""
    terms = build.terms
    axes, keeps = build.attrs
    atom = terms[base]
    if axes is not None and not keeps and atom.op == "Pack" and atom.attrs[0] in axes:
        at = atom.attrs[0]
        rest = tuple(axis - (axis > at) for axis in axes if axis != at)
        return terms.add(*((_sum(build, operand, rest), 1.0) for operand in atom.operands))
    have_shapes = all(terms.shape(operand) != () for operand in atom.operands)
    if axes is not None and atom.op == "ConcatV2" and atom.attrs[0] in axes and have_shapes:
        sums = [
            terms.build("Sum", build.attrs, (operand,), build.shape, build.origin)
            for operand in atom.operands
        ]
        return terms.add(*((each, 1.0) for each in sums))
    is_whole = axes is not None and not keeps and len(axes) == len(atom.shape or ())
    if atom.op == "Fill" and atom.shape is not None and is_whole:
        made = atom.operands[1]
        for axis in range(len(atom.shape)):
            made = terms.product(made, terms.extent(terms.of(base), axis))
        return made
    if base == ONE:
        return build.plain(build.operands[0]) if axes else terms.number(1.0)
    return build.plain(terms.of(base))


def _sum(build: Build, operand: Form, axes: tuple[int, ...]) -> Form:
    if not axes:
        return operand
    return build.terms.build("Sum", (axes, False), (operand,), build.shape, build.origin)


def mean(build: Build) -> Form | None:
    """A mean is a sum divided by the extents of its axes. Attributes as for `total`."""
    terms = build.terms
    axes, _ = build.attrs
    form = build.operands[0]
    if axes is None or terms.shape(form) is None:
        return None
    made = terms.build("Sum", build.attrs, (form,), build.shape, build.origin)
    for axis in axes:
        inverse = terms.inverse(terms.extent(form, axis))
        if inverse is None:
            return None
        made = terms.product(made, inverse)
    return made


def half_of_squares(build: Build) -> Form:
    """``L2Loss``: half the sum of the squares of all elements."""
    terms = build.terms
    form = build.operands[0]
    shape = terms.shape(form)
    square = terms.build("Mul", (), (form, form), shape, build.origin)
    if shape != ():
        axes = None if shape is None else tuple(range(len(shape)))
        square = terms.build("Sum", (axes, False), (square,), (), build.origin)
    return terms.scaled(square, 0.5)


# --- products of matrices ---


def matrix_product(build: Build) -> Form | None:
    """Numbers and scalars are taken out of a product of matrices."""
    terms = build.terms
    scale = terms.number(1.0)
    operands = []
    for form in build.operands:
        tensor, scalar = terms.scalars_taken_out(form)
        operands.append(tensor)
        scale = terms.product(scale, scalar)
    if tuple(operands) == build.operands:
        return None
    made = terms.build(build.op, build.attrs, tuple(operands), build.shape, build.origin)
    return terms.product(made, scale)


# --- shapes ---


def is_static(shape: Shape) -> bool:
    """Whether all extents of a shape are known, as numbers or as numbers of rows."""
    return shape is not None and not any(
        dim is None or (isinstance(dim, RowExtent) and dim.times is None) for dim in shape
    )


def reshape(build: Build) -> Form | None:
    """Another shape. Attributes: the shape."""
    terms, shape = build.terms, build.shape
    form = build.operands[0]
    before = terms.shape(form)
    if before == shape and is_static(shape):
        return form
    with_rows = _with_fixed_rows(build, before, shape)
    if with_rows is not None:
        operands = (form, *build.operands[1:])
        return terms.build("Reshape", (with_rows,), operands, with_rows, build.origin)
    if before == () and shape == (1,):
        return terms.build("Pack", (0,), (form,), shape, build.origin)
    if shape == ():
        tensor, scalar = terms.scalars_taken_out(form)
        atom = terms.single(tensor)
        if atom is not None and atom.op == "Pack" and len(atom.operands) == 1:
            return terms.product(atom.operands[0], scalar)
    return None


def _with_fixed_rows(build: Build, before: Shape, after: Shape) -> Shape:
    """The shape with an axis of rows in place of their fixed number; None if it has no such axis.

    The rows may have become known after the op was read, when copies of variables became one.
    """
    terms, part = build.terms, finest(build.terms.parts(build.operands[0]))
    if part is None or build.origin is None or not before or not after:
        return None
    size = terms.size(build.origin.program, part)
    at = next((i for i, dim in enumerate(before) if isinstance(dim, RowExtent)), None)
    known = [dim for dim in after if isinstance(dim, int)]
    if not size or at is None or len(known) < len(after):
        return None
    extent, others = before[at], (*before[:at], *before[at + 1 :])
    times = extent.times if isinstance(extent, RowExtent) else None
    if not times or not all(isinstance(dim, int) for dim in others):
        return None
    outer = math.prod(dim for dim in before[:at] if isinstance(dim, int))
    for axis, dim in enumerate(known):
        of_row = dim // size
        if math.prod(known[:axis]) == outer and dim == of_row * size:
            inner = math.prod(dim for dim in before[at + 1 :] if isinstance(dim, int)) * times
            if of_row * math.prod(known[axis + 1 :]) == inner:
                return (*known[:axis], RowExtent(of_row), *known[axis + 1 :])
    return None


def reshape_of_summand(build: Build, base: AtomId) -> Form:
    terms, shape = build.terms, build.shape
    atom = terms[base]
    if base == ONE:
        return terms.number(1.0)
    if shape == () and atom.op == "Pack" and len(atom.operands) == 1:
        return atom.operands[0]
    if is_static(shape) and shape is not None:
        if atom.op == "Fill" and is_static(atom.shape) and _rows_in(shape) == _rows_in(atom.shape):
            return _filled(build, shape, atom.operands[1], atom.finest)
        if atom.op == "Reshape" and len(atom.operands) == len(build.operands) == 1:
            inner = atom.operands[0]
            return inner if terms.shape(inner) == shape else build.plain(inner)
        if atom.shape == shape:
            return terms.of(base)
    return build.plain(terms.of(base))


def _rows_in(shape: Shape) -> list[RowExtent]:
    return [dim for dim in shape or () if isinstance(dim, RowExtent)]


def _filled(build: Build, shape: Sequence[object], element: Form, part: Part | None) -> Form:
    terms = build.terms
    extents = []
    for dim in shape:
        if isinstance(dim, RowExtent):
            rows = terms.rows_as_extent(part or WHOLE)
            extents.append(terms.scaled(rows, dim.times or 1))
        else:
            extents.append(terms.number(dim if isinstance(dim, int) else 0))
    return terms.build(
        "Fill", (), (terms.pack(extents, build.origin), element), build.shape, build.origin
    )


# --- joins and slices ---


def join(build: Build) -> Form | None:
    """A concatenation: parts in order are the whole; other pieces are a sum of placed pieces."""
    terms, operands = build.terms, build.operands
    axis = build.attrs[0]
    if len(operands) == 1:
        return operands[0]
    shapes = [terms.shape(operand) for operand in operands]
    dims = [
        shape for shape in shapes if shape is not None and axis is not None and axis < len(shape)
    ]
    if len(dims) < len(shapes):
        return None
    sizes = [shape[axis] for shape in dims]
    if all(size == 1 for size in sizes):
        rows = []
        for operand, shape in zip(operands, dims, strict=True):
            rest = shape[:axis] + shape[axis + 1 :]
            rows.append(terms.build("Reshape", (rest,), (operand,), rest, build.origin))
        return terms.build("Pack", (axis,), tuple(rows), build.shape, build.origin)
    whole = joined_parts(terms, operands, axis)
    if whole is not None:
        return whole
    widths = [size for size in sizes if isinstance(size, int)]
    if len(widths) < len(sizes):
        return None
    if any(
        terms.status(operand, finest(terms.parts(operand)) or WHOLE).axis == axis
        for operand in operands
    ):
        return None
    at, extent, pieces = 0, sum(widths), []
    for operand, width in zip(operands, widths, strict=True):
        placed = terms.build("Place", (axis, at, extent), (operand,), build.shape, build.origin)
        pieces.append((placed, 1.0))
        at += width
    return terms.add(*pieces)


def stack(build: Build) -> Form | None:
    """Tensors along a new axis: a single tensor is reshaped. Attributes: the axis."""
    terms = build.terms
    dims = terms.shape(build.operands[0]) if len(build.operands) == 1 else None
    if not dims:
        return None
    axis = build.attrs[0]
    shape = (*dims[:axis], 1, *dims[axis:])
    return terms.build("Reshape", (shape,), build.operands, shape, build.origin)


def joined_parts(terms: Terms, operands: Sequence[Form], axis: int) -> Form | None:
    """The rows around parts that are joined in order, if all of them become equal; else None."""
    if terms.are_parts_apart:
        return None
    tensors = [terms.scalars_taken_out(operand) for operand in operands]
    if any(terms.constant(scalar) != 1.0 for _, scalar in tensors):
        return _joined_with_factors(terms, tensors, axis)
    parts = [finest(terms.parts(operand)) for operand in operands]
    found = [part for part in parts if part]
    if len(found) < len(parts) or len({(part[:-1], part[-1].siblings) for part in found}) != 1:
        return None
    if found[0][-1].family == "stride":  # together, they are the rows in another order
        return None
    if [part[-1].number for part in found] != list(range(found[0][-1].parts)):
        return None
    for operand, part in zip(operands, found, strict=True):
        status = terms.status(operand, part)
        if status.kind is not Kind.ROWS or status.axis != axis:
            return None
    wholes = {
        terms.with_part(operand, part, part[:-1])
        for operand, part in zip(operands, found, strict=True)
    }
    return wholes.pop() if len(wholes) == 1 else None


def _joined_with_factors(
    terms: Terms, tensors: Sequence[tuple[Form, Form]], axis: int
) -> Form | None:
    """Parts with scalar factors, such as the number of rows, that are equal for the whole."""
    whole = joined_parts(terms, [tensor for tensor, _ in tensors], axis)
    if whole is None:
        return None
    scales = set()
    for tensor, scalar in tensors:
        part = finest(terms.parts(tensor))
        summands = terms.summands(scalar)
        if not part or len(summands) != 1:
            return None
        (_, factors), number = summands[0]
        own = [(atom, power) for atom, power in factors if terms[atom].finest == part]
        if any(terms[atom].op != "Rows" for atom, _ in own):
            return None
        power = sum(power for _, power in own)
        if power:
            terms.assumed.add(Assumption.EQUAL_ROWS)
        lifted = terms.with_part(terms.form({(ONE, factors): 1.0}), part, part[:-1])
        scales.add(terms.scaled(lifted, number * float(part[-1].share) ** power))
    return terms.product(whole, scales.pop()) if len(scales) == 1 else None


def placed_of_summand(build: Build, base: AtomId) -> Form:
    """A tensor among zeros. Attributes: axis, begin, extent of the result."""
    terms = build.terms
    axis, at, extent = build.attrs
    atom = terms[base]
    has_axis = atom.shape is not None and axis < len(atom.shape)
    if atom.shape is not None and has_axis and atom.shape[axis] == extent and at == 0:
        return terms.of(base)
    if atom.op == "Place" and atom.attrs[0] == axis:
        attrs = (axis, at + atom.attrs[1], extent)
        return terms.build("Place", attrs, atom.operands, build.shape, build.origin)
    return build.plain(terms.of(base))


def sliced_of_summand(build: Build, base: AtomId) -> Form:
    """A slice along an axis that is not the rows. Attributes: axis, begin, size."""
    terms, shape = build.terms, build.shape or ()
    axis, begin, size = build.attrs
    atom = terms[base]
    if atom.op == "Place" and atom.attrs[0] == axis:
        at = atom.attrs[1]
        width = (terms.shape(atom.operands[0]) or ())[axis]
        if isinstance(width, int):
            low, high = max(begin, at), min(begin + size, at + width)
            if low >= high:
                return terms.number(0.0)
            dims = (*shape[:axis], high - low, *shape[axis + 1 :])
            inner = terms.build(
                "Slice", (axis, low - at, high - low), atom.operands, dims, build.origin
            )
            if high - low == size:
                return inner
            return terms.build("Place", (axis, low - begin, size), (inner,), shape, build.origin)
    if atom.op == "Pack" and atom.attrs[0] == axis:
        chosen = atom.operands[begin : begin + size]
        if len(chosen) == 1:
            return terms.build("Reshape", (shape,), chosen, shape, build.origin)
        return terms.build("Pack", atom.attrs, chosen, shape, build.origin)
    if atom.op == "Slice" and atom.attrs[0] == axis:
        attrs = (axis, atom.attrs[1] + begin, size)
        return terms.build("Slice", attrs, atom.operands, build.shape, build.origin)
    if atom.shape is not None and atom.shape[axis] == size and begin == 0:
        return terms.of(base)
    return build.plain(terms.of(base))


def segment_sum(build: Build) -> Form | None:
    """Sums of rows with equal indices: scalars are taken out of the rows."""
    terms = build.terms
    values, *others = build.operands
    if terms.single(values) is not None:
        return None
    total = []
    for monomial, number in terms.summands(values):
        operands = (terms.tensor_of(monomial), *others)
        made = terms.build(build.op, build.attrs, operands, build.shape, build.origin)
        total.append((terms.product(made, terms.scalar_factor(monomial)), number))
    if terms.summands(values) == ((NUMBER, 1.0),):
        return None
    return terms.add(*total)
