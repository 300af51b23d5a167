"""Where in a program variables are updated otherwise than in the reference, or not at all.

What is likely wrong where the weights of a program are not the reference's after some steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from placement_checks.analysis.towers.analysis import TowerAnalysis, analyse
from placement_checks.analysis.variables.gradient_flow import gradient_flow
from placement_checks.core.op_types import is_gradient_update
from placement_checks.core.placement import Placement
from placement_checks.core.strategies import Strategy
from placement_checks.rules.gradient_mistakes import Place
from placement_checks.rules.source_lines import frames_up_to
from placement_checks.util.text import plural

if TYPE_CHECKING:
    from placement_checks.core.measurement import Measurement, Trajectory
    from placement_checks.numerics.training_divergence import Divergence


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
    frames = frames_up_to(placement, names[updates[0]], names[trained[0].op])
    return len(updates), Place([names[op] for op in updates], frames)


class Cause(NamedTuple):
    """What is likely wrong.

    Attributes:
        what: a clause that says it.
        fix: what to change.
        consequence: what it means for the training; ``""`` where that is plain.
        follows: the rule whose findings explain it.
        place: the ops whose line is to be edited, if they are known.
    """

    what: str
    fix: str
    consequence: str = ""
    follows: str | None = None
    place: Place = Place()


COPIES = Cause(
    "towers compute with something that the step does not update, such as copies of their own",
    "let all towers read the variables that the step updates: get_variable in a reused scope, and "
    "no copies of it",
    "after the first step the gradients are those of old weights",
)


def cause_of(
    placement: Placement,
    measured: Measurement,
    trajectory: Trajectory,
    divergence: Divergence,
    divergences: Sequence[Divergence],
) -> Cause:
    """What is likely wrong."""
    from placement_checks.numerics.training_divergence import (
        find_trained_variable,
        variables_with_stale_copies,
    )

    if followed := _followed(measured, trajectory, divergence, divergences):
        return followed
    name = divergence.difference.variable
    if _is_count(measured, name):
        return _of_count(trajectory, name, divergence.step)
    trained = find_trained_variable(name, trajectory.trained)
    if trained in variables_with_stale_copies(measured):
        return COPIES._replace(place=copies_of(placement, trained or name))
    strategy = placement.strategy
    if strategy is not None and strategy.is_later_copy(name):
        return _of_copy(strategy, name, divergence.moved)
    return _of_change(placement, name, divergence.moved, is_trained=trained == name)


def _followed(
    measured: Measurement,
    trajectory: Trajectory,
    divergence: Divergence,
    divergences: Sequence[Divergence],
) -> Cause | None:
    """What else is wrong that explains it, if anything else is."""
    from placement_checks.numerics.comparing import differing_variables
    from placement_checks.numerics.training_divergence import find_trained_variable

    name = divergence.difference.variable
    trained = find_trained_variable(name, trajectory.trained)
    wrong = differing_variables(measured.trials[0], measured.precisions)
    root = "gradients-equal" if wrong else None
    if trained in wrong:
        what = "the gradient differs, see gradients-equal"
        return Cause(what, "fix gradients-equal first", follows="gradients-equal")
    if trained is None and wrong and not _is_count(measured, name):
        what = f"the gradient of {min(wrong)} differs, which it may follow"
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


def _is_count(measured: Measurement, name: str) -> bool:
    return measured.dtypes[name].startswith(("int", "uint"))


def _of_count(trajectory: Trajectory, name: str, number: int) -> Cause:
    """What is likely wrong with the updates of a counter."""
    theirs, ours = trajectory.steps[number - 1][name].moved
    return Cause(
        f"a step changes it by {ours.flat[0]:g}, and in the reference by {theirs.flat[0]:g}"
        if ours.size == 1
        else "a step changes it in another way",
        "let a step count as one, whatever the number of towers and rows",
        "what depends on it, such as the decay of the learning rate, changes at another time",
    )


def _of_copy(strategy: Strategy, name: str, moved: float | None) -> Cause:
    """What is wrong with a copy of a strategy, where that of the first replica is as expected."""
    device = strategy.replicas[strategy.copies[name].replica].short
    often = f" {moved:.3g} times as much as" if moved else " otherwise than"
    return Cause(
        f"that step changes the copy on {device}{often} that on {strategy.replicas[0].short}",
        "let the update of every copy be the same: of what all replicas have added up, and of "
        "nothing that one replica alone knows, such as its number",
        "the copies drift apart: each replica trains a model of its own, and that of the first is "
        "saved",
    )


def _of_change(placement: Placement, name: str, moved: float | None, *, is_trained: bool) -> Cause:
    """What is likely wrong by how far a step changes a variable.

    Args:
        placement: of the program.
        name: the variable.
        moved: its change, as `Divergence.moved`.
        is_trained: whether it has a gradient of its own.
    """
    if moved is not None and abs(moved) < 1e-3:
        return Cause(
            "it does not change",
            "see that the step runs the op that updates it, and that towers share it",
            "it stays as it was initialised",
        )
    if moved is None or abs(moved - 1) <= 1e-3:
        return Cause(
            "the step updates it in another way", "compare the ops that update it in both programs"
        )
    number, place = repeated_updates(placement, name, is_trained=is_trained)
    often = f": {number} ops of a step update it" if number > 1 else ""
    despite = ", though its gradient is equal" if is_trained else ""
    return Cause(
        f"that step changes it {moved:.3g} times as much{despite}{often}",
        "update it once a step, for all towers together, and at the reference's rate",
        "training runs at another rate than on one GPU" if is_trained else "",
        place=place,
    )
