"""The ops that bring the towers' gradients together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from placement_checks.analysis.gradient_flow import gradient_flow
from placement_checks.analysis.tower_analysis import analyse
from placement_checks.analysis.updates import Update
from placement_checks.core.placement import Placement


def joining_ops(placement: Placement, updates: Iterable[Update]) -> Iterator[int]:
    """The ops on the way to updates that first take the gradients of more than one tower."""
    analysis, gradients = analyse(placement), gradient_flow(placement)
    between = {op for update in updates for op in gradients.ancestors(update)}
    for op in sorted(between):
        taken = [
            gradients.gradient_towers[gradient] & analysis.all_towers
            for gradient in gradients.taken(op)
        ]
        towers = 0
        for bits in taken:
            towers |= bits
        if towers and towers not in taken:
            yield op
