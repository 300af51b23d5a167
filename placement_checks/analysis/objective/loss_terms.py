"""Loss terms: a loss as a weighted sum of means and sums over rows, and of penalties."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cached_property
from math import prod
from typing import Literal, NamedTuple

from placement_checks.analysis.objective.linear_forms import Factors, Weight
from placement_checks.analysis.objective.scalars import ROWS, Scalars
from placement_checks.analysis.towers.analysis import TowerAnalysis
from placement_checks.core.ids import OpId
from placement_checks.core.op_types import (
    ADDS,
    CAST,
    CHECKS_VALUE,
    CONST,
    DIVISIONS,
    EINSUM,
    FUNCTIONS,
    IDENTITIES,
    IDENTITY_N,
    JOINS,
    MAXIMUM,
    MEAN,
    MERGE,
    MINIMUM,
    NEGATION,
    PASSES_VALUE,
    POWERS,
    PRODUCTS,
    RESHAPES,
    SELECTS,
    SQUARED_DIFFERENCE,
    STACK,
    STOPS_GRADIENT,
    SUBTRACTION,
    SUM,
    SUM_OF_SQUARES,
    SWITCHES,
)

_PASSES = (PASSES_VALUE - SWITCHES) | IDENTITIES | RESHAPES | CHECKS_VALUE | {CAST}
_REDUCES = frozenset({SUM, MEAN, SUM_OF_SQUARES, EINSUM})
# Ops with a result that grows with the number of rows, like their inputs.
_COMBINES = ADDS | SELECTS | {SUBTRACTION, MINIMUM, MAXIMUM, MERGE, STACK}
_DEEPEST = 64  # a function of means that is composed of more ops is not read


class Term(NamedTuple):
    """A summand of a loss.

    Attributes:
        kind: ``mean`` or ``sum`` over rows, ``function`` for a function of means or of ratios of
            sums, such as the root of a mean, ``penalty`` if it depends on no example, or ``other``
            for any other value. If the graph states the number of rows, a sum is a ``mean`` with a
            larger weight. Like a mean, a ``function`` does not grow with the number of rows. But
            the mean of the towers' functions differs from the function of all rows.
        tensor: the name of the tensor.
        towers: a bit mask of the towers that the term depends on.
    """

    kind: Literal["mean", "sum", "function", "penalty", "other"]
    tensor: str
    towers: int


class LossTerms:
    """Finds the terms of losses."""

    def __init__(self, analysis: TowerAnalysis, scalars: Scalars) -> None:
        self._analysis = analysis
        self._scalars = scalars
        self._growths: dict[str, float | None] = {}

    def variables(self, term: Term) -> frozenset[str]:
        """Return the names of the variables that a term depends on."""
        flow = self._analysis.flow
        read = flow.reachable([flow.op_of(term.tensor)])
        return frozenset(flow.names[op] for op in read if flow.state_holder(op) == op)

    def terms(self, loss: str) -> Iterator[tuple[Term, Weight]]:
        """Yield the terms of a loss with their weights, from the loss back along its summands."""
        weights: dict[str, dict[Factors, float]] = defaultdict(lambda: defaultdict(float))
        todo: list[tuple[int, str]] = []

        def push(source: str, weight: Weight) -> None:
            if source not in weights:
                heapq.heappush(todo, (-self._analysis.flow.op_of(source), source))
            weights[source][weight.factors] += weight.coefficient

        push(loss, Weight())
        while todo:
            _, source = heapq.heappop(todo)
            for factors, coefficient in weights.pop(source).items():
                weight = Weight(coefficient, factors)
                summands = self._summands(source, weight)
                if summands is None:
                    yield from self._term(source, weight)
                else:
                    for summand in summands:
                        push(*summand)

    def _summands(self, source: str, weight: Weight) -> Sequence[tuple[str, Weight]] | None:
        """Return the summands of a tensor with their weights; None if the tensor is a term."""
        analysis, scalars = self._analysis, self._scalars
        op = analysis.flow.op_of(source)
        kind, inputs = analysis.flow.types[op], scalars.inputs(op)
        if kind in STOPS_GRADIENT:
            return ()
        if kind in ADDS:
            return [(each, weight) for each in inputs]
        if kind == SUBTRACTION:
            return [(inputs[0], weight), (inputs[1], weight.times(Weight(-1.0)))]
        if kind == NEGATION:
            return [(inputs[0], weight.times(Weight(-1.0)))]
        if kind in _PASSES:
            output = int(source.partition(":")[2] or 0)
            return [(inputs[output if kind == IDENTITY_N else 0], weight)]
        if kind in DIVISIONS and self._is_value(inputs[0]) and not self._is_ratio(*inputs):
            return [(inputs[0], weight.times(scalars.inverse(inputs[1])))]
        if kind in PRODUCTS:
            values = [self._is_value(each) for each in inputs]
            if all(values):  # a penalty that examples scale, or a product of two losses
                values = [self._on_examples(each) for each in inputs]
            if sum(values) == 1:
                value = values.index(True)
                return [(inputs[value], weight.times(scalars.weight(inputs[1 - value])))]
        if kind in (SUM, MEAN):
            return self._stacked(inputs[0], weight, is_mean=kind == MEAN)
        return None

    def _is_ratio(self, dividend: str, divisor: str) -> bool:
        """Whether both tensors are functions of means or sums over the rows of one tower."""
        return (
            self._is_value(divisor)
            and self._on_examples(dividend)
            and self._on_examples(divisor)
            and self._growth(divisor) is not None
        )

    def _is_value(self, source: str) -> bool:
        """Whether a tensor depends on a variable, as losses and penalties do."""
        op = self._analysis.flow.op_of(source)
        return bool(self._depends_on_variables[op])

    @cached_property
    def _depends_on_variables(self) -> Sequence[int]:
        """For each op whether its value depends on a variable that the model reads."""
        flow = self._analysis.flow
        variables = [flow.number[variable] for variable in self._analysis.variables_read]
        return flow.propagate(flow.marks([variables]))

    def _on_examples(self, source: str) -> bool:
        return bool(self._analysis.examples[self._analysis.flow.op_of(source)])

    def _stacked(
        self, source: str, weight: Weight, *, is_mean: bool
    ) -> Sequence[tuple[str, Weight]] | None:
        """Return the scalars in a reduced stack with their weights; None for other tensors."""
        flow = self._analysis.flow
        op = flow.op_of(source)
        while flow.types[op] in IDENTITIES:
            op = flow.op_of(self._scalars.inputs(op)[0])
        kind, inputs = flow.types[op], list(self._scalars.inputs(op))
        if kind in JOINS:
            inputs = list(self._scalars.joined(op))
        elif kind != STACK:
            return None
        if not all(map(self._scalars.is_scalar, inputs)):
            return None
        share = weight.times(Weight(1 / len(inputs))) if is_mean else weight
        return [(each, share) for each in inputs]

    def _term(self, source: str, weight: Weight) -> Iterator[tuple[Term, Weight]]:
        """Yield a tensor as a term; nothing if it depends on neither examples nor variables."""
        analysis = self._analysis
        op = analysis.flow.op_of(source)
        kind = analysis.flow.types[op]
        towers = analysis.towers_of(op)
        if not analysis.examples[op]:
            if kind != CONST and self._is_value(source):
                yield Term("penalty", source, towers), weight
        elif kind in _REDUCES and not (towers.bit_count() > 1 and self._joins_scalars(op)):
            reduction = self._row_reduction(op)
            if reduction is None:
                yield Term("other", source, towers), weight
            elif any(self._growth(each) is not None for each in self._summed(reduction[0])):
                yield self._function(source, towers), weight
            else:
                yield self._reduced(reduction[0], towers, weight.times(reduction[1]))
        else:
            yield self._function(source, towers), weight

    def _function(self, source: str, towers: int) -> Term:
        """Return a tensor as a function of means over the rows of one tower, or as ``other``."""
        is_function = towers.bit_count() < 2 and self._growth(source) == 0
        return Term("function" if is_function else "other", source, towers)

    def _growth(self, source: str, depth: int = _DEEPEST) -> float | None:
        """Return how fast a function of reductions grows, as a power of the number of rows.

        The power is 0 for a mean over rows, which does not grow, and 1 for a sum over rows.
        Constants that are added are neglected.

        Returns:
            The power. None if it is unknown, or if the tensor still has a value for each row.
        """
        if source not in self._growths:
            self._growths[source] = None  # for ops of loops, which lead back here
            self._growths[source] = self._find_growth(source, depth - 1) if depth else None
        return self._growths[source]

    def _find_growth(self, source: str, depth: int) -> float | None:
        op = self._analysis.flow.op_of(source)
        kind, inputs = self._analysis.flow.types[op], self._scalars.inputs(op)
        if kind in _REDUCES:
            return self._growth_of_reduction(op, depth)
        if kind in DIVISIONS | PRODUCTS:
            powers = [self._factor_growth(each, depth) for each in inputs]
            if None in powers:
                return None
            one, other = (power or 0.0 for power in powers)
            return one - other if kind in DIVISIONS else one + other
        if kind in SELECTS:
            inputs = inputs[1:]
        of_examples = [each for each in inputs if self._on_examples(each)]
        growths = {self._growth(each, depth) for each in of_examples}
        growth = growths.pop() if len(growths) == 1 else None
        if growth is None:
            return None
        if kind in POWERS:
            return growth * POWERS[kind]
        if kind == SQUARED_DIFFERENCE:
            return 2 * growth
        if kind in FUNCTIONS:
            return 0.0 if growth == 0 else None
        return growth if kind in _PASSES | _COMBINES | SWITCHES | {NEGATION} else None

    def _growth_of_reduction(self, op: OpId, depth: int) -> float | None:
        """Return the growth of a reduction: over rows, or over an axis of a function of means."""
        found = self._row_reduction(op)
        if found is None:
            return None
        reduction, weight = found
        inner = {self._growth(each, depth) for each in self._summed(reduction)}
        if inner != {None}:
            return inner.pop() if len(inner) == 1 and reduction == op else None
        if self._reduces_rows(reduction) is not True:
            return None
        is_mean = self._analysis.flow.types[reduction] == MEAN
        return float(not is_mean) + self._rows_power(weight)

    def _factor_growth(self, source: str, depth: int) -> float | None:
        """Return the growth of a factor, such as a constant, a mean, or the number of rows."""
        if self._on_examples(source):
            return self._growth(source, depth)
        if self._scalars.shape(source) != ():
            return 0.0
        return self._rows_power(self._scalars.weight(source))

    @staticmethod
    def _rows_power(weight: Weight) -> float:
        """Return the power of the numbers of rows in a weight."""
        return sum(power for symbol, power in weight.factors if symbol.startswith(ROWS))

    def _summed(self, op: OpId) -> Sequence[str]:
        """Return the tensors that a reduction adds up, if they depend on examples."""
        kind, inputs = self._analysis.flow.types[op], self._scalars.inputs(op)
        summands = inputs if kind == EINSUM else inputs[:1]
        return [each for each in summands if self._on_examples(each)]

    def rows_of(self, op: OpId) -> str:
        """Return the tensor that a reduction adds up by rows."""
        return next(iter(self._summed(op)), self._scalars.inputs(op)[0])

    def _joins_scalars(self, op: OpId) -> bool:
        """Whether an op depends on a stack of scalars, such as the losses of several towers."""
        flow = self._analysis.flow

        def is_of_several(op: OpId) -> bool:
            return self._analysis.towers_of(op).bit_count() > 1

        of_several = flow.reachable([op], until=lambda each: not is_of_several(each))
        return any(
            flow.types[each] in JOINS | {STACK}
            and all(map(self._scalars.is_scalar, self._scalars.joined(each)))
            for each in filter(is_of_several, of_several)
        )

    def _row_reduction(self, op: OpId) -> tuple[OpId, Weight] | None:
        """Find the reduction over rows: the first of several consecutive reductions with axis 0.

        Returns:
            The reduction, and the product of the scalars that multiply the reduced tensors. None
            if the axes of a reduction are unknown.
        """
        flow, scalars = self._analysis.flow, self._scalars
        weight, tensor = Weight(), scalars.inputs(op)[0]
        if flow.types[op] == SUM_OF_SQUARES:  # it squares a factor of its input
            return op, weight
        if flow.types[op] == EINSUM:
            return (op, weight) if self._reduces_rows(op) else None
        while True:
            producer = flow.op_of(tensor)
            kind, inputs = flow.types[producer], scalars.inputs(producer)
            if kind in _PASSES and kind != IDENTITY_N:
                tensor = inputs[0]
            elif kind in DIVISIONS and scalars.shape(inputs[1]) == ():
                weight, tensor = weight.times(scalars.inverse(inputs[1])), inputs[0]
            elif kind in PRODUCTS and (factor := self._factor(inputs)) is not None:
                weight, tensor = weight.times(scalars.weight(inputs[factor])), inputs[1 - factor]
            elif kind in (SUM, MEAN) and self._analysis.examples[producer]:
                reduces_rows = self._reduces_rows(producer)
                if reduces_rows is None:
                    return None
                if not reduces_rows:
                    return op, weight
                op, tensor = producer, inputs[0]
            else:
                return op, weight

    def _factor(self, inputs: Sequence[str]) -> int | None:
        """Return the index of the only input of a product that is a scalar without examples."""
        scalars = [
            index
            for index, source in enumerate(inputs)
            if self._scalars.shape(source) == () and not self._on_examples(source)
        ]
        return scalars[0] if len(scalars) == 1 else None

    def _reduces_rows(self, op: OpId) -> bool | None:
        """Whether a reduction has axis 0; None if its axes are unknown."""
        if self._scalars.shape(self._analysis.flow.names[op]) == ():
            return True
        if self._analysis.flow.types[op] == EINSUM:
            return None
        source, axes = self._scalars.inputs(op)[:2]
        shape, elements = self._scalars.shape(source), self._scalars.integers(axes)
        if shape is None or elements is None:
            return None
        return not {0, -len(shape)}.isdisjoint(elements)

    def _reduced(self, op: OpId, towers: int, weight: Weight) -> tuple[Term, Weight]:
        """Return the mean or sum over rows that an op computes.

        A sum becomes a mean if the number of rows is known, or if this number divides the sum.
        """
        tensor = self._analysis.flow.names[op]
        if self._analysis.flow.types[op] == MEAN:
            return Term("mean", tensor, towers), weight
        rows = [(symbol, power) for symbol, power in weight.factors if symbol.startswith(ROWS)]
        counts = [each for each in weight.factors if self._scalars.is_count(each[0])]
        if len(rows + counts) == 1 and (rows + counts)[0][1] == -1:
            (each,) = rows + counts
            factors = tuple(factor for factor in weight.factors if factor != each)
            return Term("mean", tensor, towers), Weight(weight.coefficient, factors)
        shape = self._scalars.shape(self.rows_of(op))
        reduced = self._scalars.shape(tensor)
        if shape is not None and reduced is not None and None not in (*shape, *reduced):
            elements = prod(size or 0 for size in shape) / prod(size or 1 for size in reduced)
            return Term("mean", tensor, towers), weight.times(Weight(elements))
        return Term("sum", tensor, towers), weight
