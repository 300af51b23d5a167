"""Which of the training steps of a program are judged, and what a report says of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import tensorflow as tf

from placement_checks.loading.tf_internals.distribution import parts_of
from placement_checks.loading.tf_internals.eager_variables import handle_of
from placement_checks.loading.tf_internals.keras_objects import variable_of
from placement_checks.loading.traced.calls import SeenCall
from placement_checks.loading.traced.flattening import FlatGraph
from placement_checks.loading.traced.noting import TracingNotes
from placement_checks.loading.traced.outer_graph import graphs_of
from placement_checks.util.text import joined, plural


def in_turn(seen: Sequence[SeenCall], notes: TracingNotes) -> Sequence[SeenCall]:
    """The steps that each train other variables, as adversaries do.

    A step that trains variables of one before is left out: it may be the same function, traced
    again for a last batch of fewer rows, or another way to train.
    """
    chosen: list[SeenCall] = []
    trained: set[int] = set()
    for step in seen:
        variables = _trained(step, notes)
        if trained.isdisjoint(variables):
            chosen.append(step)
            trained |= variables
    return chosen


def _trained(step: SeenCall, notes: TracingNotes) -> set[int]:
    """The variables that a step takes gradients by, by the ids of their handles."""
    sources = [
        variable_of(source)
        for graph in graphs_of(step).values()
        if graph in notes.gradients
        for source, _ in notes.gradients[graph].by_source
    ]
    return {
        id(handle_of(parts_of(source)[0])) for source in sources if isinstance(source, tf.Variable)
    }


def notes_of(steps: Sequence[SeenCall], left_out: Sequence[str], flat: FlatGraph) -> Iterator[str]:
    """What a report says of the steps that are judged.

    Args:
        steps: those steps.
        left_out: the names of others, which are not.
        flat: their graph.
    """
    told = [_told(step) for step in steps]
    if len(steps) == 1:
        yield f"watched until its first training step, {told[0]}"
    else:
        yield f"watched until {len(steps)} training steps, which take turns: {joined(told)}"
    names = [step.name for step in steps]
    if retraced := [name for name in left_out if name in names]:
        yield f"{joined(dict.fromkeys(retraced))} is traced again, for other shapes: not judged"
    if others := [name for name in left_out if name not in names]:
        yield f"{joined(dict.fromkeys(others))} trains the same variables, and is not judged"
    if flat.loops and steps[0].method:
        yield "a call of it takes several steps, of which one is judged"
    elif flat.loops:
        yield f"{flat.loops[0]} is a loop of steps, of which one trip is judged"
    if flat.compiled:
        calls = plural(len(flat.compiled), "call")
        yield f"XLA compiles {calls} as a whole; where their ops are is told as if it did not"


def _told(step: SeenCall) -> str:
    return f"{step.name}, at {step.called_at}" if step.called_at else step.name
