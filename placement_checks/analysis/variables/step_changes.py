"""The changes that a step makes to its variables, from the model of the step."""

from __future__ import annotations

from collections.abc import Sequence

from placement_checks.analysis.graph.data_flow import union
from placement_checks.analysis.towers.analysis import analyze
from placement_checks.analysis.variables.gradient_flow import gradient_flow
from placement_checks.core.ids import OpId, TowerMask
from placement_checks.core.op_types import is_update
from placement_checks.core.placement import Placement
from placement_checks.step.changes import Clip, StepChanges


def step_changes(placement: Placement) -> StepChanges:
    """Return the changes of the step of a placement, computed once.

    If the step is unknown, they include the updates of all optimizers. They also include ops
    outside of the step that write to variables that no loss reads, such as sums of gradients in
    runs before it, except for constants.
    """
    return placement.cached(_step_changes)


def towers_of_clip(placement: Placement, clip: Clip) -> TowerMask:
    """Return the towers whose gradients an op clips or otherwise changes."""
    analysis, towers = analyze(placement), gradient_flow(placement).gradient_towers
    found = union(towers[analysis.flow.number[op]] for op in clip.gradients)
    return TowerMask(found & analysis.all_towers)


def _step_changes(placement: Placement) -> StepChanges:
    analysis = analyze(placement)
    flow, updates, names = analysis.flow, analysis.updates, analysis.flow.names
    reads, constant = analysis.reads_by_site, analysis.layers.constant

    def may_collect(writer: OpId, values: Sequence[OpId]) -> bool:
        is_sum = is_update(flow.types[writer]) and not all(constant[value] for value in values)
        return is_sum or any(map(analysis.has_gradient, values))

    ops = [update.op for each in updates.by_variable.values() for update in each]
    ops += [
        writer
        for holder, writers in flow.writers.items()
        if not any(map(reads.in_loss, reads.readers.get(names[holder], ())))
        for writer, values in writers
        if may_collect(writer, values)
    ]
    roots = dict.fromkeys(names[op] for op in (*updates.roots, *ops))
    backward = frozenset(names[op] for op in analysis.backward.numbers())
    return StepChanges(placement, list(roots), backward, analysis.variables_read)
