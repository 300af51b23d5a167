"""Where the variables of two programs diverge over some training steps."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placement_checks.core.measurement import EPS, Array, Measurement, Trajectory, largest
from placement_checks.numerics.comparing import (
    COARSEST,
    Difference,
    difference,
    differing,
    gradients,
)

# Optimisers whose step is as large as the gradient. The others divide the gradient by its size:
# rounding then decides the direction of an element whose gradient is next to zero, and a factor on
# all gradients leaves the weights as they are.
_PROPORTIONAL = ("GradientDescent", "Momentum", "SGD")
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


def is_proportional(measured: Measurement) -> bool:
    """Whether every step is as large as the gradient."""
    return bool(measured.optimizers) and all(
        any(kind in optimizer for kind in _PROPORTIONAL) for optimizer in measured.optimizers
    )


def compared(
    measured: Measurement,
    trajectory: Trajectory,
    *,
    tolerance: float = 32.0,
    times_noise: float = 8.0,
    scale: float = 1.0,
) -> tuple[list[Difference], list[Divergence]]:
    """The variables that both programs have: those that stay equal, and those that do not.

    Variables whose gradient is zero in truth, and their slots, go where rounding takes them, and
    are left out.

    Args:
        measured: what is known of both programs.
        trajectory: the steps.
        tolerance: as for `difference`.
        times_noise: as for `difference`.
        scale: what the gradients are multiplied by; it is found in the slots, once or squared.
    """
    equal, divergences = [], []
    noisy = _noisy(measured)
    for name in trajectory.start:
        if name not in trajectory.found[0] or trained_variable_of(name, trajectory) in noisy:
            continue
        for step in range(len(trajectory.found)):
            after = _difference_after(
                measured, trajectory, name, step, tolerance, times_noise, scale
            )
            if after.state == "differs":
                divergences.append(_divergence(trajectory, after, step))
                break
        else:
            equal.append(after)
    return equal, divergences


def _difference_after(
    measured: Measurement,
    trajectory: Trajectory,
    name: str,
    step: int,
    tolerance: float,
    times_noise: float,
    scale: float,
) -> Difference:
    """The difference of one variable after a step."""
    expected, found = trajectory.expected[step][name], trajectory.found[step][name]
    trained = trained_variable_of(name, trajectory)
    dtype = measured.dtypes[name]
    allowed = 0.0
    if dtype in EPS:
        # Gradients may be coarser than the variables that they move.
        coarsest = max((EPS.get(kind, 0.0) for kind in measured.precisions.values()), default=0.0)
        if tolerance * coarsest > COARSEST:
            dtype = next(kind for kind in EPS if EPS[kind] == coarsest)
        part = tolerance * coarsest if is_proportional(measured) else _DRIFT
        allowed = part * largest(expected - trajectory.start[name])
        certain = ~trajectory.uncertain[trained] if trained is not None else None
        proportional = is_proportional(measured)
        if not proportional and certain is not None and certain.shape == expected.shape:
            expected, found = expected[certain], found[certain]
    scales = {1.0, scale, scale**2} if trained not in (None, name) else {1.0}
    return min(
        (
            difference(
                name,
                expected * factor,
                found,
                dtype=dtype,
                noise=trajectory.noise[step][name] * abs(factor),
                tolerance=tolerance,
                times_noise=times_noise,
                allowed=allowed * abs(factor),
            )
            for factor in scales
        ),
        key=lambda candidate: (candidate.state == "differs", candidate.error),
    )


def _noisy(measured: Measurement) -> set[str]:
    """The variables whose gradient is zero in truth, or too noisy to compare."""
    return {
        gradient.variable
        for trial in measured.trials
        for gradient in gradients(trial, measured.precisions)
        if gradient.state == "noise"
    }


def variables_with_stale_copies(measured: Measurement) -> set[str]:
    """The variables whose gradient differs after the steps, from equal variables again.

    Then the program computes with something else than the variables that both have.
    """
    if not measured.trajectory or measured.trajectory.after is None:
        return set()
    before = differing(measured.trials[0], measured.precisions) | _noisy(measured)
    return differing(measured.trajectory.after, measured.precisions) - before


def compensated_factor(measured: Measurement) -> float:
    """The number that all gradients are multiplied by and the rate is divided by; 1 if by none.

    That is so where the weights stay equal, under an optimiser whose step grows with the gradient.
    """
    if not measured.trajectory or not is_proportional(measured):
        return 1.0
    ratios = [
        gradient.ratio
        for gradient in gradients(measured.trials[0], measured.precisions)
        if gradient.state != "noise" and gradient.ratio is not None
    ]
    if (
        not ratios
        or np.isclose(ratios[0], 1, rtol=1e-5)
        or not np.allclose(ratios, ratios[0], rtol=1e-4)
    ):
        return 1.0
    _, divergences = compared(measured, measured.trajectory, scale=measured.scale * ratios[0])
    return 1.0 if divergences else float(ratios[0])


def trained_variable_of(name: str, trajectory: Trajectory) -> str | None:
    """The trained variable that this is, or is a slot of: slots are named under their variable."""
    while name:
        if name in trajectory.uncertain:
            return name
        name = name.rpartition("/")[0]
    return None


def _divergence(trajectory: Trajectory, first: Difference, step: int) -> Divergence:
    name = first.variable
    expected_before = trajectory.expected[step - 1] if step else trajectory.start
    found_before = trajectory.found[step - 1] if step else trajectory.start
    expected = trajectory.expected[step][name] - expected_before[name]
    moved = _ratio(expected, trajectory.found[step][name] - found_before[name])
    if expected.size == 1 and step and moved:
        moved = None  # any change of one number is a multiple of another
    last = trajectory.expected[-1][name]
    size = largest(last - trajectory.start[name])
    error = largest(trajectory.found[-1][name] - last)
    return Divergence(first, step + 1, moved, error / size if size else np.inf)


def _ratio(expected: Array, found: Array) -> float | None:
    """The number by which one array is multiplied to get the other; None if there is none."""
    square = float(np.vdot(expected, expected))
    if not square:
        return None
    ratio = float(np.vdot(expected, found)) / square
    rest = np.max(np.abs(found - ratio * expected)) / np.max(np.abs(expected))
    return ratio if rest < 1e-3 * max(1.0, abs(ratio)) else None
