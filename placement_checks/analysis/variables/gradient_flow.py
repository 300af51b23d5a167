"""Gradient flow: the gradients that each update takes, and the towers that they come from."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import cached_property

from placement_checks.analysis.graph.updates import Update
from placement_checks.analysis.towers.analysis import analyze
from placement_checks.core.op_types import ADDS, JOINS, SCALES, is_gradient_update
from placement_checks.core.placement import Placement

# The ops that TensorFlow adds up the gradients of one variable with
# (python/ops/gradients_util.py).
_SUMS = ADDS | JOINS


class GradientFlow:
    """The flow of gradients from the towers to the updates.

    `gradient_flow` computes it once for each placement.
    """

    def __init__(self, placement: Placement) -> None:
        self._analysis = analyze(placement)
        self._ancestors: dict[int, Collection[int]] = {}

    @cached_property
    def gradient_towers(self) -> Sequence[int]:
        """For each op a bit mask of the towers that it takes values from, and `gradient_bit`.

        Unlike in `TowerAnalysis.towers_behind`, bits do not pass through the ops of a tower. Each
        gradient of a joint loss depends on all towers, but only one tower computes it.
        """
        own = [
            bits & self._analysis.gradient_bit if adds else bits
            for bits, adds in zip(self._analysis.own_towers, self._adds_up, strict=True)
        ]
        return self._analysis.flow.propagate(own, keep=self._of_tower)

    @cached_property
    def _adds_up(self) -> Sequence[bool]:
        """For each op whether it adds up gradients in the backward pass."""
        ops = zip(self._analysis.backward.ops, self._analysis.flow.types, strict=True)
        return [bool(backward) and kind in _SUMS for backward, kind in ops]

    @cached_property
    def _of_tower(self) -> Sequence[bool]:
        """For each op whether one tower computes it and it does not add up gradients."""
        return [
            bool(bits & self._analysis.all_towers) and not adds
            for bits, adds in zip(self._analysis.own_towers, self._adds_up, strict=True)
        ]

    @cached_property
    def trained(self) -> dict[str, list[Update]]:
        """The gradient updates of each variable that the model reads, by its name."""
        found = {}
        for variable, updates in self._analysis.updates.by_variable.items():
            if variable in self._analysis.variables_read:
                by_gradient = [update for update in updates if self._by_gradient(update)]
                if by_gradient:
                    found[variable] = by_gradient
        return found

    def _by_gradient(self, update: Update) -> bool:
        return is_gradient_update(self._analysis.flow.types[update.op]) or any(
            self._analysis.towers_behind[op] & self._analysis.gradient_bit
            for op in self.ancestors(update)
        )

    def gradient_inputs(self, op: int) -> list[int]:
        """Return the inputs of an op that are gradients."""
        towers, bit = self.gradient_towers, self._analysis.gradient_bit
        return [source for source in self._analysis.flow.inputs[op] if towers[source] & bit]

    def towers(self, update: Update) -> int:
        """Return a bit mask of the towers whose gradients an update takes."""
        found = 0
        for op in self.ancestors(update):
            if self._of_tower[op]:
                found |= self.gradient_towers[op]
        return found & self._analysis.all_towers

    def sources(self, update: Update) -> Iterator[int]:
        """Yield the gradients that an update takes, as the last ops of towers that compute them.

        Weight decay that the update adds is not a gradient.
        """
        for op in self.ancestors(update):
            if (
                self._of_tower[op]
                and self._analysis.towers_behind[op] & self._analysis.gradient_bit
            ):
                yield op

    def ancestors(self, update: Update) -> Collection[int]:
        """Return the ops between an update and the towers, including the last ops of the towers.

        The search follows ops that belong to no tower or add up gradients, and variables and
        accumulators that hold gradients from one step to the next. It leaves out scalars that
        scale a tensor, such as a norm.
        """
        if update.op not in self._ancestors:
            flow = self._analysis.flow

            def sources(op: int) -> Sequence[int]:
                if flow.state_holder(op) == op:
                    is_read = flow.names[op] in self._analysis.variables_read
                    return () if is_read else self._written(op, update)
                return self._without_scale(op) if flow.types[op] in SCALES else flow.inputs[op]

            self._ancestors[update.op] = flow.reachable(
                update.values,
                along=sources,
                until=lambda op: self._of_tower[op] or op == update.op,
            ) - {update.op}
        return self._ancestors[update.op]

    def _written(self, holder: int, update: Update) -> list[int]:
        """Return the values that ops other than ``update`` write to a holder of state.

        If ops of the step write gradients there, only they count. Otherwise the program runs the
        ops that add up gradients separately, and all writers count.
        """
        analysis = self._analysis
        writers = [
            (writer, written)
            for writer, written in analysis.flow.writers.get(holder, ())
            if writer != update.op
        ]
        running = [
            (writer, written)
            for writer, written in writers
            if analysis.updates.steps[writer]
            and any(analysis.towers_behind[value] & analysis.gradient_bit for value in written)
        ]
        return [value for _, written in running or writers for value in written]

    def _without_scale(self, op: int) -> Sequence[int]:
        """Return the factors of a product, without a scalar that scales a tensor."""
        inputs = self._analysis.flow.inputs[op]
        sources = self._analysis.placement.by_number[op].inputs[:2]
        scalars = [self._is_scalar(source) for source in sources]
        if sorted(scalars) == [False, True]:
            return [factor for factor, scalar in zip(inputs, scalars, strict=False) if not scalar]
        return inputs

    def _is_scalar(self, source: str) -> bool:
        name, _, output = source.partition(":")
        outputs = self._analysis.placement.details.outputs(name)
        number = int(output or 0)
        return number < len(outputs) and outputs[number].shape == ()


def gradient_flow(placement: Placement) -> GradientFlow:
    """Return the flow of gradients of a placement, computed once."""
    return placement.cached(GradientFlow)
