"""Reported losses: which towers a reported number is computed from, and how often each counts."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property

from placement_checks.analysis.towers.analysis import analyze
from placement_checks.analysis.towers.by_loss import single_tower
from placement_checks.analysis.variables.tower_terms import tower_terms
from placement_checks.core.ids import OpId, TowerIndex, TowerMask
from placement_checks.core.missing import Missing
from placement_checks.core.op_types import REDUCTIONS
from placement_checks.core.placement import Placement
from placement_checks.step.kinds import AtomId, Form, Kind, Monomial
from placement_checks.step.parts import finest
from placement_checks.step.weights import gradient_in

# For each summand, with the first tower's rows in place of its own: its coefficient, by tower.
_Coefficients = Mapping[Form, Mapping[TowerIndex, float]]


class ReportedLosses:
    """How reported numbers count the losses of towers; `reported_losses` reads them once."""

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self._analysis = analyze(placement)
        self._model = tower_terms(placement)

    @cached_property
    def _tower_of_loss(self) -> Mapping[OpId, TowerIndex]:
        if self._analysis.losses.joint:
            return {}
        return {loss: tower for tower, ops in self._analysis.losses.items() for loss in ops}

    def is_loss_of_tower(self, tensor: str) -> bool:
        """Whether a number is the loss of a tower, as the tower is trained by it."""
        return self._analysis.flow.op_of(tensor) in self._tower_of_loss

    def towers(self, tensor: str) -> TowerMask | Missing:
        """The towers whose loss a number reports; missing if it is not read.

        The loss of a tower reports this tower. Another number reports the towers whose predictions
        it is computed from.
        """
        own = self._tower_of_loss.get(self._analysis.flow.op_of(tensor))
        if own is not None:
            return TowerMask(1 << own)
        if self._unequal_sum and self._depends_on_sums(tensor):
            return Missing(
                f"it is unknown which replicas add up {tensor}: they join {self._unequal_sum} "
                "with values of different shapes or dtypes"
            )
        form = self._model.form(tensor)
        return form if isinstance(form, Missing) else self._model.towers_computing(form)

    @cached_property
    def _unequal_sum(self) -> str:
        """A sum that replicas join with values of different shapes or dtypes; ``""`` if none.

        Then the steps of the replicas differ, and other sums may have members that do not belong
        together.
        """
        ops = self._placement.ops
        for members in self._placement.collectives:
            inputs = [each for member in members for each in ops[member].inputs[:1]]
            is_sum = ops[members[0]].type in REDUCTIONS
            if is_sum and len(set(map(self._analysis.tensor, inputs)) - {None}) > 1:
                return members[0]
        return ""

    def _depends_on_sums(self, tensor: str) -> bool:
        flow = self._analysis.flow
        return any(flow.types[op] in REDUCTIONS for op in flow.reachable([flow.op_of(tensor)]))

    def of_one_tower(self, tensor: str) -> tuple[Form, TowerIndex] | None:
        """The value of a number that one tower computes, with the first tower's rows.

        Returns:
            The value, which is equal for the same number of other towers, and the tower; None if
            the number is not computed by one tower.
        """
        form = self._model.form(tensor)
        if isinstance(form, Missing):
            return None
        towers = self._model.towers_computing(form) or self._model.towers_of(form)
        tower = single_tower(towers)
        if tower is None:
            return None
        aligned = self._model.as_of_first_tower(form, tower)
        return None if aligned is None else (aligned, tower)

    def shows_all_of(self, tensor: str, value: Form) -> bool:
        """Whether a number is computed from a value of every tower, with the first tower's rows.

        The number may be a sum or a mean of the towers' values.
        """
        form = self._model.form(tensor)
        if isinstance(form, Missing):
            return False
        found = self._coefficients([form])
        summands = [monomial for monomial, _ in self._model.terms.summands(value)]
        wanted = [
            self._model.terms.form({each: 1.0})
            for each in summands
            if self._model.towers_of_summand(each)
        ]
        towers = len(self._analysis.towers)
        return bool(wanted) and all(len(found.get(each, ())) == towers for each in wanted)

    def counts(self, tensor: str) -> Mapping[TowerIndex, float] | Missing:
        """How often a number counts each tower's loss.

        Returns:
            For each tower the coefficient of a summand of its loss, divided by the coefficient in
            the loss. If the summands of the losses count differently, the result is of the first
            summand whose coefficients are not equal in all towers. It is empty if no summand of
            the number occurs in the loss of each tower. It is missing if the coefficients are not
            equal, and other summands of the number may contain the loss of a tower too.
        """
        form = self._model.form(tensor)
        if isinstance(form, Missing):
            return {}
        first: Mapping[TowerIndex, float] = {}
        for summand, coefficients in self._coefficients([form]).items():
            in_losses = self._in_losses.get(summand, {})
            if len(in_losses) < len(self._analysis.towers):
                continue
            ratios = {
                tower: coefficients.get(tower, 0.0) / in_losses[tower] for tower in in_losses
            }
            if not first or not are_equal(list(ratios.values())):
                first = ratios
            if not are_equal(list(first.values())):
                break
        if not are_equal(list(first.values())) and self._has_other_summands(form):
            return Missing(f"it is unknown how often {tensor} counts the loss of each tower")
        return first

    def _has_other_summands(self, form: Form) -> bool:
        """Whether a number has summands of predictions that are no summands of a loss."""
        others = [
            self._model.terms.form({monomial: 1.0})
            for monomial, _ in self._model.terms.summands(form)
        ]
        return any(
            self._model.towers_computing(other)
            and not any(value in self._in_losses for value in self._coefficients([other]))
            for other in others
        )

    def contains_loss(self, op: OpId) -> bool:
        """Whether a value is computed from a tower's loss, or from a term of the loss."""
        form = self._model.form(op)
        if isinstance(form, Missing):
            return False
        return not self._atoms_of_losses.isdisjoint(
            self._model.atoms_behind(self._model.terms.atoms_in(form))
        )

    @cached_property
    def _atoms_of_losses(self) -> frozenset[AtomId]:
        """The atoms of the summands of losses that depend on examples."""
        return frozenset(
            atom
            for summand in self._summands_of_losses
            for atom in (summand[0], *(factor for factor, _ in summand[1]))
            if self._model.towers_of_atom(atom)
        )

    @cached_property
    def _summands_of_losses(self) -> Sequence[Monomial]:
        """The summands of losses that depend on examples."""
        model = self._model
        return [
            summand
            for form in model.losses.values()
            if not isinstance(form, Missing)
            for summand, _ in model.terms.summands(form)
            if model.towers_of_summand(summand)
        ]

    def shares(self) -> Sequence[float] | None:
        """The share of the batch that each tower computes with; None if it is not known."""
        shares: list[float] = []
        for parts in self._model.own_parts:
            sliced = {part[-1] for part in parts if part and part[-1].family != "feed"}
            if len(sliced) != len(parts) or len({float(cut.share) for cut in sliced}) != 1:
                return None
            shares.append(float(sliced.pop().share))
        return shares

    @cached_property
    def _in_losses(self) -> _Coefficients:
        losses = self._model.losses.values()
        return self._coefficients([each for each in losses if not isinstance(each, Missing)])

    def _coefficients(self, forms: Sequence[Form]) -> _Coefficients:
        model, terms = self._model, self._model.terms
        found: dict[Form, dict[TowerIndex, float]] = defaultdict(dict)
        for form in forms:
            for monomial, number in terms.summands(form):
                tower = single_tower(model.towers_of_summand(monomial))
                if tower is None:
                    continue
                aligned = model.as_of_first_tower(terms.form({monomial: 1.0}), tower)
                summands = () if aligned is None else terms.summands(aligned)
                if len(summands) == 1:
                    value = terms.form({summands[0][0]: 1.0})
                    total = found[value].get(tower, 0.0) + number * summands[0][1]
                    found[value][tower] = total
        return found

    @property
    def are_added_up(self) -> bool:
        """Whether the losses are sums over rows, and the step adds up their gradients."""
        summands = self._summands_of_losses
        numbers = self._coefficients_of_gradients()
        return (
            bool(summands and numbers)
            and all(map(self._is_sum, summands))
            and all(math.isclose(abs(number), 1.0, rel_tol=1e-4) for number in numbers)
        )

    def _coefficients_of_gradients(self) -> Sequence[float]:
        """The coefficients in a sum of the gradients of all towers that an update takes.

        Optimizers multiply gradients by other numbers, but also take their squares. So a sum that
        is the operand of another op counts before the sums that are added to variables.
        """
        model, outer = self._model, []
        for form in model.applied_gradients():
            outer.append(form)
            for atom in model.atoms_behind(model.terms.atoms_in(form)):
                if model.terms[atom].op != "Grad":
                    for operand in model.terms[atom].operands:
                        if numbers := self._numbers_of_gradients(operand):
                            return numbers
        return next(filter(None, map(self._numbers_of_gradients, outer)), [])

    def _numbers_of_gradients(self, form: Form) -> list[float]:
        """How often a sum of gradients counts the losses; empty unless it has all towers."""
        terms, counted = self._model.terms, []
        towers = TowerMask(0)
        for monomial, number in terms.summands(form):
            gradient = gradient_in(terms, monomial)
            if gradient is None:
                continue
            # The coefficients of a loss are taken out of its gradient.
            for value, numbers in self._coefficients([terms[gradient].operands[0]]).items():
                for tower, inner in numbers.items():
                    in_loss = self._in_losses.get(value, {}).get(tower)
                    if in_loss is None:
                        return []
                    towers = TowerMask(towers | 1 << tower)
                    counted.append(number * inner / in_loss)
        return counted if towers == self._analysis.all_towers else []

    def _is_sum(self, monomial: Monomial) -> bool:
        part = finest(self._model.terms.parts_of(monomial))
        if not part:
            return False
        return self._model.terms.status_of(monomial, part).kind is Kind.SUM


def are_equal(numbers: Sequence[float]) -> bool:
    """Whether numbers are equal but for rounding."""
    return all(math.isclose(number, numbers[0], rel_tol=1e-4) for number in numbers)


def reported_losses(placement: Placement) -> ReportedLosses:
    """Return how reported numbers count the losses of towers."""
    return placement.cached(ReportedLosses)
