"""Accumulators: the variables that collect results, to show them or to apply them later."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from placement_checks.analysis.graph.data_flow import union
from placement_checks.analysis.towers.analysis import analyze
from placement_checks.analysis.towers.by_loss import single_tower
from placement_checks.analysis.towers.discovery import complete_device
from placement_checks.analysis.variables.gradient_flow import gradient_flow
from placement_checks.analysis.variables.step_changes import step_changes
from placement_checks.core.ids import OpId, TowerIndex
from placement_checks.core.op_types import (
    NOT_A_READ,
    OVERWRITES,
    RESTORES,
    is_update,
)
from placement_checks.core.placement import Placement


class Accumulators:
    """The accumulators of a placement; `accumulators` finds them once.

    An accumulator is a variable that the program adds values to, other than constants, in place or
    by assigning the sum. No loss depends on the variable, and no update trains it. If gradients
    are added, and an update of another variable takes the sum, an op other than the initializer
    must empty the variable. Nothing empties an optimizer slot. A moving average is not an
    accumulator, because it also scales its old value.

    Attributes:
        names: the accumulators.
        tower_of: for each accumulator of one tower, the tower, by the name of the accumulator. It
            is the tower that computes all added values. If there is none, and no update takes the
            sum, it is the tower on the GPU that adds to the accumulator.
    """

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self._analysis = analyze(placement)
        self._changes = step_changes(placement)
        self.names: set[str] = set()
        self.tower_of: dict[str, TowerIndex] = {}
        trained = gradient_flow(placement).trained
        for variable in placement.variables:
            if variable.name not in trained:
                self._examine(variable.name)

    def _examine(self, name: str) -> None:
        """Add a variable to the results if it is an accumulator."""
        analysis = self._analysis
        flow, reads = analysis.flow, analysis.reads_by_site
        variable = flow.number[name]
        if any(map(reads.in_loss, reads.readers[name])):
            return
        writers = flow.writers.get(variable, ())
        updates = [(op, values) for op, values in writers if is_update(flow.types[op])]
        added = [value for op, values in updates if self._adds(op, values) for value in values]
        if not added:
            return
        is_read = name in analysis.variables_read
        is_shown = not is_read and not self._reaches_loss(variable, or_update=True)
        of_gradients = any(map(analysis.has_gradient, added))
        is_emptied = self._is_emptied(variable)
        if of_gradients and not is_shown and not is_emptied:
            return
        self.names.add(name)
        if is_shown or (of_gradients and is_emptied and not self._reaches_loss(variable)):
            masks = (analysis.towers_behind[value] for _, values in updates for value in values)
            tower = single_tower(union(masks) & analysis.all_towers)
            if tower is None and is_shown:
                tower = self._tower_on_device(added)
            if tower is not None:
                self.tower_of[name] = tower

    def _adds(self, op: OpId, values: Sequence[OpId]) -> bool:
        """Whether an update adds a value that depends on more than constants."""
        changes, analysis = self._changes, self._analysis
        if all(analysis.layers.constant[value] for value in values):
            return False
        change = changes.change(analysis.flow.names[op])
        return changes.adds(change) and changes.increments(change) is None

    def _tower_on_device(self, ops: Iterable[OpId]) -> TowerIndex | None:
        """Return the only tower that runs on all devices that the ops request, if there is one."""
        analysis = self._analysis
        devices = {complete_device(self._placement.by_number[op].requested) for op in ops}
        towers = [
            number
            for number in analysis.tower_indices
            if devices <= set(analysis.towers[number].devices)
        ]
        return towers[0] if len(towers) == 1 else None

    def _is_emptied(self, variable: OpId) -> bool:
        """Whether an op other than the initializer sets a variable to a constant."""
        analysis = self._analysis
        flow = analysis.flow
        constant = [
            op
            for op, values in flow.writers.get(variable, ())
            if flow.types[op] in OVERWRITES
            and not any(
                analysis.towers_behind[value] or flow.types[value] in RESTORES for value in values
            )
        ]
        return len(constant) > 1

    def _reaches_loss(self, variable: OpId, *, or_update: bool = False) -> bool:
        """Whether the value of a variable reaches a loss, or is taken by an update."""
        flow, in_loss = self._analysis.flow, self._analysis.reads_by_site.in_loss

        def readers(op: OpId) -> Sequence[OpId]:
            return [user for user in flow.consumers[op] if flow.types[user] not in NOT_A_READ]

        reached = flow.reachable(
            [variable], along=readers, until=lambda op: op != variable and in_loss(op)
        )
        return any(
            in_loss(op)
            or (
                or_update
                and is_update(flow.types[op])
                and not reached.isdisjoint(flow.inputs[op][1:])
            )
            for op in reached - {variable}
        )


def accumulators(placement: Placement) -> Accumulators:
    """Return the accumulators of a placement, found once."""
    return placement.cached(Accumulators)
