"""The changes that a step makes to its variables, from the model of the step."""

from __future__ import annotations

from placement_checks.analysis.graph.data_flow import union
from placement_checks.analysis.towers.analysis import analyze
from placement_checks.analysis.variables.gradient_flow import gradient_flow
from placement_checks.core.ids import TowerMask
from placement_checks.core.placement import Placement
from placement_checks.step.changes import Clip, StepChanges


def step_changes(placement: Placement) -> StepChanges:
    """Return the changes of the step of a placement, computed once.

    If the step is unknown, they include the updates of all optimizers. Gradients may be added up
    in variables by ops outside of the step, in runs before it.
    """
    return placement.cached(_step_changes)


def towers_of_clip(placement: Placement, clip: Clip) -> TowerMask:
    """Return the towers whose gradients an op clips or otherwise changes."""
    analysis, towers = analyze(placement), gradient_flow(placement).gradient_towers
    found = union(towers[analysis.flow.number[op]] for op in clip.gradients)
    return TowerMask(found & analysis.all_towers)


def _step_changes(placement: Placement) -> StepChanges:
    analysis = analyze(placement)
    updates, names = analysis.updates, analysis.flow.names
    ops = [update.op for each in updates.by_variable.values() for update in each]
    read = analysis.variables_read
    ops += [
        writer
        for holder, writers in analysis.flow.writers.items()
        for writer, values in writers
        if names[holder] not in read and any(map(analysis.has_gradient, values))
    ]
    roots = dict.fromkeys(names[op] for op in (*updates.roots, *ops))
    backward = frozenset(names[op] for op in analysis.backward.numbers())
    return StepChanges(placement, list(roots), backward, read)
