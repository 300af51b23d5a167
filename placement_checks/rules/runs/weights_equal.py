from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite, isnan
from typing import TYPE_CHECKING

from placement_checks.core.errors import ConfigError
from placement_checks.core.evidence import Evidence
from placement_checks.core.placement import Placement
from placement_checks.core.results import Finding, Verdict
from placement_checks.rules.base import Rule, built_at, is_among
from placement_checks.rules.needs import Need
from placement_checks.util.text import plural

if TYPE_CHECKING:
    from placement_checks.core.measurement import Measurement, Trajectory
    from placement_checks.numerics.comparing import Difference
    from placement_checks.numerics.trajectories import Divergence


_COPIES = (
    "towers compute with something that the step does not update, such as copies of their own"
)
_NO_COPIES = (
    "let all towers read the variables that the step updates: get_variable in a reused scope, and "
    "no copies of it"
)


@dataclass(frozen=True)
class WeightsEqual(Rule):
    """After some training steps all variables have the values that the reference gives them.

    Weights, slots, statistics and the step counter start equal, and both programs take the same
    steps. That shows what one gradient does not: towers that train copies of their own, updates
    that are made twice, averages that move once a tower, counters that jump.

    Integers are equal or not. Other variables are compared as in gradients-equal; their noise is
    that of the reference with its rows in three other orders. Optimisers such as Adam, which
    divide the gradient by its size, let rounding decide the direction of elements whose gradient
    is next to zero: those are left out, and a fiftieth of a variable's change is no difference.
    After the last step both programs are given the reference's variables, and the gradients are
    compared once more: copies that no step refreshes show there, whatever the optimiser hides.

    With statistics of each tower's rows (gradients-equal.statistics) no steps are compared.

    `steps` is how many are taken, at least 3; `allow` lists variables that may differ, or patterns
    such as bn/*. What is declared for gradients-equal holds here too.
    """

    name = "weights-equal"
    kind = "executed"
    requires = frozenset({Need.TRAJECTORY})

    steps: int = 3
    tolerance: float = 32.0
    noise: float = 8.0
    allow: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.steps < 3:
            raise ConfigError(
                "steps", f"{self.steps} steps do not show what goes wrong later", "give 3 or more"
            )
        for name in ("tolerance", "noise"):
            if getattr(self, name) <= 0:
                raise ConfigError(name, f"{getattr(self, name)} is not above 0", "give more")

    def check(self, evidence: Evidence) -> Verdict:
        placement = evidence.placement
        from placement_checks.numerics.trajectories import (
            compared,
            compensated_factor,
            variables_with_stale_copies,
        )

        measured = evidence.measurement
        assert measured
        assert measured.trajectory
        equal, divergences = compared(
            measured,
            measured.trajectory,
            tolerance=self.tolerance,
            times_noise=self.noise,
            scale=measured.scale * compensated_factor(measured),
        )
        divergences = [
            divergence
            for divergence in divergences
            if not is_among(divergence.difference.variable, self.allow)
        ]
        findings = [
            _finding(placement, measured, measured.trajectory, divergence, divergences)
            for divergence in divergences
        ]
        findings += [
            _stale(placement, measured, measured.trajectory, name)
            for name in sorted(
                variables_with_stale_copies(measured)
                - {divergence.difference.variable for divergence in divergences}
            )
            if not is_among(name, self.allow)
        ]
        equal = [same for same in equal if not is_among(same.variable, self.allow)]
        differences = [*(divergence.difference for divergence in divergences), *equal]
        figures = [difference.figures() for difference in differences]
        return replace(self._verdict(measured.trajectory, findings, equal), figures=figures)

    def _verdict(
        self, trajectory: Trajectory, findings: Sequence[Finding], equal: Sequence[Difference]
    ) -> Verdict:
        too_coarse = [same.variable for same in equal if same.state == "too-coarse"]
        if too_coarse and not findings:
            return self.not_checked(
                f"the precision of {too_coarse[0]} is too coarse to show a difference of 1 %",
                "build the model in float32 or float64 to compare",
            )
        if not findings and not any(_is_moved(trajectory, same.variable) for same in equal):
            return self.not_checked("no variable that the steps change is left to compare")
        steps = plural(len(trajectory.steps), "step")
        note = f"{plural(len(equal) - len(too_coarse), 'variable')} equal after {steps}"
        return self.verdict(findings, note)


