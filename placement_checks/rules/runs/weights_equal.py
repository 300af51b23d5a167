from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite, isinf, isnan
from typing import TYPE_CHECKING

from placement_checks.core.errors import ConfigError
from placement_checks.core.evidence import Evidence
from placement_checks.core.placement import Placement
from placement_checks.core.results import Finding, Verdict
from placement_checks.rules.base import Rule, matches_any
from placement_checks.rules.requirements import Need
from placement_checks.rules.weight_mistakes import COPIES, find_cause, stale_copies
from placement_checks.util.text import plural

if TYPE_CHECKING:
    from placement_checks.core.measurement import Measurement, Trajectory
    from placement_checks.numerics.comparing import Difference
    from placement_checks.numerics.training_divergence import Divergence


# Parts of a variable's change. A sum in place of a mean is wrong by all of the change or half.
_LITTLE, _HALF = 0.05, 0.5


@dataclass(frozen=True)
class WeightsEqual(Rule):
    """After some training steps all variables have the same values as in the reference.

    One gradient does not show mistakes between steps: towers that train separate copies, repeated
    updates, averages that move once per tower, counters that jump.

    Weights, slots, statistics and the step counter start equal, and both programs take the same
    steps. Integers must be equal. Other variables are compared as in gradients-equal; their
    noise is the change of the reference with its rows in three other orders. Optimizers such as
    Adam, which divide the gradient by its size, let rounding decide the direction of elements with
    a gradient next to zero. These elements are left out, and a difference of up to a fiftieth of
    a variable's change is accepted.

    After the last step both programs are given the reference's variables, and the gradients are
    compared once more. This shows copies that no step refreshes, even if the optimizer hides them.

    A step may read a variable and update it in no defined order. An example is a group of moving
    averages and the update, `tf.group(train_op, averages.apply(variables))`: the average takes the
    value before or after the update at random, on one GPU too. Such a variable is left out, and
    the note says so; under `tf.control_dependencies([train_op])` it is compared.

    With statistics of each tower's rows (gradients-equal.statistics) no steps are compared.

    `steps` is the number of steps, at least 3; `allow` lists variables that may differ, or
    patterns such as bn/*. The fields of gradients-equal that declare differences apply here too.
    """

    name = "weights-equal"
    kind = "executed"
    requires = frozenset({Need.TRAJECTORY})
    explained_by = (
        "gradients-equal",
        "aggregated-before-clipped",
        "every-tower-counts",
        "variables-shared",
        "one-update",
    )

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
                raise ConfigError(
                    name, f"{getattr(self, name)} is not above 0", "give a positive number"
                )

    def check(self, evidence: Evidence) -> Verdict:
        from placement_checks.numerics.comparing import Limits
        from placement_checks.numerics.training_divergence import (
            compare_variables,
            compensated_factor,
            undetectable_changes,
            variables_with_races,
            variables_with_stale_copies,
        )

        placement, measured = evidence.placement, evidence.measurement
        assert measured
        trajectory = measured.trajectory
        assert trajectory
        equal, divergences = compare_variables(
            measured,
            trajectory,
            Limits(self.tolerance, self.noise),
            scale=measured.scale * compensated_factor(measured),
        )
        equal = [each for each in equal if not matches_any(each.variable, self.allow)]
        divergences = [
            each for each in divergences if not matches_any(each.difference.variable, self.allow)
        ]
        findings = [
            _divergence(placement, measured, trajectory, divergence, divergences)
            for divergence in sorted(divergences, key=lambda divergence: divergence.step)
        ]
        diverging = {divergence.difference.variable for divergence in divergences}
        findings += [
            _stale_copy(placement, measured, trajectory, name)
            for name in sorted(variables_with_stale_copies(measured) - diverging)
            if not matches_any(name, self.allow)
        ]
        racing = {
            name: read
            for name, read in variables_with_races(measured, trajectory).items()
            if not matches_any(name, self.allow)
        }
        undetectable = undetectable_changes(measured, trajectory, equal)
        verdict = self._verdict(trajectory, findings, equal, racing, undetectable)
        differences = [*(divergence.difference for divergence in divergences), *equal]
        return replace(verdict, figures=[difference.figures() for difference in differences])

    def _verdict(
        self,
        trajectory: Trajectory,
        findings: Sequence[Finding],
        equal: Sequence[Difference],
        racing: Mapping[str, str],
        undetectable: Mapping[str, float],
    ) -> Verdict:
        too_coarse = [each.variable for each in equal if each.state == "too-coarse"]
        left_out = []
        if racing:
            name, read = next(iter(racing.items()))
            left_out = [
                f"{plural(len(racing), 'variable')} left out: no order is set between the update "
                f"of {read} and its read for {name}"
            ]
        if not findings:
            if too_coarse:
                return self.not_checked(
                    f"the precision of {too_coarse[0]} is too coarse to show a difference of 1 %",
                    "build the model in float32 or float64 to compare",
                )
            trained = trajectory.trained & trajectory.steps[-1].keys()
            reason, note = "", None
            if not any(_changes(trajectory, each.variable) for each in equal):
                reason = "no variable that the steps change is left to compare"
            elif trained and not any(_changes(trajectory, name) for name in trained):
                reason = "no trained variable changes in these steps, as at a learning rate of 0"
            elif trajectory.trained and racing.keys() >= trajectory.trained:
                reason = "no trained variable is left to compare"
            elif trained and trained == undetectable.keys() and min(undetectable.values()) > _HALF:
                reason = (
                    "the trained variables change so little in these steps that an error of half "
                    "the change would not be detected, and no gradient was compared"
                )
                note = "check at a larger learning rate"
            if reason:
                return self.not_checked("; ".join([reason, *left_out]), note)
        steps = plural(len(trajectory.steps), "step")
        notes = [f"{plural(len(equal) - len(too_coarse), 'variable')} equal after {steps}"]
        if undetectable:
            name = max(undetectable, key=lambda name: undetectable[name])
            part = undetectable[name]
            if part > _LITTLE and not isinf(part):
                notes.append(
                    f"an error of up to {part:.0%} of the change of {name} would not be detected"
                )
        return self.verdict(findings, "; ".join([*notes, *left_out]))


