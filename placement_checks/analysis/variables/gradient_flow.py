"""Gradient flow: the gradients that each update takes, and the towers that compute them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property

from placement_checks.analysis.graph.data_flow import union
from placement_checks.analysis.graph.updates import Update
from placement_checks.analysis.towers.analysis import analyze
from placement_checks.core.ids import OpId, TowerMask
from placement_checks.core.op_types import (
    ADDS,
    JOINS,
    SCALES,
    SUM_OF_SQUARES,
    SWITCHES,
    is_gradient_update,
)
from placement_checks.core.placement import Placement


class GradientFlow:
    """The flow of gradients from the towers to the updates.

    `gradient_flow` computes it once for each placement.
    """

    def __init__(self, placement: Placement) -> None:
        self._analysis = analyze(placement)
        self._ancestors: dict[OpId, Collection[OpId]] = {}

    @cached_property
    def gradient_towers(self) -> Sequence[TowerMask]:
        """For each op a bit mask of the towers whose results it uses, and `gradient_bit`.

        Unlike in `TowerAnalysis.towers_behind`, bits do not pass through the ops of a tower. A
        gradient of a joint loss depends on all towers, but has only the bit of the tower that
        computes it.
        """
        own = list(self._analysis.own_towers)
        for op in self._sums:
            own[op] = TowerMask(own[op] & self._analysis.gradient_bit)
        return self._analysis.flow.propagate(own, keep=self._of_tower)

    @cached_property
    def _sums(self) -> Collection[OpId]:
        """The ops that add up the gradients of one variable (python/ops/gradients_util.py)."""
        sums = self._analysis.flow.having((ADDS | JOINS).__contains__)
        return {op for op in sums if self._analysis.backward.ops[op]}

    @cached_property
    def _of_tower(self) -> Sequence[bool]:
        """For each op whether one tower computes it and it does not add up gradients."""
        of_tower = [bool(bits & self._analysis.all_towers) for bits in self._analysis.own_towers]
        for op in self._sums:
            of_tower[op] = False
        return of_tower

    @cached_property
    def trained(self) -> Mapping[str, Sequence[Update]]:
        """The gradient updates of each variable that the model reads, by its name."""
        analysis = self._analysis
        by_gradient = {
            variable: [
                update
                for update in updates
                if is_gradient_update(analysis.flow.types[update.op])
                or any(map(analysis.has_gradient, self.ancestors(update)))
            ]
            for variable, updates in analysis.updates.by_variable.items()
            if variable in analysis.variables_read
        }
        return {variable: updates for variable, updates in by_gradient.items() if updates}

    def gradient_inputs(self, op: OpId) -> list[OpId]:
        """Return the inputs of an op that are gradients."""
        towers, bit = self.gradient_towers, self._analysis.gradient_bit
        return [source for source in self._analysis.flow.inputs[op] if towers[source] & bit]

    def towers(self, update: Update) -> TowerMask:
        """Return the towers that compute the gradients of an update."""
        of_tower = filter(self._of_tower.__getitem__, self.ancestors(update))
        found = union(self.gradient_towers[op] for op in of_tower)
        return TowerMask(found & self._analysis.all_towers)

    def sources(self, update: Update) -> Iterator[OpId]:
        """Yield the last ops of towers that compute the gradients of an update.

        Weight decay that the update adds is not a gradient.
        """
        for op in self.ancestors(update):
            if self._of_tower[op] and self._analysis.has_gradient(op):
                yield op

    def ancestors(self, update: Update) -> Collection[OpId]:
        """Return the ops between an update and the towers, including the last ops of the towers.

        The search follows ops that belong to no tower or add up gradients, and variables and
        accumulators that hold gradients from one step to the next. It leaves out scalars that
        scale a tensor, such as a norm, and the condition of a branch.
        """
        if update.op not in self._ancestors:
            flow = self._analysis.flow

            def sources(op: OpId) -> Sequence[OpId]:
                if flow.state_holder(op) == op:
                    is_read = flow.names[op] in self._analysis.variables_read
                    return () if is_read else self._written(op, update)
                if flow.types[op] in SWITCHES:
                    return flow.inputs[op][:1]
                return self._without_scale(op) if flow.types[op] in SCALES else flow.inputs[op]

            self._ancestors[update.op] = flow.reachable(
                update.values,
                along=sources,
                until=lambda op: self._of_tower[op] or op == update.op,
            ) - {update.op}
        return self._ancestors[update.op]

    def _written(self, holder: OpId, update: Update) -> list[OpId]:
        """Return the values that ops other than ``update`` write to a holder of state.

        If ops of the step write gradients to the holder, only these ops count. Otherwise the
        program adds up gradients outside the step, and all writers count.
        """
        analysis = self._analysis
        writers = analysis.flow.writers.get(holder, ())
        others = [(writer, written) for writer, written in writers if writer != update.op]
        running = [
            (writer, written)
            for writer, written in others
            if analysis.updates.in_step[writer] and any(map(analysis.has_gradient, written))
        ]
        return [value for _, written in running or others for value in written]

    def _without_scale(self, op: OpId) -> Sequence[OpId]:
        """Return the factors of a product, without a scalar that scales a tensor."""
        inputs = self._analysis.flow.inputs[op]
        sources = self._analysis.placement.by_number[op].inputs[:2]
        tensors = map(self._analysis.tensor, sources)
        scalars = [tensor is not None and tensor.shape == () for tensor in tensors]
        if sorted(scalars) == [False, True]:
            return [factor for factor, scalar in zip(inputs, scalars, strict=False) if not scalar]
        return inputs


def gradient_flow(placement: Placement) -> GradientFlow:
    """Return the flow of gradients of a placement, computed once."""
    return placement.cached(GradientFlow)


def norms_of_slices(placement: Placement) -> list[str]:
    """Return the ops that take the norm of a sparse gradient with duplicate indices.

    The slices of such a gradient do not have the shape of any variable.
    """
    analysis = analyze(placement)
    flow = analysis.flow
    shapes = {variable.shape for variable in placement.variables}
    return [
        flow.names[op]
        for op, kind in zip(flow.ops, flow.types, strict=True)
        if kind == SUM_OF_SQUARES
        and analysis.has_gradient(op)
        and all(
            output.shape is not None and output.shape not in shapes
            for source in flow.inputs[op]
            for output in placement.details.outputs(flow.names[source])
        )
    ]
