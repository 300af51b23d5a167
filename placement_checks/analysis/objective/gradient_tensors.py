"""Gradient tensors: the tensors that depend on gradients, and the tensors they come from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

from placement_checks.analysis.objective.scalars import Scalars
from placement_checks.analysis.towers.analysis import TowerAnalysis
from placement_checks.core.ids import OpId
from placement_checks.core.op_types import (
    GATHERERS,
    IDENTITY_N,
    REDUCTIONS,
    SHAPE_ONLY,
)
from placement_checks.core.placement import producer_of

_NO_GRADIENTS = ("int", "uint", "bool", "string", "resource", "variant")  # dtypes


class GradientTensors:
    """The tensors of a placement that depend on gradients."""

    def __init__(self, analysis: TowerAnalysis, scalars: Scalars) -> None:
        self._analysis = analysis
        self._scalars = scalars
        self._sources: dict[str, Sequence[str]] = {}

    def is_leaf(self, op: OpId) -> bool:
        """Whether an op is part of the backward pass: its results are gradients."""
        return bool(self._analysis.backward.ops[op])

    def is_gradient(self, tensor: str) -> bool:
        """Whether a tensor has floats that depend on gradients of this run or of earlier runs."""
        op = self._analysis.flow.number.get(producer_of(tensor))
        return op in self.carriers and not self._scalars.dtype(tensor).startswith(_NO_GRADIENTS)

    @cached_property
    def carriers(self) -> set[OpId]:
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

    def sources(self, tensor: str) -> Sequence[str]:
        """Return the tensors that a tensor is computed from and that depend on gradients.

        A collective is computed from the inputs of its whole group, and the value of a slot from
        the values that ops write to it. Results of the backward pass have no sources.
        """
        if tensor not in self._sources:
            self._sources[tensor] = self._find_sources(tensor)
        return self._sources[tensor]

    def _find_sources(self, tensor: str) -> Sequence[str]:
        flow = self._analysis.flow
        name, _, output = tensor.partition(":")
        op = flow.number[name]
        kind = flow.types[op]
        if self.is_leaf(op) or kind in SHAPE_ONLY:
            return ()
        if kind in REDUCTIONS | GATHERERS:
            return [self._scalars.inputs(member)[0] for member in self.groups[op]]
        holder = flow.state_holder(op)
        if holder == op:
            return [source for _, source in self.written(op)]
        if holder is not None:  # passes on the handle or the ref of a variable
            return [flow.names[holder]] if holder in self.carriers else ()
        inputs = self._scalars.inputs(op)
        if kind == IDENTITY_N:
            inputs = inputs[int(output or 0) :][:1]
        return list(filter(self._carries, self._with_body(op, inputs)))

    def _with_body(self, op: OpId, inputs: Sequence[str]) -> Iterator[str]:
        """Yield inputs and, for the call of a function, the ops of its body."""
        yield from inputs
        flow = self._analysis.flow
        if op in flow.calls:
            yield from (
                flow.names[each] for each in flow.inputs[op] if flow.callers.get(each) == op
            )

    def _carries(self, tensor: str) -> bool:
        op = self._analysis.flow.number.get(producer_of(tensor))
        is_state = op is not None and self._analysis.flow.state_holder(op) is not None
        return op in self.carriers if is_state else self.is_gradient(tensor)

    def own_leaves(self, variable: str) -> frozenset[OpId]:
        """Return the ops that compute the gradients of a variable, if they were recorded."""
        return self._leaves.get(variable, frozenset())

    def may_depend_on(self, tensor: str, variable: str) -> bool:
        """Whether a tensor may depend on the gradients of a variable that has `own_leaves`."""
        op = self._analysis.flow.op_of(tensor)
        return op in self._behind_state or bool(self._variables_behind[op] & self._bits[variable])

    @cached_property
    def _leaves(self) -> Mapping[str, frozenset[OpId]]:
        recorded = self._analysis.placement.step.gradients_by_variable
        return {
            variable: frozenset(self._analysis.flow.known_ops(ops))
            for variable, ops in recorded.items()
        }

    @cached_property
    def _bits(self) -> Mapping[str, int]:
        return {variable: 1 << number for number, variable in enumerate(self._leaves)}

    @cached_property
    def _variables_behind(self) -> Sequence[int]:
        """For each op, the variables with a gradient that it depends on, not through state."""
        masks = [0] * len(self._analysis.flow.names)
        for variable, leaves in self._leaves.items():
            for op in leaves:
                masks[op] |= self._bits[variable]
        return self._analysis.flow.propagate(masks)

    @cached_property
    def _behind_state(self) -> set[OpId]:
        """The ops that depend on a slot with gradients."""
        flow = self._analysis.flow
        holders = [op for op in flow.writers if op in self.carriers]
        return flow.reachable(holders, along=flow.consumers)

    def written(self, holder: OpId) -> Sequence[tuple[OpId, str]]:
        """Return the ops that write gradients to a variable, each with the gradient."""
        writers = self._analysis.flow.writers.get(holder, ())
        return [
            (writer, source)
            for writer, _ in writers
            for source in self._scalars.inputs(writer)[1:]
            if self.is_gradient(source)
        ]

    @cached_property
    def groups(self) -> Mapping[OpId, Sequence[OpId]]:
        """For each collective the group of collectives that run together, itself included."""
        groups = self._analysis.flow.collectives(self._analysis.placement)
        return {member: group for group in groups for member in group}
