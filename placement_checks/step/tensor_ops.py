"""Ops of a graph as terms: op types that become other types, and ops that need known shapes.

`TENSOR_OPS` has the function for each op type. A function returns None if the op stays as it is.
Op types without a function become atoms with their attributes.
"""

from __future__ import annotations

import math
import operator
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import cache
from types import EllipsisType
from typing import TYPE_CHECKING, Any, NamedTuple

from placement_checks.core.op_types import (
    ADDS,
    ENTERS,
    GATHERERS,
    MERGES,
    NEXT_ITERATIONS,
    RANDOM_STATEFUL,
    RANDOM_STATELESS,
    SWITCHES,
    is_update,
)
from placement_checks.core.placement import Op, producer_of
from placement_checks.step.kinds import (
    NUMBER,
    ONE,
    ROWS,
    Cause,
    Dim,
    Form,
    Kind,
    Monomial,
    Origin,
    RowExtent,
    Shape,
    Status,
    has_shape,
)
from placement_checks.step.normal_forms import elements_of_line, is_static, slices_along
from placement_checks.step.op_types import op_type
from placement_checks.step.parts import (
    LAST_ROW,
    WHOLE,
    Cut,
    Family,
    Part,
    are_neighbors,
    cut_range,
    finest,
    in_steps,
)
from placement_checks.step.terms import Assumption, Atom, Terms, are_close
from placement_checks.util.text import words
from placement_checks.util.walks import walk

if TYPE_CHECKING:
    from placement_checks.step.graph import TensorReader

# Integers of these types lack the upper bits of other integers.
_NARROW = "int8", "uint8", "int16", "uint16"
# These draw classes for all rows together.
_CANDIDATES = frozenset(
    words("UniformCandidateSampler LogUniformCandidateSampler FixedUnigramCandidateSampler")
)
# Branches of TensorFlow 1 within each other.
_MAX_BRANCHES = 50
# Constant vectors with more elements are atoms.
_MAX_ELEMENTS = 16

# Attributes that do not affect the value, or that shapes and operands show already.
_SILENT = frozenset(
    words(
        """
        T dtype DstT SrcT Tidx Tshape N use_cudnn_on_gpu use_locking validate_indices shape
        container shared_name out_type seed seed2 num num_split Tlen Tin Tout Index message name_
        element_shape element_dtype Tparams Tindices Taxis Tdim Tperm
        Tmultiples Tpaddings tensor_name summarize first_n token U V S Tlabels index_type
        output_types output_shapes parallel_iterations validate_shape debug_name Tcond
        grad_a grad_b Treduction TI Tsplits Tcomplex Toffset
        is_constant frame_name reduction_type exponential_avg_factor
        """
    )
)


_ELEMENTWISE = frozenset(
    words(
        """
        Identity RefIdentity Enter RefEnter Exit RefExit Snapshot CheckNumerics Print PrintV2
        EnsureShape DeepCopy GuaranteeConst IdentityN Cast StopGradient PreventGradient
        ReadVariableOp Sub Neg BiasAdd Mul RealDiv Div DivNoNan FloorDiv TruncateDiv Square
        SquaredDifference Reciprocal Inv Pow ZerosLike
        """
    )
)


@cache
def is_elementwise(kind: str) -> bool:
    """Whether ops of a type compute each element from one element of each input."""
    found = op_type(kind)
    is_known = kind in _ELEMENTWISE or kind in ADDS or is_update(kind)
    return is_known or (found is not None and found.is_elementwise)


class Node(NamedTuple):
    """One output of an op of the graph.

    Attributes:
        reader: reads the step.
        name: the op's name.
        output: the number of the output.
    """

    reader: TensorReader
    name: str
    output: int

    @property
    def terms(self) -> Terms:
        """The terms of the step."""
        return self.reader.terms

    @property
    def op(self) -> Op:
        """The op."""
        return self.reader.ops[self.name]

    @property
    def shape(self) -> Shape:
        """The static shape of the output; None if its rank is unknown."""
        return self.reader.shape(self.name, self.output)

    @property
    def origin(self) -> Origin:
        """The origin of terms that the op makes."""
        return self.reader.origin(self.name)

    @property
    def attributes(self) -> Mapping[str, Any]:
        """The op's attributes."""
        return self.reader.graph.attributes(self.name)

    @property
    def inputs(self) -> list[str]:
        """The tensors that the op reads."""
        return self.reader.data(self.name)

    @property
    def operands(self) -> tuple[Form, ...]:
        """The forms of the tensors that the op reads."""
        return tuple([self.operand(number) for number in range(len(self.inputs))])

    def operand(self, number: int) -> Form:
        """The form of one of the tensors that the op reads.

        For ops on whole tensors, it has the shape of the tensor. For ops on single elements, it
        may be broadcast to this shape.
        """
        form = self.reader.operand(self.name, number)
        if is_elementwise(self.op.type):
            return form
        return with_shape(self.source(number), form)

    def source(self, number: int) -> Node:
        """The output of another op that the op reads."""
        name, _, output = self.inputs[number].partition(":")
        return Node(self.reader, name, int(output or 0))

    def build(
        self,
        op: str,
        attrs: tuple[Any, ...],
        operands: tuple[Form, ...],
        shape: Shape | EllipsisType = ...,
    ) -> Form:
        """The normal form of an op with this node's origin, and by default its shape."""
        dims = self.shape if isinstance(shape, EllipsisType) else shape
        return self.terms.build(op, attrs, operands, dims, self.origin)

    def static_shape(self, number: int) -> Shape:
        """The static shape of an input tensor."""
        name, _, output = self.inputs[number].partition(":")
        return self.reader.shape(name, int(output or 0))

    def dtype(self, number: int) -> str:
        """The dtype of an input tensor; empty if it is unknown."""
        name, _, output = self.inputs[number].partition(":")
        return self.reader.dtype(name, int(output or 0))


def attributes_of(node: Node) -> tuple[tuple[str, str], ...]:
    """The attributes that decide what an op computes."""
    return tuple(
        (key, str(value)) for key, value in sorted(node.attributes.items()) if key not in _SILENT
    )


def _owners(node: Node) -> Sequence[str]:
    """The losses that an op is used for."""
    return [each for each, ops in node.reader.graph.losses.items() if node.name in ops]


def _part_of_tower(node: Node) -> Part | None:
    """The part of the batch of the tower that an op belongs to; None if it is not one part."""
    owners = _owners(node)
    return node.reader.part_of_tower(owners) if owners else None


# --- tensors of equal elements ---


def with_shape(node: Node, form: Form) -> Form:
    """The form of an output, with elements repeated to the shape of the tensor.

    Ops on single elements drop the shape of an operand, such as zeros like another tensor. What
    the tensor was broadcast to may have rows, so ops on whole tensors need it.
    """
    if not node.reader.repeats_elements:
        return form
    terms, static, dims = node.terms, node.shape, node.terms.shape(form)
    if static is None:
        is_complete = dims != ()
        padded: tuple[Dim, ...] = ()
    else:
        is_complete = dims is None or len(dims) > len(static)
        padded = (*[1] * (len(static) - len(dims or ())), *(dims or ()))
        is_complete = is_complete or not any(
            dim == 1 != wanted for dim, wanted in zip(padded, static, strict=True)
        )
    if is_complete:
        return form
    extents = _extents(node, form)
    if extents is None:
        cause = Cause(node.op.type, "repeats elements unknown times", node.origin)
        return terms.unknown(cause, static, node.reader.program, node.name, node.output)
    if dims == ():
        return _filled(node, extents, form)
    times = [
        extent if dim == 1 else terms.number(1.0)
        for dim, extent in zip(padded, extents, strict=True)
    ]
    filled = _filled(node, times, terms.number(1.0))
    return node.build("Mul", (), (form, filled))


def _extents(node: Node, form: Form) -> list[Form] | None:
    """The extents of an output whose form may be broadcast; None if one is unknown.

    An op on single elements has the extents of its operands.
    """
    known, key = node.reader.extents, (node.name, node.output, form)
    if key not in known:
        known[key] = None  # in loops
        known[key] = _find_extents(node, form)
    return known[key]


def _find_extents(node: Node, form: Form) -> list[Form] | None:
    terms, static, dims = node.terms, node.shape, node.terms.shape(form)
    if static is None or dims is None or len(dims) > len(static):
        return None
    missing = len(static) - len(dims)
    operands: list[list[Form]] | None = None
    found = []
    for axis, wanted in enumerate(static):
        if isinstance(wanted, int):
            found.append(terms.number(wanted))
        elif axis >= missing and dims[axis - missing] != 1:
            found.append(terms.extent(form, axis - missing))
        else:
            operands = _extents_of_operands(node) if operands is None else operands
            at = axis - len(static)
            others = {each[at] for each in operands if -at <= len(each)} - {terms.number(1.0)}
            if len(others) != 1:
                return None
            found.append(others.pop())
    return found


def _extents_of_operands(node: Node) -> list[list[Form]]:
    """The extents of the operands that are known: the others have the same, or 1."""
    if node.name not in node.reader.ops or not is_elementwise(node.op.type):
        return []
    found = [
        _extents(node.source(number), node.reader.operand(node.name, number))
        for number in range(len(node.inputs))
    ]
    return [each for each in found if each is not None]


# --- what passes values on ---


def _identity(node: Node) -> Form | None:
    return node.operand(0)


