"""The objective of a variable: the loss terms that its update minimizes, with coefficients.

The update is read into terms, like the updates that `step.comparison` compares. The means of all
towers add up to one mean there, so the objective of a sound program is the objective on one GPU.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from math import isclose
from typing import NamedTuple

from placement_checks.core.op_types import MEAN, SUM
from placement_checks.core.placement import Placement, producer_of
from placement_checks.step.gradients import with_names
from placement_checks.step.graph import training_runs
from placement_checks.step.kinds import AtomId, Cause, Form, Kind, Monomial
from placement_checks.step.op_types import op_type
from placement_checks.step.parts import WHOLE, Part, are_all_rows, describe, finest, share
from placement_checks.step.reader import StepReader
from placement_checks.step.stages import GradientStages
from placement_checks.step.statistics import with_means
from placement_checks.step.terms import Atom, Terms, are_close
from placement_checks.step.weights import Summand, loss_of, loss_summands
from placement_checks.util.text import plural

_LARGEST_DENOMINATOR = 64  # other coefficients are decimal


class LonePenalty(NamedTuple):
    """A penalty that one tower adds alone, although the mean of the gradients is taken.

    Attributes:
        variable: the variable that it depends on.
        op: the op that computes it.
        objective: the loss of the tower, which contains it.
        towers: the number of towers that train the variable: the gradient is divided by it.
    """

    variable: str
    op: str
    objective: str
    towers: int


def read_objectives(
    placement: Placement,
    variables: Collection[str],
    *,
    towers: Sequence[Collection[str]],
    copies: Mapping[str, str],
) -> tuple[Mapping[str, str], Sequence[LonePenalty]]:
    """Describe what a program minimizes, such as ``mean + 0.05 L2Loss(variable)``.

    Args:
        placement: the program.
        variables: the trained variables.
        towers: for each tower, the ops that its losses are computed from.
        copies: the first copy of each mirrored variable.

    Returns:
        The objective of each variable, as a sum of kinds of terms, and the penalties that one
        tower alone adds. An objective does not depend on the names of ops, and a mean over the
        whole batch does not depend on the number of towers, or on differences between their
        models. Variables whose updates cannot be read are left out.
    """
    found: dict[str, str] = {}
    penalties: list[LonePenalty] = []
    for roots in training_runs(placement):
        terms = Terms(op_type, statistics=with_means, decisions=True, equal_rows=True)
        reader = StepReader(terms, placement, 0, roots, copies)
        reader.batch.assign_to_towers(towers)
        terms.fixed = reader.batch.fix_sizes() or {}
        objectives = _Objectives(reader, variables, towers)
        found |= objectives.texts()
        penalties += objectives.lone_penalties()
    return found, penalties


class _Unit(NamedTuple):
    """The op that computes a loss term, as the unit of its coefficient.

    Attributes:
        kind: the op's type.
        number: the number that the op multiplies a sum over rows by.
        rows: the power of the number of rows that it multiplies the sum by.
    """

    kind: str
    number: float = 1.0
    rows: int = 0


class _Summand(NamedTuple):
    """A loss term of examples in an objective.

    Attributes:
        number: the coefficient, of a mean as a multiple of the mean over all rows.
        scalars: the scalar factors in words.
        kind: ``mean``, ``sum`` or the type of another op.
        part: the rows that the term is computed from.
    """

    number: float
    scalars: str
    kind: str
    part: Part

    @property
    def coefficient(self) -> float:
        return self.number if self.kind == "sum" else self.number * float(share(self.part))

    @property
    def name(self) -> str:
        return f"{self.scalars}{self.kind}{f' on {describe(self.part)}' if self.part else ''}"


class _Loss(NamedTuple):
    """A loss of a tower.

    Attributes:
        objective: the tensor.
        tower: the number of its tower.
        trained: the variables that it trains; of copies, the first.
        penalties: its summands that depend on no example, for each variable that they read.
    """

    objective: str
    tower: int
    trained: Collection[str]
    penalties: Mapping[str, Sequence[tuple[Monomial, float]]]


class _Objectives:
    """The objectives of the variables that one run trains."""

    def __init__(
        self,
        reader: StepReader,
        variables: Collection[str],
        towers: Sequence[Collection[str]],
    ) -> None:
        self._reader, self._variables, self._towers = reader, variables, towers
        self._terms, self._stages = reader.terms, GradientStages(reader)
        self._names = reader.atoms_of_copies

    def texts(self) -> Mapping[str, str]:
        """The objective of each variable, if its update can be read."""
        texts = {each: self._text(own, each) for each, own in self._summands.items()}
        first = {each: self._reader.copies.get(each, each) for each in self._variables}
        return {each: text for each, name in first.items() if (text := texts.get(name))}

    @cached_property
    def _summands(self) -> Mapping[str, Sequence[Summand]]:
        """The loss terms of each variable, if its update can be read; of copies, the first."""
        found = {}
        for variable in dict.fromkeys(self._reader.copies.get(x, x) for x in self._variables):
            gradients = self._gradients(variable)
            if gradients is not None:
                own = loss_summands(self._terms, gradients, self._reader.parts_of_gradients)
                if not isinstance(own, Cause):
                    found[variable] = own
        return found

    # --- penalties of one tower ---

    def lone_penalties(self) -> Iterator[LonePenalty]:
        """Yield the penalties that one tower adds alone, if the gradients of towers are averaged.

        Then the gradient of the penalty is divided by the number of towers, but the other towers
        have no penalty on the variable. A penalty counts in full if gradients are added up, or if
        it is added to their mean.
        """
        for variable, summands in self._summands.items():
            losses = {each.objective: each for each in self._losses if variable in each.trained}
            towers = len({each.tower for each in losses.values()})
            penalized = [each for each in losses.values() if variable in each.penalties]
            if towers < 2 or len(penalized) != 1:
                continue
            for (base, factors), number in penalized[0].penalties[variable]:
                for each in summands:
                    ((term, others),) = self._in(each.gradient.operands[0])
                    is_its = each.part is None and term == base and set(others) <= set(factors)
                    counted = abs(each.number / number)
                    _, origin = loss_of(self._terms, each.gradient)
                    if is_its and origin and isclose(counted * towers, 1.0, rel_tol=1e-4):
                        yield LonePenalty(variable, origin.op, penalized[0].objective, towers)

    @cached_property
    def _losses(self) -> Sequence[_Loss]:
        """The losses of examples, each with the number of its tower."""
        reader, terms, found = self._reader, self._terms, list[_Loss]()
        for number in sorted(reader.used_calls):
            call = reader.calls[number]
            sources = {reader.copies.get(source, source) for source in call.sources}
            for objective in call.objectives:
                op = producer_of(objective)
                own = [i for i, ops in enumerate(self._towers) if op in ops]
                form = with_names(terms, reader.value(objective), self._names)
                if len(own) == 1 and terms.parts(form):
                    trained = sources & self._read([form])
                    found.append(_Loss(objective, own[0], trained, self._penalties_in(form)))
        return found

    def _penalties_in(self, loss: Form) -> Mapping[str, Sequence[tuple[Monomial, float]]]:
        """The summands of a loss that depend on no example, for each variable that they read."""
        terms, found = self._terms, defaultdict[str, list[tuple[Monomial, float]]](list)
        for monomial, number in terms.summands(loss):
            if not terms.parts_of(monomial):
                for variable in self._read([terms.form({monomial: 1.0})]):
                    found[variable].append((monomial, number))
        return found

    # --- the gradients in an update ---

    def _gradients(self, variable: str) -> Form | None:
        """The sum of gradients that an update takes, without a learning rate; None if none."""
        found = self._stages.sum_of_gradients(variable)
        if found is None or not self._in(found):
            return None
        return self._without_rate(with_names(self._terms, found, self._names))

    def _in(self, form: Form) -> Sequence[Monomial]:
        return [monomial for monomial, _ in self._terms.summands(form)]

    def _without_rate(self, form: Form) -> Form:
        """A sum of gradients without common factors that only untrained variables determine."""
        terms = self._terms
        summands = terms.summands(form)
        common = set.intersection(*(set(factors) for (_, factors), _ in summands))
        rates = {(atom, power) for atom, power in common if self._is_rate(atom)}
        return terms.form(
            {
                (base, tuple(each for each in factors if each not in rates)): number
                for (base, factors), number in summands
            }
        )

    def _is_rate(self, atom: AtomId) -> bool:
        if self._terms[atom].parts or self._terms[atom].is_backward:
            return False
        read = self._read([self._terms.of(atom)])
        return bool(read) and read.isdisjoint(self._variables)

    def _read(self, forms: Sequence[Form]) -> set[str]:
        """The variables that forms depend on."""
        atoms = map(self._terms.__getitem__, self._terms.all_atoms_in(forms))
        return {atom.attrs[0] for atom in atoms if atom.op == "Var"}

    # --- loss terms in words ---

    def _text(self, summands: Sequence[Summand], variable: str) -> str:
        by_term: defaultdict[tuple[Form, bool], list[Summand]] = defaultdict(list)
        for each in summands:
            by_term[each.lifted, each.part is None].append(each)
        # The update subtracts a multiple of the gradients.
        sign = -1.0 if all(each.number < 0 for each in summands) else 1.0
        texts: Counter[tuple[bool, str, str]] = Counter()
        examples: list[_Summand] = []
        for (term, is_penalty), own in by_term.items():
            numbers: defaultdict[Part, float] = defaultdict(float)
            for each in own:
                numbers[each.part or WHOLE] += sign * each.number
            if is_penalty:
                number, name = self._penalty(term, own[0].gradient, numbers, variable)
                texts[True, name, _number(number, is_decimal=True)] += 1
            else:
                examples += self._example_term(term, own[0].gradient, numbers)
        for example in _joined(examples):
            texts[False, example.name, _number(example.coefficient, is_decimal=False)] += 1
        return " + ".join(
            f"{number}{name} ({times} times)" if times > 1 else f"{number}{name}"
            for (_, name, number), times in sorted(texts.items())
        )

    def _penalty(
        self, term: Form, gradient: Atom, numbers: Mapping[Part, float], variable: str
    ) -> tuple[float, str]:
        """The coefficient of a loss term that depends on no example, and its name."""
        unit = self._unit(gradient)
        others = len(self._read(gradient.operands[:1]) - {variable})
        also = f" and {plural(others, 'other')}" if others else ""
        scalars, _ = self._scalars(term)
        return numbers[WHOLE] / unit.number, f"{scalars}{unit.kind}(variable{also})"

    def _example_term(
        self, term: Form, gradient: Atom, numbers: Mapping[Part, float]
    ) -> Iterator[_Summand]:
        """The summands of an objective for a loss term: on all rows, or on parts of them."""
        unit = self._unit(gradient)
        scalars, rows = self._scalars(term)
        size, divided = self._size(WHOLE), unit.rows - rows
        is_mean = (unit.kind == MEAN and divided == 0) or (
            unit.kind == SUM and (divided == 1 or size > 1)
        )
        kind = "mean" if is_mean else "sum" if unit.kind in (MEAN, SUM) else unit.kind
        times = (size if is_mean else 1.0) / unit.number
        paths = sorted(path for path, number in numbers.items() if number)
        is_whole = _are_all_rows(paths) and are_close([numbers[path] for path in paths])
        if is_whole:
            yield _Summand(times * numbers[paths[0]], scalars, f"{kind} on each part", WHOLE)
        else:
            for path in paths:
                yield _Summand(times * numbers[path], scalars, kind, path)

    def _scalars(self, term: Form) -> tuple[str, int]:
        """The scalar factors of a term in words, and the power of the number of rows."""
        terms = self._terms
        ((_, factors),) = self._in(term)
        powers = [(terms[atom].op, power) for atom, power in factors if terms[atom].op != "Grad"]
        rows = sum(power for op, power in powers if op == "Rows")
        names = [
            "scalar" if power == 1 else f"scalar^{power}" for op, power in powers if op != "Rows"
        ]
        return "".join(f"{name} " for name in names), rows

    def _size(self, part: Part) -> float:
        """The number of rows of a part; 1 if the graph does not fix it."""
        fixed = self._terms.fixed
        return fixed.get(part) or fixed.get(WHOLE, 1 / float(share(part))) * float(share(part))

    def _unit(self, gradient: Atom) -> _Unit:
        """The op that computes the loss of a gradient."""
        terms, reader = self._terms, self._reader
        op, origin = loss_of(terms, gradient)
        name = origin.op if origin else ""
        if name not in reader.ops:
            is_sum = terms.status(gradient.operands[0], WHOLE).kind is Kind.SUM
            return _Unit(SUM if is_sum else op.removesuffix("Of"))
        kind, form = reader.ops[name].type, reader.value(name)
        computed = terms.summands(form)
        powers = {
            sum(power for each, power in factors if terms[each].op == "Rows")
            for (_, factors), _ in computed
        }
        rows = powers.pop() if len(powers) == 1 else 0
        if len(computed) != 1:
            return _Unit(kind, rows=rows)
        number = abs(computed[0][1])
        if kind == MEAN:  # times the number of rows, as a multiple of the rows of the whole batch
            part = finest(terms.parts(form)) or WHOLE
            number *= float(share(part)) if rows else self._size(part)
        return _Unit(kind, number, rows)


def _joined(summands: Sequence[_Summand]) -> Sequence[_Summand]:
    """Summands with means and sums of all parts as one, if their coefficients are equal.

    The losses of the parts may differ, for example by statistics of the rows of a tower. Scalars
    stay on their parts, as each tower may have another one.
    """
    found: list[_Summand] = []
    alike: defaultdict[tuple[str, str], list[_Summand]] = defaultdict(list)
    for each in summands:
        if each.kind in ("mean", "sum") and len(each.part) == 1 and not each.scalars:
            alike[_number(each.number, is_decimal=False), each.kind].append(each)
        else:
            found.append(each)
    for group in alike.values():
        by_part: defaultdict[Part, list[_Summand]] = defaultdict(list)
        for each in group:
            by_part[each.part].append(each)
        count = min(map(len, by_part.values())) if _are_all_rows(sorted(by_part)) else 0
        found += [group[0]._replace(part=WHOLE)] * count
        found += [each for own in by_part.values() for each in own[count:]]
    return found


def _are_all_rows(paths: Sequence[Part]) -> bool:
    """Whether parts are cuts of the whole batch that have each row once."""
    cuts = [path[0] for path in paths if len(path) == 1]
    return len(cuts) == len(paths) > 0 and are_all_rows(cuts)


def _number(number: float, *, is_decimal: bool) -> str:
    """A coefficient with a blank at the end, to precede a term; ``""`` for 1."""
    fraction = Fraction(number).limit_denominator(_LARGEST_DENOMINATOR)
    is_exact = isclose(fraction, number, rel_tol=1e-6) and not is_decimal
    text = str(fraction) if is_exact else f"{number:.4g}"
    return "" if text == "1" else f"{text} "
