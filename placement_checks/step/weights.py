"""How often each term of the losses counts in an update, compared with the update for one GPU.

The update of a variable takes a sum of gradients: ``1/2 · gradient of the loss of part 1 + …``. A
coefficient there is the product of a coefficient in the loss and of all factors on the way to the
update. Each summand is compared with the summand for one GPU that it becomes if its part is
replaced by the whole batch (`Terms.lifted`).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from placement_checks.step.kinds import (
    OF_SHAPES,
    ONE,
    AtomId,
    Cause,
    Form,
    Kind,
    Monomial,
    Origin,
    RowExtent,
)
from placement_checks.step.op_types import INSENSITIVE, op_type
from placement_checks.step.parts import WHOLE, Cut, Part, are_all_rows, finest, within
from placement_checks.step.terms import Atom, Terms, are_close
from placement_checks.util.walks import walk

_MAX_VISITED = 10_000
# Ops that grow like their operands.
_HOMOGENEOUS = frozenset({"Abs", "Conditional", "Maximum", "Minimum", "Relu"})


class ExampleTerm(NamedTuple):
    """A loss term that depends on examples.

    Attributes:
        ratios: for each part of the batch, how often the term counts, compared with one GPU; 0
            if the update lacks it. The ratio of a term that one GPU lacks is infinite.
        is_mean: whether it is divided by a number of rows.
        joint: why it is no sum over rows, so that its values on parts do not add up; else None.
        is_guess: whether it is only assumed to be the same term in both programs, because each has
            one such term. One of them may be the other one times a number.
        origin: the op that computes the term; None if it is unknown.
    """

    ratios: Mapping[Part, float]
    is_mean: bool
    joint: Cause | None
    is_guess: bool
    origin: Origin | None


class Penalty(NamedTuple):
    """A loss term that depends on no example.

    Attributes:
        op: the type of the op that computes it.
        coefficient: its coefficient in all towers together.
        expected: its coefficient on one GPU.
        origin: the op that computes it; None if only one GPU has it.
    """

    op: str
    coefficient: float
    expected: float
    origin: Origin | None


class Weights(NamedTuple):
    """The terms in the update of one variable.

    Attributes:
        examples: the terms that depend on examples.
        penalties: the terms that do not.
        rates: settings of the optimizer, such as its learning rate, as multiples of those on one
            GPU, if they differ.
        is_same_batch: whether both programs have the same fixed number of rows in all.
    """

    examples: Sequence[ExampleTerm] = ()
    penalties: Sequence[Penalty] = ()
    rates: Sequence[float] = ()
    is_same_batch: bool = False


class _Place(NamedTuple):
    """Two forms at the same place of two values, with the other operands of their op."""

    ours: Form
    theirs: Form
    beside: Sequence[tuple[Form, Form]] = ()


class Summand(NamedTuple):
    """A summand of a sum of gradients.

    Attributes:
        gradient: the gradient.
        lifted: the summand with its part replaced by the whole batch, and without its coefficient.
        part: the part; None if the summand depends on no example.
        number: the coefficient of ``lifted`` if the summands of all parts have this coefficient.
        is_mean: whether it is divided by a number of rows.
        joint: why the gradient is no sum over rows; else None.
    """

    gradient: Atom
    lifted: Form
    part: Part | None
    number: float
    is_mean: bool = True
    joint: Cause | None = None


def compare_weights(
    terms: Terms, ours: Form, theirs: Form, parts: Mapping[Origin, Part]
) -> Weights | Cause:
    """Compare the gradients in two values of a variable after the step.

    Args:
        terms: the terms.
        ours: the change of the variable, or its gradient, in the program for several GPUs.
        theirs: the same in the program for one GPU.
        parts: the part of the batch that the loss of a backward op is computed from.

    Returns:
        The weights, without terms if all gradients are equal; or the reason why they cannot be
        compared.
    """
    place = _find_gradients(terms, ours, theirs)
    if not isinstance(place, _Place):
        return place
    unlike = _unlike_scales(terms, place.ours, place.theirs)
    if unlike is not None:
        return unlike
    many = loss_summands(terms, place.ours, parts)
    one = loss_summands(terms, place.theirs, parts)
    if isinstance(many, Cause):
        return many
    if isinstance(one, Cause):
        return one
    examples = _examples(terms, many, one)
    if isinstance(examples, Cause):
        return examples
    penalties = _penalties(terms, many, one)
    if isinstance(penalties, Cause):
        return penalties
    rates = [multiple(terms, *pair) for pair in place.beside]
    return Weights(
        examples,
        penalties,
        rates=[each for each in rates if each is not None],
        is_same_batch=WHOLE in terms.fixed,
    )


def sources_of_gradients(terms: Terms, forms: Iterable[Form]) -> set[str]:
    """The variables that gradients in forms are taken of; empty if one is of another tensor."""
    found = set()

    def below(atom: AtomId) -> Sequence[AtomId]:
        is_between = terms[atom].is_backward and terms[atom].op != "Grad"
        return terms.atoms_of_operands(atom) if is_between else ()

    for atom in walk((atom for form in forms for atom in terms.atoms_in(form)), below):
        if terms[atom].op == "Grad":
            source = terms.single(terms[atom].operands[1])
            if source is None or source.op != "Var":
                return set()
            found.add(str(source.attrs[0]))
    return found


def multiple(terms: Terms, form: Form, other: Form) -> float | None:
    """How many times another form a form is; None if it is no multiple of it."""
    one, two = dict(terms.summands(form)), dict(terms.summands(other))
    if one and one.keys() == two.keys():
        ratios = [number / two[monomial] for monomial, number in one.items()]
        return ratios[0] if are_close(ratios) else None
    if len(one) != 1 or len(two) != 1:
        return None
    (((base, factors), number),) = one.items()
    (((its, others), divisor),) = two.items()
    if factors != others or terms[base].op != terms[its].op or terms[base].op != "RealDiv":
        return None
    (dividend, below), (its_dividend, its_below) = terms[base].operands, terms[its].operands
    times = multiple(terms, dividend, its_dividend) if below == its_below else None
    return None if times is None else times * number / divisor


def _has_gradients(terms: Terms, form: Form) -> bool:
    return any(gradient_in(terms, monomial) is not None for monomial, _ in terms.summands(form))


def _find_gradients(terms: Terms, ours: Form, theirs: Form) -> _Place | Weights | Cause:
    """The first place where both forms are sums of gradients, and differ.

    There is none if gradients are equal everywhere, or if the ops on the way are not alike.
    """
    stack = [_Place(ours, theirs)]
    seen: set[tuple[Form, Form]] = set()
    unlike: Cause | None = None
    while stack and len(seen) < _MAX_VISITED:
        place = stack.pop()
        pair = place.ours, place.theirs
        if pair in seen or place.ours == place.theirs:
            continue
        seen.add(pair)
        if all(_has_gradients(terms, form) for form in pair):
            return place
        one, other = (_backward_atoms(terms, *sides) for sides in (pair, pair[::-1]))
        if not one and not other:
            continue
        atoms = [terms[atom] for atom in (*one, *other)]
        is_pair = len(one) == len(other) == 1 and one != other and atoms[0].op == atoms[1].op
        is_pair = is_pair and len(atoms[0].operands) == len(atoms[1].operands)
        if not is_pair or atoms[0].op in INSENSITIVE:
            text = "takes gradients in another way than on one GPU"
            unlike = unlike or Cause(atoms[0].op, text, atoms[0].origin)
            continue
        pairs = list(zip(atoms[0].operands, atoms[1].operands, strict=True))
        stack += [
            _Place(*each, [other for other in pairs if other != each]) for each in pairs[::-1]
        ]
    return unlike or Weights()


def _backward_atoms(terms: Terms, form: Form, other: Form) -> Sequence[AtomId]:
    """The atoms with gradients, of the summands of a form that another form lacks."""
    known = dict(terms.summands(other))
    found: dict[AtomId, None] = {}
    for monomial, number in terms.summands(form):
        if known.get(monomial) != number:
            atoms = (monomial[0], *(atom for atom, _ in monomial[1]))
            found |= dict.fromkeys(atom for atom in atoms if terms[atom].is_backward)
    return list(found)


def gradient_in(terms: Terms, monomial: Monomial) -> AtomId | None:
    """The gradient in a monomial; None if there is none."""
    base, factors = monomial
    if base != ONE:
        return base if terms[base].op == "Grad" else None
    found = [atom for atom, power in factors if terms[atom].op == "Grad" and power == 1]
    return found[0] if len(found) == 1 else None


def loss_summands(
    terms: Terms, form: Form, parts: Mapping[Origin, Part]
) -> Sequence[Summand] | Cause:
    """The summands of a sum of gradients. What is no gradient, such as weight decay, is left out.

    Factors that depend on gradients are left out. A clip counts as for gradients that it does not
    clip.
    """
    gradients: list[tuple[AtomId, Monomial, float]] = []
    for monomial, number in terms.summands(form):
        gradient = gradient_in(terms, monomial)
        if gradient is None:
            if terms.is_backward_monomial(monomial):
                atom = terms[max(monomial[0], *(atom for atom, _ in monomial[1]), ONE)]
                return Cause(atom.op, "is added to gradients", atom.origin)
            continue
        scale = _scale(terms, monomial, gradient)
        rest = tuple(each for each in monomial[1] if each not in scale)
        factor = _unclipped(terms, scale)
        number *= 1.0 if isinstance(factor, Cause) else factor
        gradients.append((gradient, (monomial[0], rest), number))
    found: list[Summand] = []
    for gradient, monomial, number in gradients:
        atom = terms[gradient]
        made = _lifted(terms, atom, monomial, number)
        if isinstance(made, Cause):
            part = parts.get(atom.origin) if atom.origin else None
            if part and _has_pairs_of_rows(terms, atom.operands[0], part):
                return made
            guess = _guessed(terms, atom, monomial, number, part)
            is_repeated = guess and any(
                (each.lifted, each.part) == (guess.lifted, guess.part) for each in found
            )
            if guess is None or is_repeated:
                return made
            made = guess
        found.append(made)
    return found


_Scale = frozenset[tuple[AtomId, int]]


def _scale(terms: Terms, monomial: Monomial, gradient: AtomId) -> _Scale:
    """The factors of a gradient that depend on gradients."""
    factors = [each for each in monomial[1] if each[0] != gradient]
    return frozenset(each for each in factors if terms[each[0]].is_backward)


def _unlike_scales(terms: Terms, ours: Form, theirs: Form) -> Cause | None:
    """Why the factors that depend on gradients cannot be compared with those on one GPU.

    All summands must share these factors. Factors that are no clips, such as one divided by the
    norm, may undo a factor of the gradients.
    """
    found: list[_Scale] = []
    for form in (ours, theirs):
        scales = {
            _scale(terms, monomial, gradient)
            for monomial, _ in terms.summands(form)
            if (gradient := gradient_in(terms, monomial)) is not None
        }
        if len(scales) > 1:
            atom = terms[max(atom for scale in scales for atom, _ in scale)]
            text = "multiplies only some terms of the loss, and is not a constant"
            return Cause(atom.op, text, atom.origin)
        found += scales
    if found[0] == found[1]:
        return None
    factors = [_unclipped(terms, each) for each in found]
    return next((each for each in factors if isinstance(each, Cause)), None)


def _unclipped(terms: Terms, scale: _Scale) -> float | Cause:
    """The factor of gradients that clips do not clip; a cause if they are no clips."""
    number = 1.0
    for key, power in scale:
        atom = terms[key]
        bounds = [terms.constant(each) for each in atom.operands]
        known = [each for each in bounds if each]
        if atom.op not in ("Minimum", "Maximum") or len(known) != 1:
            text = "multiplies the gradients, and depends on them in another way than a clip"
            return Cause(atom.op, text, atom.origin)
        number *= known[0] ** power
    return number


def _guessed(
    terms: Terms, gradient: Atom, monomial: Monomial, number: float, part: Part | None
) -> Summand | None:
    """A gradient of a part's loss that cannot be followed; None if it is no sum or mean.

    The elements are assumed not to depend on the number of rows. ``lifted`` has only the factors.
    """
    losses = [monomial for monomial, _ in terms.summands(gradient.operands[0])]
    if part is None or len(part) != 1 or len(losses) != 1:
        return None
    ((base, inner),) = losses
    ops = [(terms[atom].op, power) for atom, power in ((base, 1), *inner) if atom != ONE]
    if not any(op in ("Sum", "Mean") for op, _ in ops):
        return None
    factors = []
    degree = sum(power for op, power in ops if op in ("Sum", "Dim")) - 1
    for atom, power in monomial[1]:
        if terms[atom] is gradient:
            continue
        if terms[atom].parts <= {WHOLE}:
            factors.append((atom, power))
        elif terms[atom].finest == part and terms[atom].status.kind is Kind.SUM:
            degree += power
        else:
            return None
    number *= float(part[-1].share) ** degree
    lifted = terms.form({(ONE, tuple(factors)): 1.0})
    joint = gradient.status.cause or Cause(gradient.op, "cannot be followed", gradient.origin)
    return Summand(gradient, lifted, part, number, joint=joint)


def _has_pairs_of_rows(terms: Terms, form: Form, part: Part) -> bool:
    """Whether a form is computed from a tensor that may have rows of a part on several axes.

    A sum of its elements is no sum over rows: each tower lacks the pairs with other towers' rows.
    """
    atoms = [terms[each] for each in terms.all_atoms_in([form]) if part in terms[each].parts]
    sizes = {terms.size(atom.origin.program, part) for atom in atoms if atom.origin} - {None}
    for operand in {each for atom in atoms for each in atom.operands}:
        axes = [
            isinstance(extent, RowExtent) or extent is None or extent in sizes
            for extent in terms.shape(operand) or ()
        ]
        kind = terms.status(operand, part).kind
        if axes.count(True) > 1 and kind in (Kind.JOINT, Kind.UNKNOWN):
            return True
    return False


def _lifted(terms: Terms, gradient: Atom, monomial: Monomial, number: float) -> Summand | Cause:
    if not terms.parts_of(monomial):
        return Summand(gradient, terms.form({monomial: 1.0}), None, number)
    whole, joint = terms.form({monomial: 1.0}), None
    part = path = finest(terms.parts_of(monomial))
    while part:
        ((monomial, factor),) = terms.summands(whole)
        lifted = terms.lifted(monomial, part)
        if isinstance(lifted, Cause):
            degree = degree_in_rows(terms, monomial, part)
            if degree is None or _has_pairs_of_rows(terms, whole, part):
                return lifted
            joint = lifted
            share = float(part[-1].share) ** (degree - 1)
            lifted = terms.with_part(terms.form({monomial: 1.0}), part, part[:-1]), share
        whole, share = lifted
        number *= share * factor
        if len(terms.summands(whole)) != 1:
            return Cause(gradient.op, "has several terms on the whole batch", gradient.origin)
        part = part[:-1]
    if part is None or path is None:
        return Cause(gradient.op, "combines rows of several towers", gradient.origin)
    ((monomial, factor),) = terms.summands(whole)
    is_mean = any(terms[atom].op == "Rows" and power < 0 for atom, power in monomial[1])
    return Summand(
        gradient,
        terms.form({monomial: 1.0}),
        path,
        number * factor,
        is_mean=is_mean or joint is not None,
        joint=joint,
    )


def degree_in_rows(terms: Terms, monomial: Monomial, part: Part) -> int | None:
    """The power of the number of rows that a term grows with; None if it is unknown.

    It is 1 for a sum over rows, and 0 for a mean, for the root of a mean, and for a row.
    """
    degree = 0
    for atom, power in ((monomial[0], 1), *monomial[1]):
        found = _degree_of(terms, terms[atom], part)
        if found is None:
            return None
        degree += power * found
    return degree


def _degree_of(terms: Terms, atom: Atom, part: Part) -> int | None:
    if not any(within(each, part) for each in atom.parts):
        return 0
    if atom.finest != part or atom.status.kind is Kind.UNKNOWN:
        return None
    if atom.op == "Grad":
        degrees = {
            degree_in_rows(terms, each, part) for each, _ in terms.summands(atom.operands[0])
        }
        return degrees.pop() if len(degrees) == 1 else None
    if atom.op == "Rows" or atom.status.kind is Kind.SUM:
        return 1
    if atom.op in ("Leaf", "MeanOf") or atom.op.startswith(("Apply", "SparseApply")):
        return 0
    forms = atom.operands[1:] if atom.op == "Conditional" else atom.operands
    if atom.op in ("Maximum", "Minimum"):  # a count of rows that is at least 1 is a count of rows
        forms = tuple([form for form in forms if terms.parts(form)])
    degrees = {
        degree_in_rows(terms, monomial, part)
        for form in forms
        for monomial, _ in terms.summands(form)
    }
    degree = degrees.pop() if len(degrees) == 1 else None
    if degree is None or atom.op in _HOMOGENEOUS:
        return degree
    if atom.op == "Sum":
        extents = _summed_extents(terms, atom)
        return None if extents is None else degree + extents
    known = op_type(atom.op)
    is_of_elements = known is not None and known.is_elementwise
    return 0 if degree == 0 and (is_of_elements or atom.status.kind is Kind.ROWS) else None


def _summed_extents(terms: Terms, atom: Atom) -> int | None:
    """Over how many axes of rows a sum goes; None if it is unknown."""
    shape, axes = terms.shape(atom.operands[0]), atom.attrs[0]
    if shape is None or axes is None:
        return None
    extents = [shape[axis] for axis in axes]
    if any(extent is None or extent == RowExtent(None) for extent in extents):
        return None
    return sum(isinstance(extent, RowExtent) for extent in extents)


def _examples(
    terms: Terms, many: Sequence[Summand], one: Sequence[Summand]
) -> Sequence[ExampleTerm] | Cause:
    ours, theirs = _by_term(many), _by_term(one)
    if not ours or not theirs:
        return Cause("", "no term of the loss depends on examples")
    paths = _all_paths(
        {path for side in (ours, theirs) for by_part in side.values() for path in by_part}
    )
    if paths is None:
        return Cause("", "the update takes the gradients of some rows only")
    found = []
    for term, its in _pairs(ours, theirs):
        mine, other = ours.get(term, {}), theirs.get(its, {})
        summands = [each for each in (*many, *one) if each.lifted in (term, its)]
        found.append(
            ExampleTerm(
                {path: _ratio(_number(mine, path), _number(other, path)) for path in paths},
                any(each.is_mean for each in summands),
                next((each.joint for each in summands if each.joint), None),
                term != its,
                loss_of(terms, summands[0].gradient)[1],
            )
        )
    return found


def _pairs(ours: Collection[Form], theirs: Collection[Form]) -> Sequence[tuple[Form, Form]]:
    """The terms of both programs that correspond: equal terms, and the only other term of each."""
    own = [term for term in ours if term not in theirs]
    other = [term for term in theirs if term not in ours]
    same = [(term, term) for term in ours if term in theirs]
    if len(own) == len(other) == 1:
        return [*same, (own[0], other[0])]
    return [*same, *((term, term) for term in (*own, *other))]


def _by_term(summands: Sequence[Summand]) -> Mapping[Form, Mapping[Part, float]]:
    """The coefficients of the terms that depend on examples, by term and part."""
    found: defaultdict[Form, defaultdict[Part, float]] = defaultdict(lambda: defaultdict(float))
    for each in summands:
        if each.part is not None:
            found[each.lifted][each.part] += each.number
    return found


def _all_paths(paths: Collection[Part]) -> Sequence[Part] | None:
    """The smallest parts, and the parts beside them; None if these are unknown."""
    cuts: defaultdict[Part, set[Cut]] = defaultdict(set)
    for path in paths:
        for depth, cut in enumerate(path):
            cuts[path[:depth]].add(cut)
    found, stack = [], [WHOLE]
    while stack:
        around = stack.pop()
        if around not in cuts:
            found.append(around)
            continue
        parts = _siblings(cuts[around])
        if parts is None:
            return None
        stack += [(*around, cut) for cut in parts]
    return sorted(found)


def _siblings(cuts: Collection[Cut]) -> Collection[Cut] | None:
    """All parts of the rows that some parts were cut from; None if they are unknown."""
    if are_all_rows(cuts):
        return cuts
    first = next(iter(cuts))
    if first.parts and all(cut.siblings == first.siblings for cut in cuts):
        return [first._replace(number=number) for number in range(first.parts)]
    return None


def _number(by_part: Mapping[Part, float], path: Part) -> float:
    """The coefficient of a part: its own, and those of the parts around it."""
    return sum(by_part.get(path[:depth], 0.0) for depth in range(len(path) + 1))


def _ratio(number: float, expected: float) -> float:
    if expected:
        return number / expected
    return math.inf if number else 0.0


def _penalties(
    terms: Terms, many: Sequence[Summand], one: Sequence[Summand]
) -> Sequence[Penalty] | Cause:
    totals: defaultdict[Form, list[float]] = defaultdict(lambda: [0.0, 0.0])
    gradients: dict[Form, Atom] = {}
    for number, side in enumerate((many, one)):
        for each in side:
            if each.part is None:
                totals[each.lifted][number] += each.number
                gradients.setdefault(each.lifted, each.gradient)
    found = []
    scaled = Counter(gradients.values())
    for lifted, (coefficient, expected) in totals.items():
        op, origin = loss_of(terms, gradients[lifted])
        if scaled[gradients[lifted]] > 1:
            return Cause(op, "is a penalty that the towers multiply by different numbers", origin)
        found.append(Penalty(op, coefficient, expected, origin))
    return found


def loss_of(terms: Terms, gradient: Atom) -> tuple[str, Origin | None]:
    """The op type that computes the loss of a gradient, and the op."""
    atoms = [terms[atom] for atom in terms.atoms_in(gradient.operands[0]) if atom != ONE]
    last = [atom for atom in atoms if atom.op not in OF_SHAPES][-1:] or [gradient]
    return last[0].op, last[0].origin