def _identity_n(node: Node) -> Form | None:
    form = node.operand(node.output)
    if not node.reader.graph.custom_gradient(node.name):
        return form
    if node.terms.is_backward(form):
        return form
    node.reader.assume(Assumption.LIBRARY_GRADIENTS)
    return node.build("CustomGradient", (), (form,))


def _cast(node: Node) -> Form | None:
    """A cast to integers rounds, a cast of complex numbers takes the real part."""
    form = node.operand(0)
    before, after = node.dtype(0), node.reader.dtype(node.name)
    number = node.terms.constant(form)
    if before.startswith("complex") and not after.startswith("complex"):
        form = node.build("Real", (), (form,))
    if after == "bool" and before != "bool":
        if number is not None:
            return node.terms.number(float(number != 0))
        return node.build("NotEqual", (), (form, node.terms.number(0.0)))
    is_narrow = after.startswith(_NARROW) and before not in (after, "bool")
    if is_narrow or (_is_integer(after) and not _is_integer(before)):
        if number is not None and not is_narrow:
            return node.terms.number(float(int(number)))
        rows = None if is_narrow else _rounded_rows(node, form)
        return rows or node.build("FloatToInt", (after,), (form,))
    return form


def _is_integer(dtype: str) -> bool:
    return dtype.startswith(("int", "uint", "bool"))


def _stop(node: Node) -> Form | None:
    return node.build("StopGradient", (), (node.operand(0),))


def _read(node: Node) -> Form | None:
    return node.reader.state_seen_by(node.name, node.inputs[0])


# --- constants ---


def _constant(node: Node) -> Form | None:
    terms = node.terms
    value = node.reader.graph.value(node.name)
    if value is None:
        digest = node.reader.placement.details.digest(node.name)
        if not digest:
            cause = Cause("Const", "is a constant of unknown value", node.origin)
            return terms.unknown(cause, node.shape, node.reader.program, node.name)
        return terms.atom("Const", (node.shape, (digest,)), (), node.shape, origin=node.origin)
    dtype, shape, *elements = value
    is_number = all(isinstance(each, (int, float, bool)) for each in elements)
    if not is_number or not all(math.isfinite(each) for each in elements):
        attrs = (shape, (dtype, *map(str, elements)))
        return terms.atom("Const", attrs, (), shape, origin=node.origin)
    if shape == ():
        return terms.number(float(elements[0]))
    if len(shape) == 1 and dtype.startswith("int") and len(elements) <= _MAX_ELEMENTS:
        return terms.pack([terms.number(float(each)) for each in elements], node.origin)
    numbers = [float(each) for each in elements]
    if numbers and len(set(numbers)) == 1:
        numbers = numbers[:1]
    if numbers == [0.0]:  # perhaps an initial state, or the other choice, for each row
        extents = [terms.number(dim) for dim in shape]
        if _axes_of_rows(node, extents)[1]:
            return _filled(node, extents, terms.number(0.0))
    return terms.atom("Const", (shape, tuple(numbers)), (), shape, origin=node.origin)


def _zeros_like(node: Node) -> Form | None:
    return node.terms.number(0.0)


def _ones_like(node: Node) -> Form | None:
    terms, form = node.terms, node.operand(0)
    if node.shape == ():
        return terms.number(1.0)
    dims = _dims(node, form, 0)
    return None if dims is None else _filled(node, dims, terms.number(1.0))


def _fill(node: Node) -> Form | None:
    terms, element = node.terms, node.operand(1)
    if node.shape == ():
        return element
    dims = terms.vector(node.operand(0))
    return None if dims is None else _filled(node, dims, element)


def _filled(node: Node, dims: Sequence[Form], element: Form) -> Form:
    """Equal elements. The extents may contain the number of rows of a part."""
    terms = node.terms
    part, axes = _axes_of_rows(node, dims)
    rows = None if part is None else terms.rows_as_extent(part)
    shape: list[Dim] = []
    extents = []
    for axis, dim in enumerate(dims):
        number = terms.constant(dim)
        if rows is not None and axis in axes:
            shape.append(ROWS)
            extents.append(rows)
        else:
            shape.append(None if number is None else int(number))
            extents.append(dim)
    vector = terms.pack(extents, node.origin)
    is_zero = terms.constant(element) == 0.0
    filler = element if is_zero else terms.number(1.0)
    made = node.build("Fill", (), (vector, filler), tuple(shape))
    if is_zero:
        return made
    scaled = terms.times(made, element)
    return scaled or node.build("Fill", (), (vector, element), tuple(shape))


def _axes_of_rows(node: Node, dims: Sequence[Form]) -> tuple[Part | None, Sequence[int]]:
    """The part that gives equal elements their rows, and the axes of the rows.

    The rows of a tower may be a share of all rows, or their number may be fixed.
    """
    terms = node.terms
    owned = _part_of_tower(node)
    if owned is not None and terms.rows(owned) in dims:
        return owned, [list(dims).index(terms.rows(owned))]
    size = None if owned is None else terms.size(node.reader.program, owned)
    if size and dims and terms.constant(dims[0]) == size and not _is_shape_of_variable(node, dims):
        return owned, [0]
    part = finest(frozenset().union(*[terms.parts(dim) for dim in dims]))
    rows = None if part is None else terms.rows(part)
    return part, [axis for axis, dim in enumerate(dims) if dim == rows]


# --- arithmetic ---


def _by_element(node: Node, combine: Callable[[Form, Form], Form | None]) -> Form | None:
    """An op on vectors of known elements; None for other tensors."""
    terms = node.terms
    one, other = node.operand(0), node.operand(1)
    vectors = terms.vector(one), terms.vector(other)
    known = [len(vector) for vector in vectors if vector is not None]
    if not known or len(set(known)) > 1:
        return None
    count = known[0]
    for form, vector in zip((one, other), vectors, strict=True):
        if vector is None and terms.shape(form) != ():
            return None
    ones = vectors[0] or [one] * count
    others = vectors[1] or [other] * count
    made = [combine(a, b) for a, b in zip(ones, others, strict=True)]
    found = [each for each in made if each is not None]
    return node.terms.pack(found, node.origin) if len(found) == count else None


def _add(node: Node) -> Form | None:
    terms = node.terms
    if len(node.inputs) != 2:
        return None
    return _by_element(node, lambda a, b: terms.add((a, 1.0), (b, 1.0)))


def _subtract(node: Node) -> Form | None:
    terms = node.terms

    def difference(a: Form, b: Form) -> Form:
        return terms.add((a, 1.0), (b, -1.0))

    return _by_element(node, difference) or difference(node.operand(0), node.operand(1))


def _negate(node: Node) -> Form | None:
    return node.terms.scaled(node.operand(0), -1.0)


def _add_bias(node: Node) -> Form | None:
    if node.attributes.get("data_format") in (b"NCHW", "NCHW"):
        return node.build("BiasAddOfChannels", (), node.operands)
    return node.terms.add((node.operand(0), 1.0), (node.operand(1), 1.0))


def _multiply(node: Node) -> Form | None:
    found = _by_element(node, node.terms.times)
    if found is not None:
        return found
    one, other = node.operand(0), node.operand(1)
    for form, factor in ((one, other), (other, one)):
        inverse = node.terms.inverse(factor) if node.terms.constant(factor) else None
        if inverse is not None:
            divisor = node.terms.divisor(node.reader.program, form, inverse)
            if divisor != inverse:
                return node.build("RealDiv", (), (form, divisor))
    return node.build("Mul", (), (one, other))


def _divide(node: Node) -> Form | None:
    if _is_integer(node.dtype(0)):
        return _floor_divide(node)
    terms = node.terms
    one = node.operand(0)
    other = terms.divisor(node.reader.program, one, node.operand(1))

    def quotient(a: Form, b: Form) -> Form | None:
        inverse = terms.inverse(b)
        return None if inverse is None else terms.times(a, inverse)

    if terms.vector(one) is not None or terms.vector(other) is not None:
        found = _by_element(node, quotient)
        if found is not None:
            return found
    return node.build("RealDiv", (), (one, other))


def _divide_no_nan(node: Node) -> Form | None:
    if not node.terms.constant(node.operand(1)):
        node.reader.assume(Assumption.NO_ZERO_DIVISION)
    return _divide(node)


