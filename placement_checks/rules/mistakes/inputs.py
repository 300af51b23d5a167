"""Ops between the inputs and the towers that cut or move rows."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from placement_checks.analysis.tower_analysis import TowerAnalysis, analyse
from placement_checks.core.op_types import (
    CAST,
    CONST,
    CUTS,
    ENDS_OF_CUTS,
    EXAMPLE_SOURCES,
    GATHERS,
    IDENTITIES,
    REORDERS,
    RESHAPES,
    STACK,
)
from placement_checks.core.placement import Placement, producer_of

_MOVES = REORDERS | GATHERS
_PASSES_ROWS = _MOVES | CUTS.keys() | RESHAPES | IDENTITIES | {CAST}
_PACKS = RESHAPES | IDENTITIES | {CAST, STACK}


def moved_inputs(placement: Placement) -> Sequence[int]:
    """The ops that put rows of inputs in another order; where there are none, those that cut."""
    moved = [*_on_rows(placement, _MOVES)]
    return moved or [*_on_rows(placement, CUTS.keys())]


def ends_of_parts(placement: Placement) -> Sequence[int]:
    """What says where the part of the last tower ends; where that is constant, what cuts it."""
    flow = analyse(placement).flow
    cuts = [*_on_rows(placement, CUTS.keys())]
    if not cuts:
        return ()
    last = max(cuts)
    end = ENDS_OF_CUTS.get(flow.types[last])
    computed = [
        op
        for op in flow.walk_back(
            [] if end is None else flow.inputs[last][end : end + 1],
            lambda op: flow.types[op] in _PACKS,
        )
        if flow.types[op] not in _PACKS and flow.types[op] != CONST
    ]
    return computed[:1] or [last]


def _on_rows(placement: Placement, kinds: Collection[str]) -> Iterator[int]:
    """The first ops of some types between the inputs of the step and what is computed with them.

    Of cuts, what comes after the first may be the model's, which takes some of the features.
    """
    analysis = analyse(placement)
    flow = analysis.flow
    todo = _inputs(analysis)
    seen = set(todo)
    for here in todo:
        for taker in flow.consumers[here]:
            kind = flow.types[taker]
            if taker in seen or analysis.backward.ops[taker] or not analysis.updates.steps[taker]:
                continue
            if kind not in _PASSES_ROWS or flow.inputs[taker][CUTS.get(kind, 0)] != here:
                continue  # an index, as of an embedding, is no part of the rows
            seen.add(taker)
            if kind in kinds:
                yield taker
            else:
                todo.append(taker)


def _inputs(analysis: TowerAnalysis) -> list[int]:
    """The placeholders that the program lists, or else all that examples come from."""
    listed = [producer_of(name) for names in analysis.placement.step.inputs for name in names]
    if listed:
        return [analysis.flow.number[name] for name in listed]
    return analysis.flow.having(EXAMPLE_SOURCES.__contains__)
