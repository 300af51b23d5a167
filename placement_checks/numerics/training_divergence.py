"""Find the variables that diverge between two programs over some training steps."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

import numpy as np

from placement_checks.core.measurement import (
    EPS,
    Array,
    Measurement,
    Trajectory,
    Trial,
    VariableStep,
    largest,
)
from placement_checks.numerics.comparing import (
    DEFAULT_LIMITS,
    REQUIRED_RESOLUTION,
    Difference,
    Limits,
    compare_arrays,
    compare_gradients,
    differing_variables,
)
from placement_checks.numerics.sampling import least_squares_ratio

# Optimizers with steps proportional to the gradient. Other optimizers divide the gradient by its
# size: then rounding decides the direction of elements with a gradient near zero, and a factor on
# all gradients does not change the weights.
_PROPORTIONAL = ("GradientDescent", "Momentum", "SGD")
_MIN_CHANGE = 1e-4  # part of a weight's size; far above the rounding of many steps
_SAME_FACTOR = 1e-4  # relative difference of equal factors
_DRIFT = 0.02  # allowed part of a variable's change, if the optimizer is not proportional


class Divergence(NamedTuple):
    """A variable that differs from the reference's after a step.

    Attributes:
        difference: the difference after the first step that makes the variable differ.
        step: the number of this step, from 1.
        moved: the change of the variable in this step, divided by its change in the reference;
            None if the changes are not proportional, 0 if the variable does not change.
        error: the largest difference after the last step, divided by the largest change of the
            variable in the reference.
    """

    difference: Difference
    step: int
    moved: float | None
    error: float


def is_proportional(optimizers: Collection[str]) -> bool:
    """Whether all optimizers take steps proportional to the gradient."""
    return bool(optimizers) and all(
        any(kind in optimizer for kind in _PROPORTIONAL) for optimizer in optimizers
    )


def compare_variables(
    measured: Measurement,
    trajectory: Trajectory,
    limits: Limits = DEFAULT_LIMITS,
    *,
    scale: float = 1.0,
) -> tuple[list[Difference], list[Divergence]]:
    """Compare the variables that both programs have, after each step.

    Variables with a gradient that is exactly zero are skipped, because rounding changes them.
    Variables that depend on a race are skipped, too. The slots of skipped variables are skipped.

    Slots may differ by ``scale``, the factor on all gradients, or by its square.

    Returns:
        The differences of variables that stay equal, and the divergences of the other variables.
    """
    equal, divergences = [], []
    if measured.trials:
        limits = limits.on_rows(measured.trials[0].rows)
    noisy, racing = _noisy_variables(measured), variables_with_races(measured, trajectory)
    for name in trajectory.steps[0]:
        trained = trajectory.owners.get(name)
        if trained in noisy or name in racing:
            continue
        for number, variables in enumerate(trajectory.steps):
            factors = {1.0, scale, scale**2} if trained not in (None, name) else {1.0}
            after = _difference_after(measured, name, variables[name], limits, factors)
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
    limits: Limits,
    factors: Collection[float],
) -> Difference:
    """Compare one variable after a step, with the factor that explains it best."""
    expected, found = step.expected, step.found
    dtype = measured.dtypes[name]
    allowed = 0.0
    if dtype in EPS:
        # Gradients may have a coarser dtype than their variables.
        coarsest = max((EPS.get(kind, 0.0) for kind in measured.precisions.values()), default=0.0)
        if limits.tolerance * coarsest > REQUIRED_RESOLUTION:
            dtype = next(kind for kind in EPS if EPS[kind] == coarsest)
        part = limits.tolerance * coarsest if is_proportional(measured.optimizers) else _DRIFT
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
            limits=limits,
            allowed=allowed * abs(factor),
        )._replace(ratio=step.ratio and step.ratio / factor)
        for factor in factors
    ]
    return min(differences, key=lambda candidate: (candidate.state == "differs", candidate.error))


def _noisy_variables(measured: Measurement) -> set[str]:
    """Return the variables with a gradient that is exactly zero, or too noisy to compare."""
    return {
        gradient.variable
        for trial in measured.trials
        for gradient in compare_gradients(trial, measured.precisions)
        if gradient.state == "noise"
    }


def variables_with_races(measured: Measurement, trajectory: Trajectory) -> dict[str, str]:
    """Return the variables that depend on a race, each with a variable that the race reads.

    The slots of such a variable are included, because the same gradient updates them.
    """
    found = {}
    for name in trajectory.steps[0]:
        racing = name if name in measured.races else trajectory.owners.get(name, "")
        if racing in measured.races:
            found[name] = measured.races[racing]
    return found


def variables_with_stale_copies(measured: Measurement) -> set[str]:
    """Return the variables with gradients that are equal before the steps, and differ after them.

    After the steps, both programs were given equal variables. If gradients differ even so, the
    program computes with other state, such as copies that no step refreshes. A gradient that is
    too noisy or too coarse to compare is not known to be equal.
    """
    if not measured.trajectory or measured.trajectory.after is None:
        return set()
    before = compare_gradients(measured.trials[0], measured.precisions)
    equal = {gradient.variable for gradient in before if gradient.state == "equal"}
    after = differing_variables(measured.trajectory.after, measured.precisions)
    return (after & equal) - _noisy_variables(measured)


def compensated_factor(measured: Measurement) -> float:
    """Return the factor on all gradients that the learning rate compensates; 1 if there is none.

    The learning rate compensates the factor if weights stay equal under a proportional optimizer,
    although they change enough to show the factor.
    """
    if not measured.trajectory or not is_proportional(measured.optimizers):
        return 1.0
    factor = common_factor(measured.trials[0], measured.precisions)
    equal, divergences = compare_variables(
        measured, measured.trajectory, scale=measured.scale * factor
    )
    compared = [each.variable for each in equal]
    is_compensated = not divergences and _would_show(measured.trajectory, compared, factor)
    return factor if is_compensated else 1.0


def common_factor(trial: Trial, precisions: Mapping[str, str]) -> float:
    """Return the factor of all gradients on one batch; 1 if there is none.

    The most precise gradient gives the factor. A coarser one may have another ratio by as much as
    its rounding allows.
    """
    ratios = [
        (gradient.ratio, max(_SAME_FACTOR, DEFAULT_LIMITS.tolerance * EPS.get(dtype, 0.0)))
        for gradient in compare_gradients(trial, precisions)
        if gradient.state != "noise" and gradient.ratio is not None
        for dtype in [precisions[gradient.variable]]
    ]
    factor = min(ratios, key=lambda each: each[1])[0] if ratios else 1.0
    if not all(np.isclose(ratio, factor, rtol=rounding) for ratio, rounding in ratios):
        return 1.0
    return float(factor)


def _would_show(trajectory: Trajectory, variables: Iterable[str], factor: float) -> bool:
    """Whether a factor on all gradients would change any of the variables visibly.

    At a learning rate of 0, as at the start of a warm-up, the factor would not show.
    """
    last = trajectory.steps[-1]
    return any(
        largest(last[name].expected - last[name].start) * abs(factor - 1)
        > _MIN_CHANGE * largest(last[name].expected)
        for name in trajectory.trained.intersection(variables)
    )


def undetectable_changes(
    measured: Measurement, trajectory: Trajectory, equal: Collection[Difference]
) -> dict[str, float]:
    """Return the fraction of each variable's change that could be wrong without being detected.

    Variables are omitted if their gradient or a slot was compared. ``equal`` lists the variables
    that stay equal.
    """
    compared = {
        gradient.variable
        for trial in measured.trials
        for gradient in compare_gradients(trial, measured.precisions)
        if gradient.state == "equal"
    }
    slots = (
        same.variable
        for same in equal
        if same.state == "equal" and same.variable not in trajectory.trained
    )
    compared |= {trajectory.owners.get(name, "") for name in slots}
    parts = {}
    for same in equal:
        if same.variable in trajectory.trained - compared:
            last = trajectory.steps[-1][same.variable]
            unit = EPS.get(measured.dtypes[same.variable], 0.0) * largest(last.expected)
            allowed = same.limit * unit
            change = largest(last.expected - last.start)
            parts[same.variable] = allowed / change if change else np.inf
    return parts


def _divergence(trajectory: Trajectory, first: Difference, number: int) -> Divergence:
    step, last = (trajectory.steps[at][first.variable] for at in (number, -1))
    moved = _ratio(*step.moved)
    if step.start.size == 1 and number and moved:
        moved = None  # any two changes of a scalar are proportional
    size = largest(last.expected - last.start)
    error = largest(last.found - last.expected)
    return Divergence(first, number + 1, moved, error / size if size else np.inf)


def _ratio(expected: Array, found: Array) -> float | None:
    """Return the factor between two arrays; None if one is no multiple of the other."""
    ratio = least_squares_ratio(expected, found)
    if ratio is None:
        return None
    rest = largest(found - ratio * expected) / largest(expected)
    return ratio if rest < 1e-3 * max(1.0, abs(ratio)) else None
