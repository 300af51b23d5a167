"""Gradients as terms, and copies of variables.

The gradient of a recorded call is an atom, linear in its loss: TensorFlow differentiates
correctly, so the backward ops are not read. It has the kind of its loss: the gradient of a sum
over rows is a sum over rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from functools import cached_property

from placement_checks.step.kinds import ONE, AtomId, Form
from placement_checks.step.terms import Atom, Build, Terms


def gradient(build: Build) -> Form:
    """The gradient of a loss with respect to a tensor: one atom for each term of the loss."""
    terms = build.terms
    loss, source = build.operands
    targets = frozenset(atom for atom in terms.atoms_in(source) if atom != ONE)
    total = []
    for monomial, number in terms.summands(loss):
        base, factors = monomial
        moving = [
            (atom, power)
            for atom, power in ((base, 1), *factors)
            if atom != ONE and terms.atom_depends(atom, targets)
        ]
        if not moving:
            continue
        fixed: tuple[tuple[AtomId, int], ...] = ()
        if moving == [(base, 1)] or (base == ONE and len(moving) == 1 and moving[0][1] == 1):
            term = without_needless_stops(terms, terms.of(moving[0][0]), targets)
            fixed = tuple(factor for factor in factors if factor not in moving)
        else:
            term = terms.form({monomial: 1.0})
        made = terms.atom("Grad", build.attrs, (term, source), build.shape, origin=build.origin)
        scale = terms.form({(ONE, fixed): 1.0})
        total.append((terms.product(made, scale) if fixed else made, number))
    return terms.add(*total)


def without_needless_stops(terms: Terms, form: Form, targets: frozenset[AtomId]) -> Form:
    """A loss without ``StopGradient`` ops of values that do not depend on the targets."""

    def replace(atom_id: AtomId, of_form: Callable[[Form], Form]) -> Form | None:
        atom = terms[atom_id]
        if atom.op == "StopGradient":
            inner = atom.operands[0]
            return terms.of(atom_id) if terms.contains(inner, targets) else of_form(inner)
        return terms.of(atom_id) if atom.op == "Grad" else None

    if not terms.stops(form):
        return form
    memo = terms.memo("unstopped", targets)
    return terms.rewrite(form, memo, lambda atom: atom.stops, replace)


def gathered_gradient(build: Build) -> Form:
    """The sum of rows by indices: the gradient of the table, if they are a gradient's rows."""
    terms = build.terms
    values, indices = build.operands
    index = terms.single(indices)
    total = []
    for monomial, number in terms.summands(values):
        made = _dense_gradient(build, terms[monomial[0]], indices, index)
        if made is None:
            operands = (terms.tensor_of(monomial), indices)
            made = terms.atom("Slices", build.attrs, operands, build.shape, origin=build.origin)
        total.append((terms.product(made, terms.scalar_factor(monomial)), number))
    return terms.add(*total)


def _dense_gradient(build: Build, atom: Atom, indices: Form, index: Atom | None) -> Form | None:
    terms = build.terms
    if index is not None and index.op == "Unique" and atom.op == "UnsortedSegmentSum":
        segments = terms.single(atom.operands[1])
        if (
            segments is not None
            and segments.op == "Unique"
            and segments.operands == index.operands
            and (index.attrs[-1:], segments.attrs[-1:])
            == ((0,), (1,))  # values, and their numbers
        ):
            operands = (atom.operands[0], index.operands[0])
            return terms.build("Slices", (), operands, build.shape, build.origin)
    is_joined = index is not None and index.op == atom.op == "ConcatV2"
    if index is not None and is_joined and len(index.operands) == len(atom.operands):
        pairs = zip(atom.operands, index.operands, strict=True)
        made = [terms.build("Slices", (), pair, build.shape, build.origin) for pair in pairs]
        return terms.add(*((each, 1.0) for each in made))
    found: Atom | None = atom
    if atom.op == "Reshape":
        found = terms.single(atom.operands[0])
    if found is not None and found.op == "Grad" and _looks_up(terms, found, indices):
        attrs = tuple(each for each in found.attrs if each != "values")
        return terms.atom("Grad", attrs, found.operands, build.shape, origin=found.origin)
    return None


def _looks_up(terms: Terms, gradient: Atom, indices: Form) -> bool:
    """Whether the loss of a gradient looks up rows of its source by exactly these indices."""
    loss, table = gradient.operands
    found = {
        _flat(terms, atom.operands[1])
        for atom in map(terms.__getitem__, terms.all_atoms_in([loss]))
        if atom.op == "GatherV2" and atom.operands[0] == table
    }
    joined = terms.single(indices)
    if joined is not None and joined.op == "ConcatV2" and len(joined.operands) == len(found):
        return {_flat(terms, operand) for operand in joined.operands} == found
    return found == {_flat(terms, indices)}


def _flat(terms: Terms, form: Form) -> Form:
    atom = terms.single(form)
    return atom.operands[0] if atom is not None and atom.op == "Reshape" else form


class Names(dict[AtomId, AtomId]):
    """The atom of a variable for the atom of each copy."""

    def __hash__(self) -> int:  # type: ignore[override]
        return id(self)

    @cached_property
    def alike(self) -> Mapping[AtomId, Collection[AtomId]]:
        """For each atom that stands for others, these atoms, and itself if nothing replaces it."""
        found: defaultdict[AtomId, set[AtomId]] = defaultdict(set)
        for each in (*self, *self.values()):
            found[self.get(each, each)].add(each)
        return found


def with_names(terms: Terms, form: Form, names: Names) -> Form:
    """A form with copies of variables replaced by the variable, for gradients already taken.

    Copies are equal before the step, if they start equal and every step keeps them equal. But a
    gradient with respect to one copy is not the gradient with respect to the variable: if its loss
    reads another copy, too, the gradient stays apart.

    Args:
        terms: the terms.
        form: the form.
        names: the atom of the variable for the atom of each copy.
    """
    if not names:
        return form

    def replace(atom_id: AtomId, of_form: Callable[[Form], Form]) -> Form | None:
        if atom_id in names:
            return terms.of(names[atom_id])
        atom = terms[atom_id]
        if atom.op != "Grad":
            return None
        own = set(terms.atoms_in(atom.operands[1]))
        same = {names.get(each, each) for each in own}
        others = frozenset().union(*[names.alike.get(each, ()) for each in same]) - own
        if not others or not terms.depends(atom.operands[0], others):
            return None
        operands = tuple([of_form(operand) for operand in atom.operands])
        attrs = (*atom.attrs, "of one copy")
        return terms.atom("Grad", attrs, operands, atom.shape, origin=atom.origin)

    memo = terms.memo("names", names)
    return terms.rewrite(form, memo, lambda atom: atom.varies, replace)


def with_values(terms: Terms, form: Form, values: Mapping[AtomId, Form]) -> Form:
    """A form with variables replaced by values that they are known to have."""
    if not values:
        return form

    def replace(atom_id: AtomId, _: Callable[[Form], Form]) -> Form | None:
        return values.get(atom_id)

    memo = terms.memo("values", frozenset(values.items()))
    return terms.rewrite(form, memo, lambda atom: atom.varies, replace)
