"""Counters: variables that count steps, and what counts them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from placement_checks.analysis.tower_analysis import TowerAnalysis
from placement_checks.core.op_types import (
    ADDITIONS,
    CALLS,
    CONST,
    OVERWRITES,
    PASSES_READ,
    PASSES_VALUE,
    PRODUCTS,
    RESTORES,
    is_update,
)
from placement_checks.core.placement import Placement


def is_read(analysis: TowerAnalysis, variable: str) -> bool:
    """Whether the step reads a variable."""
    number = analysis.flow.number[variable]
    return any(analysis.updates.steps[op] for op in analysis.flow.consumers[number])


def counted_apart(analysis: TowerAnalysis, counter: str) -> int | None:
    """The op that adds to a counter and is not part of the step; another fetch may run it."""
    writers = analysis.flow.writers.get(analysis.flow.number[counter], ())
    return next((op for op, _ in writers if analysis.flow.types[op] in ADDITIONS), None)


def never_counted(placement: Placement, analysis: TowerAnalysis) -> Iterator[str]:
    """Single numbers that the step reads, that start at 0, and that nothing else ever changes.

    Those are counters that nobody counts: a number that is meant to stay would not be 0. One that
    need not be whole might also be a weight of the loss, or the learning rate, which the program
    sets by feeding its initialiser.
    """
    for variable in placement.variables:
        name, writers = variable.name, analysis.flow.writers
        is_whole = variable.dtype.startswith("int")
        if variable.shape == () and (is_whole or only_schedules(analysis, name)):
            number = analysis.flow.number[name]
            kinds = [
                _sets_to(placement, analysis, op, values)
                for op, values in writers.get(number, ())
                if _may_write(analysis, op)
            ]
            if "zero" in kinds and "other" not in kinds and is_read(analysis, name):
                yield name


def only_schedules(analysis: TowerAnalysis, variable: str) -> bool:
    """Whether updates depend on a variable, and neither as on a rate nor by way of the loss.

    A rate is taken by updates as it is, or is multiplied by a factor first.
    """
    flow, reads = analysis.flow, analysis.reads_by_gpu
    if any(map(reads.in_loss, reads.readers[variable])):
        return False
    passing = [flow.number[variable]]
    takers: list[int] = []
    for op in passing:
        passing += [taker for taker in flow.consumers[op] if flow.types[taker] in PASSES_READ]
        takers += [taker for taker in flow.consumers[op] if flow.types[taker] not in PASSES_READ]
    return any(reads.to_updates[op] and flow.types[op] not in PRODUCTS for op in takers)


def _may_write(analysis: TowerAnalysis, op: int) -> bool:
    """Whether an op that takes a variable first changes it; a comparison, say, only reads it."""
    kind = analysis.flow.types[op]
    return is_update(kind) or (kind in CALLS and op not in analysis.flow.calls)


def _sets_to(placement: Placement, analysis: TowerAnalysis, op: int, values: Sequence[int]) -> str:
    """What a writer sets a variable to: ``zero``, what was ``saved``, or an ``other`` value."""
    flow = analysis.flow
    if flow.types[op] not in OVERWRITES or not values:
        return "other"
    value = values[0]
    while flow.types[value] in PASSES_VALUE and flow.inputs[value]:
        value = flow.inputs[value][0]
    if flow.types[value] in RESTORES:
        return "saved"
    constant = placement.details.value(flow.names[value]) if flow.types[value] == CONST else None
    return "zero" if constant is not None and constant[2] == 0 else "other"
