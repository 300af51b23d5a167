"""Terms: the tensors of a training step in a normal form.

A tensor is a *form*: a sum of monomials. A *monomial* is a number, times powers of scalar atoms,
times at most one tensor atom. An *atom* is an op on forms that is itself neither a sum nor a
scaling, such as ``Relu`` of a form. Forms and atoms are stored once, so equal tensors have equal
numbers, also tensors of two programs. So `Terms` holds the terms of both programs that are
compared.

With respect to the finest part of the batch (`step.parts`) that it depends on, each atom has a
`Kind`: how it depends on the rows of this part.

One law says what data parallelism is (`Terms._merged`): if monomials of kind ``SUM`` of all
sibling parts have equal coefficients, and become equal when each part is replaced by the rows
around it, then their sum is the monomial of the rows around them. It is applied whenever a form
is made.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from itertools import pairwise
from typing import Any, NamedTuple

from placement_checks.step.kinds import (
    CONSTANT,
    NUMBER,
    ONE,
    ROWS,
    AtomId,
    Cause,
    Dim,
    Form,
    Kind,
    Monomial,
    Origin,
    RowExtent,
    Shape,
    Status,
    broadcast_dim,
    broadcast_extent,
    has_shape,
    joined_status,
)
from placement_checks.step.parts import (
    OF_ANY_SIZE,
    Cut,
    Part,
    are_all_rows,
    finest,
    within,
)
from placement_checks.util.text import words
from placement_checks.util.walks import sources_first

# Products of scalar sums with more terms than this stay products.
_MAX_TERMS = 24
# Coefficients that differ by less are equal: a few roundings of float32 (epsilon: 1.2e-7).
_TOLERANCE = 1e-6
_MAX_DENOMINATOR = 360


@dataclass(slots=True, eq=False)
class Atom:
    """An op on forms.

    Attributes:
        op: TensorFlow's op type, or a name of this package: ``Leaf`` (an input), ``Var``, ``Feed``
            (an input without rows), ``Grad``, ``Rows``, ``RowsOf``, ``Dim``, ``Place``, ``Slice``,
            ``Masked`` (the rows for which a mask is true), ``PartOf``, ``Slices``, ``Chosen``,
            ``Random``, ``MeanOf`` (the mean over the rows of a sum over rows), ``Total`` (a scalar
            form as one atom), ``Backward`` (a result of the backward pass, in a step that is read
            alone).
        attrs: constants that the op depends on.
        operands: forms.
        shape: the static shape.
        part: the part of an input, of random numbers or of ``PartOf``.
        parts: all parts that it depends on.
        finest: the part within all others; None without parts or if two lie side by side.
        status: its status with respect to ``finest``.
        origin: the first op that made it.
        traits: what it contains, as bits.
        read: the variables that it is a function of, as bits, as far as gradients are concerned.
    """

    op: str
    attrs: tuple[Any, ...]
    operands: tuple[Form, ...]
    shape: Shape
    part: Part | None
    parts: frozenset[Part]
    finest: Part | None
    status: Status
    origin: Origin | None
    traits: int
    read: int

    @property
    def varies(self) -> bool:
        """Whether it depends on variables, as far as it is known."""
        return bool(self.traits & _VARIES)

    @property
    def stops(self) -> bool:
        """Whether it contains a ``StopGradient``."""
        return bool(self.traits & _STOPS)

    @property
    def is_backward(self) -> bool:
        """Whether it contains a gradient."""
        return bool(self.traits & _BACKWARD)

    @property
    def is_opaque(self) -> bool:
        """Whether its gradient is unknown."""
        return bool(self.traits & _OPAQUE)


# The traits of atoms, which all atoms have that contain them.
_VARIES, _READS, _STOPS, _BACKWARD, _OPAQUE = (1 << bit for bit in range(5))
_TRAITS: Mapping[str, int] = {
    "Var": _VARIES | _READS,
    "StopGradient": _STOPS,
    **dict.fromkeys(("Grad", "Backward"), _BACKWARD),
}


class Call(NamedTuple):
    """An op in the question how it depends on rows.

    Attributes:
        terms: the terms.
        op: the op.
        attrs: its attributes.
        operands: its operands.
        statuses: the status of each operand.
        shape: the shape of the result.
    """

    terms: Terms
    op: str
    attrs: tuple[Any, ...]
    operands: tuple[Form, ...]
    statuses: Sequence[Status]
    shape: Shape

    def rank(self, number: int) -> int:
        """The rank of an operand; 0 if it is unknown."""
        return len(self.terms.shape(self.operands[number]) or ())


RowRule = Callable[[Call], Status]


class Build(NamedTuple):
    """An op that is to become a form.

    Attributes:
        terms: the terms.
        op: the op.
        attrs: its attributes.
        operands: its operands.
        shape: the shape of the result.
        origin: the op of the graph.
    """

    terms: Terms
    op: str
    attrs: tuple[Any, ...]
    operands: tuple[Form, ...]
    shape: Shape
    origin: Origin | None

    def plain(self, first: Form) -> Form:
        """The op on another first operand, as an atom."""
        operands = (first, *self.operands[1:])
        return self.terms.atom(self.op, self.attrs, operands, self.shape, origin=self.origin)


@dataclass(frozen=True)
class OpType:
    """One op type, as a line of the table `step.op_types`.

    Attributes:
        rows: how the result depends on the rows of the operands.
        is_elementwise: whether it computes each element of the result from one element of each
            operand, with broadcasting.
        is_linear: whether it is linear in its first operand, so that sums, numbers and scalars of
            this operand are taken out.
        commutes: whether its two operands may be exchanged.
        normal_form: another form of the op, or None if it has none.
        of_summand: for a linear op, its form on one summand, given the summand's tensor atom.
    """

    rows: RowRule
    is_elementwise: bool = False
    is_linear: bool = False
    commutes: bool = False
    normal_form: Callable[[Build], Form | None] | None = None
    of_summand: Callable[[Build, AtomId], Form] | None = None


WithStatistics = Callable[["Terms", str, OpType, tuple[Form, ...]], tuple[Form, ...]]


class Assumption(Enum):
    """What a proof takes for granted."""

    EQUAL_ROWS = "each tower has equally many rows"
    DIVISIBLE_ROWS = "divisions of the number of rows leave no remainder"
    OWN_STATISTICS = "batch statistics of a tower's rows are accepted"
    COPIES_START_EQUAL = "the copies of a variable start equal"
    DECISIONS = (
        "decisions on values, such as whether gradients are finite, are alike for all towers"
    )
    RESET = "variables that every step resets to a value have this value before the first step"
    LIBRARY_GRADIENTS = "custom gradients of libraries are right"
    NO_ZERO_DIVISION = "no divisor is zero"
    READ_FIRST = "reads of a variable come before updates that they do not wait for"
    RENAMED_INPUTS = "renamed inputs are fed as before"
    OTHER_SEEDS = "random numbers of other seeds are accepted"
    CONSTANT_STATE = (
        "variables that no step changes, such as a learning rate, have the same values"
    )


# Ops with results that may have more or fewer rows than the operands.
_OF_OTHER_ROWS = frozenset(
    words(
        """
        ConcatV2 StridedSliceOf Unique Where GatherNd GatherV2 DynamicPartition
        DynamicStitch ScatterNd SegmentSum SegmentMean UnsortedSegmentSum SparseToDense
        TensorScatterUpdate Bincount DenseBincount Slices Range
        """
    )
)


class Terms:
    """The terms of two programs.

    Args:
        op_types: the table of op types.
        statistics: makes means over the rows of a part statistics that may stand for those of all
            rows, in the operands of an op (`step.statistics.with_means`); None if they may not.
        decisions: whether decisions on the values of a part are accepted for all rows.
        equal_rows: whether inputs of several towers have equally many rows. Otherwise this is
            only assumed where means of towers are averaged.
        is_alone: whether one program is read, without another program. Then slices from one row to
            another row are parts, whatever the number of all rows is, and each random op draws
            numbers of its own.
        are_parts_apart: whether the terms of parts stay apart, even in a sum over all parts.

    Attributes:
        sizes: the number of rows of parts where it is fixed, by the number of the program.
        fixed: the number of rows of parts, if it is fixed and equal in both programs.
        reads_divisors: whether a sum over rows that is divided by their fixed number is a mean,
            since the numbers are fixed in both programs, but differ.
        divided: the programs that divide a sum over rows by their fixed number.
        masks: the mask that is followed in each part whose rows are no neighbors.
        assumed: what was taken for granted so far.
    """

    def __init__(
        self,
        op_types: Callable[[str], OpType | None],
        *,
        statistics: WithStatistics | None = None,
        decisions: bool = False,
        equal_rows: bool = False,
        is_alone: bool = False,
        are_parts_apart: bool = False,
    ) -> None:
        self.accepts_decisions = decisions
        self.is_alone = is_alone
        self.are_parts_apart = are_parts_apart
        self.own_statistics = statistics is not None
        self._statistics = statistics
        self._equal_rows = equal_rows
        self.sizes: dict[tuple[int, Part], int] = {}
        self.fixed: Mapping[Part, int] = {}
        self.reads_divisors = False
        self.divided: set[int] = set()
        self.masks: dict[Part, Form] = {}
        self.assumed: set[Assumption] = set()
        self._op_type = op_types
        self._atoms: list[Atom] = []
        self._atom_ids: dict[tuple[Any, ...], AtomId] = {}
        self._zeros: set[AtomId] = set()  # tensors of zeros, which no coefficient changes
        self._forms: list[tuple[tuple[Monomial, float], ...]] = []
        self._forms_of_atoms: dict[AtomId, Form] = {}
        self._form_ids: dict[tuple[tuple[Monomial, float], ...], Form] = {}
        self._shapes: list[Shape] = []
        self._parts: list[frozenset[Part]] = []
        self._parts_of_monomials: dict[Monomial, frozenset[Part]] = {}
        self._numbers: dict[tuple[bool, int], float] = {}  # by `_bin`
        self._canonical_numbers: dict[float, float] = {}
        self._rewritten: dict[Any, dict[AtomId, Form]] = defaultdict(dict)
        self._dependent: dict[frozenset[AtomId], dict[AtomId, bool]] = {}
        self._bits: dict[AtomId, int] = {}  # of variables
        # The traits of the atoms of each form, and the variables that they are a function of.
        self._traits: list[int] = []
        self._read: list[int] = []
        self._new_atom("One", (), (), (), None, None, None)

    # --- atoms and forms ---

    def __getitem__(self, atom: AtomId) -> Atom:
        return self._atoms[atom]

    def summands(self, form: Form) -> tuple[tuple[Monomial, float], ...]:
        """The monomials of a form, with their coefficients."""
        return self._forms[form]

    def shape(self, form: Form) -> Shape:
        """The static shape of a form; None if its rank is unknown."""
        return self._shapes[form]

    def parts(self, form: Form) -> frozenset[Part]:
        """The parts of the batch that a form depends on."""
        return self._parts[form]

    def atoms_in(self, form: Form) -> Iterator[AtomId]:
        """The atoms of the monomials of a form, with `ONE`."""
        for (base, factors), _ in self._forms[form]:
            yield base
            for atom, _ in factors:
                yield atom

    def all_atoms_in(
        self, forms: Iterable[Form], seen: set[AtomId] | None = None
    ) -> Iterator[AtomId]:
        """The atoms of forms, and of their operands, each once; the last made first.

        Args:
            forms: the forms.
            seen: atoms to leave out, with those that only they contain; all others are added.
        """
        seen = set() if seen is None else seen
        stack = [atom for form in forms for atom in self.atoms_in(form)]
        while stack:
            atom = stack.pop()
            if atom not in seen:
                seen.add(atom)
                yield atom
                stack += self.atoms_of_operands(atom)

    def atoms_of_operands(self, atom: AtomId) -> list[AtomId]:
        """The atoms of the operands of an atom, without the atoms in them."""
        return [each for operand in self[atom].operands for each in self.atoms_in(operand)]

    def atom(
        self,
        op: str,
        attrs: tuple[Any, ...],
        operands: tuple[Form, ...],
        shape: Shape,
        *,
        part: Part | None = None,
        origin: Origin | None = None,
        status: Status | None = None,
    ) -> Form:
        """The form of an op as it is, without a search for its normal form."""
        return self.of(self._new_atom(op, attrs, operands, shape, part, origin, status))

    def unknown(self, cause: Cause, shape: Shape, *identity: Any) -> Form:
        """An unknown tensor, which equals only itself."""
        status = Status(Kind.UNKNOWN, None, cause._replace(is_known=False))
        attrs = (cause.text, *identity)
        return self.atom("Unknown", attrs, (), shape, origin=cause.origin, status=status)

    def _new_atom(
        self,
        op: str,
        attrs: tuple[Any, ...],
        operands: tuple[Form, ...],
        shape: Shape,
        part: Part | None,
        origin: Origin | None,
        status: Status | None,
    ) -> AtomId:
        key = (op, attrs, operands, part)
        found = self._atom_ids.get(key)
        if found is not None:
            return found
        parts = frozenset() if part is None else frozenset([part])
        parts = parts.union(*[self._parts[operand] for operand in operands])
        within_all = finest(parts)
        if not parts and not (status and status.kind is Kind.UNKNOWN):
            status = CONSTANT
        elif status is None:
            status = self._status_of_op(op, attrs, operands, shape, within_all, origin)
        if shape is not None and status.axis is not None:
            shape = self._with_rows(op, shape, status, operands)
        traits, read = _TRAITS.get(op, 0), 0
        for operand in operands:
            traits |= self._traits[operand]
            read |= self._read[operand]
        if status.kind is Kind.UNKNOWN:
            traits |= _VARIES if operands else _VARIES | _OPAQUE
        atom = AtomId(len(self._atoms))
        if op == "Var":
            read = self._bits[atom] = 1 << len(self._bits)
        elif op == "StopGradient":
            read = 0
        self._atoms.append(
            Atom(
                *(op, attrs, operands, shape, part, parts, within_all, status, origin),
                traits=traits,
                read=read,
            )
        )
        self._atom_ids[key] = atom
        if (op == "Const" and attrs[1] == (0.0,)) or (
            op == "Fill" and self.constant(operands[1]) == 0.0
        ):
            self._zeros.add(atom)
        return atom

    def _with_rows(
        self, op: str, shape: tuple[Dim, ...], status: Status, operands: Sequence[Form]
    ) -> Shape:
        """A shape with the extent of the rows on their axis."""
        axis = status.axis
        if axis is None or axis >= len(shape) or status.kind not in (Kind.ROWS, Kind.JOINT):
            return shape
        extent = shape[axis]
        if not isinstance(extent, RowExtent):
            extents = {
                each
                for operand in operands
                for each in self._shapes[operand] or ()
                if isinstance(each, RowExtent)
            }
            is_other = status.kind is Kind.JOINT and op in _OF_OTHER_ROWS
            is_known = len(extents) < 2 and not is_other
            extent = next(iter(extents), ROWS) if is_known else RowExtent(None)
        return (*shape[:axis], extent, *shape[axis + 1 :])

    def form(self, summands: Mapping[Monomial, float]) -> Form:
        """The form of a sum; complete sums over parts become terms of the rows around them."""
        if len(summands) == 1:
            ((monomial, number),) = summands.items()
            return self._multiple(monomial, number)
        merged = {m: c for m, c in summands.items() if c}
        for monomial in [m for m in merged if m[0] in self._zeros]:
            del merged[monomial]
            merged[monomial[0], ()] = 1.0
        if len(merged) > 1:
            merged = self._joined(merged)
            merged = merged if self.are_parts_apart else self._merged(merged)
        canonical = [(m, self._canonical(c)) for m, c in merged.items()]
        return self._stored(tuple(sorted(canonical) if len(canonical) > 1 else canonical))

    def _multiple(self, monomial: Monomial, number: float) -> Form:
        """The form of one monomial times a number."""
        if not number:
            return self._stored(())
        if monomial[0] in self._zeros:
            monomial, number = (monomial[0], ()), 1.0
        return self._stored(((monomial, self._canonical(number)),))

    def _stored(self, key: tuple[tuple[Monomial, float], ...]) -> Form:
        """The number of a form."""
        found = self._form_ids.get(key)
        if found is None:
            found = Form(len(self._forms))
            self._forms.append(key)
            self._form_ids[key] = found
            self._shapes.append(self._shape_of(key))
            parts = [self.parts_of(m) for m, _ in key]
            self._parts.append(parts[0] if len(parts) == 1 else frozenset().union(*parts))
            traits = read = 0
            for (base, factors), _ in key:
                for each in (base, *(each for each, _ in factors)):
                    atom = self._atoms[each]
                    traits |= atom.traits
                    read |= atom.read
            self._traits.append(traits)
            self._read.append(read)
        return found

    def _shape_of(self, key: Sequence[tuple[Monomial, float]]) -> Shape:
        """The shape of a sum of broadcast summands."""
        if len(key) == 1:
            return self[key[0][0][0]].shape
        shape: tuple[Dim, ...] = ()
        for (atom, _), _ in key:
            other = self[atom].shape
            if other is None:
                return None
            if len(other) > len(shape):
                shape, other = other, shape
            padded = (*[1] * (len(shape) - len(other)), *other)
            shape = tuple(map(broadcast_dim, shape, padded))
        return shape

    def _broadcast(self, operands: Sequence[Form], static: Shape) -> Shape:
        """The static shape of an op on single elements, as far as its operands have it.

        They may be broadcast to it, and then lack axes or extents, such as the rows.
        """
        if static is None or any(self._shapes[operand] is None for operand in operands):
            return static
        shapes = [self._shapes[operand] or () for operand in operands]
        rank = max(map(len, shapes), default=0)
        own = static[len(static) - rank :] if rank <= len(static) else static
        return tuple(
            wanted if any(broadcast_extent(each, axis, len(own)) != 1 for each in shapes) else 1
            for axis, wanted in enumerate(own)
        )

    def _canonical(self, number: float) -> float:
        """One number for all numbers that differ by rounding: the first one, or a fraction."""
        found = self._canonical_numbers.get(number)
        if found is None:
            found = self._canonical_numbers[number] = self._find_canonical(number)
        return found

    def _find_canonical(self, number: float) -> float:
        if not math.isfinite(number) or number == 0:
            return number
        bin_ = self._bin(number)
        for near in (bin_, bin_ - 1, bin_ + 1):
            found = self._numbers.get((number > 0, near))
            if found is not None and abs(found - number) < _TOLERANCE * abs(number):
                return found
        value = number
        for each, invert in ((1 / number, True), (number, False)):
            fraction = Fraction(each).limit_denominator(_MAX_DENOMINATOR)
            if fraction and abs(float(fraction) - each) < _TOLERANCE * abs(each):
                value = 1 / float(fraction) if invert else float(fraction)
        self._numbers[value > 0, self._bin(value)] = value
        return value

    @staticmethod
    def _bin(number: float) -> int:
        """The number of a range of numbers, which is as wide as the tolerance."""
        return round(math.log(abs(number)) / _TOLERANCE)

    # --- arithmetic ---

    def number(self, value: float) -> Form:
        """A scalar constant."""
        return self.form({NUMBER: float(value)})

    def of(self, atom: AtomId) -> Form:
        """The form of one atom."""
        found = self._forms_of_atoms.get(atom)
        if found is None:
            is_scalar = self[atom].shape == () and atom != ONE
            monomial: Monomial = (ONE, ((atom, 1),)) if is_scalar else (atom, ())
            found = self._forms_of_atoms[atom] = self._multiple(monomial, 1.0)
        return found

    def add(self, *summands: tuple[Form, float]) -> Form:
        """The sum of forms, each times a number."""
        if len(summands) == 1:
            ((form, number),) = summands
            if number == 1.0:
                return form
            if len(self._forms[form]) == 1:
                ((monomial, coefficient),) = self._forms[form]
                return self._multiple(monomial, _finite(number * coefficient))
        return self.form(
            _summed(
                (monomial, number * coefficient)
                for form, number in summands
                for monomial, coefficient in self._forms[form]
            )
        )

    def scaled(self, form: Form, number: float) -> Form:
        """A form times a number."""
        return self.add((form, number))

    def times(self, one: Form, other: Form) -> Form | None:
        """The product of two forms; None if it is no sum of monomials."""
        a, b = self._forms[one], self._forms[other]
        if len(a) == len(b) == 1:
            ((x, factors), c), ((y, others), d) = a[0], b[0]
            if x != ONE and y != ONE:
                return None
            powers = _product_of_powers(factors, others)
            return self._multiple((x or y, powers), _finite(c * d))
        if len(a) * len(b) > _MAX_TERMS:
            return None
        total = []
        for (x, factors), c in a:
            for (y, others), d in b:
                if x != ONE and y != ONE:
                    return None
                total.append(((x or y, _product_of_powers(factors, others)), c * d))
        return self.form(_summed(total))

    def product(self, one: Form, other: Form) -> Form:
        """The product of two forms, element by element."""
        made = self.times(one, other)
        if made is None:
            shape = self._shape_of([((self._id(each), ()), 1.0) for each in (one, other)])
            made = self.build("Mul", (), (one, other), shape, None)
        return made

    def _id(self, form: Form) -> AtomId:
        """The tensor atom of a form with its shape, for broadcasting alone."""
        atoms = [base for (base, _), _ in self._forms[form]]
        rank = len(self._shapes[form] or ())
        return next((a for a in atoms if len(self[a].shape or ()) == rank), ONE)

    def inverse(self, form: Form) -> Form | None:
        """The inverse of a scalar; None for tensors."""
        key = self._forms[form]
        if len(key) == 1 and key[0][0][0] == ONE:
            (_, factors), number = key[0]
            return self.form({(ONE, tuple((atom, -power) for atom, power in factors)): 1 / number})
        if self._shapes[form] != () or not key:
            return None
        total = self._new_atom("Total", (), (form,), (), None, self._origin_of(form), None)
        return self.form({(ONE, ((total, -1),)): 1.0})

    def _origin_of(self, form: Form) -> Origin | None:
        """The op of the first summand of a form that has one."""
        origins = (self[atom].origin for atom in self.atoms_in(form))
        return next(filter(None, origins), None)

    def constant(self, form: Form) -> float | None:
        """The number, if a form is one; else None."""
        key = self._forms[form]
        if not key:
            return 0.0
        return key[0][1] if len(key) == 1 and key[0][0] == NUMBER else None

    def single(self, form: Form) -> Atom | None:
        """The atom, if a form is one atom; else None."""
        key = self._forms[form]
        if len(key) == 1 and key[0][1] == 1.0:
            base, factors = key[0][0]
            if not factors and base != ONE:
                return self[base]
            if base == ONE and len(factors) == 1 and factors[0][1] == 1:
                return self[factors[0][0]]
        return None

    def scalar_factor(self, monomial: Monomial, number: float = 1.0) -> Form:
        """The scalar factors of a monomial, times a number."""
        return self.form({(ONE, monomial[1]): number})

    def tensor_of(self, monomial: Monomial) -> Form:
        """The tensor atom of a monomial without its factors."""
        return self.of(monomial[0])

    def scalars_taken_out(self, form: Form) -> tuple[Form, Form]:
        """The tensor atom of a form and its scalar factors, if the form is a single monomial."""
        key = self._forms[form]
        if len(key) == 1 and key[0][0][0] != ONE:
            monomial, number = key[0]
            return self.tensor_of(monomial), self.scalar_factor(monomial, number)
        return form, self.number(1.0)

    # --- numbers of rows ---

    def rows(self, part: Part) -> Form:
        """The number of rows of a part: a share of the rows around it, or a number of its own."""
        if part in self.fixed:
            return self.number(self.fixed[part])
        if part and self._equal_rows:
            self.assumed.add(Assumption.EQUAL_ROWS)
        if part and part[-1].family == "stride":  # which may cut any number of rows
            self.assumed.add(Assumption.DIVISIBLE_ROWS)
        if part and (self._equal_rows or part[-1].family not in OF_ANY_SIZE):
            return self.scaled(self.rows(part[:-1]), float(part[-1].share))
        return self.atom("Rows", (), (), (), part=part, status=Status(Kind.SUM))

    def rows_as_extent(self, part: Part) -> Form:
        """The number of rows as an extent in a shape. It changes if another part replaces this."""
        return self.atom("RowsOf", (), (), (), part=part, status=Status(Kind.SUM))

    def size(self, program: int, part: Part) -> int | None:
        """The fixed number of rows of a part in a program; None if any number is possible."""
        found = self.sizes.get((program, part))
        if found is not None:
            return found
        if part and part[-1].parts and (above := self.size(program, part[:-1])):
            return above // part[-1].parts
        below = {
            other[-1]: size
            for (number, other), size in self.sizes.items()
            if number == program and len(other) == len(part) + 1 and within(other, part)
        }
        if below and len(below) == next(iter(below)).parts:
            return sum(below.values())
        return None

    def divisor(self, program: int, form: Form, divisor: Form) -> Form:
        """The number of rows, if a sum over rows is divided by it; else the divisor as it is."""
        number, part = self.constant(divisor), finest(self._parts[form])
        if not self.reads_divisors or number is None or part is None or self.is_backward(form):
            return divisor
        if self._shapes[form] != () or self.status(form, part).kind is not Kind.SUM:
            return divisor
        for depth in range(len(part), -1, -1):
            size = self.size(program, part[:depth])
            if size and are_close([size, number]):
                self.divided.add(program)
                return self.rows(part[:depth])
        return divisor

    def extent(self, form: Form, axis: int) -> Form:
        """The extent of an axis of a tensor, as a scalar."""
        shape = self._shapes[form]
        dim = shape[axis] if shape is not None and axis < len(shape) else None
        part = finest(self._parts[form])
        status = Status(Kind.JOINT) if part is None else self.status(form, part)
        if isinstance(dim, RowExtent) and part is not None and status.axis == axis and dim.times:
            return self.scaled(self.rows(part), dim.times)
        if isinstance(dim, int):
            return self.number(dim)
        atom = self.single(self.scalars_taken_out(form)[0])
        if dim is None and atom is not None and atom.op == "Fill":
            extents = self.vector(atom.operands[0])  # its shape
            if extents is not None and axis < len(extents):
                return extents[axis]
        kind = Kind.JOINT
        if status.kind is Kind.CONSTANT:
            kind = Kind.CONSTANT
        elif status.kind is Kind.ROWS and status.axis == axis:
            kind = Kind.SUM
        cause = Cause("Dim", "is not known", self._origin_of(form), is_known=False)
        status = Status(kind, None, cause)
        return self.atom("Dim", (axis,), (form,), (), origin=cause.origin, status=status)

    # --- kinds ---

    def parts_of(self, monomial: Monomial) -> frozenset[Part]:
        """The parts that a monomial depends on."""
        found = self._parts_of_monomials.get(monomial)
        if found is None:
            base, factors = monomial
            found = self[base].parts.union(*[self[atom].parts for atom, _ in factors])
            self._parts_of_monomials[monomial] = found
        return found

    def status_of(self, monomial: Monomial, part: Part) -> Status:
        """The status of a monomial with respect to a part."""
        base, factors = monomial
        if not factors:
            atom = self[base]
            if atom.finest == part and atom.status.kind in (Kind.ROWS, Kind.SUM):
                return atom.status if atom.status.kind is Kind.ROWS else _SUM
        rows: Status | None = None
        sums = rows_power = statistics = 0
        for atom_id, power in ((base, 1), *factors):
            atom, status = self[atom_id], self[atom_id].status
            if atom.finest is None and atom.parts:
                return Status(Kind.JOINT, status.axis, status.cause or _combines_towers(atom))
            if atom.finest != part or status.kind is Kind.CONSTANT:
                continue
            if status.kind is Kind.UNKNOWN:
                return status._replace(axis=None)
            if status.kind is Kind.STATISTIC:
                statistics += 1
            elif atom.op == "Rows":
                rows_power += power
            elif status.kind is Kind.SUM and power == 1:
                sums += 1
            elif status.kind is Kind.ROWS and power == 1:
                rows = status
            else:
                cause = Cause(atom.op, _powers_of_sum(power), atom.origin)
                return Status(Kind.JOINT, status.axis, status.cause or cause)
        if rows is not None and not sums and not rows_power:
            if statistics:
                self.assumed.add(Assumption.OWN_STATISTICS)
            return rows
        if rows is None and not sums and not rows_power:
            return Status(Kind.STATISTIC) if statistics else CONSTANT
        if rows is None and not statistics:
            if sums + rows_power == 1 and rows_power in (0, 1):
                return Status(Kind.SUM)
            if sums == 1 and rows_power == -1:
                return Status(Kind.MEAN)
        text = "is multiplied or divided by another result of the same rows"
        cause = Cause(self[base].op, text, self[base].origin)
        return Status(Kind.JOINT, rows.axis if rows else None, cause)

    def status(self, form: Form, part: Part, rank: int | None = None) -> Status:
        """The status of a form with respect to a part.

        Args:
            form: the form.
            part: the part.
            rank: the rank of the tensor that the form is broadcast to; the axis of the rows is
                counted for this rank.
        """
        own_rank = len(self._shapes[form] or ())
        rank = own_rank if rank is None else rank
        found: Status | None = None
        if len(self._forms[form]) == 1:
            status = self.status_of(self._forms[form][0][0], part)
            if status.axis is None or rank == own_rank:
                return status
        for monomial, _ in self._forms[form]:
            status = self.status_of(monomial, part)
            if status.kind is Kind.UNKNOWN:
                return status
            if found and {status.kind, found.kind} == {Kind.STATISTIC, Kind.ROWS}:
                self.assumed.add(Assumption.OWN_STATISTICS)
            if status.axis is not None:
                axis = status.axis + rank - len(self[monomial[0]].shape or ())
                status = status._replace(axis=axis)
            found = status if found is None else joined_status(found, status)
        if found is None:
            return CONSTANT
        if found.kind is Kind.ROWS and found.axis is not None:
            for monomial, _ in self._forms[form]:
                atom = self[monomial[0]]
                if self.status_of(monomial, part).kind is not Kind.CONSTANT:
                    continue
                if broadcast_extent(atom.shape, found.axis, rank) not in (1, None):
                    cause = Cause(
                        atom.op, "has another value for each row", atom.origin, is_known=False
                    )
                    return Status(Kind.JOINT, found.axis, cause)
        return found

    def reads_variable(self, form: Form) -> bool:
        """Whether a form contains a variable."""
        return bool(self._traits[form] & _READS)

    def is_backward(self, form: Form) -> bool:
        """Whether a form contains gradients."""
        return bool(self._traits[form] & _BACKWARD)

    def stops(self, form: Form) -> bool:
        """Whether a form contains a ``StopGradient``."""
        return bool(self._traits[form] & _STOPS)

    def is_backward_monomial(self, monomial: Monomial) -> bool:
        """Whether a monomial contains gradients."""
        return self[monomial[0]].is_backward or any(
            self[atom].is_backward for atom, _ in monomial[1]
        )

    def _status_of_op(
        self,
        op: str,
        attrs: tuple[Any, ...],
        operands: tuple[Form, ...],
        shape: Shape,
        part: Part | None,
        origin: Origin | None,
    ) -> Status:
        if part is None:
            cause = Cause(op, "combines rows of several towers", origin)
            return Status(Kind.JOINT, None, cause)
        if op == "Total":
            return self.status(operands[0], part)
        op_type = self._op_type(op)
        if op_type is None:
            cause = Cause(op, "cannot be followed", origin, is_known=False)
            return Status(Kind.UNKNOWN, None, cause)
        is_elementwise = op_type.is_elementwise
        rank = len(shape) if shape is not None and is_elementwise else None
        statuses: Sequence[Status] = [self.status(operand, part, rank) for operand in operands]
        unknown = next((each for each in statuses if each.kind is Kind.UNKNOWN), None)
        if unknown is not None:
            return unknown
        statuses, of_statistics = self._with_statistics(op, is_elementwise, operands, statuses)
        if of_statistics:
            return Status(Kind.STATISTIC)
        found = op_type.rows(Call(self, op, attrs, operands, statuses, shape))
        if found.kind is Kind.JOINT and found.cause is None:
            first = next((s.cause for s in statuses if s.kind is Kind.JOINT and s.cause), None)
            has_rows = any(status.axis is not None for status in statuses)
            text = "combines rows" if has_rows else "is a nonlinear function of a sum over rows"
            found = found._replace(cause=first or Cause(op, text, origin))
        return found

    def _with_statistics(
        self, op: str, is_elementwise: bool, operands: Sequence[Form], statuses: Sequence[Status]
    ) -> tuple[Sequence[Status], bool]:
        """The statuses with accepted statistics as constants, and whether all are such."""
        if not any(status.kind is Kind.STATISTIC for status in statuses):
            return statuses, False
        if any(self.is_backward(operand) for operand in operands):
            return statuses, False
        passes = is_elementwise or op in _PASS_STATISTICS
        if passes and all(s.kind in (Kind.STATISTIC, Kind.CONSTANT) for s in statuses):
            return statuses, True
        if is_elementwise:
            self.assumed.add(Assumption.OWN_STATISTICS)
            return [CONSTANT if s.kind is Kind.STATISTIC else s for s in statuses], False
        return statuses, False

    # --- rewriting ---

    def rewrite(
        self,
        form: Form,
        memo: dict[AtomId, Form],
        concerns: Callable[[Atom], bool],
        replace: Callable[[AtomId, Callable[[Form], Form]], Form | None],
    ) -> Form:
        """Replace atoms in a form and in all operands, and find the normal forms anew.

        Args:
            form: the form.
            memo: the atoms that were rewritten by the same rule before.
            concerns: whether an atom may have to be rewritten, or contain such atoms.
            replace: the form of an atom, given the function that rewrites an operand; None to
                build the op on its rewritten operands.
        """

        def of_form(operand: Form) -> Form:
            changed = {
                atom: memo[atom]
                for atom in self.atoms_in(operand)
                if atom in memo and memo[atom] != self.of(atom)
            }
            if not changed:
                return operand
            total = []
            for (base, factors), number in self._forms[operand]:
                if base in changed:
                    product = changed[base]
                else:  # with the factors that stay
                    kept = tuple([each for each in factors if each[0] not in changed])
                    factors = tuple([each for each in factors if each[0] in changed])
                    product = self._multiple((base, kept), 1.0)
                for atom, power in factors:
                    factor = self._power(changed.get(atom, self.of(atom)), power)
                    product = self.product(product, factor)
                total.append((product, number))
            return self.add(*total)

        pending: set[AtomId] = set()
        stack = [atom for atom in self.atoms_in(form) if atom != ONE]
        while stack:
            atom = stack.pop()
            if atom not in memo and atom not in pending and concerns(self[atom]):
                pending.add(atom)
                stack += [x for x in self.atoms_of_operands(atom) if x != ONE]
        for atom in sorted(pending):  # operands have smaller numbers
            made = replace(atom, of_form)
            memo[atom] = self._rebuilt(atom, of_form) if made is None else made
        return of_form(form)

    def _rebuilt(self, atom_id: AtomId, of_form: Callable[[Form], Form]) -> Form:
        atom = self[atom_id]
        operands = tuple([of_form(operand) for operand in atom.operands])
        if operands == atom.operands:
            return self.of(atom_id)
        return self.rebuild(atom, operands, atom.part)

    def rebuild(self, atom: Atom, operands: tuple[Form, ...], part: Part | None) -> Form:
        """The op of an atom on other operands."""
        keeps_status = not atom.operands or atom.op in _KEEP_STATUS
        status = atom.status if keeps_status else None
        return self.build(
            atom.op, atom.attrs, operands, atom.shape, atom.origin, part=part, status=status
        )

    def _power(self, form: Form, power: int) -> Form:
        if power < 0:
            inverse = self.inverse(form)
            if inverse is None:  # a tensor cannot be a factor
                raise ValueError(f"form {form} has no inverse")
            form, power = inverse, -power
        made = form
        for _ in range(power - 1):
            made = self.product(made, form)
        return made

    def memo(self, *key: Any) -> dict[AtomId, Form]:
        """The atoms that were rewritten by a rule, for `rewrite`."""
        return self._rewritten[key]

    def with_part(self, form: Form, part: Part, other: Part) -> Form:
        """A form with a part, and the parts of this part, replaced by another part."""

        def concerns(atom: Atom) -> bool:
            return any(within(each, part) for each in atom.parts)

        def replace(atom_id: AtomId, of_form: Callable[[Form], Form]) -> Form | None:
            atom = self[atom_id]
            if atom.part is None or not within(atom.part, part):
                return None
            moved = other + atom.part[len(part) :]
            if atom.op == "Rows":
                return self.rows(moved)
            operands = tuple([of_form(each) for each in atom.operands])
            if atom.op == "PartOf" and moved == finest(self._parts[operands[0]]):
                return operands[0]
            return self.rebuild(atom, operands, moved)

        if not any(within(each, part) for each in self._parts[form]):
            return form
        return self.rewrite(form, self.memo("part", part, other), concerns, replace)

    # --- the law of data parallelism ---

    def lifted(self, monomial: Monomial, part: Part) -> tuple[Form, float] | Cause:
        """A monomial with its part replaced by the rows around it.

        Returns:
            The form, and the factor by which the monomial exceeds its share: the mean over one of
            two parts counts half. Or the reason why the monomials of parts do not add up.
        """
        base, factors = monomial
        sums = power = 0
        for atom_id, exponent in ((base, 1), *factors):
            atom = self[atom_id]
            if atom.op == "Rows" and atom.finest == part:
                power += exponent
            elif atom.finest is None and atom.parts:
                return atom.status.cause or _combines_towers(atom)
            elif atom.finest == part:
                if atom.status.kind is not Kind.SUM or exponent != 1:
                    text = "has an entry for each row of one tower, and not of all towers"
                    if atom.status.kind is Kind.SUM:
                        text = _powers_of_sum(exponent)
                    return atom.status.cause or Cause(atom.op, text, atom.origin)
                sums += 1
        if sums > 1:
            return Cause(
                self[base].op, "is multiplied by another sum over rows", self[base].origin
            )
        power -= not sums  # the number of rows itself is additive
        if power:
            self.assumed.add(Assumption.EQUAL_ROWS)
        whole = self.with_part(self.form({monomial: 1.0}), part, part[:-1])
        return whole, float(part[-1].share) ** power

    def _merged(self, summands: dict[Monomial, float]) -> dict[Monomial, float]:
        """Replace complete sums over sibling parts by terms of the rows around them."""
        while len(summands) > 1:
            found = self._complete_sum(summands)
            if found is None:
                return summands
            members, whole, number = found
            rest = [(m, c) for m, c in summands.items() if m not in members]
            summands = _summed([*rest, *((m, c * number) for m, c in self._forms[whole])])
        return summands

    def _complete_sum(
        self, summands: Mapping[Monomial, float]
    ) -> tuple[Collection[Monomial], Form, float] | None:
        """Monomials of all sibling parts that add up, the term of all rows, its coefficient."""
        by_siblings: defaultdict[Any, dict[Cut, list[Monomial]]] = defaultdict(
            lambda: defaultdict(list)
        )
        for monomial in summands:
            part = finest(self.parts_of(monomial))
            if part:
                by_siblings[part[:-1], part[-1].siblings][part[-1]].append(monomial)
        slices: defaultdict[Part, dict[Cut, list[Monomial]]] = defaultdict(dict)
        for (around, _), by_cut in by_siblings.items():
            slices[around] |= {cut: found for cut, found in by_cut.items() if cut.is_slice}
        groups = [(around, by_cut) for (around, _), by_cut in by_siblings.items()]
        for around, by_cut in (*groups, *slices.items()):
            if not by_cut or not are_all_rows(by_cut):
                continue
            wholes: defaultdict[Form, dict[Cut, tuple[Monomial, float]]] = defaultdict(dict)
            for cut, monomials in by_cut.items():
                for monomial in monomials:
                    lifted = self.lifted(monomial, (*around, cut))
                    if not isinstance(lifted, Cause):
                        whole, share = lifted
                        wholes[whole][cut] = monomial, summands[monomial] * share
            for whole, members in wholes.items():
                numbers = [number for _, number in members.values()]
                if are_all_rows(members) and are_close(numbers):
                    return {monomial for monomial, _ in members.values()}, whole, numbers[0]
        return None

    # --- normal forms ---

    def build(
        self,
        op: str,
        attrs: tuple[Any, ...],
        operands: tuple[Form, ...],
        shape: Shape,
        origin: Origin | None,
        *,
        part: Part | None = None,
        status: Status | None = None,
    ) -> Form:
        """The normal form of an op."""
        op_type = self._op_type(op)
        if op_type is not None and op_type.is_elementwise:
            shape = self._broadcast(operands, shape)
        if op_type is not None and part is None:
            if self._statistics is not None and not op_type.is_linear and op != "Grad":
                operands = self._statistics(self, op, op_type, operands)
            if op_type.commutes:
                operands = tuple(sorted(operands))
            build = Build(self, op, attrs, operands, shape, origin)
            if op_type.normal_form is not None:
                made = op_type.normal_form(build)
                if made is not None:
                    return made
            if op_type.is_linear:
                return self._of_summands(build, op_type.of_summand)
        return self.atom(op, attrs, operands, shape, part=part, origin=origin, status=status)

    def _of_summands(
        self, build: Build, of_summand: Callable[[Build, AtomId], Form] | None
    ) -> Form:
        """A linear op as the sum of the op on each summand of the first operand."""
        form = build.operands[0]
        whole = self._shapes[form]
        total = []
        for monomial, number in self._forms[form]:
            base = monomial[0]
            if whole is None or not has_shape(self[base].shape, whole):  # it is broadcast
                return build.plain(form)
            made = build.plain(self.of(base)) if of_summand is None else of_summand(build, base)
            factors = self.scalar_factor(monomial)
            total.append((self.product(made, factors) if monomial[1] else made, number))
        return self.add(*total)

    def _joined(self, summands: dict[Monomial, float]) -> dict[Monomial, float]:
        """Join summands that are one value: both sides of a choice, or neighboring slices."""
        if len(summands) < 2:
            return summands
        sides: dict[Any, Monomial] = {}
        slices: defaultdict[Any, list[tuple[int, int, Monomial]]] = defaultdict(list)
        for monomial, number in summands.items():
            base, factors = monomial
            atom = self[base]
            if atom.op == "Chosen":
                key = atom.operands, factors, self._canonical(number)
                other = sides.setdefault(key, monomial)
                if other != monomial:
                    value = self.product(atom.operands[0], self.scalar_factor(monomial))
                    return self._replaced(summands, {monomial, other}, value, number)
            elif atom.op == "Place":
                inner = self.single(atom.operands[0])
                axis, at, total = atom.attrs
                if inner is not None and inner.op == "Slice" and inner.attrs[0] == axis:
                    _, begin, size = inner.attrs
                    same = (inner.operands, axis, total, at - begin, factors, number)
                    slices[same].append((at, size, monomial))
        for (operands, axis, total, shift, _, number), pieces in slices.items():
            pieces.sort()
            for (at, size, one), (next_at, next_size, other) in pairwise(pieces):
                if at + size != next_at:
                    continue
                atom = self[one[0]]
                shape, width = atom.shape or (), size + next_size
                dims = (*shape[:axis], width, *shape[axis + 1 :])
                inner_form = self.build(
                    "Slice", (axis, at - shift, width), operands, dims, atom.origin
                )
                placed = self.build("Place", (axis, at, total), (inner_form,), shape, atom.origin)
                value = self.product(placed, self.scalar_factor(one))
                return self._replaced(summands, {one, other}, value, number)
        return summands

    def _replaced(
        self,
        summands: Mapping[Monomial, float],
        gone: Collection[Monomial],
        value: Form,
        number: float,
    ) -> dict[Monomial, float]:
        rest = {m: c for m, c in summands.items() if m not in gone}
        return dict(self._forms[self.add((self.form(rest), 1.0), (value, number))])

    # --- dependence ---

    def depends(self, form: Form, targets: frozenset[AtomId]) -> bool:
        """Whether a form is a function of one of the atoms, as far as gradients are concerned."""
        if self._bits.keys() >= targets:
            is_read = any(self._read[form] & self._bits[each] for each in targets)
            return is_read or bool(self._traits[form] & _OPAQUE)
        return any(self.atom_depends(atom, targets) for atom in self.atoms_in(form) if atom != ONE)

    def atom_depends(self, atom: AtomId, targets: frozenset[AtomId]) -> bool:
        """Whether an atom is a function of one of the atoms, as far as gradients are concerned."""
        if self._bits.keys() >= targets:
            return self[atom].is_opaque or any(self[atom].read & self._bits[x] for x in targets)
        memo = self._dependent.setdefault(targets, {})
        least = min(targets, default=AtomId(0))

        def below(here: AtomId) -> Sequence[AtomId]:
            is_end = here in memo or here in targets or here < least or self[here].is_opaque
            is_end = is_end or self[here].op == "StopGradient"
            return () if is_end else self.atoms_of_operands(here)

        for here in sources_first([atom], below):
            if here not in memo:
                is_target = here in targets or self[here].is_opaque
                memo[here] = is_target or any(memo[x] for x in below(here))
        return memo[atom]

    def contains(self, form: Form, targets: Collection[AtomId]) -> bool:
        """Whether atoms occur in a form, also behind ``StopGradient``."""
        return any(atom in targets or self[atom].is_opaque for atom in self.all_atoms_in([form]))

    # --- vectors of known elements ---

    def vector(self, form: Form) -> tuple[Form, ...] | None:
        """The elements of a vector; None if they are unknown."""
        atom = self.single(form)
        if atom is None or atom.op != "Pack" or atom.attrs != (0,):
            return None
        shape = self._shapes[form]
        return atom.operands if shape is not None and len(shape) == 1 else None

    def pack(self, elements: Sequence[Form], origin: Origin | None = None) -> Form:
        """A vector of scalars."""
        return self.build("Pack", (0,), tuple(elements), (len(elements),), origin)

    def integers(self, form: Form) -> list[int] | None:
        """The elements of a constant vector or scalar; None if they are unknown."""
        number = self.constant(form)
        if number is not None and self._shapes[form] == ():
            return [int(number)]
        found = [self.constant(element) for element in self.vector(form) or ()]
        if self.vector(form) is None or None in found:
            return None
        return [int(number) for number in found if number is not None]

    # --- parts of tensors ---

    def cut(
        self, form: Form, axis: int, cut: Cut, shape: Shape, origin: Origin | None
    ) -> Form | None:
        """One of equal parts of a tensor along an axis; None if the axis is not the rows."""
        if cut.parts == 1:
            return form
        part = finest(self._parts[form])
        if part is not None:
            status = self.status(form, part)
            dims = self._shapes[form] or ()
            extent = dims[axis] if axis < len(dims) else None
            is_known = isinstance(extent, RowExtent) and extent.times
            if status.kind is Kind.ROWS and status.axis == axis and is_known:
                return self.with_part(form, part, (*part, cut))
            if status.kind in (Kind.ROWS, Kind.JOINT) and status.axis == axis:
                rows = Status(Kind.ROWS, axis)
                return self.atom(
                    "PartOf",
                    (axis,),
                    (form,),
                    shape,
                    part=(*part, cut),
                    origin=origin,
                    status=rows,
                )
        tensor, factor = self.scalars_taken_out(form)
        atom = self.single(tensor)
        if atom is None or atom.op != "Pack" or atom.attrs != (axis,):
            return None
        if len(atom.operands) != cut.parts or cut.family != "split":
            return None
        element = atom.operands[cut.number]
        inner = self._shapes[element]
        if inner is None:
            return None
        inner = (*inner[:axis], 1, *inner[axis:])
        return self.product(self.build("Reshape", (inner,), (element,), inner, origin), factor)


# Atoms with a status that does not follow from the kinds of their operands.
_KEEP_STATUS = frozenset({"Leaf", "PartOf", "Random", "MeanOf", "While"})
# Besides ops on single elements: ops that make a statistic of statistics.
_PASS_STATISTICS = frozenset({"Reshape", "Slice", "Pack", "ConcatV2"})


_SUM = Status(Kind.SUM)


def _combines_towers(atom: Atom) -> Cause:
    return Cause(atom.op, "combines rows of several towers", atom.origin)


def _powers_of_sum(power: int) -> str:
    use = "divided by it" if power < 0 else "multiplied by it"
    return f"adds up rows of one tower, and another result is {use}"


def are_close(numbers: Sequence[float]) -> bool:
    """Whether coefficients are equal but for rounding."""
    return max(numbers) - min(numbers) <= 10 * _TOLERANCE * max(map(abs, numbers))


def _finite(number: float) -> float:
    """A number; 0 for an infinite number, as in `_summed`."""
    return number if math.isfinite(number) else 0.0


def _summed(summands: Iterable[tuple[Monomial, float]]) -> dict[Monomial, float]:
    """A sum without the monomials that cancel each other but for rounding."""
    total: defaultdict[Monomial, float] = defaultdict(float)
    most: defaultdict[Monomial, float] = defaultdict(float)
    for monomial, number in summands:
        total[monomial] += number
        most[monomial] = max(most[monomial], abs(number))
    return {m: c for m, c in total.items() if abs(c) > _TOLERANCE * most[m]}


def _product_of_powers(
    one: tuple[tuple[AtomId, int], ...], other: tuple[tuple[AtomId, int], ...]
) -> tuple[tuple[AtomId, int], ...]:
    if not one or not other:
        return one or other
    powers = dict(one)
    for atom, power in other:
        powers[atom] = powers.get(atom, 0) + power
    return tuple(sorted((atom, power) for atom, power in powers.items() if power))
