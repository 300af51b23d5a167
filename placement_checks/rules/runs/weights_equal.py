from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite, isinf, isnan
from typing import TYPE_CHECKING

from placement_checks.core.errors import ConfigError
from placement_checks.core.evidence import Evidence
from placement_checks.core.placement import Placement
from placement_checks.core.results import Finding, Verdict
from placement_checks.rules.base import Rule, matches_any
from placement_checks.rules.requirements import Need
from placement_checks.rules.weight_mistakes import COPIES, Cause, find_cause, stale_copies
from placement_checks.util.text import plural

if TYPE_CHECKING:
    from placement_checks.core.measurement import Measurement, Trajectory
    from placement_checks.numerics.comparing import Difference
    from placement_checks.numerics.training_divergence import Divergence


# Parts of a variable's change: a sum taken for a mean is wrong by the whole of it or by half.
_LITTLE, _HALF = 0.05, 0.5


@dataclass(frozen=True)
class WeightsEqual(Rule):
    """After some training steps all variables have the values that the reference gives them.

    One gradient does not show what goes wrong from step to step: towers that train copies of their
    own, updates that are made twice, averages that move once a tower, counters that jump.

    Weights, slots, statistics and the step counter start equal, and both programs take the same
    steps. Integers are equal or not. Other variables are compared as in gradients-equal; their
    noise is that of the reference with its rows in three other orders. Optimisers such as Adam,
    which divide the gradient by its size, let rounding decide the direction of elements whose
    gradient is next to zero: those are left out, and a fiftieth of a variable's change is no
    difference.
    After the last step both programs are given the reference's variables, and the gradients are
    compared once more: copies that no step refreshes show there, whatever the optimiser hides.

    A step may read a variable and update it in no set order, as one that groups moving averages
    with the update: `tf.group(train_op, averages.apply(variables))`. What an average takes is then
    the value before or after, in one GPU's program too, as it happens. It is left out, which the
    note says; under `tf.control_dependencies([train_op])` it is compared.

    With statistics of each tower's rows (gradients-equal.statistics) no steps are compared.

    `steps` is how many are taken, at least 3; `allow` lists variables that may differ, or patterns
    such as bn/*. What is declared for gradients-equal holds here too.
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
                raise ConfigError(name, f"{getattr(self, name)} is not above 0", "give more")

    def check(self, evidence: Evidence) -> Verdict:
        placement = evidence.placement
        from placement_checks.numerics.training_divergence import (
            compare_variables,
            compensated_factor,
            undetectable_changes,
            variables_with_races,
            variables_with_stale_copies,
        )

        measured = evidence.measurement
        assert measured
        assert measured.trajectory
        equal, divergences = compare_variables(
            measured,
            measured.trajectory,
            tolerance=self.tolerance,
            times_noise=self.noise,
            scale=measured.scale * compensated_factor(measured),
        )
        divergences = [
            divergence
            for divergence in divergences
            if not matches_any(divergence.difference.variable, self.allow)
        ]
        findings = [
            _finding(placement, measured, measured.trajectory, divergence, divergences)
            for divergence in sorted(divergences, key=lambda divergence: divergence.step)
        ]
        findings += [
            _stale(placement, measured, measured.trajectory, name)
            for name in sorted(
                variables_with_stale_copies(measured)
                - {divergence.difference.variable for divergence in divergences}
            )
            if not matches_any(name, self.allow)
        ]
        equal = [same for same in equal if not matches_any(same.variable, self.allow)]
        differences = [*(divergence.difference for divergence in divergences), *equal]
        figures = [difference.figures() for difference in differences]
        racing = {
            name: raced_for
            for name, raced_for in variables_with_races(measured, measured.trajectory).items()
            if not matches_any(name, self.allow)
        }
        unseen = undetectable_changes(measured, measured.trajectory, equal)
        verdict = self._verdict(measured.trajectory, findings, equal, racing, unseen)
        return replace(verdict, figures=figures)

    def _verdict(
        self,
        trajectory: Trajectory,
        findings: Sequence[Finding],
        equal: Sequence[Difference],
        racing: Mapping[str, str],
        unseen: Mapping[str, float],
    ) -> Verdict:
        too_coarse = [same.variable for same in equal if same.state == "too-coarse"]
        if too_coarse and not findings:
            return self.not_checked(
                f"the precision of {too_coarse[0]} is too coarse to show a difference of 1 %",
                "build the model in float32 or float64 to compare",
            )
        left_out = _left_out(racing)
        if not findings and not any(_is_moved(trajectory, same.variable) for same in equal):
            what = "no variable that the steps change is left to compare"
            return self.not_checked("; ".join([what, *left_out]))
        trained = trajectory.trained & trajectory.steps[-1].keys()
        if not findings and trained and not any(_is_moved(trajectory, name) for name in trained):
            what = "no trained variable changes in these steps, as at a learning rate of 0"
            return self.not_checked("; ".join([what, *left_out]))
        if not findings and racing.keys() >= trajectory.trained != frozenset():
            what = "no variable that is trained is left to compare"
            return self.not_checked("; ".join([what, *left_out]))
        hidden = trained and trained == unseen.keys() and min(unseen.values()) > _HALF
        if hidden and not findings:
            what = (
                "the trained variables change so little in these steps that half of it could be "
                "wrong and not be seen, and no gradient was compared"
            )
            way_out = "check at a larger learning rate"
            return self.not_checked("; ".join([what, *left_out]), way_out)
        steps = plural(len(trajectory.steps), "step")
        note = f"{plural(len(equal) - len(too_coarse), 'variable')} equal after {steps}"
        return self.verdict(findings, "; ".join([note, *_unseen(unseen), *left_out]))


def _unseen(parts: Mapping[str, float]) -> Iterator[str]:
    """A clause on the variable whose change could hide the most, unless that is little."""
    if parts:
        name = max(parts, key=lambda name: parts[name])
        if parts[name] > _LITTLE and not isinf(parts[name]):
            yield f"up to {parts[name]:.0%} of the change of {name} could be wrong and not be seen"


def _left_out(racing: Mapping[str, str]) -> list[str]:
    """A clause on the variables whose value hangs on a race, if there are any."""
    return [
        f"{plural(len(racing), 'variable')} left out, as no order is set between the update of "
        f"{raced_for} and what reads it for {name}"
        for name, raced_for in [*racing.items()][:1]
    ]


def _finding(
    placement: Placement,
    measured: Measurement,
    trajectory: Trajectory,
    divergence: Divergence,
    divergences: Sequence[Divergence],
) -> Finding:
    name = divergence.difference.variable
    cause = find_cause(placement, measured, trajectory, divergence, divergences)
    steps = plural(divergence.step, "step")
    return Finding(
        object=name,
        op=placement.ops[name].type,
        evidence="executed",
        expected=f"the reference's value after {steps}",
        found=_found(divergence),
        ops=_ops(measured, name, cause),
        frames=cause.place.frames,
        alike=(cause.what, cause.fix, cause.place.frames),
        message=f"after {steps} {name} is not what the reference has: {cause.what}",
        consequence=cause.consequence,
        fix=cause.fix,
        follows=cause.follows,
    )


def _ops(measured: Measurement, name: str, cause: Cause) -> tuple[str, ...]:
    """Where it is wrong; else what updates it."""
    return tuple(cause.place.ops) or (measured.updates.get(name, name),)


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
    steps = plural(len(trajectory.steps), "step")
    cause = COPIES._replace(place=stale_copies(placement, name))
    return Finding(
        object=name,
        op=placement.ops[name].type,
        evidence="executed",
        expected="the reference's gradient from equal variables",
        found=f"another one after {steps}",
        ops=_ops(measured, name, cause),
        alike=COPIES.what,
        message=f"after {steps} the gradient of {name} is not the reference's, from equal "
        f"variables: {COPIES.what}",
        consequence=COPIES.consequence,
        fix=COPIES.fix,
    )


def _is_moved(trajectory: Trajectory, name: str) -> bool:
    """Whether the steps of the reference change a variable; equal constants show nothing."""
    last = trajectory.steps[-1][name]
    return bool((last.expected != last.start).any())
