"""The values of one program as terms (`step.terms`), and the towers that contribute rows to them.

Each input is the part of the batch that its tower computes with. So the terms of a loss show the
towers that contribute to it, with their coefficients. `step.comparison` compares the step with the
step of one GPU, which needs two programs.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from placement_checks.analysis.graph.data_flow import union
from placement_checks.analysis.towers.analysis import analyze
from placement_checks.analysis.variables.layout import variable_layout
from placement_checks.core.ids import OpId, TowerIndex, TowerMask
from placement_checks.core.missing import Missing
from placement_checks.core.op_types import RANDOM
from placement_checks.core.placement import Placement, producer_of
from placement_checks.step.gradients import with_names
from placement_checks.step.kinds import (
    OF_SHAPES,
    ONE,
    AtomId,
    Cause,
    Form,
    Kind,
    Monomial,
    Status,
)
from placement_checks.step.op_types import op_type
from placement_checks.step.parts import WHOLE, Cut, Part
from placement_checks.step.reader import StepReader
from placement_checks.step.terms import Terms
from placement_checks.util.walks import sources_first, walk


class _ValueReader(StepReader):
    """Reads values before the step updates any variable.

    Attributes:
        part_at: called with a tensor, the op that reads it, and whether the tensor depends on
            variables. It returns the part of the batch that the op takes, or None to read the
            tensor as it is.
    """

    part_at: Callable[[str, str, bool], Part | None] | None = None

    def value(self, source: str, reader: str = "") -> Form:
        name = producer_of(source)
        if name not in self.ops:
            return self.terms.unknown(Cause(name, "is not part of the graph"), None, source)
        made = super().value(source, reader)
        if self.part_at is None or not reader:
            return made
        varies = self.terms.reads_variable(made)
        part = self.part_at(source, reader, varies)
        if part is None or part in self.terms.parts(made):
            return made
        status = Status(Kind.JOINT)
        return self.terms.atom(
            "Taken", (), (made,), self.terms.shape(made), part=part, status=status
        )

    def _computed(self, name: str, output: int) -> Form:
        """The value of an op; of an op that cannot be read, a value that depends on its inputs."""
        try:
            made = super()._computed(name, output)
        except (IndexError, ValueError):  # a reduced graph, whose ops lack inputs or attributes
            cause = Cause(self.ops[name].type, "lacks inputs or attributes", self.origin(name))
            made = self.terms.unknown(cause, self.shape(name, output), name, output)
        atom, sources = self.terms.single(made), self.data(name)
        if atom is None or atom.op != "Unknown" or atom.operands or not sources:
            return made
        operands = tuple([self.value(source, name) for source in sources])
        attrs = (*atom.attrs, name, output)
        return self.terms.atom(
            "Unknown", attrs, operands, atom.shape, origin=atom.origin, status=atom.status
        )

    def _cyclic(self, op: str) -> Form:
        """A loop variable of TensorFlow 1; the loop's other inputs show what it depends on."""
        cause = Cause(self.ops[op].type, "is part of a loop", self.origin(op))
        status = Status(Kind.UNKNOWN, None, cause)
        return self.terms.atom("LoopVariable", (op,), (), self.shape(op), status=status)

    def _state_read(self, holder: str, _name: str) -> Form:
        return self.variable(holder)


class Sources(NamedTuple):
    """What a value is computed from. The shape of a tensor does not count.

    Attributes:
        parts: the parts of the batch.
        variables: the variables. The first copy stands for all copies.
        computed: the parts that variables are applied to, as in a prediction, but not, for
            example, in a number of tokens.
    """

    parts: frozenset[Part] = frozenset()
    variables: frozenset[str] = frozenset()
    computed: frozenset[Part] = frozenset()

    def with_all(self, others: Sequence[Sources]) -> Sources:
        """These sources and others, as operands of one sum."""
        return Sources(
            self.parts.union(*[other.parts for other in others]),
            self.variables.union(*[other.variables for other in others]),
            self.computed.union(*[other.computed for other in others]),
        )

    def of_op(self) -> Sources:
        """The sources of an op on values with these sources."""
        is_first = self.variables and not self.computed
        return self._replace(computed=self.parts) if is_first else self


_NOTHING = Sources()


