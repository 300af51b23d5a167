"""Updates: the ops of a training step that change variables, and the inputs of these ops."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from placement_checks.analysis.graph.data_flow import DataFlow
from placement_checks.core.ids import OpId
from placement_checks.core.missing import Missing
from placement_checks.core.op_types import GROUPS, SWITCHES, is_gradient_update, is_update
from placement_checks.core.placement import Placement, StepOps, producer_of
from placement_checks.util.text import listed

Branch = tuple[str, str]  # a conditional, and one of its branches
_BRANCH = re.compile(r"^(then|else|branch\d+)/")


class Update(NamedTuple):
    """An op that changes a variable.

    Attributes:
        op: the op itself.
        variable: the name of the variable.
        values: the inputs of the update, as ops, without the variable.
    """

    op: OpId
    variable: str
    values: Sequence[OpId]


_RETURN_TRAIN_OP = "return it from the function that builds the graph: {'train_op': train_op}"


class Updates:
    """The updates of one training step.

    Attributes:
        roots: the ops that the program runs for one training step.
        missing: why the roots are unknown; None if they are known.
        in_step: for each op whether it is part of the step; true for every op if the roots are
            unknown.
        by_variable: the updates of each variable, in creation order.
    """

    def __init__(self, placement: Placement, flow: DataFlow) -> None:
        self._flow = flow
        self._ops = placement.ops
        self.roots, self.missing = _train_ops(placement.step, flow)
        self.in_step = bytearray([self.unknown]) * len(flow.names)
        for op in flow.reachable([] if self.unknown else self.roots, along=flow.all_inputs):
            self.in_step[op] = 1
        self._runs = [
            flow.reachable(map(flow.op_of, run), along=flow.all_inputs)
            for run in placement.step.runs
        ]
        self.by_variable: dict[str, list[Update]] = defaultdict(list)
        # If the step is unknown, only gradient updates count: an assignment may be an initializer
        # or a restore.
        for op in flow.having(is_gradient_update if self.unknown else is_update):
            holder = flow.first_holder(op) if self.in_step[op] else None
            if holder in flow.variables:
                update = Update(op, flow.names[holder], flow.inputs[op][1:])
                self.by_variable[update.variable].append(update)

    @property
    def unknown(self) -> bool:
        """Whether the roots are unknown."""
        return self.missing is not None

    def values(self, variable: str) -> list[OpId]:
        """Return the inputs of all updates of a variable."""
        return [value for update in self.by_variable.get(variable, ()) for value in update.values]

    def by_run(self, updates: Sequence[Update]) -> list[list[Update]]:
        """Return the updates in each run of a session that has any of them."""
        if not self._runs:
            return [list(updates)]
        by_run = ([update for update in updates if update.op in run] for run in self._runs)
        return list(filter(None, by_run))

    def select_for_one_step(self, updates: Iterable[Update]) -> list[Update]:
        """Return the largest subset of ``updates`` that can run in one step.

        A step runs only one branch of each conditional. If a step consists of several runs of a
        session, it has the updates of all runs.
        """
        return sorted(
            _most_in_one_step([(self._branches(update.op), update) for update in updates])
        )

    def select_for_one_run(self, updates: Sequence[Update]) -> list[Update]:
        """Return the largest subset of ``updates`` that can run in one run of a session."""
        return max(map(self.select_for_one_step, self.by_run(updates)), key=len, default=[])

    def _branches(self, op: OpId) -> list[Branch]:
        """Return the branches that contain an op, the outermost first."""
        found: list[Branch] = []
        inner = self._ops[self._flow.names[op]]
        source = inner.inputs[0]
        while inner.caller:
            branch = _BRANCH.match(inner.name.removeprefix(f"{inner.caller}/"))
            if branch:
                found.append((inner.caller, branch[1]))
            inner = self._ops[inner.caller]
        # In control flow v1, the ops of a branch take one of the outputs of a switch.
        while (producer := self._ops.get(producer_of(source))) and producer.type in SWITCHES:
            found.append((producer.inputs[1], source.partition(":")[2]))
            source = producer.inputs[0]
        return found[::-1]


def _most_in_one_step(updates: list[tuple[list[Branch], Update]]) -> list[Update]:
    """Return the largest subset that has updates of only one branch of each conditional."""
    together = [update for branches, update in updates if not branches]
    decisions: dict[str, dict[str, list[tuple[list[Branch], Update]]]] = {}
    for branches, update in updates:
        if branches:
            (decision, side), *inner = branches
            decisions.setdefault(decision, {}).setdefault(side, []).append((inner, update))
    for sides in decisions.values():
        largest: list[Update] = max(map(_most_in_one_step, sides.values()), key=len)
        together += largest
    return together


def _train_ops(step: StepOps, flow: DataFlow) -> tuple[list[OpId], Missing | None]:
    """Return the root ops of one step, and the reason if it is unknown which of them run."""
    declared = [flow.op_of(name) for name in step.train_op]
    if declared:
        return declared, None
    train_ops = flow.known_ops(step.train_ops)
    if not train_ops:
        return [], Missing("the train op is unknown", _RETURN_TRAIN_OP)
    # The program may run a group that contains the train op of an optimizer.
    groups: dict[OpId, list[OpId]] = defaultdict(list)
    for here in flow.having(GROUPS.__contains__):
        for member in flow.all_inputs[here]:
            groups[member].append(here)
    outermost = [op for op in flow.reachable(train_ops, along=groups) if not groups[op]]
    if len(outermost) == 1:
        return outermost, None
    names = listed(sorted(flow.names[op] for op in outermost))
    return sorted(outermost), Missing(
        f"the graph has {len(outermost)} train ops, {names}, and it is unknown which one a step "
        "runs",
        _RETURN_TRAIN_OP,
    )
