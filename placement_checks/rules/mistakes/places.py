"""Where in a program a mistake is that its numbers show."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from placement_checks.analysis.clipping import norms_of_slices
from placement_checks.analysis.gradient_flow import gradient_flow
from placement_checks.analysis.tower_analysis import analyse
from placement_checks.core.op_types import CONST, DIVISIONS, SCALES
from placement_checks.core.placement import Placement, producer_of
from placement_checks.rules.base import steps
from placement_checks.rules.lines.calls import frames_beside
from placement_checks.rules.lines.joining import joining_ops
from placement_checks.rules.mistakes.inputs import ends_of_parts, moved_inputs
from placement_checks.rules.mistakes.models import (
    PASSES_LOSS,
    batch_statistics,
    frozen_reads,
    own_counts,
    penalties,
)

if TYPE_CHECKING:
    from placement_checks.numerics.row_weights import Diagnosis, Mistake


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
                shown = steps(placement, [scale])[0]
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
    return Place([names[op]], frames_beside(placement, names[op], taken))


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
