"""Ops of the towers' models that are likely wrong, by what the numbers say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from placement_checks.analysis.tower_analysis import TowerAnalysis, analyse
from placement_checks.core.op_types import (
    ADDS,
    BATCH_NORMS,
    CAST,
    CONST,
    DIVISIONS,
    EXAMPLE_SOURCES,
    IDENTITIES,
    MEAN,
    SCALES,
    SHAPE_ONLY,
    SUM,
)
from placement_checks.core.placement import Placement

# What a loss is made up with of its parts.
PASSES_LOSS = ADDS | SCALES | IDENTITIES | {CAST}


def penalties(placement: Placement) -> Sequence[int]:
    """What is added to the losses of towers and depends on no example, as a weight penalty."""
    analysis = analyse(placement)
    flow = analysis.flow
    losses = [loss for of_tower in analysis.losses.of for loss in of_tower]
    sums = flow.walk_back(losses, lambda op: flow.types[op] in PASSES_LOSS)
    return [
        term
        for op in sums
        if flow.types[op] in ADDS and analysis.examples[op]
        for term in flow.inputs[op]
        if not analysis.examples[term] and flow.types[term] != CONST
    ]


def own_counts(placement: Placement) -> Sequence[int]:
    """The divisions of towers' losses by a number that is computed from the tower's examples.

    A number of rows, which is the shape of examples, is none.
    """
    analysis = analyse(placement)
    flow = analysis.flow
    losses = [loss for of_tower in analysis.losses.of for loss in of_tower]
    return [
        op
        for op in flow.walk_back(losses, lambda op: flow.types[op] in PASSES_LOSS | {SUM})
        if flow.types[op] in DIVISIONS
        and analysis.tower_of[op] >= 0
        and _is_count(analysis, flow.inputs[op][1])
    ]


def _is_count(analysis: TowerAnalysis, op: int) -> bool:
    flow = analysis.flow
    outputs = analysis.placement.details.outputs(flow.names[op])
    if not outputs or outputs[0].shape != () or not analysis.examples[op]:
        return False
    behind = flow.walk_back([op], lambda op: flow.types[op] not in SHAPE_ONLY)
    return any(
        analysis.examples[source] and (flow.types[source] in EXAMPLE_SOURCES) for source in behind
    )


def batch_statistics(placement: Placement) -> Sequence[int]:
    """The ops of towers that reduce the rows to what the model computes further with."""
    analysis = analyse(placement)
    forward = [
        op
        for op in analysis.flow.having((BATCH_NORMS | {MEAN, SUM}).__contains__)
        if analysis.tower_of[op] >= 0 and analysis.examples[op] and not analysis.backward.ops[op]
    ]
    norms = [op for op in forward if analysis.flow.types[op] in BATCH_NORMS]
    return norms or [op for op in forward if _is_of_rows(analysis, op)]


def _is_of_rows(analysis: TowerAnalysis, op: int) -> bool:
    """Whether an op reduces over rows, and rows are computed with its value."""
    rows = _rows(analysis, analysis.flow.inputs[op][0])
    if not rows or _rows(analysis, op) == rows:
        return False
    todo = [op]
    seen = {op}
    for here in todo:
        for taker in analysis.flow.consumers[here]:
            if taker in seen or analysis.backward.ops[taker]:
                continue
            if _rows(analysis, taker) == rows:
                return True
            seen.add(taker)
            todo.append(taker)
    return False


def _rows(analysis: TowerAnalysis, op: int) -> tuple[int | None, ...]:
    """The first dimension of what an op yields; empty where there is none."""
    outputs = analysis.placement.details.outputs(analysis.flow.names[op])
    return tuple(outputs[0].shape or ())[:1] if outputs else ()


def frozen_reads(placement: Placement, variable: str, towers: Sequence[int]) -> Sequence[int]:
    """What keeps towers from training a variable: a factor without examples, or else the reads."""
    analysis = analyse(placement)
    reads = [
        op
        for op in analysis.reads_by_gpu.readers.get(variable, ())
        if analysis.tower_of[op] in towers and not analysis.backward.ops[op]
    ]
    masks = [mask for op in reads for mask in _masks(analysis, op)]
    return masks[:1] or reads


def _masks(analysis: TowerAnalysis, op: int) -> Iterator[int]:
    """The factors of a product that no variable and no example is part of."""
    flow = analysis.flow
    if flow.types[op] not in SCALES:
        return
    for factor in flow.inputs[op]:
        behind = flow.walk_back([factor], lambda _: True)
        if not analysis.examples[factor] and all(flow.state_holder(op) is None for op in behind):
            yield factor