def _floor_divide(node: Node) -> Form | None:
    """A quotient of integers: of a number of rows, if the towers share the rows evenly."""
    terms = node.terms

    def quotient(a: Form, b: Form) -> Form | None:
        one, other = terms.constant(a), terms.constant(b)
        if not other:
            return None
        if one is not None:
            is_floor = node.op.type == "FloorDiv"
            return terms.number(float(one // other if is_floor else math.trunc(one / other)))
        if terms.shape(a) != () or not terms.parts(a):
            return None
        return _whole_quotient(node, a, other)

    found = _by_element(node, quotient)
    return found or quotient(node.operand(0), node.operand(1))


def _round(node: Node) -> Form | None:
    return _rounded_rows(node, node.operand(0))


def _rounded_rows(node: Node, form: Form) -> Form | None:
    """A fraction of a number of rows that is rounded: it is whole; None for another form."""
    terms = node.terms
    summands = terms.summands(form)
    if terms.shape(form) != () or not terms.parts(form):
        return None
    fractions = [Fraction(number).limit_denominator(512) for _, number in summands]
    if not all(
        monomial != NUMBER and are_close([float(fraction), number])
        for (monomial, number), fraction in zip(summands, fractions, strict=True)
    ):
        return None
    return _whole_quotient(node, form, 1.0)


def _whole_quotient(node: Node, form: Form, divisor: float) -> Form | None:
    terms = node.terms
    total = {}
    for monomial, number in terms.summands(form):
        if monomial != NUMBER and not _is_of_rows(terms, monomial):
            return None
        total[monomial] = float(number // divisor) if monomial == NUMBER else number / divisor
    node.reader.assume(Assumption.DIVISIBLE_ROWS)
    return terms.form(total)


def _square(node: Node) -> Form | None:
    form = node.operand(0)
    return node.build("Mul", (), (form, form))


def _squared_difference(node: Node) -> Form | None:
    terms = node.terms
    form = terms.add((node.operand(0), 1.0), (node.operand(1), -1.0))
    return node.build("Mul", (), (form, form))


def _reciprocal(node: Node) -> Form | None:
    return node.terms.inverse(node.operand(0))


def _power(node: Node) -> Form | None:
    """Small whole powers are products."""
    exponent = node.terms.constant(node.operand(1))
    if exponent not in (1.0, 2.0, 3.0):
        return None
    form = made = node.operand(0)
    for _ in range(int(exponent) - 1):
        made = node.build("Mul", (), (made, form))
    return made


def _is_of_rows(terms: Terms, monomial: Monomial) -> bool:
    """Whether a monomial is a product of numbers of rows."""
    base, factors = monomial
    is_product = all(terms[atom].op == "Rows" and power > 0 for atom, power in factors)
    return base == ONE and bool(factors) and is_product


_COMPARISONS: Mapping[str, Callable[[float, float], float]] = {
    "Equal": operator.eq,
    "NotEqual": operator.ne,
    "Less": operator.lt,
    "LessEqual": operator.le,
    "Greater": operator.gt,
    "GreaterEqual": operator.ge,
    "Maximum": max,
    "Minimum": min,
    "FloorMod": operator.mod,
}


def _compare(node: Node) -> Form | None:
    """Comparisons of numbers are numbers; the lesser of two shares of the rows is known."""
    terms = node.terms
    if node.op.type in ("Minimum", "Maximum") and node.shape == ():
        difference = terms.summands(terms.add((node.operand(0), 1.0), (node.operand(1), -1.0)))
        is_less = [number < 0 for monomial, number in difference if _is_of_rows(terms, monomial)]
        if len(is_less) == len(difference) < 2:
            is_first = not is_less or is_less[0] == (node.op.type == "Minimum")
            return node.operand(0 if is_first else 1)

    def compared(a: Form, b: Form) -> Form | None:
        one, other = terms.constant(a), terms.constant(b)
        if one is None or other is None or (node.op.type == "FloorMod" and not other):
            return None
        return terms.number(float(_COMPARISONS[node.op.type](one, other)))

    if node.shape == ():
        return compared(node.operand(0), node.operand(1))
    return _by_element(node, compared)


def _switch(node: Node) -> Form:
    """The value that a branch of TensorFlow 1 takes; the end of the branch is a choice."""
    return node.operand(0)


def _merge(node: Node) -> Form:
    """The end of two branches of TensorFlow 1: a choice by the condition of their switches."""
    reader, sides = node.reader, defaultdict[Form, list[set[int]]](list)
    for source in node.inputs:
        outputs: defaultdict[Form, set[int]] = defaultdict(set)
        for condition, output in _switches_before(reader.ops, source):
            outputs[reader.value(condition, node.name)].add(output)
        for decision, found in outputs.items():
            sides[decision].append(found)
    decisions = [each for each, found in sides.items() if sorted(found, key=max) == [{0}, {1}]]
    if node.output or len(decisions) != 1:
        text = "is the end of branches that cannot be followed"
        cause = Cause(node.op.type, text, node.origin)
        return node.terms.unknown(cause, node.shape, reader.program, node.name, node.output)
    is_first = sides[decisions[0]][0] == {1}  # the value if the condition holds
    values = node.operands if is_first else node.operands[::-1]
    return node.build("Conditional", (), (decisions[0], *values))


def _switches_before(ops: Mapping[str, Op], tensor: str) -> Iterator[tuple[str, int]]:
    """The conditions of the innermost branches around a tensor, with outputs of their switches.

    Branches that end before the tensor, and loops, are passed.
    """

    def is_switch(op: Op) -> bool:
        condition = ops.get(producer_of(op.inputs[1])) if op.type in SWITCHES else None
        return op.type in SWITCHES and not (condition and condition.type == "LoopCond")

    def before(place: tuple[str, int]) -> Iterator[tuple[str, int]]:
        here, ended = place
        op = ops.get(producer_of(here))
        if op is None or (is_switch(op) and not ended) or ended > _MAX_BRANCHES:
            return
        types = {ops[name].type for each in op.inputs if (name := producer_of(each)) in ops}
        ended += op.type in MERGES and types.isdisjoint(NEXT_ITERATIONS)
        ended -= is_switch(op)
        yield from ((each, ended) for each in op.inputs)

    for here, ended in walk([(tensor, 0)], before):
        op = ops.get(producer_of(here))
        if op is not None and is_switch(op) and not ended and here[0] != "^":
            yield op.inputs[1], int(here.partition(":")[2] or 0)


def _select(node: Node) -> Form | None:
    """A known choice, or for `Select` a choice by rows: its vector has an element for each row."""
    terms, condition = node.terms, node.operand(0)
    number, dims, whole = terms.constant(condition), terms.shape(condition), node.shape
    if number is not None and whole is not None:
        chosen = node.operand(1) if number else node.operand(2)
        return chosen if has_shape(terms.shape(chosen), whole) else None
    if _is_for_one_row(node, condition):
        return node.operand(1)
    if node.op.type == "Select" and dims and len(dims) == 1 and whole and len(whole) > 1:
        condition = _reshaped(node, condition, (*dims, *[1] * (len(whole) - 1)))
        return node.build("Select", (), (condition, node.operand(1), node.operand(2)))
    return None


def _is_for_one_row(node: Node, condition: Form) -> bool:
    """Whether a choice yields the numbers of n rows, or 0 if n is 1: the same number.

    ``tf.vectorized_map`` makes this choice.
    """
    terms, atom, numbers = node.terms, node.terms.single(condition), node.operand(1)
    if atom is None or atom.op != "Greater" or terms.constant(atom.operands[1]) != 1.0:
        return False
    count, part = atom.operands[0], finest(terms.parts(condition))
    found = terms.single(numbers)
    bounds = terms.number(0.0), count, terms.number(1.0)
    are_all = part is not None and (count, numbers) == (
        terms.rows(part),
        _numbers_of_rows(node, part),
    )
    are_all = are_all or (found is not None and found.op == "Range" and found.operands == bounds)
    return are_all and terms.constant(node.operand(2)) == 0.0


# --- reductions and products of matrices ---


def _reduce(node: Node) -> Form | None:
    terms = node.terms
    number = node.reader.operand(node.name, 0)
    if terms.shape(number) == () and node.op.type in ("Mean", "Max", "Min"):
        return number  # of equal elements
    form = node.operand(0)
    dims = terms.shape(form)
    axes = terms.integers(node.operand(1)) if len(node.inputs) > 1 else None
    rank = None if dims is None else len(dims)
    if axes is None and node.shape == () and rank is not None:
        axes = list(range(rank))
    found: tuple[int, ...] | None = None
    if axes is not None and rank is not None:
        found = tuple(sorted({axis % rank for axis in axes})) if rank else ()
    elif axes is not None and all(axis >= 0 for axis in axes):
        found = tuple(sorted(set(axes)))
    kind = node.op.type
    elements = terms.vector(form)
    if kind == "Prod" and elements is not None:
        made = terms.number(1.0)
        for element in elements:
            made = terms.product(made, element)
        return made
    keeps = bool(node.attributes.get("keep_dims", False)) and kind not in ("ArgMax", "ArgMin")
    if kind in ("Max", "Min") and elements and len(set(elements)) == 1 and not keeps:
        return elements[0]
    unknown = node.operands[1:] if found is None else ()
    made = node.build(kind, (found, keeps), (form, *unknown))
    if kind == "Mean" and _is_integer(node.dtype(0)):
        return node.build("FloatToInt", ("Mean",), (made,))
    return made


def _matrix_product(node: Node) -> Form | None:
    attributes = node.attributes
    transposed = tuple(
        int(attributes.get(f"transpose_{x}", attributes.get(f"adj_{y}", False)))
        for x, y in (("a", "x"), ("b", "y"))
    )
    one, other = node.operand(0), node.operand(1)
    summed = 1 - transposed[0], transposed[1]
    return (
        _combined(node, (one, summed[0]), (other, summed[1]))
        or _combined(node, (other, summed[1]), (one, summed[0]))
        or node.build(node.op.type, transposed, (one, other))
    )


def _combined(node: Node, line: tuple[Form, int], matrix: tuple[Form, int]) -> Form | None:
    """The product of a line of scalars and a stack of tensors: the sum of the products.

    Each operand comes with the axis that is summed over.
    """
    terms, shape = node.terms, node.shape
    dims = terms.shape(line[0]), terms.shape(matrix[0])
    if dims[0] is None or dims[1] is None or len(dims[0]) != 2 or len(dims[1]) != 2:
        return None
    if dims[0][1 - line[1]] != 1 or not _are_known(shape, dims[1]):
        return None
    factors = elements_of_line(terms, line[0])
    stacked = slices_along(terms, *matrix)
    if stacked is None and dims[1][1 - matrix[1]] == 1:
        stacked = elements_of_line(terms, matrix[0])
    if factors is None or stacked is None:
        return None
    products = [terms.product(*pair) for pair in zip(stacked, factors, strict=True)]
    total = terms.add(*((each, 1.0) for each in products))
    return node.build("Reshape", (shape,), (total,), shape)


def _transposed_convolution(node: Node) -> Form | None:
    """The first input is the shape; the third input has the same number of rows."""
    attrs = (*attributes_of(node), node.shape and node.shape[1:])
    unknown = () if node.shape and None not in node.shape[1:] else (node.operand(0),)
    return node.build("Conv2DBackpropInput", attrs, (node.operand(2), node.operand(1), *unknown))


def _are_known(*shapes: Shape) -> bool:
    """Whether all extents of shapes are numbers."""
    return all(
        shape is not None and all(isinstance(dim, int) for dim in shape) for shape in shapes
    )


def _einsum(node: Node) -> Form | None:
    equation = node.attributes.get("equation", "")
    text = equation.decode() if isinstance(equation, bytes) else str(equation)
    return _weighted_sum(node, text) or node.build("Einsum", (text,), node.operands)


def _weighted_sum(node: Node, equation: str) -> Form | None:
    """A sum of stacked tensors with a known factor for each, such as ``t,tij->ij``."""
    inputs, _, output = equation.partition("->")
    names = inputs.split(",")
    if len(names) != 2:
        return None
    for number, letter in enumerate(names):
        other = names[1 - number]
        if len(letter) != 1 or other.count(letter) != 1 or other.replace(letter, "") != output:
            continue
        if not _are_known(node.shape):
            continue
        factors = elements_of_line(node.terms, node.operand(number))
        stacked = slices_along(node.terms, node.operand(1 - number), other.index(letter))
        if factors and stacked:
            return _sum_of_products(node, factors, stacked)
    return None


def _sum_of_products(node: Node, factors: Sequence[Form], stacked: Sequence[Form]) -> Form:
    """The sum of tensors of the same elements as the result, each times its factor."""
    products = [node.terms.product(*pair) for pair in zip(stacked, factors, strict=True)]
    total = node.terms.add(*((each, 1.0) for each in products))
    return node.build("Reshape", (node.shape,), (total,))


def _normalize(node: Node) -> Form | None:
    attributes = node.attributes
    in_training = bool(attributes.get("is_training", True))
    keys = "epsilon", "data_format", "exponential_avg_factor"
    attrs = (in_training, node.output, *(str(attributes.get(key)) for key in keys))
    return node.build(node.op.type, attrs, node.operands)


# --- shapes ---


def _dims(node: Node, form: Form, number: int) -> list[Form] | None:
    """The extents of a tensor, as scalars; None if they are unknown."""
    terms = node.terms
    dims = terms.shape(form)
    if dims == ():  # perhaps a number that is broadcast
        static = node.static_shape(number)
        if not is_static(static):
            return None
        return [terms.number(dim) for dim in static or () if isinstance(dim, int)]
    return None if dims is None else [terms.extent(form, axis) for axis in range(len(dims))]


def _shape_of(node: Node) -> Form | None:
    dims = _dims(node, node.operand(node.output), node.output)
    return None if dims is None else node.terms.pack(dims, node.origin)


def _size(node: Node) -> Form | None:
    dims = _dims(node, node.operand(0), 0)
    if dims is None:
        return None
    total = node.terms.number(1.0)
    for dim in dims:
        total = node.terms.product(total, dim)
    return total


def _rank(node: Node) -> Form | None:
    dims = node.static_shape(0)
    return None if dims is None else node.terms.number(len(dims))


def _range(node: Node) -> Form | None:
    """The numbers of rows, or a known vector of numbers."""
    terms = node.terms
    start, limit, step = node.operands
    count = terms.add((limit, 1.0), (start, -1.0))
    part = finest(terms.parts(limit) | terms.parts(start))
    if part is not None and terms.constant(step) == 1.0 and count == terms.rows(part):
        numbers = _numbers_of_rows(node, part)
        if numbers is not None:
            return terms.add((numbers, 1.0), (start, 1.0))
    bounds = [terms.constant(each) for each in (start, limit, step)]
    if any(bound is None for bound in bounds) or not bounds[2]:
        return None
    found = range(*(int(bound) for bound in bounds if bound is not None))
    if len(found) > _MAX_ELEMENTS:
        return None
    return terms.pack([terms.number(each) for each in found], node.origin)


def _numbers_of_rows(node: Node, part: Part) -> Form | None:
    """The numbers of the rows of a part, from 0; None if they are no neighbors in the batch."""
    if not are_neighbors(part):
        return None
    numbers = node.terms.atom(
        *("Leaf", ("row number",), (), (ROWS,)),
        part=part,
        origin=node.origin,
        status=Status(Kind.ROWS, 0),
    )
    return node.terms.add((numbers, 1.0), (node.reader.first_row(part), -1.0))


def _reshaped(node: Node, form: Form, dims: Shape, others: tuple[Form, ...] = ()) -> Form:
    return node.build("Reshape", (dims,), (form, *others), dims)


def _expand_dims(node: Node) -> Form | None:
    form = node.operand(0)
    dims, axis = node.terms.shape(form), node.terms.integers(node.operand(1))
    if dims is None or axis is None or (dims == () and node.static_shape(0) not in ((), None)):
        return None
    at = axis[0] % (len(dims) + 1)
    return _reshaped(node, form, (*dims[:at], 1, *dims[at:]))


def _squeeze(node: Node) -> Form | None:
    form = node.operand(0)
    dims = node.terms.shape(form)
    if dims is None:
        return None
    axes = [axis % len(dims) for axis in node.attributes.get("squeeze_dims") or ()] if dims else []
    axes = axes or [i for i, dim in enumerate(dims) if dim == 1]
    return _reshaped(node, form, tuple(dim for i, dim in enumerate(dims) if i not in axes))


def _reshape(node: Node) -> Form | None:
    terms, form = node.terms, node.operand(0)
    wanted, dims = terms.vector(node.operand(1)), terms.shape(form)
    shape = node.shape
    if wanted is None or dims is None:
        has_rows = any(isinstance(dim, RowExtent) for dim in dims or ())
        if shape == () or (is_static(shape) and is_static(dims) and not has_rows):
            return _reshaped(node, form, shape)
        return node.build("Reshape", (shape,), (form, node.operand(1)))
    made = _reshaped_rows(node, form, wanted)
    if made is not None:
        return made
    at = _axis_of_rows(dims)
    flat = _known_extents(terms, wanted)
    if None in flat and is_static(shape):
        flat = shape or ()
    if at is None and is_static(dims) and flat.count(None) == 1 and _minus_one(terms, wanted):
        rest = math.prod(dim for dim in flat if isinstance(dim, int))
        whole = math.prod(dim for dim in dims if isinstance(dim, int))
        flat = tuple(whole // max(rest, 1) if dim is None else dim for dim in flat)
    return _reshaped(node, form, flat, () if None not in flat else (node.operand(1),))


def _axis_of_rows(shape: Shape) -> int | None:
    return next((i for i, dim in enumerate(shape or ()) if isinstance(dim, RowExtent)), None)


def _reshaped_rows(node: Node, form: Form, wanted: Sequence[Form]) -> Form | None:
    """A reshape that keeps each row together, or that stacks equal parts of the rows.

    ``[n, -1]`` are n parts in order, and ``[-1, n]`` every n-th row. None for other reshapes.
    """
    terms, dims = node.terms, node.terms.shape(form) or ()
    part, at = finest(terms.parts(form)), _axis_of_rows(dims)
    if at is None or part is None:
        return None
    found = _with_rows_kept(node, dims, at, wanted, part)
    if found is not None:
        return _reshaped(node, form, found)
    extent, known = dims[at], _known_extents(terms, wanted)
    if known[:at] != tuple(dims[:at]) or len(wanted) < at + 2 or not isinstance(extent, RowExtent):
        return None
    first, second = known[at : at + 2]
    count = first or second
    is_striped = first is None
    if not isinstance(count, int) or not 1 <= count <= _MAX_ELEMENTS:
        return None
    if not extent.times or (is_striped and extent.times > 1):
        return None
    family: Family = "stride" if is_striped else "split"
    axis = at + is_striped
    cuts = [
        terms.cut(form, at, Cut(family, number, count), dims, node.origin)
        for number in range(count)
    ]
    rest = (*wanted[:axis], *wanted[axis + 1 :])
    stacked = [None if cut is None else _reshaped_rows(node, cut, rest) for cut in cuts]
    found_parts = tuple([each for each in stacked if each is not None])
    inner = terms.shape(found_parts[0]) or () if found_parts else ()
    if len(found_parts) < count or (is_striped and inner[at] != ROWS):  # pieces of rows
        return None
    return node.build("Pack", (axis,), found_parts, (*inner[:axis], count, *inner[axis:]))


def _known_extents(terms: Terms, wanted: Sequence[Form]) -> tuple[Dim, ...]:
    numbers = [terms.constant(each) for each in wanted]
    return tuple(None if n is None or n < 0 else int(n) for n in numbers)


def _minus_one(terms: Terms, wanted: Sequence[Form]) -> bool:
    return any(terms.constant(each) == -1 for each in wanted)


def _with_rows_kept(
    node: Node, dims: Sequence[Dim], at: int, wanted: Sequence[Form], part: Part
) -> tuple[Dim, ...] | None:
    """The shape of a reshape that keeps each row together; None if it does not.

    Rows may be put together only if their number is unknown and they are neighbors in the batch.
    """
    terms = node.terms
    has_neighbors = are_neighbors(part)
    rows_monomial, unit = terms.summands(terms.rows(part))[0]
    size = terms.size(node.reader.program, part)
    known = _known_extents(terms, wanted)
    before, after = _count(dims[:at]), _count(dims[at + 1 :])
    extent = dims[at]
    times = extent.times if isinstance(extent, RowExtent) else None
    for j, form in enumerate(wanted):
        number, summands = terms.constant(form), terms.summands(form)
        if number == -1:
            multiple = 1.0
        elif number is not None:
            multiple = number / size if size else 0.0
        else:
            is_single = len(summands) == 1 and summands[0][0] == rows_monomial
            multiple = summands[0][1] / unit if is_single else 0.0
        is_rows = multiple > 0.5 and abs(multiple - round(multiple)) < 1e-6
        if not is_rows or before is None or _count(known[:j]) != before:
            continue
        if number != -1 and after is not None and times:  # such as [rows, -1]
            elements, remainder = divmod(after * times, round(multiple))
            if remainder:
                return None
            known = _with_minus_one(terms, wanted, known, j, elements)
        rest = _count(known[j + 1 :])
        if rest is not None and after is not None and times and after * times % max(rest, 1) == 0:
            found = RowExtent(after * times // max(rest, 1))
            return (*known[:j], found, *known[j + 1 :])
        if after is not None and times:
            return None
        if j == at == 0 and number == -1 and None not in known[1:] and has_neighbors:
            return (RowExtent(None), *known[1:])
        if number is None and (times or has_neighbors):
            return (*known[:j], RowExtent(round(multiple)), *known[j + 1 :])
    return None


def _with_minus_one(
    terms: Terms, wanted: Sequence[Form], known: tuple[Dim, ...], at: int, elements: int
) -> tuple[Dim, ...]:
    """Extents with the extent that -1 stands for, after the axis of the rows, if there is one."""
    places = [i for i in range(at + 1, len(wanted)) if terms.constant(wanted[i]) == -1]
    others = [known[i] for i in range(at + 1, len(known)) if i not in places]
    count = _count(others)
    if len(places) != 1 or not count or elements % count:
        return known
    return (*known[: places[0]], elements // count, *known[places[0] + 1 :])


def _count(dims: Sequence[Dim]) -> int | None:
    """The product of extents; None if one is unknown."""
    numbers = [dim for dim in dims if isinstance(dim, int) and dim >= 0]
    return math.prod(numbers) if len(numbers) == len(dims) else None


def _transpose(node: Node) -> Form | None:
    terms, form = node.terms, node.operand(0)
    order, dims = terms.integers(node.operand(1)), terms.shape(form)
    shape = node.shape
    if order and dims and len(order) == len(dims):
        shape = tuple(dims[axis] for axis in order)
    unknown = () if order else (node.operand(1),)
    return node.build("Transpose", (tuple(order) if order else None,), (form, *unknown), shape)


# --- joins and slices ---


def _pack(node: Node) -> Form | None:
    terms, shape, operands = node.terms, node.shape, node.operands
    axis = int(node.attributes.get("axis", 0)) % (len(shape) if shape else 1)
    inner = {terms.shape(operand) for operand in operands}
    dims = inner.pop()
    if not inner and dims is not None:  # with the extent of the rows
        shape = (*dims[:axis], len(operands), *dims[axis:])
    return node.build("Pack", (axis,), operands, shape)


def _join(node: Node) -> Form | None:
    terms = node.terms
    *operands, last = node.operands
    axis = terms.integers(last)
    if axis is None:
        cause = Cause("ConcatV2", "joins tensors along an unknown axis", node.origin)
        return terms.unknown(cause, node.shape, node.reader.program, node.name)
    vectors = [terms.vector(operand) for operand in operands]
    known = [vector for vector in vectors if vector is not None]
    if len(known) == len(vectors):
        return terms.pack([element for vector in known for element in vector], node.origin)
    rank = len(terms.shape(operands[0]) or ()) or (len(node.shape) if node.shape else 1)
    return node.build("ConcatV2", (axis[0] % rank,), tuple(operands))


def _cut_axis(
    node: Node, form: Form, axis: int, begin: Form | None, end: Form | None
) -> Form | None:
    """A slice along one axis; None if its bounds are unknown. A bound is None for an end."""
    terms = node.terms
    dims = terms.shape(form)
    if dims is None or axis >= len(dims):
        return None
    if begin is None and end is None:
        return form
    size = dims[axis]
    part = finest(terms.parts(form))
    if isinstance(size, RowExtent):
        low = Fraction(0) if begin is None else _fraction(node, begin, part)
        high = Fraction(1) if end is None else _fraction(node, end, part)
        if low is None or high is None:
            return _cut_by_numbers(node, form, axis, begin, end, 1)
        if not size.times:
            return None
        low = low if begin is None else low / size.times
        high = high if end is None else high / size.times
        if not 0 <= low < high <= 1:
            return None
        if low == 0 and high == 1:
            return form
        return terms.cut(form, axis, cut_range(low, high), dims, node.origin)
    first = 0.0 if begin is None else terms.constant(begin)
    last = size if end is None else terms.constant(end)
    if isinstance(size, int) and first is not None and last is not None:
        low_row, high_row = (
            max(int(bound) + size, 0) if bound < 0 else min(int(bound), size)
            for bound in (first, last)
        )
        if (low_row, high_row) == (0, size):
            return form
        width = max(high_row - low_row, 0)
        shape = (*dims[:axis], width, *dims[axis + 1 :])
        return node.build("Slice", (axis, low_row, width), (form,), shape)
    return form if first == 0 and end is None else None


def _element(node: Node, form: Form, axis: int, index: Form) -> Form | None:
    """A slice of one known number, without its axis; None if it is not followed."""
    terms, dims = node.terms, node.terms.shape(form) or ()
    number = terms.constant(index)
    if axis >= len(dims) or number is None:
        return None
    size, at = dims[axis], int(number)
    if size == ROWS and at >= 0:
        cut = _chosen_rows(node, form, axis, range(at, at + 1))
    elif not isinstance(size, int) or not -size <= at < size:
        return None
    else:
        at %= size
        cut = _cut_axis(node, form, axis, terms.number(at), terms.number(at + 1))
    return None if cut is None else _reshaped(node, cut, (*dims[:axis], *dims[axis + 1 :]))


def _cut_by_steps(
    node: Node, form: Form, axis: int, begin: Form | None, end: Form | None, step_form: Form
) -> Form | None:
    """A slice with a step; None if it is no slice and not every n-th row."""
    terms = node.terms
    dims, step = terms.shape(form), terms.constant(step_form)
    if step == 1:
        return _cut_axis(node, form, axis, begin, end)
    if dims is None or step is None or step < 1:
        return None
    return _cut_by_numbers(node, form, axis, begin, end, int(step))


def _cut_by_numbers(
    node: Node, form: Form, axis: int, begin: Form | None, end: Form | None, step: int
) -> Form | None:
    """Every n-th row between two bounds; None if these are no known numbers."""
    terms = node.terms
    is_open = end is None or end == terms.extent(form, axis)
    first = 0.0 if begin is None else terms.constant(begin)
    last = LAST_ROW if is_open or end is None else terms.constant(end)
    if first is None or last is None or not 0 <= first < last:
        return None
    return _chosen_rows(node, form, axis, range(int(first), int(last), step))


def _chosen_rows(node: Node, form: Form, axis: int, rows: Sequence[int]) -> Form | None:
    """Rows by their numbers: every n-th row, or any rows in a program that is read alone."""
    terms, dims, part = node.terms, node.terms.shape(form) or (), finest(node.terms.parts(form))
    if part is None or axis >= len(dims) or dims[axis] != ROWS:
        return None
    cut = Cut("rows", 0, 0, rows=rows)
    if isinstance(rows, range) and rows.start < rows.step > 1:
        end = terms.size(node.reader.program, part) or LAST_ROW
        if range(rows.start, min(rows.stop, end), rows.step) == range(rows.start, end, rows.step):
            cut = Cut("stride", rows.start, rows.step)
    is_part = cut.family == "stride" or terms.is_alone
    return terms.cut(form, axis, cut, dims, node.origin) if is_part else None


def _fraction(node: Node, bound: Form, part: Part | None) -> Fraction | None:
    """A bound of a slice of rows, as a fraction of the rows."""
    if part is None:
        return None
    terms = node.terms
    rows, unit = terms.summands(terms.rows(part))[0]
    size = terms.size(node.reader.program, part)
    total = Fraction(0)
    for monomial, number in terms.summands(bound):
        if monomial == rows and rows != NUMBER:
            total += Fraction(number / unit).limit_denominator(512)
        elif monomial == NUMBER and size and number == int(number):
            total += Fraction(int(number), size)
        else:
            return None
    return total


_MASKS = ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask")


def _strided_slice(node: Node) -> Form | None:
    terms = node.terms
    form, begin, end, stride = node.operands
    masks = {key: int(node.attributes.get(key, 0)) for key in _MASKS}
    found = _sliced(node, form, begin, end, stride, masks)
    if found is not None:
        return found
    attrs = tuple(masks.items())
    return terms.atom("StridedSliceOf", attrs, node.operands, node.shape, origin=node.origin)


def _sliced(
    node: Node, form: Form, begin: Form, end: Form, stride: Form, masks: Mapping[str, int]
) -> Form | None:
    """A slice with strides and masks; None if it cannot be followed."""
    terms = node.terms
    begins, ends, strides = terms.vector(begin), terms.vector(end), terms.integers(stride)
    dims, elements = terms.shape(form), terms.vector(form)
    if begins is None or ends is None or strides is None or dims is None:
        return None
    is_element_or_slice = not masks["new_axis_mask"] and not masks["ellipsis_mask"]
    if elements is not None and len(begins) == 1 and is_element_or_slice:
        return _sliced_vector(node, elements, begins[0], ends[0], strides[0], masks)
    axis = 0
    fresh: list[int] = []
    unnamed = masks["new_axis_mask"].bit_count() + masks["ellipsis_mask"].bit_count()
    left_out = len(dims) - (len(begins) - unnamed)
    for i, step in enumerate(strides):
        bit = 1 << i
        dims = terms.shape(form)
        if dims is None:
            return None
        if masks["ellipsis_mask"] & bit:
            axis += left_out
            continue
        if masks["new_axis_mask"] & bit:
            fresh.append(axis + len(fresh))
            continue
        if axis >= len(dims):
            return None
        low = None if masks["begin_mask"] & bit else begins[i]
        high = None if masks["end_mask"] & bit else ends[i]
        cut: Form | None = None
        if masks["shrink_axis_mask"] & bit:
            cut = _element(node, form, axis, begins[i])
            axis -= 1
        else:
            cut = _cut_by_steps(node, form, axis, low, high, terms.number(step))
        if cut is None:
            return None
        form = cut
        axis += 1
    left = list(terms.shape(form) or ())
    for at in fresh:
        left.insert(at, 1)
    return _reshaped(node, form, tuple(left)) if fresh else form


def _sliced_vector(
    node: Node,
    elements: Sequence[Form],
    begin: Form,
    end: Form,
    step: int,
    masks: Mapping[str, int],
) -> Form | None:
    terms = node.terms
    first, last = terms.constant(begin), terms.constant(end)
    if masks["shrink_axis_mask"]:
        if first is None or not -len(elements) <= first < len(elements):
            return None
        return elements[int(first)]
    low = None if masks["begin_mask"] & 1 else first
    high = None if masks["end_mask"] & 1 else last
    if (low is None and not masks["begin_mask"] & 1) or (
        high is None and not masks["end_mask"] & 1
    ):
        return None
    bounds = slice(None if low is None else int(low), None if high is None else int(high), step)
    return terms.pack(elements[bounds], node.origin)


def _slice(node: Node) -> Form | None:
    terms = node.terms
    form, begin, size = node.operands
    begins, sizes = terms.vector(begin), terms.vector(size)
    dims, elements = terms.shape(form), terms.vector(form)
    found: Form | None = None
    if begins is not None and sizes is not None and dims is not None:
        if elements is not None:
            first, count = terms.constant(begins[0]), terms.constant(sizes[0])
            if first is not None and count is not None:
                low = int(first)
                rows = elements[low : low + int(count)] if count >= 0 else elements[low:]
                return terms.pack(rows, node.origin)
        found = form
        for axis, (low_form, width) in enumerate(zip(begins, sizes, strict=True)):
            is_rest = terms.constant(width) == -1
            end = None if is_rest else terms.add((low_form, 1.0), (width, 1.0))
            start = None if terms.constant(low_form) == 0 else low_form
            found = _cut_axis(node, found, axis, start, end)
            if found is None:
                break
    if found is not None:
        return found
    return terms.atom("StridedSliceOf", (), node.operands, node.shape, origin=node.origin)


def _split(node: Node) -> Form | None:
    count = int(node.attributes.get("num_split", 0)) or len(node.reader.outputs(node.name))
    return _split_into(node, node.operand(1), node.operand(0), [None] * count)


def _split_v(node: Node) -> Form | None:
    terms = node.terms
    form, axis, sizes = node.operand(0), terms.integers(node.operand(2)), None
    found = terms.vector(node.operand(1))
    if found is not None and axis is not None:
        sizes = list(found)
        rest = [i for i, size in enumerate(sizes) if terms.constant(size) == -1]
        if rest and terms.shape(form):
            others = [(size, -1.0) for i, size in enumerate(sizes) if i not in rest]
            whole = terms.extent(form, axis[0] % len(terms.shape(form) or ()))
            sizes[rest[0]] = terms.add((whole, 1.0), *others)
    return None if sizes is None else _split_into(node, form, node.operand(2), sizes)


def _split_into(
    node: Node, form: Form, axis_form: Form, sizes: Sequence[Form | None]
) -> Form | None:
    terms = node.terms
    dims, found = terms.shape(form), terms.integers(axis_form)
    if dims is None or found is None:
        return None
    axis, count, output = found[0] % len(dims), len(sizes), node.output
    is_equal = sizes[0] is None or len(set(sizes)) == 1
    known = [size for size in sizes if size is not None]
    stripe = Cut("split", output, count)
    if isinstance(dims[axis], RowExtent):
        if is_equal:
            return terms.cut(form, axis, stripe, dims, node.origin)
        begin = terms.add(*((size, 1.0) for size in known[:output])) if output else None
        end = terms.add(*((size, 1.0) for size in known[: output + 1]))
        return _cut_axis(node, form, axis, begin, end)
    if is_equal:
        made = terms.cut(form, axis, stripe, node.shape, node.origin)
        if made is not None:
            return made
    size = dims[axis]
    if not isinstance(size, int):
        return None
    widths = [size / count if each is None else terms.constant(each) for each in sizes]
    numbers = [width for width in widths if width is not None]
    if len(numbers) < len(widths):
        return None
    low = sum(numbers[:output])
    return _cut_axis(node, form, axis, terms.number(low), terms.number(low + numbers[output]))


def _partition(node: Node) -> Form | None:
    """Every n-th row, by the remainders of the numbers of rows."""
    terms = node.terms
    form, numbers = node.operands
    count, part = len(node.reader.outputs(node.name)), finest(terms.parts(form))
    if part is None or (terms.shape(form) or ())[:1] != (ROWS,):
        return None
    remainders = terms.single(numbers)
    if remainders is None or remainders.op != "FloorMod" or terms.shape(numbers) != (ROWS,):
        return None
    if remainders.operands != (_numbers_of_rows(node, part), terms.number(count)):
        return None
    stripe = Cut("stride", node.output, count)
    return terms.cut(form, 0, stripe, terms.shape(form), node.origin)


def _unstack(node: Node) -> Form | None:
    terms, form = node.terms, node.operand(0)
    dims = terms.shape(form)
    if not dims:
        return None
    axis, elements = int(node.attributes.get("axis", 0)) % len(dims), terms.vector(form)
    if elements is not None:
        return elements[node.output]
    count = len(node.reader.outputs(node.name))
    cut = None
    if not isinstance(dims[axis], RowExtent):
        stripe = Cut("split", node.output, count)
        cut = terms.cut(form, axis, stripe, node.shape, node.origin)
        if cut is None:
            return _element(node, form, axis, terms.number(node.output))
    return None if cut is None else _reshaped(node, cut, (*dims[:axis], *dims[axis + 1 :]))


def _along(node: Node) -> Form | None:
    """Ops that repeat or pad a tensor along an axis, with this axis as the attribute."""
    terms, form, kind = node.terms, node.operand(0), node.op.type
    dims, shape = terms.shape(form), node.shape
    at = _axis_of_rows(dims)
    if kind == "Pad" and at is None and dims is not None and len(dims) == 1:
        paddings, size = terms.single(node.operand(1)), dims[0]
        if paddings is not None and paddings.op == "Const" and isinstance(size, int):
            before, after = (int(each) for each in (paddings.attrs[1] * 2)[:2])
            extent = before + size + after
            return node.build("Place", (0, before, extent), (form,), (extent,))
    changed = None if at is None else _changed_axis(node, at)
    if at is not None and changed is None and shape is not None and dims is not None:
        rank_shift = len(shape) - len(dims)
        if not rank_shift:
            shape = (*shape[:at], dims[at], *shape[at + 1 :])
    return node.build(kind, (changed, *attributes_of(node)), node.operands, shape)


def _changed_axis(node: Node, at: int) -> int | None:
    """The axis of the rows, if an op changes rows; None if it is known not to."""
    terms = node.terms
    if node.op.type == "Tile":
        repeats = terms.vector(node.operand(1))
        return None if repeats is not None and terms.constant(repeats[at]) == 1 else at
    if node.op.type == "BroadcastTo":
        dims, shape = terms.shape(node.operand(0)), node.shape
        is_same = dims is not None and shape is not None and len(dims) == len(shape)
        return None if is_same else at
    paddings = terms.single(node.operand(1))
    if paddings is not None and paddings.op == "Const":
        elements = paddings.attrs[1]
        if len(elements) == 1:
            elements = elements * 2 * (at + 1)
        is_unpadded = len(elements) > 2 * at + 1 and not any(elements[2 * at : 2 * at + 2])
        return None if is_unpadded else at
    return at


def _reorder(node: Node) -> Form | None:
    """Ops that move the elements along axes, which the last input names."""
    terms, form = node.terms, node.operand(0)
    dims, axes = terms.shape(form), terms.integers(node.operands[-1])
    if not dims or axes is None:
        return _along_unknown_axis(node)
    at = _axis_of_rows(dims)
    changed = at if at in {axis % len(dims) for axis in axes} else None
    return node.build(node.op.type, (changed, *attributes_of(node)), node.operands, dims)


def _cumulate(node: Node) -> Form | None:
    axis = node.terms.integers(node.operand(1))
    dims = node.terms.shape(node.operand(0))
    if axis is None or not dims:
        return _along_unknown_axis(node)
    attrs = (axis[0] % len(dims), *attributes_of(node))
    return node.build(node.op.type, attrs, (node.operand(0),))


def _along_unknown_axis(node: Node) -> Form:
    attrs = (node.op.type, node.static_shape(0), *attributes_of(node))
    return node.build("AlongUnknownAxis", attrs, node.operands)


# --- lookups ---


def _lookup(node: Node, table: Form, indices: Form, axis: int, batch: int = 0) -> Form | None:
    terms = node.terms
    elements, at = terms.vector(table), terms.integers(indices)
    if elements and at and all(-len(elements) <= i < len(elements) for i in at):
        chosen = [elements[i] for i in at]
        return chosen[0] if terms.shape(indices) == () else terms.pack(chosen, node.origin)
    if axis < 0:
        axis += len(terms.shape(table) or ())
    rows = _rows_by_numbers(node, table, indices, axis) if terms.parts(table) else None
    if rows is not None:
        return rows
    return node.build("GatherV2", (axis, batch), (table, indices))


def _rows_by_numbers(node: Node, table: Form, indices: Form, axis: int) -> Form | None:
    """A slice that a lookup takes, by one number or by a range; None for another lookup."""
    terms, dims = node.terms, node.terms.shape(table) or ()
    if axis >= len(dims):
        return None
    if terms.shape(indices) == ():
        return _element(node, table, axis, indices)
    part = finest(terms.parts(table))
    if part is not None and dims[axis] == ROWS and indices == _numbers_of_rows(node, part):
        return table
    found = terms.single(indices)
    if found is not None and found.op == "Range":
        return _cut_by_steps(node, table, axis, *found.operands)
    rows = _known_numbers(terms, indices)
    if isinstance(rows, range) and rows.step == 1:
        return _cut_axis(node, table, axis, *map(terms.number, (rows.start, rows.stop)))
    return _chosen_rows(node, table, axis, rows) if rows else _masked(node, table, found, axis)


def _known_numbers(terms: Terms, indices: Form) -> Sequence[int]:
    """The elements of a constant vector, in equal steps or not; empty if they are not known."""
    numbers, found = terms.integers(indices), terms.single(indices)
    shape = terms.shape(indices)
    if found is not None and found.op == "Const" and shape and len(shape) == 1:
        numbers = [int(each) for each in found.attrs[1] if isinstance(each, float)]
        if len(numbers) == 1 and isinstance(shape[0], int):  # for equal elements
            numbers *= shape[0]
    return in_steps(numbers) if numbers and min(numbers) >= 0 else ()


def _masked(node: Node, table: Form, indices: Atom | None, axis: int) -> Form | None:
    """The rows for which a mask is true, as ``tf.boolean_mask`` looks them up; else None.

    Rows that two masks leave may be paired, and are other pairs in the whole batch if the rows of
    the part are no neighbors. So only one mask of such a part is followed.
    """
    terms, dims = node.terms, node.terms.shape(table) or ()
    if indices is not None and indices.op == "Reshape" and len(indices.shape or ()) == 1:
        indices = terms.single(indices.operands[0])
    extent = dims[axis] if axis < len(dims) else None
    if indices is None or indices.op != "Where" or not isinstance(extent, RowExtent):
        return None
    (mask,) = indices.operands
    if terms.shape(mask) != (extent,) or not extent.times:
        return None
    part = finest(terms.parts(table)) or WHOLE
    if not are_neighbors(part) and terms.masks.setdefault(part, mask) != mask:
        return None
    shape = (*dims[:axis], RowExtent(None), *dims[axis + 1 :])
    return node.build("Masked", (axis,), (table, mask), shape)


def _gather_nd(node: Node) -> Form | None:
    return _masked(node, node.operand(0), node.terms.single(node.operand(1)), 0)


def _gather(node: Node) -> Form | None:
    return _lookup(node, node.operand(0), node.operand(1), 0)


def _gather_v2(node: Node) -> Form | None:
    axis = node.terms.integers(node.operand(2))
    batch = int(node.attributes.get("batch_dims", 0))
    if not axis:
        return _along_unknown_axis(node)
    return _lookup(node, node.operand(0), node.operand(1), axis[0], batch)


def _resource_gather(node: Node) -> Form | None:
    table = node.reader.state_seen_by(node.name, node.inputs[0])
    if table is None:
        return None
    batch = int(node.attributes.get("batch_dims", 0))
    return _lookup(node, table, node.operand(1), 0, batch)


def _one_hot(node: Node) -> Form | None:
    axis = int(node.attributes.get("axis", -1))
    return node.build("OneHot", (axis,), node.operands)


def _segment_sum(node: Node) -> Form | None:
    """The sum of gradients of looked-up rows is a gradient of the table."""
    terms = node.terms
    values, indices = node.operand(0), node.operand(1)
    index = terms.single(indices)
    if terms.is_backward(values) and (index is None or index.op != "Unique"):
        return node.build("Slices", (), (values, indices))
    return None


# --- lists of tensors, as loops have them ---


def _taking(
    *operands: int, type_: str = "", yields_list: bool = True
) -> Callable[[Node], Form | None]:
    """An op on some of its inputs, without the shapes of elements; also as another type.

    A list has no static shape.
    """

    def make(node: Node) -> Form | None:
        chosen = tuple([node.operand(number) for number in operands])
        shape = (None,) if yields_list else ()
        return node.build(type_ or node.op.type, (), chosen, *shape)

    return make


def _list_from_array(node: Node) -> Form | None:
    """A list of the slices of a tensor, if they are all elements of an array in order."""
    dims = node.terms.shape(node.operand(2))
    if not dims or not _counts(node.terms, node.operand(1), dims[0]):
        return None
    return node.build("TensorListFromTensor", (), (node.operand(2),), None)


def _stacked_array(node: Node) -> Form | None:
    """All elements of an array in order."""
    size = _size_of_array(node)
    count = None if size is None else node.terms.constant(size)
    if count is None or not _counts(node.terms, node.operand(1), int(count)):
        return None
    return node.build("TensorListStack", (), (node.operand(2),))


def _counts(terms: Terms, numbers: Form, size: Dim) -> bool:
    """Whether a vector has the numbers from 0 up to a fixed size."""
    if not isinstance(size, int):
        return False
    found = terms.single(numbers)
    bounds = (0.0, float(size), 1.0)
    is_range = found is not None and found.op == "Range"
    if found is not None and is_range and tuple(map(terms.constant, found.operands)) == bounds:
        return True
    return terms.vector(numbers) is not None and terms.integers(numbers) == list(range(size))


def _size_of_array(node: Node) -> Form | None:
    """The number of elements of the array that an op uses; None if it may grow."""
    array = node.source(0)
    while array.op.type in ENTERS:
        array = array.source(0)
    if array.op.type != "TensorArrayV3" or array.attributes.get("dynamic_size"):
        return None
    return array.operand(0)


# --- random numbers ---


def _random(node: Node) -> Form | None:
    terms, reader, kind = node.terms, node.reader, node.op.type
    operands, seed = list(node.operands), _seed(node)
    if kind in RANDOM_STATELESS:
        at = RANDOM_STATELESS[kind]
        has_key = kind.endswith(("V2", "V3", "Shuffle")) and kind != "StatelessRandomGammaV2"
        del operands[at : at + (3 if has_key else 1)]  # with its counter and algorithm
    identity = (kind, node.output, *attributes_of(node))
    count = node.attributes.get("num_sampled")
    if kind in _CANDIDATES and node.output == 1:  # how often each label is drawn on average
        drawn = reader.value(node.name)
        return node.build("ExpectedCount", identity, (operands[0], drawn))
    if kind in _CANDIDATES:  # the labels matter only for the other output
        operands = [terms.pack([terms.number(float(count or 0))])]
    owners = _owners(node)
    part = _part_of_tower(node)
    if part is None and any(terms.parts(operand) for operand in operands):
        part = finest(frozenset().union(*[terms.parts(operand) for operand in operands]))
    dims = terms.vector(operands[0]) if kind != "RandomShuffle" else None
    dims = () if node.shape == () else dims
    size = None if part is None else terms.size(reader.program, part)
    whole = terms.size(reader.program, WHOLE)
    are_for_rows = _are_for_rows(node, owners, dims)
    if part is None and len(owners) > 1:
        if dims and whole and terms.constant(dims[0]) == whole:
            part, size = WHOLE, whole
        elif are_for_rows is False:
            part = WHOLE
    axis: int | None = None
    if part is not None and dims:
        rows = terms.rows(part)
        found = [
            i
            for i, dim in enumerate(dims)
            if dim == rows or (size and terms.constant(dim) == size)
        ]
        symbolic = [i for i in found if terms.constant(dims[i]) is None]
        axis = found[0] if found and len(symbolic) < 2 else None  # not for each pair of rows
    key = seed
    is_for_all = part == WHOLE or (part is None and len(owners) > 1)
    if seed is None and is_for_all and not terms.is_alone and not are_for_rows:
        key = (node.name,)  # towers that use one draw have equal numbers
    shared = _shared_numbers(node, identity, dims, operands, key)
    if shared is not None and (axis is None or _is_shape_of_variable(node, dims or ())):
        return shared
    shape = node.shape
    if axis is not None and part is not None and dims:
        if shape:
            shape = (*shape[:axis], ROWS, *shape[axis + 1 :])
        extents = [terms.rows_as_extent(part) if i == axis else dim for i, dim in enumerate(dims)]
        operands[0] = terms.pack(extents)
    if terms.is_alone:
        order: int | str = node.name
    else:
        alike = reader.graph.alike_at_random(node.name, owners)
        order = next(
            number
            for number, each in enumerate(alike)
            if each == node.name or (seed is not None and seed == _seed(Node(reader, each, 0)))
        )
    is_for_rows = are_for_rows is True
    reader.note_draw(kind, order, seed, part, node.name, owners, is_for_rows=is_for_rows)
    cause = Cause("Random", "is drawn for one tower", node.origin, is_known=False)
    status = Status(Kind.JOINT if axis is None else Kind.ROWS, axis, cause)
    return terms.atom(
        *("Random", (*identity, order), tuple(operands), shape),
        part=part,
        origin=node.origin,
        status=status,
    )


def _seed(node: Node) -> Any:
    """The seed of a random op: numbers, or the form of a tensor; None without a seed."""
    kind, attributes = node.op.type, node.attributes
    if kind in RANDOM_STATELESS:
        return node.operand(RANDOM_STATELESS[kind])
    seeds = attributes.get("seed", 0), attributes.get("seed2", 0)
    return seeds if any(seeds) else None


def _shared_numbers(
    node: Node,
    identity: tuple[Any, ...],
    dims: Sequence[Form] | None,
    operands: Sequence[Form],
    seed: Any,
) -> Form | None:
    """Numbers that are not for rows, such as a mask of weights: equal seeds, equal numbers.

    None if they are for rows, or have no seed, or if their shape is unknown. A loop draws other
    numbers in each iteration, perhaps for each row.
    """
    terms = node.terms
    seeds = (Form(seed),) if isinstance(seed, int) else ()
    if dims is None or seed is None or node.reader.graph.is_in_loop(node.name):
        return None
    if any(terms.parts(each) for each in (*operands, *seeds)):
        return None
    if any(terms.constant(dim) is None for dim in dims):
        return None
    attrs = (*identity, "shared", None if seeds else seed)
    return terms.atom("Random", attrs, (*operands, *seeds), node.shape, origin=node.origin)


def _are_for_rows(node: Node, owners: Sequence[str], dims: Sequence[Form] | None) -> bool | None:
    """Whether random numbers have as many rows as all towers, or one that uses them.

    None if an extent that may be this number is unknown.
    """
    if dims is None:
        return None
    terms, reader = node.terms, node.reader
    parts = {WHOLE, *(reader.part_of_tower([owner]) for owner in owners)}
    sizes = {terms.size(reader.program, part) for part in parts if part is not None} - {None}
    extents = {terms.constant(dim) for dim in dims}
    if not extents.isdisjoint(sizes):
        return not _is_shape_of_variable(node, dims)
    return None if None in extents else False


def _is_shape_of_variable(node: Node, dims: Sequence[Form]) -> bool:
    """Whether a variable has as many elements along each axis: also if there are as many rows."""
    extents = tuple([node.terms.constant(dim) for dim in dims])
    return any(each.shape == extents for each in node.reader.placement.variables)


# --- collectives ---


def _all_reduce(node: Node) -> Form | None:
    """The sum, or the mean, of the inputs of all ops of a group."""
    reader, terms = node.reader, node.terms
    attributes = node.attributes
    final, merge = (
        _text(attributes.get(key, attributes.get("reduction", "")))
        for key in ("final_op", "merge_op")
    )
    if merge.lower() not in ("add", "sum"):
        return None
    members = reader.graph.members_of_collective(node.name)
    total = terms.add(*((reader.value(reader.data(each)[0], each), 1.0) for each in members))
    return terms.scaled(total, 1 / len(members)) if "Div" in final else total


def _all_gather(node: Node) -> Form | None:
    """The rows of all ops of a group, in the order of the replicas."""
    reader = node.reader
    members = reader.graph.members_of_collective(node.name)
    rows = [reader.value(reader.data(each)[0], each) for each in members]
    return node.build("ConcatV2", (0,), tuple(rows))


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


_REDUCTIONS = words("Sum Mean Max Min Prod All Any ArgMax ArgMin EuclideanNorm")

TENSOR_OPS: Mapping[str, Callable[[Node], Form | None]] = {
    # Ops that pass values on, and constants.
    **dict.fromkeys(
        words(
            """
            Identity RefIdentity Enter RefEnter Exit RefExit Snapshot CheckNumerics Print PrintV2
            EnsureShape DeepCopy GuaranteeConst
            """
        ),
        _identity,
    ),
    "IdentityN": _identity_n,
    "Cast": _cast,
    "StopGradient": _stop,
    "PreventGradient": _stop,
    "ReadVariableOp": _read,
    "Const": _constant,
    "ZerosLike": _zeros_like,
    "OnesLike": _ones_like,
    "Fill": _fill,
    # Arithmetic.
    "Add": _add,
    "AddV2": _add,
    "Sub": _subtract,
    "Neg": _negate,
    "BiasAdd": _add_bias,
    "Mul": _multiply,
    "RealDiv": _divide,
    "Div": _divide,
    "DivNoNan": _divide_no_nan,
    "FloorDiv": _floor_divide,
    "TruncateDiv": _floor_divide,
    "Square": _square,
    "SquaredDifference": _squared_difference,
    "Reciprocal": _reciprocal,
    "Inv": _reciprocal,
    "Pow": _power,
    **dict.fromkeys(_COMPARISONS, _compare),
    **dict.fromkeys(words("Ceil Floor Rint Round"), _round),
    "Merge": _merge,
    **dict.fromkeys(SWITCHES, _switch),
    "Select": _select,
    "SelectV2": _select,
    # Reductions and products.
    **dict.fromkeys(_REDUCTIONS, _reduce),
    **dict.fromkeys(words("MatMul BatchMatMul BatchMatMulV2 BatchMatMulV3"), _matrix_product),
    "Conv2DBackpropInput": _transposed_convolution,
    "Einsum": _einsum,
    **dict.fromkeys(words("FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3"), _normalize),
    # Shapes.
    "Shape": _shape_of,
    "ShapeN": _shape_of,
    "Size": _size,
    "Rank": _rank,
    "Range": _range,
    "ExpandDims": _expand_dims,
    "Squeeze": _squeeze,
    "Reshape": _reshape,
    "Transpose": _transpose,
    # Joins, slices and lookups.
    "Pack": _pack,
    "ConcatV2": _join,
    "StridedSlice": _strided_slice,
    "Slice": _slice,
    "Split": _split,
    "SplitV": _split_v,
    "Unpack": _unstack,
    "DynamicPartition": _partition,
    **dict.fromkeys(words("Tile Pad PadV2 MirrorPad BroadcastTo"), _along),
    **dict.fromkeys(words("Cumsum Cumprod"), _cumulate),
    **dict.fromkeys(words("ReverseV2 Roll"), _reorder),
    "Gather": _gather,
    "GatherV2": _gather_v2,
    "GatherNd": _gather_nd,
    "ResourceGather": _resource_gather,
    "OneHot": _one_hot,
    "UnsortedSegmentSum": _segment_sum,
    # Lists of tensors.
    "TensorListReserve": _taking(1),
    "EmptyTensorList": _taking(1),
    "TensorListFromTensor": _taking(0),
    "TensorListSetItem": _taking(0, 1, 2),
    "TensorListPushBack": _taking(0, 1),
    "TensorListGetItem": _taking(0, 1, yields_list=False),
    "TensorListStack": _taking(0, yields_list=False),
    # Arrays of TensorFlow 1, whose elements are in the last input.
    "TensorArrayV3": _taking(0, type_="TensorListReserve"),
    "TensorArrayScatterV3": _list_from_array,
    "TensorArrayWriteV3": _taking(3, 1, 2, type_="TensorListSetItem"),
    "TensorArrayReadV3": _taking(2, 1, type_="TensorListGetItem", yields_list=False),
    "TensorArrayGatherV3": _stacked_array,
    "TensorArraySizeV3": _size_of_array,
    # Random numbers and collectives.
    **dict.fromkeys(RANDOM_STATEFUL | RANDOM_STATELESS.keys(), _random),
    **dict.fromkeys(
        words("CollectiveReduce CollectiveReduceV2 CollectiveReduceV3 NcclAllReduce"), _all_reduce
    ),
    **dict.fromkeys(GATHERERS, _all_gather),
}