def _finding(
    placement: Placement,
    measured: Measurement,
    trajectory: Trajectory,
    divergence: Divergence,
    divergences: Sequence[Divergence],
) -> Finding:
    name = divergence.difference.variable
    at = measured.updates.get(name, name)
    what, fix = _diagnosis(measured, trajectory, divergence, divergences)
    steps = plural(divergence.step, "step")
    return Finding(
        object=name,
        op=placement.ops[name].type,
        evidence="executed",
        expected=f"the reference's value after {steps}",
        found=_found(divergence),
        where=placement.where(at),
        message=f"after {steps} {name} is not what the reference has: {what}"
        f"{built_at(placement, at)}",
        fix=fix,
    )


def _found(divergence: Divergence) -> str:
    if isfinite(divergence.error):
        return f"off by {divergence.error:.2g} of its change in the reference"
    if isnan(divergence.difference.error):
        return "NaN or infinite"
    return "changed, and the reference's is not"


def _stale(
    placement: Placement, measured: Measurement, trajectory: Trajectory, name: str
) -> Finding:
    """The finding on a variable whose gradient differs though all variables are equal."""
    at = measured.updates.get(name, name)
    steps = plural(len(trajectory.steps), "step")
    return Finding(
        object=name,
        op=placement.ops[name].type,
        evidence="executed",
        expected="the reference's gradient from equal variables",
        found=f"another one after {steps}",
        where=placement.where(at),
        message=f"after {steps} the gradient of {name} is not the reference's, from equal "
        f"variables: {_COPIES}{built_at(placement, at)}",
        fix=_NO_COPIES,
    )


def _diagnosis(
    measured: Measurement,
    trajectory: Trajectory,
    divergence: Divergence,
    divergences: Sequence[Divergence],
) -> tuple[str, str]:
    """What is likely wrong, and the fix."""
    from placement_checks.numerics.trajectories import (
        trained_variable_of,
        variables_with_stale_copies,
    )

    if followed := _followed(measured, trajectory, divergence, divergences):
        return followed
    name = divergence.difference.variable
    if _is_count(measured, name):
        return _of_count(trajectory, name, divergence.step)
    trained = trained_variable_of(name, trajectory.trained)
    if trained in variables_with_stale_copies(measured):
        return _COPIES, _NO_COPIES
    return _of_change(divergence.moved, is_trained=trained == name)


def _followed(
    measured: Measurement,
    trajectory: Trajectory,
    divergence: Divergence,
    divergences: Sequence[Divergence],
) -> tuple[str, str] | None:
    """What else is wrong that explains it, and the fix, if anything else is."""
    from placement_checks.numerics.comparing import differing
    from placement_checks.numerics.trajectories import trained_variable_of

    name = divergence.difference.variable
    trained = trained_variable_of(name, trajectory.trained)
    wrong = differing(measured.trials[0], measured.precisions)
    if trained in wrong:
        return "the gradient differs, see gradients-equal", "fix gradients-equal first"
    if trained is None and wrong and not _is_count(measured, name):
        return f"the gradient of {min(wrong)} differs, which it may follow", "fix that first"
    if trained != name and trained in {other.difference.variable for other in divergences}:
        return f"it follows {trained}", "fix that first"
    first = min(divergences, key=lambda other: other.step)
    if divergence.step > first.step:
        return (
            f"it follows {first.difference.variable}, which differs after "
            f"{plural(first.step, 'step')}",
            "fix that first",
        )
    return None


def _is_count(measured: Measurement, name: str) -> bool:
    return measured.dtypes[name].startswith(("int", "uint"))


def _of_count(trajectory: Trajectory, name: str, number: int) -> tuple[str, str]:
    """What is likely wrong with the updates of a counter, and the fix."""
    theirs, ours = trajectory.steps[number - 1][name].moved
    return (
        f"a step changes it by {ours.flat[0]:g}, and in the reference by {theirs.flat[0]:g}"
        if ours.size == 1
        else "a step changes it in another way",
        "let a step count as one, whatever the number of towers and rows",
    )


def _of_change(moved: float | None, *, is_trained: bool) -> tuple[str, str]:
    """What is likely wrong by how far a step changes a variable, and the fix.

    Args:
        moved: its change, as `Divergence.moved`.
        is_trained: whether it has a gradient of its own.
    """
    if moved is not None and abs(moved) < 1e-3:
        return (
            "it does not change",
            "see that the step runs the op that updates it, and that towers share it",
        )
    if moved is not None and abs(moved - 1) > 1e-3:
        return (
            f"that step changes it {moved:.3g} times as much, though its gradient is equal"
            if is_trained
            else f"that step changes it {moved:.3g} times as much",
            "update it once a step, for all towers together, and at the reference's rate",
        )
    return (
        "the step updates it in another way",
        "compare the ops that update it in both programs",
    )


def _is_moved(trajectory: Trajectory, name: str) -> bool:
    """Whether the steps of the reference change a variable; equal constants show nothing."""
    last = trajectory.steps[-1][name]
    return bool((last.expected != last.start).any())
