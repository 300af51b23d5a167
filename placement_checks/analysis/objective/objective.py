"""The objective of a step: the weighted loss terms that the update of each variable minimizes."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from math import isclose
from typing import NamedTuple, TypeAlias

from placement_checks.analysis.graph.data_flow import union
from placement_checks.analysis.graph.updates import Update
from placement_checks.analysis.objective.gradient_weights import (
    Gradient,
    GradientWeights,
    Rest,
    Unread,
)
from placement_checks.analysis.objective.linear_forms import Factors, Form, Weight
from placement_checks.analysis.objective.loss_terms import LossTerms, Term
from placement_checks.analysis.objective.scalars import Scalars
from placement_checks.analysis.objective.written_updates import WrittenUpdate, unequal_rates
from placement_checks.analysis.towers.analysis import analyze
from placement_checks.analysis.variables.gradient_flow import gradient_flow
from placement_checks.analysis.variables.layout import variable_layout
from placement_checks.core.op_types import IDENTITY, PLAIN_UPDATES
from placement_checks.core.placement import Placement, producer_of
from placement_checks.util.text import plural, range_text


class WeightedTerm(NamedTuple):
    """A loss term in the objective of a variable.

    Attributes:
        term: the term.
        weight: its weight.
        source: the variable that the gradient is taken with respect to, if this is not the updated
            variable; else ``""``.
    """

    term: Term
    weight: Weight
    source: str = ""


_GIVEN_GRADIENT = re.compile(r"(?:^|/)grad_ys_\d+$")
_LARGEST_DENOMINATOR = 64  # other coefficients are decimal

Formula: TypeAlias = Sequence[WeightedTerm]


class Objective:
    """The objective of a placement, by variable; `objective` computes it once."""

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self.analysis = analyze(placement)
        self.scalars = Scalars(self.analysis)
        self.terms = LossTerms(self.analysis, self.scalars)
        self.weights = GradientWeights(self.analysis, self.scalars)
        self._variables: dict[Term, tuple[str, ...]] = {}
        self._by_variable: dict[str, Mapping[str, Sequence[tuple[Term, Weight]]]] = {}

    @cached_property
    def formulas(self) -> Mapping[str, Formula | Unread]:
        """The objective of each trained variable; for mirrored copies, only of the first copy."""
        return {
            variable: self._formula(variable)
            for variable in gradient_flow(self._placement).trained
            if variable == min(self._same_variable.get(variable, [variable]), key=self._number)
        }

    def text(self, variable: str) -> str:
        """Return the objective of a variable as a sum of ops: ``1/2 mean(a) + 1/2 mean(b)``.

        It is ``""`` if the variable is not trained, or if its update cannot be read.
        """
        return " + ".join(
            f"{self._weight_text(weight, is_penalty=term.kind == 'penalty')}"
            f"{term.kind}({producer_of(term.tensor)})"
            for term, weight in self._merged(variable)
        )

    def summary(self, variable: str, *, portable: bool = False) -> str:
        """Return the objective of a variable as a sum of kinds of terms.

        An example is ``1/2 mean on each of 2 towers + 0.05 L2Loss(variable)``. Variables with the
        same objective have the same summary. The summary is ``""`` if the variable is not trained,
        or if its update cannot be read.

        Args:
            variable: the name of the variable.
            portable: whether to leave out the number of towers, the names of tensors, and
                penalties with the weight 0, so that the summary does not depend on them:
                ``average of means + 0.05 L2Loss(variable)``.
        """
        terms = self._merged(variable)
        if portable:
            terms = [
                (term, weight)
                for term, weight in terms
                if term.kind != "penalty" or weight.coefficient
            ]
        if not terms:
            return ""
        common = frozenset.intersection(*(frozenset(weight.factors) for _, weight in terms))
        on_towers: dict[tuple[str, Weight], Counter[int]] = defaultdict(Counter)
        in_all: dict[tuple[str, Factors, bool], float] = defaultdict(float)
        for term, weight in terms:
            factors = tuple(each for each in weight.factors if each not in common)
            is_penalty = term.kind == "penalty"
            is_of_one = term.towers.bit_count() == 1
            if not is_penalty and is_of_one and (portable or self._number_of_towers > 1):
                tower = term.towers.bit_length() - 1
                on_towers[self._kind(term), Weight(weight.coefficient, factors)][tower] += 1
            else:
                in_all[self._kind(term, variable), factors, is_penalty] += weight.coefficient

        def text(weight: Weight, *, is_penalty: bool = False) -> str:
            return self._weight_text(weight, is_penalty=is_penalty, with_names=not portable)

        def on_several(kind: str, weight: Weight, towers: Mapping[int, int]) -> str:
            if not portable or len(towers) < self._number_of_towers or len({*towers.values()}) > 1:
                return f"{text(weight)}{kind} on {self._list_towers(towers)}"
            of_tower = weight.times(Weight(max(towers.values())))
            total = of_tower.times(Weight(len(towers)))
            is_sum = isclose(weight.coefficient, 1) and not isclose(total.coefficient, 1)
            how, factor = ("sum", of_tower) if is_sum else ("average", total)
            return f"{text(factor)}{how} of {kind}s"

        summands = [
            on_several(kind, weight, towers) for (kind, weight), towers in on_towers.items()
        ] + [
            f"{text(Weight(coefficient, factors), is_penalty=is_penalty)}{kind}"
            for (kind, factors, is_penalty), coefficient in in_all.items()
        ]
        total = " + ".join(summands)
        if not common:
            return total
        factor = text(Weight(factors=tuple(sorted(common))))
        return f"{factor}({total})" if len(summands) > 1 else f"{factor}{total}"

    def _merged(self, variable: str) -> Sequence[tuple[Term, Weight]]:
        """Return the terms of an objective with their total weights, penalties last.

        The result is empty if the objective is unknown.
        """
        formula = self.formulas.get(*self.first_copies([variable]))
        if formula is None or isinstance(formula, Unread):
            return ()
        weights: dict[tuple[Term, Factors], float] = defaultdict(float)
        for each in formula:
            weights[each.term, each.weight.factors] += each.weight.coefficient
        terms = [(term, Weight(total, factors)) for (term, factors), total in weights.items()]
        return sorted(terms, key=lambda each: each[0].kind == "penalty")

    @cached_property
    def _number_of_towers(self) -> int:
        return len(self.analysis.towers)

    @property
    def _noun(self) -> str:
        return "replica" if self._placement.strategy else "tower"

    def _kind(self, term: Term, variable: str = "") -> str:
        """Return the kind of a term in words; for a penalty, the op type and the variables."""
        if term.kind in ("mean", "sum"):
            is_joint = term.towers.bit_count() > 1
            return f"{term.kind} over several {self._noun}s" if is_joint else term.kind
        kind = self.op_type(term)
        if term.kind in ("function", "other"):
            return kind
        others = sum(name != variable for name in self.variables(term))
        also = f" and {plural(others, 'other')}" if others else ""
        return f"{kind}(variable{also})"

    def _list_towers(self, towers: Mapping[int, int]) -> str:
        """Return a list of towers as a text, given the number of equal terms of each tower."""
        counts = set(towers.values())
        times = f", {max(counts)} times" if max(counts) > 1 else ""
        if len(towers) == self._number_of_towers and len(counts) == 1:
            return f"each of {plural(len(towers), self._noun)}{times}"
        return f"{self._noun} {range_text([str(tower) for tower in sorted(towers)])}{times}"

    def _weight_text(self, weight: Weight, *, is_penalty: bool, with_names: bool = True) -> str:
        """Return a weight with a blank at the end, to precede a term; ``""`` for 1.

        Weights of penalties are decimal, other weights are fractions such as 1/2.
        """
        fraction = Fraction(weight.coefficient).limit_denominator(_LARGEST_DENOMINATOR)
        is_exact = isclose(fraction, weight.coefficient, rel_tol=1e-6) and not is_penalty
        coefficient = str(fraction) if is_exact else f"{weight.coefficient:.4g}"
        parts = [] if coefficient == "1" else [coefficient]
        for symbol, power in weight.factors:
            name = self.scalars.describe(symbol) if with_names else "scalar"
            parts.append(name if power == 1 else f"{name}^{power}")
        return "".join(f"{part} " for part in parts)

    def op_type(self, term: Term) -> str:
        """Return the type of the op that computes a term."""
        return self.analysis.flow.types[self.analysis.flow.op_of(term.tensor)]

    def unequal_rates(self, other: Objective, variable: str) -> tuple[float, float] | None:
        """Return the constant learning rates of a variable in two programs, if they differ.

        None if they are equal, or if the optimizer is not written out in both programs.
        """
        own, reference = (each.written_update(variable) for each in (self, other))
        if own is None or reference is None:
            return None
        towers, of_reference = (max(1, len(each.analysis.towers)) for each in (self, other))
        return unequal_rates(own, reference, of_reference / towers)

    def written_update(self, variable: str) -> WrittenUpdate | None:
        """Return the update of a trained variable, if its optimizer is written out."""
        if self._placement.step.applied_gradients.get(variable):
            return None
        written = self.weights.written.of_variable(variable)
        return written if isinstance(written, WrittenUpdate) else None

    def variables(self, term: Term) -> tuple[str, ...]:
        """Return the variables that a term depends on, sorted, with `first_copies` applied."""
        if term not in self._variables:
            names = self.first_copies(self.terms.variables(term))
            self._variables[term] = tuple(sorted(names))
        return self._variables[term]

    def first_copies(self, variables: Iterable[str]) -> frozenset[str]:
        """Return names of variables. A mirrored copy is replaced by the first copy."""
        same = self._same_variable
        return frozenset(
            min(same[name], key=self._number) if name in same else name for name in variables
        )

    def _number(self, name: str) -> int:
        return self.analysis.flow.number[name]

    def _formula(self, variable: str) -> Formula | Unread:
        applied = self._placement.step.applied_gradients.get(variable, ())
        forms = [self.weights.of_tensors([tensor]) for tensor in applied]
        if not forms:
            forms = [self.weights.of_update(update) for update in self.updates(variable)]
        found: list[Formula] = []
        for form in forms:
            if isinstance(form, Unread):
                return form
            terms = list(self._terms(variable, form))
            unread = next((each for each in terms if isinstance(each, Unread)), None)
            if unread is not None:
                return unread
            found.append([each for each in terms if isinstance(each, WeightedTerm)])
        if len(found) > 1 and not self._adds_up(variable):
            towers = (union(each.term.towers for each in formula) for formula in found)
            if any(mask != self.analysis.all_towers for mask in towers):
                return Unread(
                    "", f"single towers update the variable, {len(found)} times in each step"
                )
        formula = [term for each in found for term in each]
        if not formula:
            return Unread("", "no update takes a gradient that a tower computes")
        if any(each.source for each in formula) and not all(each.source for each in formula):
            return Unread("", "the update takes gradients of other variables, too")
        return formula

    def updates(self, variable: str) -> Sequence[Update]:
        """Return the updates of a trained variable, without exclusive branches."""
        return self.analysis.updates.select_for_one_step(
            gradient_flow(self._placement).trained[variable]
        )

    def _adds_up(self, variable: str) -> bool:
        """Whether several updates of a variable are equal to one update by their sum."""
        types = self.analysis.flow.types
        return all(types[update.op] in PLAIN_UPDATES for update in self.updates(variable))

    def _terms(self, variable: str, form: Form) -> Iterator[WeightedTerm | Unread]:
        for (key, factors), coefficient in form.items():
            if isinstance(key, Rest) and self._is_of_tower(key.tensor):
                yield Unread(
                    producer_of(key.tensor),
                    "is added to the gradient of a tower, and comes from no loss",
                )
                return
            if not isinstance(key, Gradient):
                continue
            losses = self._losses_of(key.tensor)
            if self._given_gradient:
                yield Unread(self._given_gradient, "multiplies the gradients of losses (grad_ys)")
                return
            if not losses:
                yield Unread(producer_of(key.tensor), "is the gradient of an unknown loss")
                return
            sources = self._sources.get(producer_of(key.tensor), ())
            copies = (self._same_variable.get(each, frozenset({each})) for each in sources)
            is_own = not sources or any(variable in each for each in copies)
            source = variable if is_own else sources[0]
            (first,) = self.first_copies([source])
            for loss in losses:
                for term, weight in self._terms_of(loss).get(first, ()):
                    total = weight.times(Weight(coefficient, factors))
                    yield WeightedTerm(term, total, "" if is_own else source)

    def _terms_of(self, loss: str) -> Mapping[str, Sequence[tuple[Term, Weight]]]:
        """Return the terms of a loss, by the first copies of the variables that they depend on.

        A term also depends on the variables in its factors, such as the learned weight of a task.
        """
        if loss not in self._by_variable:
            found: dict[str, list[tuple[Term, Weight]]] = defaultdict(list)
            for term, weight in self.terms.terms(loss):
                in_factors = self.first_copies(self.scalars.variables(weight.factors))
                for variable in sorted(in_factors.union(self.variables(term))):
                    found[variable].append((term, weight))
            self._by_variable[loss] = found
        return self._by_variable[loss]

    @cached_property
    def _same_variable(self) -> Mapping[str, frozenset[str]]:
        """For each mirrored variable all its copies."""
        strategy = self._placement.strategy
        groups: dict[str, set[str]] = defaultdict(set)
        for name, copy in (strategy.copies if strategy else {}).items():
            if copy.in_sync:
                groups[copy.first].add(name)
        found = {}
        for copies in variable_layout(self._placement).copies.values():
            groups[min(copies.copies.values())].update(copies.copies.values())
        for names in map(frozenset, groups.values()):
            found.update(dict.fromkeys(names, names))
        return found

    @cached_property
    def _objectives(self) -> Mapping[str, Sequence[str]]:
        """The losses of each gradient, by the name of the op that yields the gradient."""
        found: dict[str, list[str]] = defaultdict(list)
        for loss, ops in self._placement.step.gradients.items():
            for op in ops:
                if loss not in found[op]:
                    found[op].append(loss)
        return found

    @cached_property
    def _given_gradient(self) -> str:
        """The first gradient that the program passes to tf.gradients as `grad_ys`, or ``""``.

        By default, tf.gradients uses ones (python/ops/gradients_util.py). In function bodies,
        TensorFlow itself passes the gradients of the function's results.
        """
        flow = self.analysis.flow
        given = (
            flow.names[op]
            for op in self.analysis.backward.numbers()
            if flow.types[op] == IDENTITY and op not in flow.callers
            if _GIVEN_GRADIENT.search(flow.names[op])
        )
        return next(given, "")

    @cached_property
    def _sources(self) -> Mapping[str, Sequence[str]]:
        """The variables of each gradient, by the name of the op that yields the gradient."""
        # The gradient may be taken with respect to a tensor, such as the value of a variable.
        variables = {variable.name for variable in self._placement.variables}
        found: dict[str, list[str]] = defaultdict(list)
        for source, ops in self._placement.step.gradients_by_variable.items():
            for op in ops if source in variables else ():
                found[op].append(source)
        return found

    def _losses_of(self, gradient: str) -> Sequence[str]:
        """Return the losses that a gradient belongs to.

        If one call took the gradients of several losses, the losses of towers that the gradient
        does not depend on are left out.
        """
        losses = self._objectives.get(producer_of(gradient), ())
        if len(losses) < 2:
            return losses
        flow, all_towers = self.analysis.flow, self.analysis.all_towers
        towers = gradient_flow(self._placement).gradient_towers[flow.op_of(gradient)] & all_towers
        return [
            loss
            for loss in losses
            if not (own := self.analysis.towers_of(flow.op_of(loss))) or own & towers
        ]

    def _is_of_tower(self, tensor: str) -> bool:
        """Whether a tower computes a tensor that is neither a variable nor a slot."""
        op = self.analysis.flow.number.get(producer_of(tensor))
        if op is None or self.analysis.flow.state_holder(op) is not None:
            return False
        return self.analysis.tower_of[op] is not None


def objective(placement: Placement) -> Objective:
    """Return the objective of a placement, computed once."""
    return placement.cached(Objective)
