"""Where in a program variables are updated otherwise than in the reference, or not at all."""

from __future__ import annotations

from collections.abc import Iterator

from placement_checks.analysis.gradient_flow import gradient_flow
from placement_checks.analysis.tower_analysis import TowerAnalysis, analyse
from placement_checks.core.op_types import is_gradient_update
from placement_checks.core.placement import Placement
from placement_checks.rules.lines.calls import frames_beside
from placement_checks.rules.mistakes.places import Place


def copies_of(placement: Placement, variable: str) -> Place:
    """The variables that towers read, that no step updates, and that start as copies of it."""
    return Place([*_copies(analyse(placement), variable)])


def _copies(analysis: TowerAnalysis, variable: str) -> Iterator[str]:
    flow = analysis.flow
    original = flow.number[variable]
    for name in sorted(analysis.variables_read - analysis.updates.by_variable.keys()):
        written = [op for _, values in flow.writers.get(flow.number[name], ()) for op in values]
        if name != variable and original in flow.walk_back(written, lambda _: True):
            yield name


def repeated_updates(placement: Placement, name: str, *, is_trained: bool) -> tuple[int, Place]:
    """How many ops of a step update a variable, and where the one is that should not, if any.

    Of a trained variable, that which is no optimiser's; of another, the call that repeats it,
    beside the update of what is trained.
    """
    analysis = analyse(placement)
    names, types = analysis.flow.names, analysis.flow.types
    updates = [update.op for update in analysis.updates.by_variable.get(name, ())]
    if len(updates) < 2:
        return len(updates), Place()
    if is_trained:
        others = [op for op in updates if not is_gradient_update(types[op])]
        return len(updates), Place([names[op] for op in others])
    trained = next(iter(gradient_flow(placement).trained.values()), ())
    if not trained:
        return len(updates), Place([names[op] for op in updates])
    frames = frames_beside(placement, names[updates[0]], names[trained[0].op])
    return len(updates), Place([names[op] for op in updates], frames)
