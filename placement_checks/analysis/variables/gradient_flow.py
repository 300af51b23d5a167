"""The flow of gradients: which towers' gradients an update takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

from placement_checks.analysis.graph.updates import Update
from placement_checks.analysis.towers.analysis import analyse
from placement_checks.core.op_types import ADDS, JOINS, SCALES, is_gradient_update
from placement_checks.core.placement import Placement

# How TensorFlow adds up the gradients of one variable (python/ops/gradients_util.py).
_SUMS = ADDS | JOINS


class GradientFlow:
    """The flow of gradients from the towers to the updates; `Placement.cached` keeps it."""

    def __init__(self, placement: Placement) -> None:
        self._analysis = analyse(placement)
        self._ancestors: dict[int, Sequence[int]] = {}

    @cached_property
    def gradient_towers(self) -> Sequence[int]:
        """For each op the towers whose ops it is next to, a bit each, and `gradient_bit`.

        Unlike `towers_behind` it does not look through the ops of a tower: gradients of one loss
        of all towers depend on every tower, and yet each is computed by one.
        """
        own = [
            bits & self._analysis.gradient_bit if adds else bits
            for bits, adds in zip(self._analysis.own_towers, self._adds_up, strict=True)
        ]
        return self._analysis.flow.masks(own, self._of_tower)

    @cached_property
    def _adds_up(self) -> Sequence[bool]:
        """For each op whether it adds up gradients in the backward pass."""
        ops = zip(self._analysis.backward.ops, self._analysis.flow.types, strict=True)
        return [bool(backward) and kind in _SUMS for backward, kind in ops]

    @cached_property
    def _of_tower(self) -> Sequence[bool]:
        return [
            bool(bits & self._analysis.all_towers) and not adds
            for bits, adds in zip(self._analysis.own_towers, self._adds_up, strict=True)
        ]

    @cached_property
    def trained(self) -> dict[str, list[Update]]:
        """The updates by gradients, of every variable that the model reads."""
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

    def taken(self, op: int) -> list[int]:
        """The gradients that an op takes."""
        towers, bit = self.gradient_towers, self._analysis.gradient_bit
        return [source for source in self._analysis.flow.inputs[op] if towers[source] & bit]

    def towers(self, update: Update) -> int:
        """The towers whose gradients an update takes, a bit each."""
        found = 0
        for op in self.ancestors(update):
            if self._of_tower[op]:
                found |= self.gradient_towers[op]
        return found & self._analysis.all_towers

    def sources(self, update: Update) -> Iterator[int]:
        """The gradients of towers that an update takes, as the last ops that compute them.

        A decay of the weights that is read beside the variable is none.
        """
        for op in self.ancestors(update):
            if (
                self._of_tower[op]
                and self._analysis.towers_behind[op] & self._analysis.gradient_bit
            ):
                yield op

    def ancestors(self, update: Update) -> Sequence[int]:
        """The ops between an update and the towers, the first ops of the towers among them.

        Followed back through ops that belong to no tower or add up gradients, through variables
        and accumulators that hold gradients from one step to the next. A scalar that scales a
        tensor, such as a norm, is left out.
        """
        if update.op not in self._ancestors:
            self._ancestors[update.op] = self._walk_back(update)
        return self._ancestors[update.op]

    def _walk_back(self, update: Update) -> list[int]:
        flow = self._analysis.flow
        seen = {update.op}
        todo = list(update.values)
        found = []
        while todo:
            op = todo.pop()
            if op in seen:
                continue
            seen.add(op)
            found.append(op)
            if self._of_tower[op]:
                continue
            if flow.state_holder(op) == op:
                if flow.names[op] not in self._analysis.variables_read:
                    todo += self._written(op, update)
            elif flow.types[op] in SCALES:
                todo += self._scaled(op)
            else:
                todo += flow.inputs[op]
        return found

    def _written(self, holder: int, update: Update) -> list[int]:
        """What other ops write to a holder of state.

        By those of the step, where they write gradients; else the gradients are summed up by ops
        that are run by themselves.
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

    def _scaled(self, op: int) -> Sequence[int]:
        """What a product is made of, scalars left out unless it is one itself."""
        inputs = self._analysis.flow.inputs[op]
        sources = self._analysis.placement.by_number[op].inputs[:2]
        scalars = [self._is_scalar(source) for source in sources]
        if sorted(scalars) == [False, True]:
            return [factor for factor, scalar in zip(inputs, scalars, strict=False) if not scalar]
        return inputs

    def _is_scalar(self, source: str) -> bool:
        """Whether a tensor is known to be a scalar."""
        name, _, output = source.partition(":")
        outputs = self._analysis.placement.details.outputs(name)
        number = int(output or 0)
        return number < len(outputs) and outputs[number].shape == ()


def gradient_flow(placement: Placement) -> GradientFlow:
    """The flow of gradients of a placement, analysed once."""
    return placement.cached(GradientFlow)
