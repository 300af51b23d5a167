"""Statistics: ops that update what evaluation uses, such as batch normalisation's moments."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cached_property

from placement_checks.analysis.graph.updates import Update
from placement_checks.analysis.towers.analysis import analyse
from placement_checks.analysis.variables.gradient_flow import gradient_flow
from placement_checks.analysis.variables.layout import accumulators
from placement_checks.core.op_types import (
    ASSIGNS,
    BATCH_NORMS,
    EXAMPLE_SOURCES,
    MEAN,
    NO_OP,
    SUM,
    VARIABLES,
    is_gradient_update,
)
from placement_checks.core.placement import Placement

_OVER_ROWS = BATCH_NORMS | {SUM, MEAN}


class Statistics:
    """The updates of statistics, and what runs them; `Placement.cached` keeps it.

    They are the ops of the collection UPDATE_OPS, and those that assign to a variable that is not
    trained what a tower computes on the way to its loss. What only sets a variable to a value
    that is fed is none, nor what adds to an accumulator.
    """

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self._analysis = analyse(placement)

    @cached_property
    def updates(self) -> Sequence[int]:
        """The updates by towers that train, except those that another step of the program runs."""
        evaluation = set(self.of_evaluation)
        return [op for op in self._updates_of_all_steps if op not in evaluation]

    @cached_property
    def _updates_of_all_steps(self) -> Sequence[int]:
        elsewhere = self._of_other_steps
        return [op for op in sorted(set(self._all())) if not elsewhere[op]]

    def is_of_normalization(self, update: Update) -> bool:
        """Whether an update is one of batch normalization.

        It moves a vector by a sum or mean over rows that a loss depends on, too. The mean of a
        loss is other state. The loss may depend on the vector: if a placeholder switches between
        training and evaluation, or in batch renormalization.
        """
        analysis = self._analysis
        flow, in_loss = analysis.flow, analysis.reads_by_gpu.in_loss
        shapes = {variable.name: variable.shape for variable in self._placement.variables}
        if shapes[update.variable] == ():
            return False
        if any(analysis.towers_behind[value] & analysis.gradient_bit for value in update.values):
            return False
        losses = set(analysis.loss_ops)
        behind = flow.walk_back(
            [value for value in update.values if analysis.examples[value]],
            lambda op: bool(analysis.examples[op]) and op not in losses,
        )
        return any(
            flow.types[op] in _OVER_ROWS and in_loss(op) and op not in losses for op in behind
        )

    @cached_property
    def of_evaluation(self) -> Sequence[int]:
        """The updates of statistics by a copy of the model that only evaluates.

        No loss depends on what they are computed from, and towers that train update the same
        variable.
        """
        analysis = self._analysis
        if not analysis.loss_ops:
            return ()
        trains = analysis.flow.ancestors(analysis.loss_ops)
        of_training: dict[int, set[bool]] = defaultdict(set)
        holders: dict[int, tuple[int, bool]] = {}
        for op in self._updates_of_all_steps:
            values = analysis.flow.inputs[op]
            holder = analysis.flow.state_holder(values[0]) if values else None
            if holder is not None and any(analysis.examples[value] for value in values[1:]):
                holders[op] = holder, self._is_of_training(op, trains)
                of_training[holder].add(holders[op][1])
        return [
            op
            for op, (holder, trained) in holders.items()
            if not trained and True in of_training[holder]
        ]

    def _is_of_training(self, update: int, trains: Sequence[int]) -> bool:
        """Whether a value computed from examples that an update takes is on the way to a loss."""
        analysis = self._analysis
        return any(
            analysis.examples[op] and trains[op]
            for op in analysis.flow.walk_back(
                analysis.flow.inputs[update][1:],
                lambda op: bool(analysis.examples[op]) and not trains[op],
            )
            if analysis.flow.types[op] not in EXAMPLE_SOURCES
        )

    def only_tower(self, ran: Sequence[int], updates: Sequence[int]) -> int | None:
        """The number of the tower of which all updates ran, if none of another tower did.

        None also if an update is not one tower's, or the other towers have fewer of them: what ran
        is then no whole set.
        """
        sets: list[list[bool]] = [[] for _ in self._analysis.towers]
        for op in updates:
            towers = list(self._analysis.towers_in(self._analysis.towers_behind[op]))
            if len(towers) != 1:
                return None
            sets[towers[0]].append(bool(ran[op]))
        running = [number for number, of_tower in enumerate(sets) if any(of_tower)]
        if len(running) != 1 or not all(sets[running[0]]):
            return None
        others = {len(of_tower) for number, of_tower in enumerate(sets) if number != running[0]}
        return running[0] if others <= {0, len(sets[running[0]])} and any(others) else None

    def group_apart(self, updates: Sequence[int]) -> int | None:
        """The group outside of the step that waits for all of some updates.

        Or else for all of the first tower's alone.
        """
        for group in self._groups:
            if group in updates:
                continue
            runs = self._analysis.flow.needed_to_run([group])
            if all(runs[op] for op in updates) or self.only_tower(runs, updates) == 0:
                return group
        return None

    def each_in_a_group(self, updates: Sequence[int]) -> bool:
        """Whether groups of the program's own, in the step or outside, wait for each update.

        Who groups every tower's and runs one group has chosen that tower.
        """
        control_inputs = self._analysis.flow.control_inputs
        grouped = {op for group in self._no_ops for op in control_inputs.get(group, ())}
        return all(op in grouped or self._analysis.updates.steps[op] for op in updates)

    @cached_property
    def _no_ops(self) -> Sequence[int]:
        """The groups outside of the step; those of gradients only order ops."""
        analysis = self._analysis
        return [
            op
            for op in analysis.flow.having(NO_OP.__eq__)
            if not analysis.updates.steps[op] and not analysis.backward.ops[op]
        ]

    @cached_property
    def _groups(self) -> Sequence[int]:
        """The outermost groups outside of the step."""
        inner = {
            op
            for group in self._no_ops
            for op in self._analysis.flow.control_inputs.get(group, ())
        }
        return [group for group in self._no_ops if group not in inner]

    @cached_property
    def _of_other_steps(self) -> bytearray:
        """For each op whether another step runs it, one with updates by gradients of its own."""
        flow, steps = self._analysis.flow, self._analysis.updates.steps
        others = [op for op in flow.having(is_gradient_update) if not steps[op]]
        if not others:
            return bytearray(len(flow.names))
        groups = [group for group in self._groups if self._trains(group, others)]
        return flow.needed_to_run([*groups, *others])

    def _trains(self, group: int, others: Sequence[int]) -> bool:
        runs = self._analysis.flow.needed_to_run([group])
        return any(runs[op] for op in others)

    def _all(self) -> Iterator[int]:
        flow = self._analysis.flow
        yield from (
            flow.number[name] for name in self._placement.step.update_ops if name in flow.number
        )
        for op in flow.having(ASSIGNS.__contains__):
            holder = flow.state_holder(flow.inputs[op][0]) if len(flow.inputs[op]) > 1 else None
            if holder is not None and flow.types[holder] in VARIABLES:
                name = flow.names[holder]
                if self._is_kept(name) and self._assigns_statistics(op, name):
                    yield op

    def _is_kept(self, variable: str) -> bool:
        """Whether it is one of the program's own, not one of a metric's or of a counter's."""
        collected = self._placement.collected
        saved = not any(collected.values()) or any(variable in each for each in collected.values())
        own = accumulators(self._placement).tower_of
        return (
            saved
            and variable not in own
            and variable not in gradient_flow(self._placement).trained
        )

    def _assigns_statistics(self, op: int, variable: str) -> bool:
        """Whether what is assigned is computed by a tower on the way to its loss."""
        analysis = self._analysis
        # Reading the variable itself proves nothing: a counter does so as well.
        itself = set(analysis.reads_by_gpu.readers[variable])

        def leads_on(value: int) -> bool:
            return not analysis.own_towers[value] or value in itself

        values = analysis.flow.walk_back(analysis.flow.inputs[op][1:], leads_on)
        of_towers = [value for value in values if not leads_on(value)]
        gradients = any(
            analysis.towers_behind[value] & analysis.gradient_bit for value in of_towers
        )
        return not gradients and any(map(analysis.reads_by_gpu.in_loss, of_towers))


def statistics(placement: Placement) -> Statistics:
    """The statistics of a placement, analysed once."""
    return placement.cached(Statistics)
