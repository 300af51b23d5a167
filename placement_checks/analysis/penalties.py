"""Penalties: the parts of losses that depend on weights alone, such as a decay."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from placement_checks.analysis.equivalence import EqualTensors
from placement_checks.analysis.tower_analysis import TowerAnalysis
from placement_checks.core.op_types import CONST, SUMS_UP
from placement_checks.core.placement import Placement


class DoubledPenalty(NamedTuple):
    """A penalty of one tower that the loss of another contains beside its own, which is equal."""

    loss: int
    of: int
    op: int


def doubled_penalties(placement: Placement, analysis: TowerAnalysis) -> Iterator[DoubledPenalty]:
    """The penalties that count once more in a tower's loss than in that of another.

    Each tower makes a penalty on the weights that they share, and one gathers all of them. A
    penalty that is made once, and that every tower adds, counts once in each.
    """
    losses = [(number, loss) for number, of in enumerate(analysis.losses.of) for loss in of]
    if not any(analysis.examples[loss] for _, loss in losses):
        return
    equal = EqualTensors(placement, analysis.flow)
    terms = {loss: _terms(analysis, loss, equal) for _, loss in losses}
    for number, loss in losses:
        for other, its_loss in losses:
            if other == number:
                continue
            for key, ops in terms[loss].items():
                theirs = terms[its_loss].get(key, frozenset())
                if ops & theirs and ops - theirs:
                    yield DoubledPenalty(loss, other, min(ops & theirs))


def _terms(
    analysis: TowerAnalysis, loss: int, equal: EqualTensors
) -> Mapping[object, frozenset[int]]:
    """The penalties that a loss adds up, those that are equal by construction together."""
    flow, examples = analysis.flow, analysis.examples
    found: dict[object, set[int]] = defaultdict(set)
    seen = {loss}
    todo = [loss]
    for op in todo:
        if flow.types[op] in SUMS_UP:
            new = [source for source in flow.inputs[op] if source not in seen]
            seen.update(new)
            todo += new
        elif not examples[op] and flow.types[op] != CONST:
            found[equal.of(flow.names[op])].add(op)
    return {key: frozenset(ops) for key, ops in found.items()}
