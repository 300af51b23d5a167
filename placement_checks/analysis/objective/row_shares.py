"""Shares of rows: weights of towers in proportion to their numbers of rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from placement_checks.analysis.objective.linear_forms import Factors, Weight
from placement_checks.analysis.objective.loss_terms import Term
from placement_checks.analysis.objective.scalars import ROWS, Scalars
from placement_checks.analysis.towers.analysis import TowerAnalysis
from placement_checks.core.ids import OpId
from placement_checks.core.op_types import (
    ADDS,
    CAST,
    IDENTITIES,
    INDEXED_SLICE,
    SHAPE,
    SLICE,
    STACK,
    SUBTRACTION,
)


class TowerTerm(NamedTuple):
    """A mean over rows that one tower computes, with the symbolic factors of its weight."""

    tower: int
    term: Term
    factors: Factors


class RowShares:
    """Finds scalars that are the share of a tower in the rows of all towers.

    The share is a quotient. The dividend is the number of rows of a tensor that only one tower
    uses: the size of the first dimension of the tensor, or of the slice that yields the tensor.
    The divisor is the sum of these numbers over all towers, or the number of rows of a tensor that
    all towers use.
    """

    def __init__(self, analysis: TowerAnalysis, scalars: Scalars) -> None:
        self._analysis = analysis
        self._scalars = scalars

    def of_towers(self, terms: Sequence[TowerTerm]) -> Mapping[int, Factors]:
        """Return for each tower the factors of its share, if they multiply all terms of the tower.

        The result is empty if the terms of any tower lack such factors.
        """
        ops: dict[int, set[OpId]] = defaultdict(set)
        dividends: dict[int, set[str]] = {}
        divisors: set[str] | None = None
        for tower, term, factors in terms:
            ops[tower].add(self._analysis.flow.op_of(term.tensor))
            multiplied, divided = (
                {symbol for symbol, each in factors if each == power and symbol.startswith(ROWS)}
                for power in (1, -1)
            )
            dividends[tower] = dividends.get(tower, multiplied) & multiplied
            divisors = divided if divisors is None else divisors & divided
        if not divisors or not all(dividends.values()):
            return {}
        examples = self._analysis.examples  # only tensors of examples have rows
        behind = {
            tower: {op for op in self._analysis.flow.reachable(each) if examples[op]}
            for tower, each in ops.items()
        }
        found: dict[int, str] = {}
        for tower, symbols in dividends.items():
            others = set().union(*(each for other, each in behind.items() if other != tower))
            own = [each for each in symbols if self._has_rows(each, behind[tower] - others)]
            if len(own) != 1:
                return {}
            found[tower] = own[0]
        in_all = set.intersection(*behind.values())
        total = next(
            (
                each
                for each in sorted(divisors)
                if self._summands(each) == sorted(found.values()) or self._has_rows(each, in_all)
            ),
            None,
        )
        if total is None:
            return {}
        return {tower: tuple(sorted([(own, 1), (total, -1)])) for tower, own in found.items()}

    def _has_rows(self, symbol: str, ops: set[OpId]) -> bool:
        """Whether a symbol is the number of rows that one of the ops yields."""
        return not ops.isdisjoint(self._with_rows(symbol))

    def _with_rows(self, symbol: str) -> Iterable[OpId]:
        """Return ops that yield as many rows as the symbol states."""
        flow, scalars = self._analysis.flow, self._scalars
        source = scalars.describe(symbol)
        op = flow.op_of(source)
        kind, inputs = flow.types[op], scalars.inputs(op)
        if kind == INDEXED_SLICE:
            shape = flow.op_of(inputs[0])
            if flow.types[shape] == SHAPE and self._first(inputs[1]) == Weight(0.0):
                return [flow.op_of(scalars.inputs(shape)[0])]
        bounds = [(scalars.weight(source), Weight(0.0))]
        if kind == SUBTRACTION:
            end, begin = map(scalars.weight, inputs)
            bounds.append((end, begin))
        return [each for pair in bounds for each in self._slices.get(pair, ())]

    @cached_property
    def _slices(self) -> Mapping[tuple[Weight, Weight], Sequence[OpId]]:
        """The slice ops, by the end and the begin of their rows, or by their size and 0."""
        flow, scalars = self._analysis.flow, self._scalars
        found: dict[tuple[Weight, Weight], list[OpId]] = defaultdict(list)
        for op in flow.having(lambda kind: kind in (INDEXED_SLICE, SLICE)):
            first, second = map(self._first, scalars.inputs(op)[1:3])
            attributes = self._analysis.placement.details.attributes(flow.names[op])
            masks = {key: int(attributes.get(f"{key}_mask", 0)) & 1 for key in _MASKS}
            begin = Weight(0.0) if masks["begin"] else first
            is_size = flow.types[op] == SLICE  # a slice has a size, a strided slice an end
            stride = Weight(1.0) if is_size else self._first(scalars.inputs(op)[3])
            if begin is None or second is None or masks["end"] or masks["shrink_axis"]:
                continue
            if stride != Weight(1.0):
                continue
            found[(second, Weight(0.0)) if is_size else (second, begin)].append(op)
        return found

    def _first(self, source: str) -> Weight | None:
        """Return the first element of a vector; None if it is unknown."""
        if integers := self._scalars.integers(source):
            return Weight(float(integers[0]))
        op = self._analysis.flow.op_of(source)
        if self._analysis.flow.types[op] != STACK:
            return None
        return self._scalars.weight(self._scalars.inputs(op)[0])

    def _summands(self, symbol: str) -> Sequence[str]:
        """Return the summands of a symbol, sorted; the symbol itself if it is not a sum."""
        return sorted(self._added(self._scalars.describe(symbol)))

    def _added(self, source: str) -> Iterator[str]:
        flow = self._analysis.flow
        op = flow.op_of(source)
        if flow.types[op] in IDENTITIES | {CAST}:
            yield from self._added(self._scalars.inputs(op)[0])
        elif flow.types[op] in ADDS:
            for each in self._scalars.inputs(op):
                yield from self._added(each)
        else:
            weight = self._scalars.weight(source)
            if weight != Weight(0.0):
                factors = weight.factors
                is_symbol = len(factors) == 1 and weight == Weight(1.0, ((factors[0][0], 1),))
                yield factors[0][0] if is_symbol else ""


_MASKS = ("begin", "end", "shrink_axis")
