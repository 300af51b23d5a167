"""Where in a program a mistake is that its numbers show.

Ops between the inputs and the towers that cut or move rows.

Ops of the towers' models that are likely wrong, by what the numbers say.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from placement_checks.analysis.towers.analysis import TowerAnalysis, analyse
from placement_checks.analysis.variables.clipping import norms_of_slices
from placement_checks.analysis.variables.gradient_flow import gradient_flow
from placement_checks.core.op_types import (
    ADDS,
    BATCH_NORMS,
    CAST,
    CONST,
    CUTS,
    DIVISIONS,
    ENDS_OF_CUTS,
    EXAMPLE_SOURCES,
    GATHERS,
    IDENTITIES,
    MEAN,
    REORDERS,
    RESHAPES,
    SCALES,
    SHAPE_ONLY,
    STACK,
    SUM,
)
from placement_checks.core.placement import Placement, producer_of
from placement_checks.rules.base import path_lines
from placement_checks.rules.source_lines import frames_up_to, joining_ops

if TYPE_CHECKING:
    from placement_checks.numerics.diagnosis import Diagnosis, Mistake


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


class Place(NamedTuple):
    """The ops that are wrong, and the lines that lead to them.

    Attributes:
        ops: the ops; empty where they are not known.
        frames: the user's lines, where they are not all that built the ops.
        path: what else shows it, one line each.
    """

    ops: Sequence[str] = ()
    frames: tuple[str, ...] = ()
    path: tuple[str, ...] = ()


def place_of(placement: Placement, variable: str, diagnosis: Diagnosis) -> Place:
    """Where a gradient becomes what it should not be; without ops where that is not known.

    Nor where no line of the user's is, as of a library's function that averages.
    """
    find = _FINDERS.get(diagnosis.mistake)
    place = find(placement, variable, diagnosis) if find else Place()
    return place if any(map(placement.details.frames, place.ops)) else Place()


def scalings(placement: Placement, ratio: float) -> Sequence[int]:
    """The ops that multiply the losses by a number, or divide them by one over it."""
    analysis = analyse(placement)
    flow = analysis.flow
    names = placement.step.objectives or placement.step.losses
    losses = [flow.number[producer_of(name)] for name in names if producer_of(name) in flow.number]
    behind = flow.walk_back(losses, lambda op: flow.types[op] in PASSES_LOSS)
    return sorted(
        op
        for op in behind
        if flow.types[op] in SCALES
        and any(math.isclose(factor, ratio, rel_tol=1e-3) for factor in _factors(placement, op))
    )


def _factors(placement: Placement, op: int) -> Iterator[float]:
    """The constants that an op multiplies by."""
    flow = analyse(placement).flow
    for number, source in enumerate(flow.inputs[op]):
        value = placement.details.value(flow.names[source]) if flow.types[source] == CONST else ()
        if not value or len(value) != 3 or not isinstance(value[2], int | float):
            continue
        if flow.types[op] not in DIVISIONS:
            yield value[2]
        elif number == 1 and value[2]:
            yield 1 / value[2]


def _of(placement: Placement, ops: Iterable[int]) -> Place:
    names = analyse(placement).flow.names
    return Place([names[op] for op in ops])


def _joined(placement: Placement, variable: str) -> list[int]:
    """The ops that bring together what the towers have for a variable."""
    updates = gradient_flow(placement).trained.get(variable, ())
    return list(joining_ops(placement, updates))


def _sum(placement: Placement, variable: str, _: Diagnosis) -> Place:
    """What adds up; where a strategy does, the losses, which its sum makes too large."""
    flow = analyse(placement).flow
    losses = [producer_of(name) for name in placement.step.objectives]
    if placement.strategy is not None and any(map(placement.details.frames, losses)):
        return Place([name for name in losses if name in flow.number])
    return _of(placement, _joined(placement, variable))


def _divided(placement: Placement, variable: str, diagnosis: Diagnosis) -> Place:
    """The division of the loss: that of the gradients is part of any mean."""
    return _of(
        placement,
        scalings(placement, diagnosis.ratio or 0.0) or _joined(placement, variable),
    )


def _weighted(placement: Placement, variable: str, _: Diagnosis) -> Place:
    """The call that brings gradients together with these weights."""
    for op in _joined(placement, variable):
        for gradient in gradient_flow(placement).taken(op):
            place = _beside_gradient(placement, op, gradient)
            return place._replace(path=tuple(_weights(placement, op)))
    return Place()


def _weights(placement: Placement, op: int) -> Iterator[str]:
    """The constants by which gradients are multiplied before an op brings them together."""
    analysis = analyse(placement)
    backward, types = analysis.backward.ops, analysis.flow.types
    for gradient in gradient_flow(placement).taken(op):
        for scale in analysis.flow.walk_back([gradient], lambda op: not backward[op]):
            if types[scale] in SCALES and not backward[scale]:
                shown = path_lines(placement, [scale])[0]
                yield from (f"{factor:g} x in {shown}" for factor in _factors(placement, scale))


def _changed(placement: Placement, variable: str, _: Diagnosis) -> Place:
    """The call that changes the gradients of a tower before they are brought together."""
    backward = analyse(placement).backward.ops
    for op in _joined(placement, variable):
        for gradient in gradient_flow(placement).taken(op):
            if not backward[gradient]:
                return _beside_gradient(placement, gradient, gradient)
    return Place()


def _beside_gradient(placement: Placement, op: int, gradient: int) -> Place:
    """The call that built an op, in the function that took the gradient it is computed with."""
    analysis = analyse(placement)
    names, backward = analysis.flow.names, analysis.backward.ops
    behind = analysis.flow.walk_back([gradient], lambda op: not backward[op])
    taken = next((names[op] for op in behind if backward[op]), names[gradient])
    return Place([names[op]], frames_up_to(placement, names[op], taken))


def _slices(placement: Placement, *_: object) -> Place:
    return Place(placement.cached(norms_of_slices))


def _frozen(placement: Placement, variable: str, diagnosis: Diagnosis) -> Place:
    return _of(placement, frozen_reads(placement, variable, diagnosis.towers))


def _statistics(placement: Placement, *_: object) -> Place:
    return _of(placement, placement.cached(batch_statistics))


def _counts(placement: Placement, variable: str, diagnosis: Diagnosis) -> Place:
    """The divisions of the losses, or else the call that brings gradients together."""
    place = _of(placement, placement.cached(own_counts))
    return place if place.ops else _weighted(placement, variable, diagnosis)


def _penalty(placement: Placement, *_: object) -> Place:
    return _of(placement, placement.cached(penalties))


def _moved(placement: Placement, *_: object) -> Place:
    return _of(placement, placement.cached(moved_inputs))


def _tail(placement: Placement, *_: object) -> Place:
    return _of(placement, placement.cached(ends_of_parts))


_FINDERS: Mapping[Mistake, Callable[[Placement, str, Diagnosis], Place]] = {
    "sum": _sum,
    "divided": _divided,
    "weights": _weighted,
    "changed": _changed,
    "changed in towers": _changed,
    "slices": _slices,
    "statistics": _statistics,
    "counts": _counts,
    "penalty": _penalty,
    "frozen": _frozen,
    "moved": _moved,
    "tail": _tail,
}
