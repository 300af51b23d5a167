"""Scopes of strategies: variables that a strategy ought to have made, and has not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

from placement_checks.analysis.gradient_flow import gradient_flow
from placement_checks.analysis.tower_analysis import analyse
from placement_checks.core.placement import Placement

_REPLICA = re.compile(r"(^|/)replica_[1-9]\d*/")  # where strategies build replicas after the first


class Outside(NamedTuple):
    """A variable that was made outside of the scope of a strategy with several replicas.

    Attributes:
        variable: its name.
        role: whether it is trained, or an optimiser keeps gradients in it.
        updates: how many updates of it one step makes.
    """

    variable: str
    role: Literal["trained", "slot"]
    updates: int


def outside_scope(placement: Placement) -> Iterator[Outside]:
    """The trained variables and slots that were made outside of the scope of the strategy.

    Those of which it is plain that replicas share them by mistake: each replica updates the one
    variable for itself; or it is on a GPU, beside others that were made in the scope. One that is
    kept on the host and updated once is central, as may be meant; so is all that towers take
    which are placed by hand, whatever strategy there is. Several workers share no variable: each
    has one of its own, which none may train.
    """
    strategy = placement.strategy
    if strategy is None:
        return
    analysis = analyse(placement)
    outside = [name for name in strategy.outside if name in analysis.updates.by_variable]
    trained = [name for name in outside if name in gradient_flow(placement).trained]
    slots = _slots(placement, [name for name in outside if name not in trained])
    for name in outside:
        if name not in trained and name not in slots:
            continue
        updates = analysis.updates.at_once(analysis.updates.by_variable[name])
        by_replicas = any(_REPLICA.search(analysis.flow.names[each.op]) for each in updates)
        on_gpu = placement.ops[name].requested.is_gpu
        of_each = strategy.is_of_workers
        if of_each or (len(updates) > 1 and by_replicas) or (on_gpu and strategy.copies):
            yield Outside(name, "trained" if name in trained else "slot", len(updates))


def _slots(placement: Placement, variables: list[str]) -> set[str]:
    """Those that gradients are written to, and that updates of other variables take.

    A single number is none: it scales a loss, or counts.
    """
    analysis = analyse(placement)
    flow, by_variable = analysis.flow, analysis.updates.by_variable
    shapes = {variable.name: variable.shape for variable in placement.variables}
    own = [0] * len(flow.names)
    for bit, name in enumerate(variables):
        own[flow.number[name]] = 1 << bit
    masks = flow.masks(own)
    taken = 0
    for name in gradient_flow(placement).trained:
        for update in by_variable[name]:
            for value in update.values:
                taken |= masks[value]
    return {
        name
        for bit, name in enumerate(variables)
        if taken >> bit & 1
        and shapes[name] != ()
        and any(
            analysis.towers_behind[value] & analysis.gradient_bit
            for update in by_variable[name]
            for value in update.values
        )
    }
