"""Find the likely cause of weights that differ from the reference after some training steps.

`find_cause` explains a divergence of weights-equal, and locates the ops that cause it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from placement_checks.analysis.towers.analysis import analyze
from placement_checks.analysis.variables.gradient_flow import gradient_flow
from placement_checks.core.op_types import is_gradient_update
from placement_checks.core.placement import Placement
from placement_checks.core.strategies import Strategy
from placement_checks.rules.gradient_mistakes import MistakeLocation
from placement_checks.rules.source_lines import frames_up_to
from placement_checks.util.text import plural

if TYPE_CHECKING:
    from placement_checks.core.measurement import Measurement, Trajectory
    from placement_checks.numerics.training_divergence import Divergence


class Cause(NamedTuple):
    """A likely cause.

    Attributes:
        what: a clause that describes it.
        fix: what to change.
        consequence: what it means for the training; ``""`` if that is obvious.
        follows: the rule whose findings explain it, if any.
        place: the ops on the lines to edit, if they are known.
    """

    what: str
    fix: str
    consequence: str = ""
    follows: str | None = None
    place: MistakeLocation = MistakeLocation()


COPIES = Cause(
    "towers compute with values that the step does not update, such as copies of the variables",
    "let all towers read the variables that the step updates: use get_variable in a reused scope, "
    "without copies",
    "after the first step the gradients are computed from old weights",
)


def find_cause(
    placement: Placement,
    measured: Measurement,
    trajectory: Trajectory,
    divergence: Divergence,
    divergences: Sequence[Divergence],
) -> Cause:
    """Return the likely cause of a divergence.

    Args:
        placement: the program.
        measured: the measurement of the program and its reference.
        trajectory: the training steps of the measurement.
        divergence: the first difference of a variable.
        divergences: the first differences of all variables that differ.
    """
    from placement_checks.numerics.training_divergence import (
        find_trained_variable,
        variables_with_stale_copies,
    )

    if earlier := _earlier_cause(measured, trajectory, divergence, divergences):
        return earlier
    name = divergence.difference.variable
    if _is_integer(measured, name):
        return _counter_cause(trajectory, name, divergence.step)
    trained = find_trained_variable(name, trajectory.trained)
    if trained in variables_with_stale_copies(measured):
        return COPIES._replace(place=stale_copies(placement, trained or name))
    strategy = placement.strategy
    if strategy is not None and strategy.is_later_copy(name):
        return _mirrored_copy_cause(strategy, name, divergence.moved)
    return _change_cause(placement, name, divergence.moved, is_trained=trained == name)


def _earlier_cause(
    measured: Measurement,
    trajectory: Trajectory,
    divergence: Divergence,
    divergences: Sequence[Divergence],
) -> Cause | None:
    """Return an earlier mistake that explains a divergence, if there is one."""
    from placement_checks.numerics.comparing import differing_variables
    from placement_checks.numerics.training_divergence import find_trained_variable

    name = divergence.difference.variable
    trained = find_trained_variable(name, trajectory.trained)
    wrong = differing_variables(measured.trials[0], measured.precisions)
    root = "gradients-equal" if wrong else None
    if trained in wrong:
        what = "the gradient differs, see gradients-equal"
        return Cause(what, "fix gradients-equal first", follows="gradients-equal")
    if trained is None and wrong and not _is_integer(measured, name):
        what = f"the gradient of {min(wrong)} differs, which may be the cause"
        return Cause(what, "fix that first", follows="gradients-equal")
    if trained != name and trained in {other.difference.variable for other in divergences}:
        return Cause(f"it follows {trained}", "fix that first", follows=root)
    first = min(divergences, key=lambda other: other.step)
    if divergence.step > first.step:
        return Cause(
            f"it follows {first.difference.variable}, which differs after "
            f"{plural(first.step, 'step')}",
            "fix that first",
            follows=root,
        )
    return None


def _is_integer(measured: Measurement, name: str) -> bool:
    return measured.dtypes[name].startswith(("int", "uint"))


def _counter_cause(trajectory: Trajectory, name: str, number: int) -> Cause:
    """Return the likely cause for a counter that differs from the reference."""
    reference, towers = trajectory.steps[number - 1][name].moved
    return Cause(
        f"a step changes it by {towers.flat[0]:g}, and in the reference by {reference.flat[0]:g}"
        if towers.size == 1
        else "a step changes it by other amounts than in the reference",
        "count one for each step, for any number of towers and rows",
        "values that depend on it, such as a decaying learning rate, change at another time",
    )


def _mirrored_copy_cause(strategy: Strategy, name: str, moved: float | None) -> Cause:
    """Return the cause for a later copy of a mirrored variable that differs from the reference."""
    device = strategy.replicas[strategy.copies[name].replica].short
    amount = f" {moved:.3g} times as much as" if moved else " by another amount than"
    return Cause(
        f"that step changes the copy on {device}{amount} the copy on {strategy.replicas[0].short}",
        "update every copy with the same value: a sum over all replicas, and no value that "
        "differs between replicas, such as the replica's number",
        "the copies diverge: each replica trains another model, and only the first replica's is "
        "saved",
    )


def _change_cause(
    placement: Placement, name: str, moved: float | None, *, is_trained: bool
) -> Cause:
    """Return the likely cause, judged by how much a step changes a variable.

    Args:
        placement: the program.
        name: the variable.
        moved: its change relative to the reference's change, as in `Divergence.moved`.
        is_trained: whether the variable has a gradient.
    """
    if moved is not None and abs(moved) < 1e-3:
        return Cause(
            "it does not change",
            "make sure that the step runs the op that updates it, and that towers share it",
            "it keeps its initial value",
        )
    if moved is None or abs(moved - 1) <= 1e-3:
        return Cause(
            "the step updates it differently", "compare the ops that update it in both programs"
        )
    number, location = repeated_updates(placement, name, is_trained=is_trained)
    updates = f": {number} ops in a step update it" if number > 1 else ""
    despite = ", though its gradient is equal" if is_trained else ""
    return Cause(
        f"that step changes it {moved:.3g} times as much{despite}{updates}",
        "update it once per step for all towers together, with the reference's learning rate",
        "training has another learning rate than on one GPU" if is_trained else "",
        place=location,
    )


def stale_copies(placement: Placement, variable: str) -> MistakeLocation:
    """Return the variables that towers read instead of ``variable``, and that no step updates.

    Their initial values are copies of it.
    """
    analysis = analyze(placement)
    flow = analysis.flow
    original = flow.number[variable]
    copies = []
    for name in sorted(analysis.variables_read - analysis.updates.by_variable.keys()):
        written = [op for _, values in flow.writers.get(flow.number[name], ()) for op in values]
        if name != variable and original in flow.reachable(written):
            copies.append(name)
    return MistakeLocation(copies)


def repeated_updates(
    placement: Placement, name: str, *, is_trained: bool
) -> tuple[int, MistakeLocation]:
    """Return how many ops of a step update a variable, and the updates that are wrong, if any.

    For a trained variable, the wrong updates are the ops that are not optimizer updates. For
    another variable, the location is the call that repeats its update for each tower.
    """
    analysis = analyze(placement)
    names, types = analysis.flow.names, analysis.flow.types
    updates = [update.op for update in analysis.updates.by_variable.get(name, ())]
    if len(updates) < 2:
        return len(updates), MistakeLocation()
    if is_trained:
        others = [op for op in updates if not is_gradient_update(types[op])]
        return len(updates), MistakeLocation([names[op] for op in others])
    trained = next(iter(gradient_flow(placement).trained.values()), ())
    frames = frames_up_to(placement, names[updates[0]], names[trained[0].op]) if trained else ()
    return len(updates), MistakeLocation([names[op] for op in updates], frames)