class TowerTerms:
    """The values of a program as terms; `tower_terms` reads them once.

    Args:
        placement: the program.
        by_borders: whether each value that a tower takes from another device is a part of the
            batch, even if several towers take the same rows.

    Attributes:
        terms: the terms.
        first_copies: the first copy of each variable, by the other copies.
    """

    def __init__(self, placement: Placement, *, by_borders: bool = False) -> None:
        self._placement = placement
        self._analysis = analyze(placement)
        self.first_copies = variable_layout(placement).first_copies
        self.terms = Terms(op_type, decisions=True, are_parts_apart=True)
        step = placement.step
        roots = [*step.train_op, *step.train_ops, *(op for run in step.runs for op in run)]
        self._reader = _ValueReader(self.terms, placement, 0, roots, self.first_copies)
        self._reader.batch.assign_to_towers(ops_of_losses(placement))
        self._reader.part_at = self._part_at_border if by_borders else None
        self._sources: dict[AtomId, Sources] = {ONE: _NOTHING}

    def _part_at_border(self, source: str, reader: str, varies: bool) -> Part | None:
        """The part of a tower that takes a value, such as one batch that all towers read.

        Random numbers are rows. If no loss depends on examples, constants are rows too, as in a
        benchmark.
        """
        analysis, number = self._analysis, self._analysis.flow.number
        tower, op = analysis.tower_of[number[reader]], analysis.flow.op_of(source)
        if tower is None or analysis.backward.ops[number[reader]]:
            return None
        is_random = analysis.flow.types[op] in RANDOM
        if not (self.holds_examples(op) or is_random) or (varies and not analysis.examples[op]):
            return None
        if analysis.towers_of(op) & ~(1 << tower):
            return None
        return (Cut("draw", tower, len(analysis.towers)),)

    def form(self, op: OpId | str) -> Form | Missing:
        """The value of an op or tensor, with the names of shared variables for their copies.

        Returns:
            The form. It is missing if the op is in the body of a loop, or if the rows of a tower
            are unknown, so that towers cannot be told apart.
        """
        for tower, parts in zip(self._analysis.towers, self.own_parts, strict=True):
            if not parts:
                return Missing(f"it is unknown which rows the tower on {tower} computes with")
        return self._form(op)

    def _form(self, op: OpId | str) -> Form | Missing:
        tensor = op if isinstance(op, str) else self._analysis.flow.names[op]
        if loop := self._reader.graph.loop_around(producer_of(tensor)):
            return Missing(f"{tensor} is computed in the loop {loop}")
        return with_names(
            self.terms, self._reader.value(tensor.removesuffix(":0")), self._reader.atoms_of_copies
        )

    @cached_property
    def losses(self) -> Mapping[OpId, Form | Missing]:
        """The losses of all towers, in the order of towers."""
        by_tower = self._analysis.losses.by_tower
        return {loss: self.form(loss) for losses in by_tower for loss in losses}

    def updates_before(self, op: OpId) -> Sequence[str]:
        """The updates that an op waits for, in any way."""
        return self._reader.graph.awaited_by(self._analysis.flow.names[op])

    def applied_gradients(self) -> Iterator[Form]:
        """Yield the values that updates take and that depend on gradients."""
        flow = self._analysis.flow
        for name in self._reader.update_ops:
            for source in self._reader.data(name):
                if self._analysis.has_gradient(flow.op_of(source)):
                    form = self._reader.value(source, name)
                    yield with_names(self.terms, form, self._reader.atoms_of_copies)

    @cached_property
    def own_parts(self) -> Sequence[frozenset[Part]]:
        """For each tower, the parts of the batch that no other tower computes with.

        A tower computes with a part if it applies a variable to the part, as in a matrix product.
        If it applies variables only to joined parts, the parts belong to other towers.
        """
        found: list[frozenset[Part]] = []
        for number in self._analysis.tower_indices:
            met = self._parts_met_by_variables(number)
            parts = {each - {WHOLE} for each in met} - {frozenset()}
            smallest = [each for each in parts if not any(other < each for other in parts)]
            found.append(frozenset[Part]().union(*smallest))
        shared = Counter(part for parts in found for part in parts)
        return [frozenset(part for part in parts if shared[part] == 1) for parts in found]

    def holds_examples(self, op: OpId) -> bool:
        """Whether a value depends on examples; always true if no loss depends on examples."""
        return bool(self._analysis.examples[op]) or not self._have_examples

    @cached_property
    def _have_examples(self) -> bool:
        examples = self._analysis.examples
        return any(examples[loss] for ops in self._analysis.losses.by_tower for loss in ops)

    def _parts_met_by_variables(self, number: TowerIndex) -> Iterator[frozenset[Part]]:
        analysis = self._analysis
        for readers in analysis.reads_by_site.readers.values():
            for op in readers:
                is_own = analysis.tower_of[op] == number and not analysis.backward.ops[op]
                if is_own and self.holds_examples(op):
                    name = analysis.flow.names[op]
                    form = self._form(self._reader.graph.loop_around(name) or name)
                    if not isinstance(form, Missing):
                        yield self.sources_of(form).parts

    def towers_of_parts(self, parts: Iterable[Part]) -> TowerMask:
        """The towers that parts belong to."""
        return TowerMask(union(self._towers_by_part.get(part, 0) for part in parts))

    @cached_property
    def _towers_by_part(self) -> Mapping[Part, int]:
        own = enumerate(self.own_parts)
        return {part: 1 << tower for tower, parts in own for part in parts}

    def towers_of_summand(self, monomial: Monomial) -> TowerMask:
        """The towers that contribute rows to a summand."""
        base, factors = monomial
        atoms = (base, *(atom for atom, _ in factors))
        return TowerMask(union(self.towers_of_atom(atom) for atom in atoms))

    def towers_of_atom(self, atom: AtomId) -> TowerMask:
        """The towers that contribute rows to an atom."""
        return self.towers_of_parts(self.sources(atom).parts)

    def towers_of(self, form: Form) -> TowerMask:
        """The towers that contribute rows to a value."""
        return self.towers_of_parts(self.sources_of(form).parts)

    def towers_computing(self, form: Form) -> TowerMask:
        """The towers that apply variables to their rows to compute a value."""
        return self.towers_of_parts(self.sources_of(form).computed)

    def atoms_behind(self, atoms: Iterable[AtomId]) -> Iterator[AtomId]:
        """Yield atoms and the atoms in their operands, without those of shapes."""
        found = walk(set(atoms) - {ONE}, self._operands)
        return (atom for atom in found if self.terms[atom].op not in OF_SHAPES)

    def _operands(self, atom: AtomId) -> set[AtomId]:
        """The atoms that an atom is computed from; none if it depends on shapes alone."""
        is_shape = self.terms[atom].op in OF_SHAPES
        return set() if is_shape else {*self.terms.atoms_of_operands(atom)} - {ONE}

    def sources(self, atom: AtomId) -> Sources:
        """What an atom is computed from."""
        memo = self._sources
        for here in sources_first([atom], lambda x: () if x in memo else self._operands(x)):
            own = self.terms[here]
            if here not in memo and own.op in OF_SHAPES:
                memo[here] = _NOTHING
            elif here not in memo:
                made = Sources(
                    frozenset([] if own.part is None else [own.part]),
                    frozenset([str(own.attrs[0])] if own.op == "Var" else []),
                )
                memo[here] = made.with_all([memo[x] for x in self._operands(here)]).of_op()
        return memo[atom]

    def sources_of(self, form: Form) -> Sources:
        """What a value is computed from."""
        atoms = set(self.terms.atoms_in(form)) - {ONE}
        return _NOTHING.with_all([self.sources(atom) for atom in atoms])

    def as_of_first_tower(self, form: Form, tower: TowerIndex) -> Form | None:
        """A value with the parts of a tower replaced by the first tower's; None if impossible."""
        own, first = sorted(self.own_parts[tower]), sorted(self.own_parts[0])
        if len(own) != len(first):
            return None
        for part, other in zip(own, first, strict=True):
            if part != other:
                form = self.terms.with_part(form, part, other)
        return form


