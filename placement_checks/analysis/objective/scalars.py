"""Scalars of a graph as weights: constants are folded, other tensors become symbols."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from math import isfinite, nan, prod, trunc

from placement_checks.analysis.graph.value_numbering import EqualTensors
from placement_checks.analysis.objective.linear_forms import ONE, Weight
from placement_checks.analysis.towers.analysis import TowerAnalysis
from placement_checks.core.ids import OpId
from placement_checks.core.op_types import (
    ADDS,
    CAST,
    DIVISIONS,
    EQUAL,
    FILL,
    FILLED,
    FLOOR_DIVISION,
    GATHERS,
    INDEXED_SLICE,
    INTEGER_DIVISIONS,
    JOIN,
    MAXIMUM,
    MINIMUM,
    NEGATION,
    PASSES_VALUE,
    PROD,
    PRODUCTS,
    RECIPROCALS,
    RESHAPES,
    SELECTS,
    SHAPE_ONLY,
    STACK,
    SUBTRACTION,
    SUM,
    SWITCHES,
    TRUNCATED_DIVISION,
    UNSTACK,
    VARIABLE_READS,
)
from placement_checks.core.placement import producer_of

_PASSES = (PASSES_VALUE - SWITCHES) | VARIABLE_READS | RESHAPES | {CAST}


def _truncated_quotient(one: float, other: float) -> float:
    return trunc(one / other)


# Ops that are computed on constants; the functions apply to single elements.
_FOLDED: Mapping[str, Callable[..., float]] = {
    **dict.fromkeys([STACK, UNSTACK, INDEXED_SLICE, PROD, SUM, *GATHERS], lambda *_: nan),
    **dict.fromkeys(PRODUCTS, operator.mul),
    **dict.fromkeys(DIVISIONS, operator.truediv),
    FLOOR_DIVISION: operator.floordiv,
    TRUNCATED_DIVISION: _truncated_quotient,
    **dict.fromkeys(ADDS, lambda *elements: sum(elements)),
    **dict.fromkeys([SUBTRACTION], operator.sub),
    **dict.fromkeys([NEGATION], operator.neg),
    MAXIMUM: max,
    MINIMUM: min,
}
# The result of these ops on a count is still a count: a small number may be added to avoid a
# division by 0, or the count may be raised to 1.
_KEEPS_COUNT = _PASSES | ADDS | {MAXIMUM}
_MOST_FACTORS = 32  # a product of more factors becomes one symbol
ROWS = "rows"  # the prefix of symbols that depend on shapes alone, such as the size of a batch


class Scalars:
    """The scalars of a placement, each read once."""

    def __init__(self, analysis: TowerAnalysis) -> None:
        self._analysis = analysis
        self._equal = EqualTensors(analysis)
        self._sources: dict[str, str] = {}

    def describe(self, symbol: str) -> str:
        """Return the name of the tensor of a symbol; the symbol itself if it has no tensor."""
        return self._sources.get(symbol, symbol)

    def variables(self, factors: Sequence[tuple[str, int]]) -> frozenset[str]:
        """Return the names of the variables that factors depend on."""
        flow = self._analysis.flow
        sources = [self._sources[symbol] for symbol, _ in factors if symbol in self._sources]
        read = flow.reachable([flow.number[producer_of(each)] for each in sources])
        return frozenset(flow.names[each] for each in read if flow.state_holder(each) == each)

    def is_count(self, symbol: str) -> bool:
        """Whether a symbol is a sum over examples that depends on no variable.

        An example is the number of words in a batch, if a mask excludes the padding.
        """
        flow, examples = self._analysis.flow, self._analysis.examples
        source = self._sources.get(symbol, "")
        while (op := flow.number.get(producer_of(source))) is not None and examples[op]:
            if flow.types[op] == SUM:
                return self.shape(source) == () and not self.variables([(symbol, 1)])
            of_examples = [
                each
                for each in self.inputs(op)
                if producer_of(each) in flow.number and examples[flow.number[producer_of(each)]]
            ]
            if flow.types[op] not in _KEEPS_COUNT or len(of_examples) != 1:
                return False
            (source,) = of_examples
        return False

    def inputs(self, op: OpId) -> Sequence[str]:
        """Return the data inputs of an op, as tensors."""
        inputs = self._analysis.placement.by_number[op].inputs
        return [source for source in inputs if source[0] != "^"]

    def joined(self, op: OpId) -> Sequence[str]:
        """Return the tensors that an op stacks or concatenates, without its axis."""
        inputs, kind = self.inputs(op), self._analysis.flow.types[op]
        if kind == STACK:
            return inputs
        return inputs[:-1] if kind == JOIN else inputs[1:]

    def constant(self, source: str) -> float | None:
        """Return the value of a constant, if all its elements are equal; else None."""
        value = self._analysis.placement.details.value(producer_of(source))
        if value is None:
            return None
        _, _, *elements = value
        if len(set(elements)) != 1:
            return None
        try:
            return float(elements[0])
        except (TypeError, ValueError):  # a string
            return None

    def integers(self, source: str) -> Sequence[int] | None:
        """Return the elements of an integer constant, such as axes; None for other tensors."""
        value = self._analysis.placement.details.value(producer_of(source))
        if value is None or not value[0].startswith("int"):
            return None
        return [int(each) for each in value[2:]]

    def _op_type_and_inputs(self, source: str) -> tuple[str, Sequence[str]]:
        """Return the type and the inputs of the op of a tensor; empty if the op is unknown."""
        op = self._analysis.flow.number.get(producer_of(source))
        return ("", ()) if op is None else (self._analysis.flow.types[op], self.inputs(op))

    def _folded(self, source: str) -> float | None:
        """Return the value of a constant, of an op on constants, or of a sum of equal elements.

        For example, an integer quotient is the number of rows of each tower, and a sum is the
        number of rows of a batch: tf.losses divides a loss by a sum of ones.
        """
        kind, inputs = self._op_type_and_inputs(source)
        if kind == SUM and self.shape(source) == ():
            element, shape = self._element(inputs[0], _MOST_FACTORS), self.shape(inputs[0])
            if element is None or shape is None or None in shape:
                return None
            return element * prod(size or 0 for size in shape)
        elements = self._constants(source, _MOST_FACTORS)
        return elements[0] if elements and len({*elements}) == 1 else None

    def _constants(self, source: str, depth: int) -> Sequence[float] | None:
        """Return the elements of a tensor that depends on constants alone, such as static shapes.

        None if an element is unknown, or if `_FOLDED` lacks an op.
        """
        name, _, output = source.partition(":")
        if (value := self._analysis.placement.details.value(name)) is not None:
            try:
                return [float(each) for each in value[2:]]
            except (TypeError, ValueError):  # strings
                return None
        kind, inputs = self._op_type_and_inputs(source)
        if depth and kind in _PASSES:
            return self._constants(inputs[0], depth - 1)
        if depth == 0 or kind not in _FOLDED:
            return None
        values = [self._constants(each, depth - 1) for each in inputs]
        if any(each is None for each in values):
            return None
        op = self._analysis.flow.number[name]
        return self._fold(op, int(output or 0), [each for each in values if each is not None])

    def _fold(
        self, op: OpId, output: int, values: Sequence[Sequence[float]]
    ) -> Sequence[float] | None:
        """Return the elements of an output of an op, given the elements of its inputs."""
        kind, name = self._analysis.flow.types[op], self._analysis.flow.names[op]
        first = values[0]
        if kind == STACK:
            return [element for each in values for element in each]
        if kind == UNSTACK:
            return first[output : output + 1] if self.shape(name) == () else None
        if kind in GATHERS or kind == INDEXED_SLICE:
            # An element of a vector, or a slice of one.
            begin, *others = (int(each[0]) for each in values[1:] if len(each) == 1)
            if len(others) != len(values) - 2:
                return None
            if self.shape(name) == ():
                return first[begin:][:1]
            if kind in GATHERS or len(first) == 1:
                return None
            attributes = self._analysis.placement.details.attributes(name)
            start = None if attributes.get("begin_mask", 0) else begin
            end = None if attributes.get("end_mask", 0) else others[0]
            return first[start : end : others[1]]
        if kind in (PROD, SUM):
            total = prod(first) if kind == PROD else sum(first)
            return [total] if self.shape(name) == () else None
        length = max(map(len, values))
        if any(len(each) not in (1, length) for each in values):
            return None
        rows = ([each[i % len(each)] for each in values] for i in range(length))
        is_integer = kind in DIVISIONS and self.dtype(name).startswith(("int", "uint"))
        compute = _truncated_quotient if is_integer else _FOLDED[kind]
        try:
            return [compute(*row) for row in rows]
        except ZeroDivisionError:
            return None

    def _element(self, source: str, depth: int) -> float | None:
        """Return the value of all elements of a tensor, if it is known that they are equal."""
        if (value := self.constant(source)) is not None or depth == 0:
            return value
        kind, inputs = self._op_type_and_inputs(source)
        if kind in FILLED:
            return FILLED[kind]
        if kind in SELECTS:
            condition = self._element(inputs[0], depth - 1)
            if condition is None:
                return None
            return self._element(inputs[2 - bool(condition)], depth - 1)
        if kind in _PASSES:
            return self._element(inputs[0], depth - 1)
        if kind == FILL:
            return self._element(inputs[1], depth - 1)
        if kind in PRODUCTS or kind == EQUAL:
            one, other = (self._element(each, depth - 1) for each in inputs)
            if one is None or other is None:
                return None
            return float(one == other) if kind == EQUAL else one * other
        return None

    def is_scalar(self, source: str) -> bool:
        """Whether the static shape of a tensor has one element."""
        shape = self.shape(source)
        return shape is not None and all(size == 1 for size in shape)

    def shape(self, source: str) -> tuple[int | None, ...] | None:
        """Return the static shape of a tensor; None if its rank is unknown."""
        tensor = self._analysis.tensor(source)
        return None if tensor is None else tensor.shape

    def outputs(self, source: str) -> int:
        """Return the number of outputs of the op of a tensor."""
        return len(self._analysis.placement.details.outputs(producer_of(source)))

    def dtype(self, source: str) -> str:
        """Return the dtype of a tensor; ``""`` if it is unknown."""
        tensor = self._analysis.tensor(source)
        return "" if tensor is None else tensor.dtype

    def weight(self, source: str) -> Weight:
        """Return a scalar tensor as a weight: constants folded, products and quotients split."""
        weight, todo = ONE, [(source, 1)]
        for read, (tensor, power) in enumerate(todo):
            if (value := self._folded(tensor)) is not None:
                if (value == 0 and power < 0) or not isfinite(value):
                    return Weight(1.0, ((self._symbol(source), 1),))
                weight = weight.times(Weight(value), power)
                continue
            kind, inputs = self._op_type_and_inputs(tensor)
            if kind in PRODUCTS and read < _MOST_FACTORS:
                todo += [(each, power) for each in inputs]
            elif kind in DIVISIONS | INTEGER_DIVISIONS and read < _MOST_FACTORS:
                todo += [(inputs[0], power), (inputs[1], -power)]
            elif kind in RECIPROCALS:
                todo.append((inputs[0], -power))
            elif kind == NEGATION:
                weight = weight.times(Weight(-1.0))
                todo.append((inputs[0], power))
            elif kind in _PASSES and read < 10 * _MOST_FACTORS:
                todo.append((inputs[0], power))
            else:
                weight = weight.times(Weight(1.0, ((self._symbol(tensor), 1),)), power)
        return weight

    def inverse(self, source: str) -> Weight:
        """Return 1 divided by a scalar tensor as a weight."""
        weight = self.weight(source)
        if not weight.coefficient:
            weight = Weight(1.0, ((self._symbol(source), 1),))
        return ONE.times(weight, -1)

    def _symbol(self, source: str) -> str:
        op = self._analysis.flow.number.get(producer_of(source))
        if op is None:
            return source
        number, output = self._equal.key(source)
        symbol = f"{number}:{output}"
        if self._depends_on_shapes(op):
            symbol = f"{ROWS} {symbol}"
        self._sources.setdefault(symbol, source)
        return symbol

    def _depends_on_shapes(self, op: OpId) -> bool:
        """Whether the value of an op depends on shapes of tensors, and on nothing else."""
        flow = self._analysis.flow
        if self._analysis.examples[op]:
            return False
        reached = flow.reachable([op], until=lambda each: flow.types[each] in SHAPE_ONLY)
        kinds = {flow.types[each] for each in reached}
        return not kinds.isdisjoint(SHAPE_ONLY) and not any(
            flow.state_holder(each) == each for each in reached
        )
