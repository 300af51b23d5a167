"""The rows of the inputs that tensors of one program have, without another program.

Each tower has sets of rows: the input, the part of it, and the columns. A slice between constant
rows is a part, too, whatever the number of all rows is. An op that chooses or combines rows in an
unknown way is an input of its own: its result has the same rows only as equal results.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import reduce
from itertools import combinations, product
from math import lcm, prod
from operator import or_
from typing import Any, NamedTuple

from placement_checks.core.op_types import RANDOM_STATEFUL, VARIABLES, is_update
from placement_checks.core.placement import Placement, producer_of
from placement_checks.step.gradients import with_names
from placement_checks.step.kinds import AtomId, Form, Kind, RowExtent
from placement_checks.step.op_types import op_type
from placement_checks.step.parts import (
    LAST_ROW,
    WHOLE,
    Cut,
    Part,
    cut_range,
    rows_in,
)
from placement_checks.step.reader import StepReader
from placement_checks.step.terms import Atom, Terms
from placement_checks.util.walks import sources_first, walk

# A slice along another axis than the rows: the axis, and the first and the next index.
Columns = tuple[tuple[int, int, int], ...]
# Ops that yield other values in each run.
_CHANGING = RANDOM_STATEFUL | {"RngReadAndSkip"}
_MOST_ROWS = 1 << 20  # that are compared one by one
# Ops whose results have no rows if the rows are not known to be left.
_REDUCTIONS = frozenset({"Sum", "Mean", "Max", "Min", "Prod", "All", "Any", "EuclideanNorm"})


class RowSet(NamedTuple):
    """Rows of an input.

    Attributes:
        source: the tensor that has the rows: the name of an input op and the number of its
            output, or a term that chooses or combines rows in an unknown way and its kind.
        part: the part of the source.
        columns: the columns, along several axes; empty for all of them.
        size: the number of rows of the source, if it is fixed.
        is_joined: whether rows of several inputs or parts were joined, such as the rows of all
            replicas by a collective.
    """

    source: tuple[Any, int | str]
    part: Part = WHOLE
    columns: Columns = ()
    size: int | None = None
    is_joined: bool = False

    @property
    def tensor(self) -> str:
        """The input, such as ``x:0``; empty if the source is a term."""
        name, output = self.source
        return f"{name}:{output}" if isinstance(output, int) else ""


class RowSets:
    """The rows that tensors of a program have.

    Args:
        placement: the program.
    """

    def __init__(self, placement: Placement) -> None:
        step = placement.step
        runs = step.runs or [step.train_op or step.train_ops]
        roots = [root for run in runs for root in run]
        self._terms = Terms(op_type, is_alone=True)
        self._reader = StepReader(self._terms, placement, 0, roots, {})
        self._reader.batch.separate()
        self._of_atoms: dict[AtomId, frozenset[RowSet]] = {}

    @property
    def inputs(self) -> Collection[str]:
        """The ops that rows come from."""
        return self._reader.batch.leaves.keys()

    def of(self, tensor: str) -> frozenset[RowSet]:
        """The rows that a tensor has; empty if it has no rows, such as a number of rows."""
        name = producer_of(tensor)
        if name not in self._reader.ops or self._reader.ops[name].type in VARIABLES:
            return frozenset()
        if not self._is_readable(name):
            is_scalar = self._reader.shape(name, int(tensor.partition(":")[2] or 0)) == ()
            return frozenset([RowSet((tensor.removesuffix(":0"), "tensor"))] * (not is_scalar))
        return self._of_form(self._reader.value(tensor.removesuffix(":0")))

    def varies(self, tensor: str) -> bool:
        """Whether a tensor depends on variables, as far as it is known."""
        if not self._is_readable(producer_of(tensor)):
            return True
        terms, form = self._terms, self._reader.value(tensor.removesuffix(":0"))
        return terms.reads_variable(form)

    def key(self, tensor: str) -> Hashable:
        """A key that is the same for tensors that are equal in each run.

        Copies of a variable that a strategy keeps equal are equal. Numbers that are drawn at
        random, or that an op yields while it changes a state, are equal only to themselves.
        """
        reader, name = self._reader, producer_of(tensor)
        if not self._is_readable(name):
            return tensor.removesuffix(":0")
        form = with_names(
            self._terms, reader.value(tensor.removesuffix(":0")), reader.atoms_of_copies
        )
        kinds = {op: reader.ops[op].type for op in self._behind(name)}
        stateful = {op for op in kinds if is_update(kinds[op]) or kinds[op] in _CHANGING}
        return form, frozenset(stateful)

    def _is_readable(self, name: str) -> bool:
        """Whether an op depends on no variable of a loop around it."""
        reader = self._reader
        if name not in reader.ops or not reader.graph.is_in_loop(name):
            return True
        variables = reader.placement.loop_variables
        return not any(variables.get(op) for op in self._behind(name) - reader.batch.leaves.keys())

    def _behind(self, name: str) -> set[str]:
        """The ops that the value of an op is computed from, back to inputs, with this op."""
        reader = self._reader

        def inputs(op: str) -> Collection[str]:
            is_input = op in reader.batch.leaves
            return () if is_input else reader.ops.keys() & map(producer_of, reader.data(op))

        return set(walk(reader.ops.keys() & {name}, inputs))

    def choice(self, one: RowSet, other: RowSet) -> str:
        """The op that may choose rows for one row set that another one has, too; empty if none.

        Ops that choose by an input of their own, and the outputs of one op, have different rows.
        """
        atoms = [self._terms[each.source[0]] for each in (one, other) if each.source[1] == "term"]
        inputs, others = (self._inputs_of(each) for each in (one, other))
        sources, its = ({each.source for each in side} for side in (inputs, others))
        are_own = sources - its and its - sources
        if not atoms or are_own or len({atom.operands for atom in atoms}) < len(atoms):
            return ""
        common = inputs & others or overlapping(inputs, others)
        origin = atoms[-1].origin
        return origin.op if common and origin else ""

    def _inputs_of(self, row_set: RowSet) -> frozenset[RowSet]:
        """The rows of inputs that rows are chosen from."""
        source, kind = row_set.source
        if kind != "term":
            return frozenset([row_set])
        below = frozenset().union(*map(self._of_known, self._terms[source].operands))
        return frozenset().union(*map(self._inputs_of, below))

    def mismatched(self, tensor: str) -> frozenset[tuple[RowSet, RowSet]]:
        """Rows of two inputs that a tensor combines row by row, although their parts differ.

        An op does so if it would yield a row, or a sum over rows, for each row of a single part.
        """
        terms, name = self._terms, producer_of(tensor)
        if name not in self._reader.ops or not self._is_readable(name):
            return frozenset()
        form, found = self._reader.value(tensor.removesuffix(":0")), set[tuple[RowSet, RowSet]]()
        for atom in terms.all_atoms_in([form]):
            first, *others = by_part = self._rows_by_part(atom) or {WHOLE: frozenset()}
            made = terms.of(atom)
            for other in others:
                made = terms.with_part(made, other, first)
            if others and terms.status(made, first).kind in (Kind.ROWS, Kind.SUM):
                found.update(*(product(*each) for each in combinations(by_part.values(), 2)))
        return frozenset((one, other) for one, other in found if one.source != other.source)

    def _rows_by_part(self, atom: AtomId) -> Mapping[Part, Collection[RowSet]]:
        """The rows of inputs that an op combines, if it is the first op to combine their parts."""
        terms = self._terms
        found: defaultdict[Part, set[RowSet]] = defaultdict(set)
        below = terms.atoms_of_operands(atom) if len(terms[atom].parts) > 1 else []
        if any(terms[each].parts and terms[each].finest is None for each in below):
            return {}
        for each in below:
            part, status = terms[each].finest, terms[each].status
            if part is not None and status.kind is Kind.ROWS:
                for source in terms.all_atoms_in([terms.of(each)]):
                    if terms[source].part == part and terms[source].op in ("Leaf", "PartOf"):
                        found[part] |= self._find(source, terms[source])
        return found

    def draws_apart(self) -> Iterator[tuple[str, str, bool]]:
        """Ops that draw rows which do not belong together, and whether this is certain."""
        batch = self._reader.batch
        for objective in self._reader.graph.towers:
            if (draws := batch.draws_apart(objective)) is not None:
                yield *draws, True
            elif (draws := batch.draws_in_any_order(objective)) is not None:
                yield *draws, False

    def data_of_pipeline(self, name: str) -> Hashable:
        """A key of an iterator or queue: pipelines of the same data have equal keys.

        They may shuffle the data in different orders.
        """
        return self._reader.batch.data_of(name)

    def _of_form(self, form: Form) -> frozenset[RowSet]:
        """The rows of a form, found after the rows of its operands, without recursion."""
        terms, known = self._terms, self._of_atoms

        def below(atom: AtomId) -> Sequence[AtomId]:
            is_end = atom in known or terms[atom].status.kind is Kind.CONSTANT
            return () if is_end else terms.atoms_of_operands(atom)

        for atom in sources_first(terms.atoms_in(form), below):
            if atom not in known:
                known[atom] = self._find(atom, terms[atom])
        return self._of_known(form)

    def _of_known(self, form: Form) -> frozenset[RowSet]:
        atoms = self._terms.atoms_in(form)
        return frozenset().union(*[self._of_atoms[atom] for atom in atoms])

    def _find(self, atom_id: AtomId, atom: Atom) -> frozenset[RowSet]:
        kind, axis, _ = atom.status
        if kind is Kind.CONSTANT or atom.shape == () or not self._has_rows(atom):
            return frozenset()
        if atom.op == "Leaf":
            name, *outputs = atom.attrs  # none for the numbers of the rows
            found = []
            for output in outputs:
                rows = next(iter(self._reader.shape(name, output) or ()), None)
                size = rows if isinstance(rows, int) else None
                part = _plain(atom.part or WHOLE, size)
                found.append(RowSet((name, output), part, size=size))
            return frozenset(found)
        if atom.op == "PartOf":
            cut = (atom.part or WHOLE)[-1:]
            return frozenset([RowSet((atom.operands[0], "form"), cut)])
        inner = frozenset().union(*map(self._of_known, atom.operands))
        if not inner:
            return inner
        if atom.op == "Slice":
            at, begin, size = atom.attrs
            return frozenset(_with_columns(inner, (at, begin, begin + size)))
        known = op_type(atom.op)
        is_elementwise = known is not None and known.is_elementwise
        keeps_rows = kind is Kind.ROWS and not any(each.columns for each in inner)
        if is_elementwise or (keeps_rows and atom.op != "Random"):  # which may shuffle rows
            return inner
        is_joined = atom.op == "ConcatV2" and atom.attrs[0] == axis
        is_joined = is_joined or all(each.is_joined for each in inner)
        return frozenset([RowSet((atom_id, "term"), is_joined=is_joined)])

    def _has_rows(self, atom: Atom) -> bool:
        """Whether a tensor has rows, as far as its shape is known."""
        if atom.status.axis is not None or any(isinstance(d, RowExtent) for d in atom.shape or ()):
            return True
        if atom.status.kind in (Kind.SUM, Kind.MEAN, Kind.STATISTIC):
            return False
        return atom.op not in _REDUCTIONS


def _with_columns(row_sets: Iterable[RowSet], columns: tuple[int, int, int]) -> Iterator[RowSet]:
    """Row sets, of which only some columns are left; the columns of a slice of columns add up."""
    axis, begin, end = columns
    for each in row_sets:
        shift = sum(first for at, first, _ in each.columns if at == axis)
        others = [column for column in each.columns if column[0] != axis]
        cut = axis, begin + shift, end + shift
        yield each._replace(columns=tuple(sorted([*others, cut])))


def _plain(part: Part, size: int | None) -> Part:
    """A part as one slice of slices, or as rows by their numbers, if there is a fixed number."""
    if size is not None:
        rows = rows_in(part, range(size))
        return (Cut("rows", 0, 0, rows=rows),) if rows != range(size) else WHOLE
    last = next((i for i, cut in enumerate(part) if cut.is_slice), len(part))
    if not all(cut.is_slice for cut in part[last:]) or part[last:] == ():
        return part
    begin, end = Fraction(0), Fraction(1)
    for cut in part[last:]:
        low, high = cut.bounds
        begin, end = begin + low * (end - begin), begin + high * (end - begin)
    return (*part[:last], cut_range(begin, end))


def overlapping(one: Iterable[RowSet], other: Iterable[RowSet]) -> tuple[RowSet, RowSet] | None:
    """Two of the row sets that overlap, if these towers have too many rows in common.

    A few common rows may be intended, such as a frame before the first. Too many are half of the
    rows of an input that one of the towers has. Equal row sets do not overlap. If rows are equal,
    but not their columns, the tower's parts are columns, such as features or time.
    """
    alike: defaultdict[Any, list[tuple[RowSet, RowSet]]] = defaultdict(list)
    for a, b in product(one, list(other)):
        if a.source == b.source and _have_common_columns(a.columns, b.columns):
            alike[a.source].append((a, b))
    for pairs in alike.values():
        count = _number_of_rows({each for pair in pairs for each in pair})
        numbers = {each: _mask(each.part, count) for pair in pairs for each in pair}
        ours, theirs = ({numbers[each] for each in side} for side in zip(*pairs, strict=True))
        lengths = [reduce(or_, rows).bit_count() for rows in (ours, theirs)]
        common = (reduce(or_, ours) & reduce(or_, theirs)).bit_count()
        if ours != theirs and common and 2 * common >= min(lengths):
            return next((a, b) for a, b in pairs if numbers[a] & numbers[b])
    return None


def are_exchanged(
    pair: tuple[RowSet, RowSet], tower: Collection[RowSet], towers: Iterable[Collection[RowSet]]
) -> bool:
    """Whether a tower combines rows of two inputs that belong to different rows.

    All towers together have the same rows of both inputs, but this tower has other rows of each,
    as with labels of another tower. It has no rows that belong together besides.
    """
    together = [each for rows in towers for each in rows]
    inputs = [[each for each in together if each.source == one.source] for one in pair]
    count = _number_of_rows({each for rows in inputs for each in rows})
    masks = [reduce(or_, [_mask(each.part, count) for each in rows], 0) for rows in inputs]
    own, other = (rows_in(each.part, range(count)) for each in pair)
    mine, its = (
        {rows_in(each.part, range(count)) for each in tower if each.source == one.source}
        for one in pair
    )
    return bool(masks[0]) and masks[0] == masks[1] and own not in its and other not in mine


def _number_of_rows(row_sets: Collection[RowSet]) -> int:
    """A number of rows of their source that shows which rows are equal; 0 if there is none.

    Rows by their numbers cannot be compared with fractions of an unknown number of rows.
    """
    sizes = {each.size for each in row_sets if each.size is not None}
    cuts = [cut for each in row_sets for cut in each.part]
    chosen = [cut.rows for cut in cuts if cut.family == "rows"]
    if sizes:
        found = max(sizes) if len(sizes) == 1 else 0
    elif chosen:
        found = 2 * max(map(_end, chosen)) if len(chosen) == len(cuts) else 0
    else:
        paths = [prod(_denominator(cut) for cut in each.part) for each in row_sets]
        found = lcm(*paths) ** 2
    return found if found <= _MOST_ROWS else 0


def _denominator(cut: Cut) -> int:
    return cut.parts or lcm(*(bound.denominator for bound in cut.bounds))


def _end(rows: Sequence[int]) -> int:
    """The number after the last row; of all rows from one row on, the number after the first."""
    if not isinstance(rows, range):
        return max(rows) + 1
    return rows.start + 1 if rows.stop == LAST_ROW else rows.stop


def _mask(part: Part, count: int) -> int:
    """The rows of a part, of this number of rows, as a byte for each row."""
    rows, found = rows_in(part, range(count)), bytearray(count)
    if isinstance(rows, range):
        found[rows.start : rows.stop : rows.step] = bytes([1]) * len(rows)
    else:
        for number in rows:
            found[number] = 1
    return int.from_bytes(found, "little")


def _have_common_columns(one: Columns, other: Columns) -> bool:
    bounds = {axis: (begin, end) for axis, begin, end in one}
    return all(
        axis not in bounds or (begin < bounds[axis][1] and bounds[axis][0] < end)
        for axis, begin, end in other
    )
