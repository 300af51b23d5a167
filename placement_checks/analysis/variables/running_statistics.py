"""Running statistics: updates that only evaluation uses, such as in batch normalization."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain

from placement_checks.analysis.graph.analysis import is_local
from placement_checks.analysis.graph.updates import Update
from placement_checks.analysis.towers.analysis import analyze
from placement_checks.analysis.towers.by_loss import single_tower
from placement_checks.analysis.variables.accumulators import accumulators
from placement_checks.analysis.variables.gradient_flow import gradient_flow
from placement_checks.core.ids import OpId, TowerIndex
from placement_checks.core.op_types import (
    ASSIGNS,
    BATCH_NORMS,
    EXAMPLE_SOURCES,
    MEAN,
    NO_OP,
    SUM,
    is_gradient_update,
)
from placement_checks.core.placement import Placement

_OVER_ROWS = BATCH_NORMS | {SUM, MEAN}


class Statistics:
    """The updates of running statistics, and the groups that run them.

    The updates are the ops in the collection UPDATE_OPS, and assignments to variables that are not
    trained, if a tower computes the assigned value on the way to its loss. Assignments of fed
    values, and updates of accumulators, are not included. `statistics` finds them once for each
    placement.
    """

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self._analysis = analyze(placement)

    @cached_property
    def updates(self) -> Sequence[OpId]:
        """The updates by towers that train, except updates that another step runs."""
        evaluation = set(self.evaluation_updates)
        return [op for op in self._all_updates if op not in evaluation]

    @cached_property
    def evaluation_updates(self) -> Sequence[OpId]:
        """The updates by a copy of the model that only evaluates.

        No loss depends on the inputs of these updates, and towers that train update the same
        variable.
        """
        analysis = self._analysis
        if not analysis.loss_ops:
            return ()
        trains = analysis.flow.reachable(analysis.loss_ops)
        is_trained: dict[OpId, set[bool]] = defaultdict(set)
        holders: dict[OpId, tuple[OpId, bool]] = {}
        for op in self._all_updates:
            holder, values = analysis.flow.first_holder(op), analysis.flow.inputs[op][1:]
            if holder is not None and any(analysis.examples[value] for value in values):
                holders[op] = holder, self._is_of_training(op, trains)
                is_trained[holder].add(holders[op][1])
        return [
            op
            for op, (holder, trained) in holders.items()
            if not trained and True in is_trained[holder]
        ]

    def is_of_normalization(self, update: Update) -> bool:
        """Whether an update belongs to batch normalization.

        Such an update moves a vector by a sum or mean over rows that a loss also depends on. A
        moving mean of the loss does not count. The loss may depend on the vector, too, as in batch
        renormalization, or if a placeholder switches between training and evaluation.
        """
        analysis = self._analysis
        flow, in_loss = analysis.flow, analysis.reads_by_site.in_loss
        if analysis.shapes[update.variable] == () or any(
            map(analysis.has_gradient, update.values)
        ):
            return False
        losses = set(analysis.loss_ops)
        behind = flow.reachable(
            [value for value in update.values if analysis.examples[value]],
            until=lambda op: not analysis.examples[op] or op in losses,
        )
        return any(
            flow.types[op] in _OVER_ROWS and in_loss(op) and op not in losses for op in behind
        )

    def only_tower(
        self, updates: Sequence[OpId], ran: Collection[OpId] | None = None
    ) -> TowerIndex | None:
        """Return the only tower with updates that run, if all of its updates run.

        Args:
            updates: updates of running statistics.
            ran: the ops that run; the ops of the step by default.

        Returns:
            The tower; None also if an update does not belong to one tower, if only one tower has
            updates, or if the towers with updates have different numbers of updates.
        """
        analysis = self._analysis
        runs = analysis.updates.in_step.__getitem__ if ran is None else ran.__contains__
        sets: dict[TowerIndex, list[bool]] = defaultdict(list)
        for op in updates:
            tower = single_tower(analysis.towers_of(op))
            if tower is None:
                return None
            sets[tower].append(bool(runs(op)))
        running = [tower for tower, of_tower in sets.items() if any(of_tower)]
        is_even = len(sets) > 1 and len(set(map(len, sets.values()))) == 1
        return running[0] if len(running) == 1 and all(sets[running[0]]) and is_even else None

    def group_outside_step(self, updates: Sequence[OpId]) -> OpId | None:
        """Return a group outside the step that runs all updates, or all updates of tower 0."""
        for group in self._groups:
            if group in updates:
                continue
            ran = self._runs([group])
            if ran.issuperset(updates) or self.only_tower(updates, ran) == 0:
                return group
        return None

    @cached_property
    def _members(self) -> Mapping[OpId, Sequence[OpId]]:
        """The members of each group outside the step, except for groups of backward ops."""
        analysis = self._analysis
        return {
            op: analysis.flow.control_inputs.get(op, ())
            for op in analysis.flow.having(NO_OP.__eq__)
            if not analysis.updates.in_step[op] and not analysis.backward.ops[op]
        }

    @cached_property
    def _groups(self) -> Sequence[OpId]:
        """The outermost groups outside the step."""
        grouped = set(chain.from_iterable(self._members.values()))
        return [group for group in self._members if group not in grouped]

    def _runs(self, ops: Iterable[OpId]) -> set[OpId]:
        flow = self._analysis.flow
        return flow.reachable(ops, along=flow.all_inputs)

    @cached_property
    def _all_updates(self) -> Sequence[OpId]:
        """All updates, except updates that another training step runs."""
        flow, steps = self._analysis.flow, self._analysis.updates.in_step
        others = [op for op in flow.having(is_gradient_update) if not steps[op]]
        training = [g for g in self._groups if others and not self._runs([g]).isdisjoint(others)]
        elsewhere = self._runs([*training, *others])
        found = set(flow.known_ops(self._placement.step.update_ops))
        for op in flow.having(ASSIGNS.__contains__):
            holder = flow.first_holder(op) if len(flow.inputs[op]) > 1 else None
            if holder in flow.variables:
                name = flow.names[holder]
                if self._may_be_statistic(name) and self._assigns_statistics(op, name):
                    found.add(op)
        return sorted(found - elsewhere)

    def _may_be_statistic(self, variable: str) -> bool:
        """Whether a variable is saved, and neither an accumulator nor trained."""
        return (
            not is_local(self._placement, variable)
            and variable not in accumulators(self._placement).tower_of
            and variable not in gradient_flow(self._placement).trained
        )

    def _is_of_training(self, update: OpId, trains: Collection[OpId]) -> bool:
        """Whether an update takes a value that depends on examples and reaches a loss."""
        flow, examples = self._analysis.flow, self._analysis.examples
        behind = flow.reachable(
            flow.inputs[update][1:], until=lambda op: not examples[op] or op in trains
        )
        return any(
            examples[op] and op in trains and flow.types[op] not in EXAMPLE_SOURCES
            for op in behind
        )

    def _assigns_statistics(self, op: OpId, variable: str) -> bool:
        """Whether an op assigns a value that a tower computes on the way to its loss."""
        analysis = self._analysis
        # A read of the variable itself does not count: a counter also reads its old value.
        itself = set(analysis.reads_by_site.readers[variable])

        def is_of_tower(value: OpId) -> bool:
            return bool(analysis.own_towers[value]) and value not in itself

        values = analysis.flow.reachable(analysis.flow.inputs[op][1:], until=is_of_tower)
        of_towers = list(filter(is_of_tower, values))
        return not any(map(analysis.has_gradient, of_towers)) and any(
            map(analysis.reads_by_site.in_loss, of_towers)
        )


def statistics(placement: Placement) -> Statistics:
    """Return the running statistics of a placement, found once."""
    return placement.cached(Statistics)
