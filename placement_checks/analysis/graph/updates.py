"""Updates: the ops of a training step that change variables, and what they change them by."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from placement_checks.analysis.graph.data_flow import DataFlow
from placement_checks.core.op_types import (
    GROUPS,
    SWITCHES,
    VARIABLES,
    is_gradient_update,
    is_update,
)
from placement_checks.core.placement import Placement, StepOps, producer_of
from placement_checks.util.text import join_and

_BRANCH = re.compile(r"^(then|else|branch\d+)/")


class Update(NamedTuple):
    """An op that changes a variable; ``values`` are the ops whose values it takes for that."""

    op: int
    variable: str
    values: Sequence[int]


class Updates:
    """What one training step changes.

    Attributes:
        roots: the ops that are one training step.
        unknown: why it is not known what one step is; ``""`` where it is.
        steps: for each op whether it is part of a step; every op is where that is not known.
        by_variable: the updates of each variable, in the order of building.
    """

    def __init__(self, placement: Placement, flow: DataFlow) -> None:
        self._flow = flow
        self._ops = placement.ops
        self.roots, self.unknown = _train_ops(placement.step, flow)
        self.steps = bytearray(b"\1") * len(flow.names)
        if not self.unknown:
            self.steps = flow.needed_to_run(self.roots)
        self.by_variable: dict[str, list[Update]] = defaultdict(list)
        for update in self._all():
            self.by_variable[update.variable].append(update)

    def _all(self) -> Iterator[Update]:
        flow = self._flow
        # What is no update by a gradient may be an initialiser or a restore.
        for here in flow.having(is_gradient_update if self.unknown else is_update):
            if not self.steps[here]:
                continue
            values = flow.inputs[here]
            holder = flow.state_holder(values[0]) if values else None
            if holder is not None and flow.types[holder] in VARIABLES:
                yield Update(here, flow.names[holder], values[1:])

    def at_once(self, updates: Iterable[Update]) -> list[Update]:
        """The most of these updates that one step can make: of branches only one is taken."""
        return sorted(_at_once([(self._branches(update.op), update) for update in updates]))

    def _branches(self, op: int) -> list[tuple[str, str]]:
        """The branches that an op is in, the outermost first: what decides, and which side."""
        found: list[tuple[str, str]] = []
        inner = self._ops[self._flow.names[op]]
        source = inner.inputs[0]
        while inner.caller:
            branch = _BRANCH.match(inner.name.removeprefix(f"{inner.caller}/"))
            if branch:
                found.append((inner.caller, branch[1]))
            inner = self._ops[inner.caller]
        # A branch of control flow v1 gets what it computes with by a switch, by either output.
        while (producer := self._ops.get(producer_of(source))) and producer.type in SWITCHES:
            found.append((producer.inputs[1], source.partition(":")[2]))
            source = producer.inputs[0]
        return found[::-1]


def _at_once(updates: list[tuple[list[tuple[str, str]], Update]]) -> list[Update]:
    """The most updates of which no two are on different sides of one decision."""
    together: list[Update] = []
    decisions: dict[str, dict[str, list[tuple[list[tuple[str, str]], Update]]]] = {}
    for branches, update in updates:
        if not branches:
            together.append(update)
            continue
        (decision, side), *inner = branches
        decisions.setdefault(decision, {}).setdefault(side, []).append((inner, update))
    for sides in decisions.values():
        most: list[Update] = max([_at_once(side) for side in sides.values()], key=len)
        together += most
    return together


def _train_ops(step: StepOps, flow: DataFlow) -> tuple[list[int], str]:
    """The ops that are one step, and why they are not known."""
    declared = [flow.number[producer_of(name)] for name in step.train_op]
    if declared:
        return declared, ""
    train_ops = [flow.number[name] for name in step.train_ops if name in flow.number]
    if not train_ops:
        return [], (
            "which op is one step is not known; return it from the function that builds the "
            "graph: {'train_op': train_op}"
        )
    ends = {end for op in train_ops for end in _ends(op, flow)}
    if len(ends) == 1:
        return list(ends), ""
    names = join_and(sorted(flow.names[end] for end in ends)[:3])
    return sorted(ends), (
        f"the graph has {len(ends)} train ops, {names}, and it is not known which is one step; "
        "return it from the function that builds the graph: {'train_op': train_op}"
    )


def _ends(op: int, flow: DataFlow) -> Collection[int]:
    """The outermost groups that ``op`` is part of: the true step may be around an optimiser's."""
    groups = _groups(flow)
    found: set[int] = set()
    seen = {op}
    todo = [op]
    while todo:
        here = todo.pop()
        outer = groups.get(here, ())
        if not outer:
            found.add(here)
        todo += [group for group in outer if group not in seen]
        seen.update(outer)
    return found


def _groups(flow: DataFlow) -> dict[int, list[int]]:
    """The groups that wait for an op, or pass its value on, by its number."""
    groups: dict[int, list[int]] = defaultdict(list)
    for here in flow.having(GROUPS.__contains__):
        for member in (*flow.control_inputs.get(here, ()), *flow.inputs[here]):
            groups[member].append(here)
    return groups
