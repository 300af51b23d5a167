"""Untrained variables: those that a step leaves as they are, though the program means to train."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from placement_checks.analysis.tower_analysis import TowerAnalysis, analyse
from placement_checks.core.op_types import (
    GATHERS,
    LINEAR,
    SUM_OF_SQUARES,
    SUMMARIES,
    VARIABLE_LOOKUPS,
    is_gradient_update,
)
from placement_checks.core.placement import TRAINABLE, Placement
from placement_checks.core.variables import Variable

_LOOKUPS = VARIABLE_LOOKUPS | GATHERS


class Untrained(NamedTuple):
    """A trainable variable that no step updates.

    Attributes:
        variable: its name.
        lost: the last op of its gradient, which nothing takes; None if no loss reads it.
    """

    variable: str
    lost: int | None


def untrained(placement: Placement) -> Iterator[Untrained]:
    """The trainable variables that no step updates, though a gradient is computed or cannot be.

    A variable that a loss reads, and of which the program takes no gradient, is frozen on purpose.
    """
    analysis = analyse(placement)
    trainable = placement.collected.get(TRAINABLE, frozenset())
    for variable in placement.variables:
        name = variable.name
        if name not in trainable or is_trained(analysis, name):
            continue
        readers = analysis.reads_by_gpu.readers[name]
        if not any(map(analysis.reads_by_gpu.in_loss, readers)):
            yield Untrained(name, None)
        elif (lost := next(_lost_gradients(analysis, variable, readers), None)) is not None:
            yield Untrained(name, lost)


def left_unused(placement: Placement) -> Iterator[str]:
    """The trainable variables that no step updates, and whose gradients nothing takes.

    The program took them, if only as those of all its variables.
    """
    analysis = analyse(placement)
    flow = analysis.flow
    trainable = placement.collected.get(TRAINABLE, frozenset())
    for name in (each.name for each in placement.variables if each.name in trainable):
        taken = [flow.number[op] for op in placement.step.taken.get(name, ()) if op in flow.number]
        used = any(flow.consumers[op] for op in taken)
        if taken and not used and not is_trained(analysis, name):
            yield name


def is_trained(analysis: TowerAnalysis, variable: str) -> bool:
    """Whether the step updates a variable, or an op of another step does by its gradient."""
    flow = analysis.flow
    return variable in analysis.updates.by_variable or any(
        is_gradient_update(flow.types[op])
        or any(analysis.towers_behind[value] & analysis.gradient_bit for value in values)
        for op, values in flow.writers.get(flow.number[variable], ())
    )


def _lost_gradients(
    analysis: TowerAnalysis, variable: Variable, readers: Sequence[int]
) -> Iterator[int]:
    """The ops that end gradients of a variable which the program takes and does not apply.

    TensorFlow computes the gradients of all inputs of an op, whether they are asked for or not:
    one was asked for if it is brought out of the backward pass. Its norm is shown, or scales the
    gradients of all variables; that applies it to none.
    """
    flow, backward = analysis.flow, analysis.backward
    reading = set(readers)
    seen = {
        op
        for op, (forward, _) in backward.forward.items()
        if forward in reading and _is_gradient(analysis, op, forward, variable)
    }
    todo = sorted(seen)
    for op in todo:
        takers = flow.consumers[op]
        shown = [taker for taker in takers if _only_shows(analysis, taker)]
        if len(shown) == len(takers) and (shown or not backward.ops[op]):
            yield op
        further = [taker for taker in takers if flow.types[taker] in LINEAR and taker not in seen]
        seen.update(further)
        todo += further


def _only_shows(analysis: TowerAnalysis, taker: int) -> bool:
    """Whether what takes a gradient shows it, or its norm; one that is part of a loss is a use."""
    kind = analysis.flow.types[taker]
    return kind in SUMMARIES or (
        kind == SUM_OF_SQUARES and not analysis.reads_by_gpu.in_loss(taker)
    )


def _is_gradient(analysis: TowerAnalysis, op: int, forward: int, variable: Variable) -> bool:
    """Whether the gradient op of a reader may yield the variable's gradient, by its shape."""
    outputs = analysis.placement.details.outputs(analysis.flow.names[op])
    return analysis.flow.types[forward] in _LOOKUPS or any(
        output.shape == variable.shape for output in outputs
    )
