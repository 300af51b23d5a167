"""Where the variables of two programs diverge over some training steps."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import numpy as np

from placement_checks.core.measurement import (
    EPS,
    Array,
    Measurement,
    Trajectory,
    VariableStep,
    largest,
)
from placement_checks.numerics.comparing import (
    REQUIRED_RESOLUTION,
    Difference,
    compare_arrays,
    compare_gradients,
    differing_variables,
    scale_tolerance,
)

# Optimisers whose step is as large as the gradient. The others divide the gradient by its size:
# rounding then decides the direction of an element whose gradient is next to zero, and a factor on
# all gradients leaves the weights as they are.
_PROPORTIONAL = ("GradientDescent", "Momentum", "SGD")
_MIN_CHANGE = 1e-4  # of a weight's size; rounding is far below, also that of many steps
_DRIFT = 0.02  # of what a variable moves, under an optimiser that is not proportional


class Divergence(NamedTuple):
    """A variable that is no longer the reference's.

    Attributes:
        difference: after the first step that shows it.
        step: that step, from 1.
        moved: its change in that step, as a multiple of the reference's; None where it is not a
            multiple, 0 where it does not change.
        error: the largest difference after the last step, as a part of the reference's change.
    """

    difference: Difference
    step: int
    moved: float | None
    error: float


def is_proportional(optimizers: Collection[str]) -> bool:
    """Whether every step is as large as the gradient."""
    return bool(optimizers) and all(
        any(kind in optimizer for kind in _PROPORTIONAL) for optimizer in optimizers
    )


def compare_variables(
    measured: Measurement,
    trajectory: Trajectory,
    *,
    tolerance: float = 32.0,
    times_noise: float = 8.0,
    scale: float = 1.0,
) -> tuple[list[Difference], list[Divergence]]:
    """The variables that both programs have: those that stay equal, and those that do not.

    Variables whose gradient is zero in truth, and their slots, go where rounding takes them, and
    are left out. So are those whose value hangs on a race, and their slots.

    Args:
        measured: what is known of both programs.
        trajectory: the steps.
        tolerance: as for `difference`.
        times_noise: as for `difference`.
        scale: what the gradients are multiplied by; it is found in the slots, once or squared.
    """
    equal, divergences = [], []
    if measured.trials:
        tolerance = scale_tolerance(measured.trials[0].rows, tolerance)
    noisy, racing = _noisy_variables(measured), variables_with_races(measured, trajectory)
    for name in trajectory.steps[0]:
        trained = find_trained_variable(name, trajectory.trained)
        if trained in noisy or name in racing:
            continue
        for number, variables in enumerate(trajectory.steps):
            factors = {1.0, scale, scale**2} if trained not in (None, name) else {1.0}
            after = _difference_after(
                measured, name, variables[name], tolerance, times_noise, factors
            )
            if after.state == "differs":
                divergences.append(_divergence(trajectory, after, number))
                break
        else:
            equal.append(after)
    return equal, divergences


def _difference_after(
    measured: Measurement,
    name: str,
    step: VariableStep,
    tolerance: float,
    times_noise: float,
    factors: Collection[float],
) -> Difference:
    """The difference of one variable after a step, from the nearest multiple that it may be."""
    expected, found = step.expected, step.found
    dtype = measured.dtypes[name]
    allowed = 0.0
    if dtype in EPS:
        # Gradients may be coarser than the variables that they move.
        coarsest = max((EPS.get(kind, 0.0) for kind in measured.precisions.values()), default=0.0)
        if tolerance * coarsest > REQUIRED_RESOLUTION:
            dtype = next(kind for kind in EPS if EPS[kind] == coarsest)
        part = tolerance * coarsest if is_proportional(measured.optimizers) else _DRIFT
        allowed = part * largest(expected - step.start)
        if step.certain is not None and not is_proportional(measured.optimizers):
            expected, found = expected[step.certain], found[step.certain]
    differences = [
        compare_arrays(
            name,
            expected * factor,
            found,
            dtype=dtype,
            noise=step.noise * abs(factor),
            tolerance=tolerance,
            times_noise=times_noise,
            allowed=allowed * abs(factor),
        )._replace(ratio=step.ratio and step.ratio / factor)
        for factor in factors
    ]
    return min(differences, key=lambda candidate: (candidate.state == "differs", candidate.error))


def _noisy_variables(measured: Measurement) -> set[str]:
    """The variables whose gradient is zero in truth, or too noisy to compare."""
    return {
        gradient.variable
        for trial in measured.trials
        for gradient in compare_gradients(trial, measured.precisions)
        if gradient.state == "noise"
    }


def variables_with_races(measured: Measurement, trajectory: Trajectory) -> dict[str, str]:
    """Those whose value hangs on a race, each with the variable that is raced for.

    The slots of a variable are updated with it, and by the same gradient.
    """
    trained = {
        name: find_trained_variable(name, trajectory.trained) for name in trajectory.steps[0]
    }
    return {
        name: measured.races[each]
        for name in trained
        if (each := name if name in measured.races else trained[name] or "") in measured.races
    }


def variables_with_stale_copies(measured: Measurement) -> set[str]:
    """The variables whose gradient differs after the steps, from equal variables again.

    Then the program computes with something else than the variables that both have.
    """
    if not measured.trajectory or measured.trajectory.after is None:
        return set()
    before = differing_variables(measured.trials[0], measured.precisions) | _noisy_variables(
        measured
    )
    return differing_variables(measured.trajectory.after, measured.precisions) - before


def compensated_factor(measured: Measurement) -> float:
    """The number that all gradients are multiplied by and the rate is divided by; 1 if by none.

    That is so where the weights stay equal, under an optimiser whose step grows with the gradient,
    and where they move so far that without the rate the number would show in them.
    """
    if not measured.trajectory or not is_proportional(measured.optimizers):
        return 1.0
    ratios = [
        gradient.ratio
        for gradient in compare_gradients(measured.trials[0], measured.precisions)
        if gradient.state != "noise" and gradient.ratio is not None
    ]
    if not ratios or not np.allclose(ratios, ratios[0], rtol=1e-4):
        return 1.0
    if not _would_show(measured.trajectory, ratios[0]):
        return 1.0
    _, divergences = compare_variables(
        measured, measured.trajectory, scale=measured.scale * ratios[0]
    )
    return 1.0 if divergences else float(ratios[0])


def _would_show(trajectory: Trajectory, factor: float) -> bool:
    """Whether steps with so many times the gradients would lead weights elsewhere.

    At a rate of 0, as at the begin of a warm-up, they lead nowhere.
    """
    for name in trajectory.trained & trajectory.steps[-1].keys():
        last = trajectory.steps[-1][name]
        apart = largest(last.expected - last.start) * abs(factor - 1)
        if apart > _MIN_CHANGE * largest(last.expected):
            return True
    return False


def undetectable_changes(
    measured: Measurement, trajectory: Trajectory, equal: Collection[Difference]
) -> dict[str, float]:
    """Which part of its change could be wrong and not be seen, by trained variable.

    Those alone of which nothing but their value tells: no gradient was compared, and no slot.

    Args:
        measured: what is known of both programs.
        trajectory: the steps.
        equal: the variables that stay equal.
    """
    told = {
        gradient.variable
        for trial in measured.trials
        for gradient in compare_gradients(trial, measured.precisions)
        if gradient.state == "equal"
    }
    slots = (same.variable for same in equal if same.variable not in trajectory.trained)
    told |= {find_trained_variable(name, trajectory.trained) or "" for name in slots}
    parts = {}
    for same in equal:
        if same.variable in trajectory.trained - told:
            last = trajectory.steps[-1][same.variable]
            unit = EPS.get(measured.dtypes[same.variable], 0.0) * largest(last.expected)
            allowed = same.limit * unit
            change = largest(last.expected - last.start)
            parts[same.variable] = allowed / change if change else np.inf
    return parts


def find_trained_variable(name: str, trained: Collection[str]) -> str | None:
    """The trained variable that this is, or is a slot of: slots are named under their variable."""
    while name:
        if name in trained:
            return name
        name = name.rpartition("/")[0]
    return None


def _divergence(trajectory: Trajectory, first: Difference, number: int) -> Divergence:
    step, last = (trajectory.steps[at][first.variable] for at in (number, -1))
    moved = _ratio(*step.moved)
    if step.start.size == 1 and number and moved:
        moved = None  # any change of one number is a multiple of another
    size = largest(last.expected - last.start)
    error = largest(last.found - last.expected)
    return Divergence(first, number + 1, moved, error / size if size else np.inf)


def _ratio(expected: Array, found: Array) -> float | None:
    """The number by which one array is multiplied to get the other; None if there is none."""
    square = float(np.vdot(expected, expected))
    if not square:
        return None
    ratio = float(np.vdot(expected, found)) / square
    rest = np.max(np.abs(found - ratio * expected)) / np.max(np.abs(expected))
    return ratio if rest < 1e-3 * max(1.0, abs(ratio)) else None