def _changes(trajectory: Trajectory, name: str) -> bool:
    """Whether the steps of the reference change a variable; equal constants prove nothing."""
    last = trajectory.steps[-1][name]
    return bool((last.expected != last.start).any())


def _divergence(
    placement: Placement,
    measured: Measurement,
    trajectory: Trajectory,
    divergence: Divergence,
    divergences: Sequence[Divergence],
) -> Finding:
    name = divergence.difference.variable
    cause = find_cause(placement, measured, trajectory, divergence, divergences)
    steps = plural(divergence.step, "step")
    if isfinite(divergence.error):
        found = f"off by {divergence.error:.2g} of its change in the reference"
    elif isnan(divergence.difference.error):
        found = "NaN or infinite"
    else:
        found = "changed, but not in the reference"
    return Finding(
        object=name,
        op=placement.ops[name].type,
        evidence="executed",
        expected=f"the reference's value after {steps}",
        found=found,
        ops=tuple(cause.place.ops) or (measured.updates.get(name, name),),
        frames=cause.place.frames,
        alike=(cause.what, cause.fix, cause.place.frames),
        message=f"after {steps} {name} differs from the reference: {cause.what}",
        consequence=cause.consequence,
        fix=cause.fix,
        follows=cause.follows,
    )


def _stale_copy(
    placement: Placement, measured: Measurement, trajectory: Trajectory, name: str
) -> Finding:
    """Return the finding on a variable whose gradient differs although all variables are equal."""
    steps = plural(len(trajectory.steps), "step")
    return Finding(
        object=name,
        op=placement.ops[name].type,
        evidence="executed",
        expected="the reference's gradient from equal variables",
        found=f"a different gradient after {steps}",
        ops=tuple(stale_copies(placement, name).ops) or (measured.updates.get(name, name),),
        alike=COPIES.what,
        message=f"after {steps} the gradient of {name} differs from the reference's, although "
        f"all variables are equal: {COPIES.what}",
        consequence=COPIES.consequence,
        fix=COPIES.fix,
    )
