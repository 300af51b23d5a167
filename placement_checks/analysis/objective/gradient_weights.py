"""Gradient weights: the weight of each tower's gradients in an update."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeAlias

from placement_checks.analysis.graph.updates import Update
from placement_checks.analysis.objective.linear_forms import (
    Form,
    Weight,
    added,
    leaf,
    scaled,
)
from placement_checks.analysis.objective.scalars import Scalars
from placement_checks.analysis.towers.analysis import TowerAnalysis
from placement_checks.analysis.variables.gradient_flow import gradient_flow
from placement_checks.core.ids import OpId
from placement_checks.core.op_types import (
    ADDITIONS,
    ADDS,
    ASSIGNS,
    CAST,
    CHECKS_VALUE,
    CUTS,
    DIVISIONS,
    ELEMENTWISE,
    GATHERERS,
    GRADIENT_OUTPUTS,
    IDENTITIES,
    IDENTITY_N,
    INDEXED_SLICE,
    JOINS,
    MEAN,
    NEGATION,
    NEW_AXIS,
    OVERWRITES,
    PASSES_VALUE,
    PRODUCTS,
    RECIPROCAL_SQUARE_ROOT,
    RECIPROCALS,
    REDUCTIONS,
    RESHAPES,
    SLICE,
    SPLITS,
    STACK,
    SUBTRACTION,
    SUBTRACTIONS,
    SUM,
    SUM_OF_ROWS,
    SWITCHES,
    VARIABLE_READS,
    is_gradient_update,
)
from placement_checks.core.placement import producer_of

_PASSES = (PASSES_VALUE - SWITCHES) | IDENTITIES | RESHAPES | CHECKS_VALUE | {CAST, SUM_OF_ROWS}
# Ops that yield the value of their first input, a variable. So does an assignment to a ref
# variable.
_READS_STATE = VARIABLE_READS | ASSIGNS
_RECIPROCALS = RECIPROCALS | {RECIPROCAL_SQUARE_ROOT}
_NO_GRADIENTS = ("int", "uint", "bool", "string", "resource", "variant")  # dtypes
_ACCUMULATED = "accumulated"  # a symbolic factor: the gradients are added up over several runs


class Gradient(NamedTuple):
    """A gradient that a tower computes: a leaf of a form.

    Attributes:
        tensor: the result of the backward pass.
    """

    tensor: str


class Rest(NamedTuple):
    """A summand of an update that no tower computes, such as decoupled weight decay."""

    tensor: str


_STATE_BEFORE = Rest("")  # the value of a variable before the step


@dataclass(frozen=True)
class Stack:
    """Tensors that are stacked or concatenated into one tensor."""

    parts: Sequence[Form]


class Unread(NamedTuple):
    """A value that cannot be read as a linear form of gradients.

    Attributes:
        op: the op that cannot be read; ``""`` if there is no such op.
        reason: why it cannot be read.
    """

    op: str
    reason: str


Value: TypeAlias = "Form | Stack | Unread"


class GradientWeights:
    """Reads the inputs of updates as linear forms of gradients. Each tensor is read once."""

    def __init__(self, analysis: TowerAnalysis, scalars: Scalars) -> None:
        self._analysis = analysis
        self._scalars = scalars
        self._values: dict[str, Value] = {}
        self._gradients = gradient_flow(analysis.placement)

    def of_update(self, update: Update) -> Form | Unread:
        """Return the gradients that an update takes, with their weights."""
        gradients = list(filter(self._is_gradient, self._scalars.inputs(update.op)[1:]))
        if is_gradient_update(self._analysis.flow.types[update.op]):
            gradients = [source for source in gradients if not self._is_slot(source)]
        else:
            gradients = [self._before_normalization(source) or source for source in gradients]
        return self.of_tensors(gradients)

    def _before_normalization(self, source: str) -> str | None:
        """Return the gradient that an adaptive optimizer takes, if its update is written out.

        Such an update, as in Adam or RMSProp, divides one function of the gradient by another
        function of the gradient, element by element. Like the fused op for Adam, the division is
        not part of the objective.

        Returns:
            The last tensor that both functions are computed from. None if the update has no such
            division, or if the functions are computed from several gradients.
        """
        flow = self._analysis.flow
        passed: set[str] = set()  # a while loop leads back to its ops
        while source not in passed:
            passed.add(source)
            op = flow.op_of(source)
            inputs = [] if self._is_leaf(op) else self._inputs_of_this_run(op)
            of_variable = [each for each in inputs if self._scalars.shape(each) != ()]
            if len(of_variable) == 2 and self._is_quotient(op):
                return self._joint_source(of_variable)
            if len(of_variable) != 1:
                return None
            (source,) = of_variable
        return None

    def _is_quotient(self, op: OpId) -> bool:
        flow = self._analysis.flow
        if flow.types[op] in PRODUCTS:
            producers = (flow.op_of(each) for each in self._scalars.inputs(op))
            return any(flow.types[each] in _RECIPROCALS for each in producers)
        return flow.types[op] in DIVISIONS

    def _inputs_of_this_run(self, op: OpId) -> Sequence[str]:
        """Return the inputs that depend on gradients of this run, not only through state."""
        flow, behind = self._analysis.flow, self._analysis.towers_behind
        return [
            each
            for each in self._scalars.inputs(op)
            if self._is_gradient(each)
            if behind[flow.op_of(each)] & self._analysis.gradient_bit
        ]

    def _joint_source(self, tensors: Iterable[str]) -> str | None:
        """Return the last tensor through which all given tensors depend on gradients, if any."""
        op_of = self._analysis.flow.op_of
        todo = [(-op_of(each), each) for each in {*tensors}]
        heapq.heapify(todo)
        seen = {each for _, each in todo}
        while todo:
            _, tensor = heapq.heappop(todo)
            if not todo:
                return tensor
            op = op_of(tensor)
            if self._is_leaf(op):
                return None
            for each in self._inputs_of_this_run(op):
                if each not in seen:
                    seen.add(each)
                    heapq.heappush(todo, (-op_of(each), each))
        return None

    def of_tensors(self, tensors: Iterable[str]) -> Form | Unread:
        """Return the sum of several tensors as a form."""
        forms = []
        for tensor in tensors:
            value = self.value(tensor)
            if isinstance(value, Unread):
                return value
            forms.append(_flat(value))
        return added(forms)

    def value(self, source: str) -> Value:
        """Return a tensor that depends on gradients as a linear form of these gradients."""
        todo = [source]
        opened: set[str] = set()
        while todo:
            tensor = todo[-1]
            if tensor in self._values:
                todo.pop()
                continue
            waiting = [each for each in self._sources(tensor) if each not in self._values]
            if tensor not in opened and any(each not in opened for each in waiting):
                opened.add(tensor)
                todo += waiting
            else:
                # Sources that still have no value depend on this tensor through a variable.
                self._values[tensor] = self._combine(tensor)
        return self._values[source]

    def _is_gradient(self, source: str) -> bool:
        """Whether a tensor has floats that depend on gradients of this run or of earlier runs."""
        op = self._analysis.flow.number.get(producer_of(source))
        return op in self._carriers and not self._scalars.dtype(source).startswith(_NO_GRADIENTS)

    @cached_property
    def _carriers(self) -> set[OpId]:
        """The ops that depend on gradients, directly or through state that gradients update.

        Variables of the model are left out: their values are not gradients.
        """
        analysis = self._analysis
        behind = analysis.towers_behind
        carriers = {op for op in analysis.flow.ops if behind[op] & analysis.gradient_bit}
        while True:
            holders = {
                holder
                for holder, writers in analysis.flow.writers.items()
                if holder not in carriers
                and analysis.flow.names[holder] not in analysis.variables_read
                and any(not carriers.isdisjoint(written) for _, written in writers)
            }
            if not holders:
                return carriers
            carriers |= analysis.flow.reachable(holders, along=analysis.flow.consumers)

    def _is_slot(self, source: str) -> bool:
        """Whether a tensor is a ref variable, such as a slot that an update changes too."""
        op = self._analysis.flow.op_of(source)
        return self._analysis.flow.state_holder(op) == op

    def _is_leaf(self, op: OpId) -> bool:
        return bool(self._analysis.backward.ops[op])

    def _sources(self, tensor: str) -> Sequence[str]:
        """Return the tensors of gradients that a tensor is computed from; empty for a leaf."""
        flow = self._analysis.flow
        op = flow.op_of(tensor)
        if self._is_leaf(op):
            return ()
        kind = flow.types[op]
        inputs = self._scalars.inputs(op)
        if kind in REDUCTIONS | GATHERERS:
            return [self._scalars.inputs(member)[0] for member in self._groups[op]]
        holder = flow.state_holder(op)
        if holder == op:
            return [source for _, source in self._written(op)]
        if holder is not None:  # passes on the handle or the ref of a variable
            return [flow.names[holder]]
        if kind in _READS_STATE | GRADIENT_OUTPUTS:
            return inputs[:1] if flow.op_of(inputs[0]) in self._carriers else ()
        if kind in DIVISIONS:
            return [source for source in inputs[:1] if self._is_gradient(source)]
        carrying = [source for source in inputs if self._is_gradient(source)]
        if kind in PRODUCTS and len(carrying) == 2:  # one may be a scalar, such as a norm
            carrying = [source for source in carrying if self._scalars.shape(source) != ()]
        return carrying

    def _written(self, op: OpId) -> Sequence[tuple[OpId, str]]:
        """Return the ops that write gradients to a variable, each with the gradient."""
        flow = self._analysis.flow
        return [
            (writer, source)
            for writer, _ in flow.writers.get(op, ())
            for source in self._scalars.inputs(writer)[1:]
            if self._is_gradient(source)
        ]

    @cached_property
    def _groups(self) -> Mapping[OpId, Sequence[OpId]]:
        """For each collective the group of collectives that run together, itself included."""
        groups = self._analysis.flow.collectives(self._analysis.placement)
        return {member: group for group in groups for member in group}

    def _combine(self, tensor: str) -> Value:
        name, _, output = tensor.partition(":")
        op = self._analysis.flow.number[name]
        if self._is_leaf(op):
            return leaf(Gradient(tensor))
        values = {
            source: self._values.get(source, leaf(_STATE_BEFORE))
            for source in self._sources(tensor)
        }
        if not values:
            return leaf(Rest(tensor))
        unread = next((each for each in values.values() if isinstance(each, Unread)), None)
        if unread is not None:
            return unread
        if op in self._analysis.flow.callers and self._scalars.outputs(tensor) > 1:
            return Unread(name, "is in the body of a function")  # the output is unknown
        combined = self._linear(op, self._analysis.flow.types[op], int(output or 0), values)
        kind = self._analysis.flow.types[op]
        return combined or Unread(
            name, f"({kind}) computes neither a sum nor a multiple of gradients"
        )

    def _linear(
        self, op: OpId, kind: str, output: int, values: Mapping[str, Value]
    ) -> Value | None:
        """Return the form of one output of an op; None if the op is not linear."""
        inputs = self._scalars.inputs(op)
        holder = self._analysis.flow.state_holder(op)
        if holder == op:
            return self._kept(op, values)
        if holder is not None:
            return values[self._analysis.flow.names[holder]]

        def form(source: str) -> Form:
            return _flat(values[source]) if source in values else leaf(Rest(source))

        def parts(source: str) -> Sequence[Form]:
            value = values.get(source)
            return value.parts if isinstance(value, Stack) else [form(source)]

        if kind in ADDS:
            return _sum([values.get(source) or leaf(Rest(source)) for source in inputs])
        if kind == SUBTRACTION:
            return added([form(inputs[0]), scaled(form(inputs[1]), Weight(-1.0))])
        if kind == NEGATION:
            return _each(values[inputs[0]], Weight(-1.0))
        if kind in PRODUCTS | DIVISIONS:
            return self._scaled(kind, inputs, values)
        if kind == NEW_AXIS and not isinstance(values[inputs[0]], Stack):
            return Stack([form(inputs[0])])
        if kind in _PASSES | _READS_STATE:
            source = inputs[output if kind == IDENTITY_N else 0]
            return values.get(source) or leaf(Rest(source))
        if kind == STACK:
            return Stack([form(source) for source in inputs])
        if kind in JOINS:
            joined = self._scalars.joined(op)
            return Stack([part for source in joined for part in parts(source)])
        if kind in (MEAN, SUM) and isinstance(values.get(inputs[0]), Stack):
            stacked = parts(inputs[0])
            return scaled(added(stacked), Weight(1 / len(stacked) if kind == MEAN else 1.0))
        if kind in REDUCTIONS:
            return self._reduced(op, list(values.values()))
        if kind in GATHERERS:
            return Stack([part for source in values for part in parts(source)])
        if kind in GRADIENT_OUTPUTS:
            return self._averaged(inputs, values)
        if kind in CUTS:
            return self._part(op, kind, output, values[inputs[CUTS[kind]]])
        if kind in ELEMENTWISE:
            return self._elementwise(op, kind, values)
        return None

    def _scaled(
        self, kind: str, inputs: Sequence[str], values: Mapping[str, Value]
    ) -> Value | None:
        """Return the form of a gradient times or divided by a scalar; None for other products."""
        if kind in DIVISIONS:
            if inputs[0] not in values:
                return None
            return _each(values[inputs[0]], self._scalars.inverse(inputs[1]))
        of_gradient = [source for source in inputs if source in values]
        if len(of_gradient) != 1:
            return None
        factor = inputs[1 - list(inputs).index(of_gradient[0])]
        return _each(values[of_gradient[0]], self._scalars.weight(factor))

    def _reduced(self, op: OpId, values: Sequence[Value]) -> Value | None:
        """Return the result of a collective that reduces."""
        attributes = self._analysis.placement.details.attributes(self._analysis.flow.names[op])
        merged = attributes.get("merge_op", attributes.get("reduction", b"sum"))
        if _text(merged).lower() not in ("add", "sum"):
            return None
        is_mean = _text(attributes.get("final_op", b"Id")) != "Id"
        return _each(_sum(values), Weight(1 / len(values) if is_mean else 1.0))

    def _part(self, op: OpId, kind: str, output: int, value: Value) -> Value | None:
        """Return what an op cuts out of joined tensors; None if it is not exactly one of them."""
        name = self._analysis.flow.names[op]
        outputs = len(self._analysis.placement.details.outputs(name))
        if kind in SPLITS and outputs == 1:
            return value
        if not isinstance(value, Stack):
            return None
        parts = len(value.parts)
        if kind == INDEXED_SLICE:
            begin = self._analysis.placement.details.value(
                producer_of(self._scalars.inputs(op)[1])
            )
            attributes = self._analysis.placement.details.attributes(name)
            if attributes.get("shrink_axis_mask") != 1 or begin is None:
                return None
            first = begin[2]
            return value.parts[first] if -parts <= first < parts else None
        return value.parts[output] if outputs == parts and kind != SLICE else None

    def _kept(self, op: OpId, values: Mapping[str, Value]) -> Form | None:
        """Return the form of all gradients that are written to a variable or an accumulator.

        None if several ops overwrite the value.
        """
        forms = []
        written = self._written(op)
        kinds = [self._analysis.flow.types[writer] for writer, _ in written]
        if sum(kind in OVERWRITES for kind in kinds) > 1:
            return None
        for kind, (_, source) in zip(kinds, written, strict=True):
            sign = -1.0 if kind in SUBTRACTIONS else 1.0
            factors = ((_ACCUMULATED, 1),) if kind in ADDITIONS else ()
            forms.append(scaled(_flat(values[source]), Weight(sign, factors)))
        return added(forms)

    def _averaged(self, inputs: Sequence[str], values: Mapping[str, Value]) -> Form | None:
        """Return the mean that an accumulator of gradients yields."""
        count = self._scalars.constant(inputs[1])
        kept = values.get(inputs[0])
        if not count or kept is None:
            return None
        return scaled(_flat(kept), Weight(1 / count))

    def _elementwise(self, op: OpId, kind: str, values: Mapping[str, Value]) -> Form | None:
        """Return the form of a gradient that an elementwise op changes, with a factor for the op.

        None if the gradient does not combine all towers: in the program for one GPU, the op gets
        the gradient of the whole batch.
        """
        changed = [
            (source, value)
            for source, value in values.items()
            if self._scalars.shape(source) == self._scalars.shape(self._analysis.flow.names[op])
        ]
        towers = self._gradients.gradient_towers[op] & self._analysis.all_towers
        if len(changed) != 1 or towers != self._analysis.all_towers:
            return None
        return scaled(_flat(changed[0][1]), Weight(1.0, ((f"by {kind}", 1),)))


def _flat(value: Value) -> Form:
    """Return a value as one form. The parts of a stack are added up, as rows of one gradient."""
    assert not isinstance(value, Unread)
    return added(value.parts) if isinstance(value, Stack) else value


def _sum(values: Sequence[Value]) -> Value:
    """Add up values: part by part, if all of them are stacks with equally many parts."""
    stacks = [value.parts for value in values if isinstance(value, Stack)]
    if len(stacks) == len(values) and len({len(parts) for parts in stacks}) == 1:
        return Stack([added(each) for each in zip(*stacks, strict=True)])
    return added(map(_flat, values))


def _each(value: Value, weight: Weight) -> Value:
    if isinstance(value, Stack):
        return Stack([scaled(part, weight) for part in value.parts])
    return value if isinstance(value, Unread) else scaled(value, weight)


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
