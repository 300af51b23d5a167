"""Gradient weights: the weight of each tower's gradients in an update."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from placement_checks.analysis.graph.updates import Update
from placement_checks.analysis.objective.gradient_tensors import GradientTensors
from placement_checks.analysis.objective.linear_forms import (
    Form,
    Weight,
    added,
    leaf,
    scaled,
)
from placement_checks.analysis.objective.scalars import Scalars
from placement_checks.analysis.objective.written_updates import COMBINES_WEIGHTS, WrittenUpdates
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
        self.tensors = GradientTensors(analysis, scalars)
        self.written = WrittenUpdates(analysis, scalars, self.tensors)
        self._values: dict[str, Value] = {}
        self._gradients = gradient_flow(analysis.placement)

    def of_update(self, update: Update) -> Form | Unread:
        """Return the gradients that an update takes, with their weights."""
        gradients = list(filter(self.tensors.is_gradient, self._scalars.inputs(update.op)[1:]))
        if is_gradient_update(self._analysis.flow.types[update.op]):
            gradients = [source for source in gradients if not self._is_slot(source)]
        else:
            read = self.written.read(update)
            if read == COMBINES_WEIGHTS:
                name = self._analysis.flow.names[update.op]
                return Unread(name, "combines values of the variable, not gradients")
            gradients = gradients if isinstance(read, str) else [read.stages[-1].tensor]
        return self.of_tensors(gradients)

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

    def _is_slot(self, source: str) -> bool:
        """Whether a tensor is a ref variable, such as a slot that an update changes too."""
        op = self._analysis.flow.op_of(source)
        return self._analysis.flow.state_holder(op) == op

    def _sources(self, tensor: str) -> Sequence[str]:
        """Return the tensors of gradients that a tensor is computed from; empty for a leaf."""
        flow = self._analysis.flow
        op = flow.op_of(tensor)
        if self.tensors.is_leaf(op):
            return ()
        kind = flow.types[op]
        inputs = self._scalars.inputs(op)
        if kind in REDUCTIONS | GATHERERS:
            return [self._scalars.inputs(member)[0] for member in self.tensors.groups[op]]
        holder = flow.state_holder(op)
        if holder == op:
            return [source for _, source in self.tensors.written(op)]
        if holder is not None:  # passes on the handle or the ref of a variable
            return [flow.names[holder]]
        if kind in _READS_STATE | GRADIENT_OUTPUTS:
            return inputs[:1] if flow.op_of(inputs[0]) in self.tensors.carriers else ()
        if kind in DIVISIONS:
            return [source for source in inputs[:1] if self.tensors.is_gradient(source)]
        carrying = [source for source in inputs if self.tensors.is_gradient(source)]
        if kind in PRODUCTS and len(carrying) == 2:  # one may be a scalar, such as a norm
            carrying = [source for source in carrying if self._scalars.shape(source) != ()]
        return carrying

    def _combine(self, tensor: str) -> Value:
        name, _, output = tensor.partition(":")
        op = self._analysis.flow.number[name]
        if self.tensors.is_leaf(op):
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
        written = self.tensors.written(op)
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