def ops_of_losses(placement: Placement) -> Sequence[Collection[str]]:
    """Return for each tower the ops that its losses are computed from.

    What another tower computes with variables that several towers read is left out: it belongs to
    the other tower, also if a loss contains it by mistake. A layer that one GPU computes for all
    towers, such as a lookup of rows, has a variable of its own.
    """
    analysis, flow = analyze(placement), analyze(placement).flow
    names = variable_layout(placement).first_copies
    reading: defaultdict[str, dict[OpId, TowerIndex]] = defaultdict(dict)
    for variable, readers in analysis.reads_by_site.readers.items():
        towers = {op: tower for op in readers if (tower := analysis.tower_of[op]) is not None}
        reading[names.get(variable, variable)] |= towers
    shared = {op for ops in reading.values() if len(set(ops.values())) > 1 for op in ops}
    computed = flow.reachable(shared, flow.consumers)
    found = []
    for number, losses in analysis.losses.items():
        others = {op for op in computed if analysis.tower_of[op] not in (None, number)}
        ops = flow.reachable(losses, until=others.__contains__)
        found.append({flow.names[op] for op in ops - others})
    return found


def tower_terms(placement: Placement) -> TowerTerms:
    """Return the values of a placement as terms, read once."""
    return placement.cached(_read)


def _read(placement: Placement) -> TowerTerms:
    found = TowerTerms(placement)
    return found if all(found.own_parts) else TowerTerms(placement, by_borders=True)
