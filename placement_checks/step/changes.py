"""What each update of a training step makes of its variable, read from one program alone.

The values of variables, and the results of the backward pass, are atoms here. So an update is a
sum ``factor · old value + term``, and a term shows which gradients it takes, and how.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import NamedTuple

from placement_checks.core.op_types import (
    BOUNDS,
    BRANCHES,
    GATHERERS,
    INITIALIZATION_TESTS,
    LINEAR,
    LOOPS,
    PIPELINE_OUTPUTS,
    PLACEHOLDERS,
    PRODUCTS,
    RANDOM,
    REDUCTIONS,
    SCALES,
    SELECTS,
    SHAPE_ONLY,
    is_gradient_update,
    is_update,
)
from placement_checks.core.placement import Placement, producer_of
from placement_checks.step.graph import Update, cone
from placement_checks.step.kinds import ONE, AtomId, Form, Monomial
from placement_checks.step.op_types import op_type
from placement_checks.step.reader import StepReader
from placement_checks.step.tensor_ops import Node
from placement_checks.step.terms import Atom, Terms
from placement_checks.util.walks import sources_first, walk

# Ops whose values are not computed from the values of their inputs.
_OWN_VALUES = PLACEHOLDERS | PIPELINE_OUTPUTS | RANDOM | INITIALIZATION_TESTS
_SHAPES = SHAPE_ONLY | {"Dim", "RowsOf"}
# Atoms that are linear in all their operands, besides the ops of `LINEAR`.
_JOINS = REDUCTIONS | GATHERERS | {"Slices", "Place", "Slice", "StopGradient"}
_SLICES = frozenset({"StridedSliceOf"})  # linear in the first operand, the others are bounds
_CHOICES = BRANCHES | SELECTS | {"Conditional"}
# Ops that add up elements of one tensor.
_SUMS = frozenset({"Sum", "Mean", "MatMul", "BatchMatMulV2", "Einsum", "UnsortedSegmentSum"})


class Change(NamedTuple):
    """What an update makes of its variable: ``factor · old value + term``.

    Attributes:
        op: the update.
        factor: the factor, a tensor that may depend on other variables; None if the new value is
            no such sum. It is 1 for an optimizer, which adds a change.
        term: the term; the new value, if there is no factor.
    """

    op: str
    factor: Form | None
    term: Form


class Clip(NamedTuple):
    """An op that changes a gradient, and is not linear.

    Attributes:
        op: the op.
        kind: ``bound`` if it bounds each element, ``scale`` if it multiplies the gradient by a
            value that depends on gradients, such as a norm; else ``other``.
        gradients: the backward ops of the gradients that it depends on.
        shape: the static shape of the result.
        is_added_up: whether its elements are added up later, like gradients of single rows.
    """

    op: str
    kind: str
    gradients: frozenset[str]
    shape: object
    is_added_up: bool


class StepChanges(StepReader):
    """The changes that one step of a program makes to its variables.

    Args:
        placement: the program.
        roots: the ops that the step runs.
        backward: the ops that compute gradients.
        read: the variables that the model reads; others may hold gradients, such as slots.
    """

    repeats_elements = False

    def __init__(
        self,
        placement: Placement,
        roots: Sequence[str],
        backward: Collection[str],
        read: Collection[str],
    ) -> None:
        super().__init__(Terms(op_type), placement, 0, roots, {})
        self.batch.leaves.clear()  # parts of the batch would be joined
        self._gradients.clear()
        self._backward_ops, self._read = backward, read
        self._changes: dict[str, Change] = {}
        self._states: dict[str, Collection[tuple[str, tuple[str, ...]]]] = {}
        self._carrying: dict[AtomId, bool] = {}

    # --- changes ---

    def variable_of(self, update: str) -> str:
        """The variable that an update changes; empty if its handle cannot be followed."""
        return self.holder.get(producer_of(self.data(update)[0]), "")

    def change(self, op: str) -> Change:
        """What an update makes of its variable."""
        if op not in self._changes:
            self._changes[op] = self._find_change(op)
        return self._changes[op]

    def _find_change(self, op: str) -> Change:
        terms, variable = self.terms, self.variable_of(op)
        form = self._atom(self.ops[op].type, Node(self, op, 0))
        try:
            form = self._applied(Update(op, 0), variable) if variable else form
        except (IndexError, ValueError):  # a reduced graph, whose ops lack inputs
            variable = ""
        if not variable:
            return Change(op, None, form)
        if self._is_of_optimizer(op, form):
            return Change(op, terms.number(1.0), form)
        olds = {atom for atom in terms.all_atoms_in([form]) if self._is_state(atom, variable)}
        if not olds:
            return Change(op, terms.number(0.0), form)
        affine = self._affine(form, olds)
        return Change(op, None, form) if affine is None else Change(op, *affine)

    def _affine(self, form: Form, olds: Collection[AtomId]) -> tuple[Form, Form] | None:
        """The factor of old values in a form, and the rest; None if it is another function."""
        terms = self.terms
        factors: list[tuple[Form, float]] = []
        rest: list[tuple[Form, float]] = []
        for monomial, number in terms.summands(form):
            if not self._contains(terms.form({monomial: 1.0}), olds):
                rest.append((terms.form({monomial: 1.0}), number))
                continue
            factor = self._factor(monomial, olds)
            if factor is None:
                return None
            factors.append((factor, number))
        return terms.add(*factors), terms.add(*rest)

    def _is_of_optimizer(self, op: str, form: Form) -> bool:
        """Whether an update is an optimizer's op, whose change is no sum of gradients."""
        atom, kind = self.terms.single(form), self.ops[op].type
        is_op = atom is not None and atom.op == kind.removeprefix("Resource")
        return is_op and is_gradient_update(kind)

    def _factor(self, monomial: Monomial, olds: Collection[AtomId]) -> Form | None:
        """The factor of an old value in a monomial; None if it is another function of it."""
        terms, (base, scalars) = self.terms, monomial
        own = [power for atom, power in scalars if atom in olds]
        scale = terms.form({(ONE, tuple(each for each in scalars if each[0] not in olds)): 1.0})
        tensor = terms.of(base) if base != ONE else terms.number(1.0)
        if base in olds:
            own, tensor = [*own, 1], terms.number(1.0)
        elif not own and terms[base].op in SCALES:
            one, other = terms[base].operands
            if terms[base].op in PRODUCTS and not self._contains(one, olds):
                one, other = other, one
            affine = self._affine(one, olds)
            if affine is None or terms.constant(affine[1]) != 0.0:
                return None
            op, attrs, origin = terms[base].op, terms[base].attrs, terms[base].origin
            operands = (affine[0], other)
            own, tensor = [1], terms.build(op, attrs, operands, terms[base].shape, origin)
        if own != [1] or any(self._contains(each, olds) for each in (scale, tensor)):
            return None
        return terms.product(tensor, scale)

    def _is_state(self, atom: AtomId, variable: str) -> bool:
        return self.terms[atom].op == "Var" and self.terms[atom].attrs[0] == variable

    def _contains(self, form: Form, atoms: Collection[AtomId]) -> bool:
        return any(atom in atoms for atom in self.terms.all_atoms_in([form]))

    def adds(self, change: Change) -> bool:
        """Whether a new value is the sum of the old value and a term."""
        return change.factor is not None and self.terms.constant(change.factor) == 1.0

    def assigned_state(self, change: Change) -> tuple[str, Collection[str]] | None:
        """The variable whose value is assigned, and its updates before; None if there is none."""
        value = self.terms.single(change.term)
        if value is None or value.op != "Var" or self.depends_on_old(change):
            return None
        variable, *done = map(str, value.attrs)
        return variable, done

    def decays(self, change: Change) -> bool:
        """Whether a new value depends on the old value, and is no sum of it and a term."""
        return not self.adds(change) and self.depends_on_old(change)

    def depends_on_old(self, change: Change) -> bool:
        """Whether a new value depends on the old value."""
        if change.factor is not None:
            return self.terms.constant(change.factor) != 0.0
        return self.depends(change, self.variable_of(change.op))

    def increments(self, change: Change) -> Sequence[float] | None:
        """The constants of which a change adds one to the variable; None if there are others.

        There are several if a condition decides.
        """
        terms, variable = self.terms, self.variable_of(change.op)
        if change.factor is not None:
            return self._numbers(change.term) if self.adds(change) else None
        atom = terms.single(change.term)
        found: list[float] = []
        for side in atom.operands[1:] if atom is not None and atom.op in _CHOICES else ():
            olds = {each for each in terms.all_atoms_in([side]) if self._is_state(each, variable)}
            affine = self._affine(side, olds)
            numbers = None if affine is None else self._numbers(affine[1])
            if affine is None or numbers is None or terms.constant(affine[0]) != 1.0:
                return None
            found += numbers
        return found or None

    def _numbers(self, form: Form) -> Sequence[float] | None:
        """The constants of which a scalar is one; None if there are others."""
        number, atom = self.terms.constant(form), self.terms.single(form)
        if number is not None:
            return [number]
        if atom is None or atom.origin is None:
            return None
        if atom.op in _CHOICES:
            sides = [self._numbers(side) for side in atom.operands[1:]]
            return None if None in sides else [each for side in sides if side for each in side]
        return [0.0, 1.0] if self.dtype(atom.origin.op) == "bool" else None

    def is_undone(self, change: Change, other: Change) -> bool:
        """Whether two changes add a term and subtract it."""
        terms = self.terms
        if not self.adds(change) or not self.adds(other) or terms.constant(change.term) == 0.0:
            return False
        return terms.constant(terms.add((change.term, 1.0), (other.term, 1.0))) == 0.0

    def is_sum(self, changes: Sequence[Change]) -> bool:
        """Whether changes of a variable only add gradients, each once, of the values before.

        Then their order does not matter. The gradients of all changes must be computed from values
        that no update has changed.
        """
        taken: set[str] = set()
        for change in changes:
            atoms = [self.terms[each] for each in self.terms.all_atoms_in([change.term])]
            reads_changed = any(
                each.op == "Var" and (each.attrs[1:] or each.attrs[0] in self._slots)
                for each in atoms
            )
            gradients = {str(each.attrs[0]) for each in atoms if each.op == "Backward"}
            is_of_optimizer = self._is_of_optimizer(change.op, change.term)
            if not self.adds(change) or is_of_optimizer or reads_changed:
                return False
            if not gradients or gradients & taken:
                return False
            taken |= gradients
        reads = [name for name in cone(taken, self.edges) if name in self._read_bits]
        return all(
            self._reads_before[update.op] & self._read_bits[name]
            for name in reads
            for holder in {self.holder.get(producer_of(each)) for each in self.data(name)}
            for update in self.updates.get(holder or "", ())
        )

    def computes_with(self, change: Change, variable: str) -> bool:
        """Whether a change depends on a variable, and is not only multiplied by it."""
        if not self.depends(change, variable):
            return False
        terms = self.terms
        forms = [change.term]
        atom = terms.single(change.term)
        if atom is not None and self._is_of_optimizer(change.op, change.term):
            forms = list(atom.operands)
        if change.factor is not None:
            forms.append(terms.add((change.factor, 1.0), (terms.number(1.0), -1.0)))
        for form in forms:
            states = {
                each for each in terms.all_atoms_in([form]) if self._is_state(each, variable)
            }
            for (base, scalars), number in terms.summands(form) if states else ():
                powers = [power for each, power in scalars if each in states]
                others = tuple(each for each in scalars if each[0] not in states)
                rest = terms.form({(base, others): number})
                if powers != [1] or self._contains(rest, states):
                    return True
        return False

    def depends(self, change: Change, variable: str) -> bool:
        """Whether a change depends on a variable, after or before updates of it."""
        return any(name == variable for name, _ in self.states(change))

    def states(self, change: Change) -> Collection[tuple[str, tuple[str, ...]]]:
        """The variables that a change depends on, each with the updates of it that come before."""
        if change.op not in self._states:
            forms = [form for form in (change.term, change.factor) if form is not None]
            atoms = map(self.terms.__getitem__, self.terms.all_atoms_in(forms))
            found = {
                (str(a.attrs[0]), tuple(map(str, a.attrs[1:]))) for a in atoms if a.op == "Var"
            }
            self._states[change.op] = found
        return self._states[change.op]

    # --- gradients ---

    def gradients_in(self, forms: Iterable[Form]) -> Sequence[str]:
        """The tensors of the backward pass that forms are computed from, also through slots."""
        terms = self.terms

        def below(number: AtomId) -> Iterator[AtomId]:
            atom = terms[number]
            inner = self._written(atom) if atom.op == "Var" else atom.operands
            return (each for form in inner for each in terms.atoms_in(form))

        atoms = map(terms.__getitem__, walk(chain(*map(terms.atoms_in, forms)), below))
        return ["{}:{}".format(*atom.attrs) for atom in atoms if atom.op == "Backward"]

    def gradients_taken(self, changes: Iterable[Change]) -> Mapping[Form, int]:
        """The gradients that changes take, also through slots: how often each term is added.

        The terms contain what is computed from gradients alone, such as their mean.
        """
        terms, found = self.terms, Counter[Form]()
        seen: set[AtomId] = set()
        waiting = [form for each in changes for form in (each.term, each.factor) if form]
        while waiting:
            for (base, scalars), number in terms.summands(waiting.pop()):
                own = tuple(each for each in scalars if not self._reads_state(each[0]))
                taken = terms.form({(ONE if self._reads_state(base) else base, own): number})
                if self._carries(taken):
                    found[taken] += 1
                for atom in {base, *(each for each, _ in scalars)} - seen:
                    seen.add(atom)
                    if self._reads_state(atom) and self._carries_atom(atom):
                        waiting += self._written(terms[atom]) or terms[atom].operands
        return found

    def _reads_state(self, atom: AtomId) -> bool:
        return self.terms.reads_variable(self.terms.of(atom))

    def clips(self, form: Form) -> Iterator[Clip]:
        """The ops that change gradients in a form, and are not linear; the last ones first."""
        terms = self.terms
        seen: set[tuple[AtomId, bool]] = set()
        stack = [(form, False)]
        while stack:
            form, is_added_up = stack.pop()
            for monomial, _ in terms.summands(form):
                carriers = [
                    (atom, power)
                    for atom, power in ((monomial[0], 1), *monomial[1])
                    if self._carries_atom(atom)
                ]
                if len(carriers) > 1 or any(power != 1 for _, power in carriers):
                    kind = "scale" if len(carriers) > 1 else "other"
                    yield self._clip(max(carriers)[0], kind, form, is_added_up)
                for number, _ in carriers:
                    if (number, is_added_up) in seen:
                        continue
                    seen.add((number, is_added_up))
                    atom = terms[number]
                    kind = self._kind(atom)
                    if kind:
                        yield self._clip(number, kind, terms.of(number), is_added_up)
                    below = self._written(atom) if atom.op == "Var" else _of_same_shape(self, atom)
                    is_sum = is_added_up or atom.op in _SUMS
                    stack += [(each, is_sum) for each in below if self._carries(each)]

    def _clip(self, number: AtomId, kind: str, form: Form, is_added_up: bool) -> Clip:
        terms = self.terms
        gradients = frozenset(producer_of(each) for each in self.gradients_in([form]))
        made = [number, *terms.all_atoms_in([terms.of(number)])]
        origin = next(terms[each].origin for each in made if terms[each].origin)
        assert origin is not None
        return Clip(origin.op, kind, gradients, terms[number].shape, is_added_up)

    def _kind(self, atom: Atom) -> str:
        """How an atom changes a gradient; empty if it is linear, or yields no gradient."""
        if atom.op in ("Backward", "Var"):
            return ""
        if atom.op in BOUNDS:
            return "bound"
        carriers = [number for number, each in enumerate(atom.operands) if self._carries(each)]
        if atom.op in SCALES:
            if len(carriers) == 2:
                return "scale" if atom.operands[0] != atom.operands[1] else "other"
            return "" if carriers == [0] or atom.op == "Mul" else "other"
        if atom.op in _CHOICES:
            return "other" if 0 in carriers else ""
        if atom.op in _SLICES:
            return "" if carriers == [0] else "other"
        known = op_type(atom.op)
        if atom.op in LINEAR | _JOINS or (known is not None and known.is_linear):
            return ""
        is_product = atom.op in _SUMS and len(carriers) == 1
        return "" if is_product else "other"

    def _carries(self, form: Form) -> bool:
        return any(self._carries_atom(atom) for atom in self.terms.atoms_in(form))

    def _carries_atom(self, number: AtomId) -> bool:
        """Whether a gradient, not its shape alone, determines an atom."""
        memo, ends = self._carrying, _SHAPES | {"Backward", "Var"}

        def below(here: AtomId) -> Sequence[AtomId]:
            is_end = here in memo or self.terms[here].op in ends
            return () if is_end else self.terms.atoms_of_operands(here)

        for here in sources_first([number], below):
            atom = self.terms[here]
            if here not in memo and atom.op == "Var":
                memo[here] = atom.attrs[0] in self._slots
            elif here not in memo:
                memo[here] = atom.op == "Backward" or any(memo[x] for x in below(here))
        return memo[number]

    @cached_property
    def _slots(self) -> Collection[str]:
        """The variables that the model does not read, and that gradients determine."""
        terms, found = self.terms, set[str]()
        behind: dict[str, set[str]] = {}
        for variable in self.updates.keys() - self._read:
            written = self._values_written(variable)
            if any(map(terms.is_backward, written)):
                found.add(variable)
            atoms = map(terms.__getitem__, terms.all_atoms_in(written))
            behind[variable] = {str(atom.attrs[0]) for atom in atoms if atom.op == "Var"}
        while more := {name for name in behind.keys() - found if behind[name] & found}:
            found |= more
        return found

    def _written(self, atom: Atom) -> Sequence[Form]:
        """The values that updates write to a variable that holds gradients."""
        variable = str(atom.attrs[0])
        return self._values_written(variable) if variable in self._slots else ()

    def _values_written(self, variable: str) -> Sequence[Form]:
        return [
            self.value(each, update.op)
            for update in self.updates.get(variable, ())
            if update.slot == 0
            for each in self.data(update.op)[1:]
        ]

    # --- values ---

    def state(self, variable: str, mask: int) -> Form:
        """The value of a variable after the updates in a mask: an atom."""
        done = [each.op for each in self.updates.get(variable, ()) if mask & self._bits[each.op]]
        shape = self.shape_of_variable(variable)
        attrs = (variable, *done)
        return self.terms.atom("Var", attrs, (), shape, origin=self.origin(variable))

    def variable(self, name: str) -> Form:
        """The value of a variable before the step."""
        return self.state(name, 0)

    def value(self, source: str, reader: str = "") -> Form:
        """The form of a tensor, as an op reads it."""
        if producer_of(source) not in self.ops:
            return self.terms.atom("Feed", (source,), (), None)
        return super().value(source, reader)

    def operand(self, op: str, number: int) -> Form:
        """The form of a tensor that an op reads."""
        variable = self.placement.loop_variables.get(op, {}).get(number)
        if variable is not None:
            return self.terms.atom("Feed", (variable,), (), None)
        return super().operand(op, number)

    def _needed(self, tensor: str) -> Sequence[str]:
        name = producer_of(tensor)
        kind = self.ops[name].type
        is_atom = name in self._backward_ops or kind in _OWN_VALUES or is_update(kind)
        if is_atom or kind == "ReadVariableOp":
            return []
        return super()._needed(tensor)

    def _computed(self, name: str, output: int) -> Form:
        terms, op, node = self.terms, self.ops[name], Node(self, name, output)
        if name in self._backward_ops:
            return self._atom("Backward", node)
        if op.type in _OWN_VALUES:
            return self._atom("Feed", node)
        if is_update(op.type) and name in self._bits:
            holder = self.holder.get(producer_of(self.data(name)[0]))
            if holder is not None:
                return self.state(holder, self._awaited[name])
        if op.type in LOOPS:
            return self._atom("Backward" if name in self._calls_of_backward else op.type, node)
        if op.type in SCALES and all(map(terms.is_backward, node.operands)):
            return terms.atom(op.type, (), node.operands, node.shape, origin=node.origin)
        form = super()._computed(name, output)
        made = terms.single(form)
        if made is not None and made.op == "Unknown" and self.data(name):
            return self._atom(op.type, node)
        return form

    def _atom(self, op: str, node: Node) -> Form:
        operands = () if op in ("Backward", "Feed") else node.operands
        attrs = (node.name, node.output)
        return self.terms.atom(op, attrs, operands, node.shape, origin=node.origin)

    @cached_property
    def _calls_of_backward(self) -> Collection[str]:
        """The calls, branches and loops whose bodies compute gradients."""
        found: set[str] = set()
        for name in self._backward_ops:
            call = self.ops[name].caller
            while call and call not in found:
                found.add(call)
                call = self.ops[call].caller
        return found


def _of_same_shape(changes: StepChanges, atom: Atom) -> Sequence[Form]:
    """The operands of an atom that may be gradients: not a norm, if another one is a tensor."""
    if atom.op not in SCALES | BOUNDS:
        return atom.operands
    alike = [each for each in atom.operands if changes.terms.shape(each) == atom.shape]
    return alike or atom.operands
