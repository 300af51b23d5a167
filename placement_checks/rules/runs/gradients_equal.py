from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from math import isnan
from typing import TYPE_CHECKING, Literal

from placement_checks.analysis.variables.clipping import norms_of_slices
from placement_checks.core.errors import ConfigError
from placement_checks.core.evidence import Evidence
from placement_checks.core.placement import Placement
from placement_checks.core.results import Finding, Verdict
from placement_checks.rules.base import Rule, matches_any, path_lines
from placement_checks.rules.gradient_mistakes import own_counts, place_of, scalings
from placement_checks.rules.requirements import Need
from placement_checks.util.text import join_and, plural

if TYPE_CHECKING:
    from placement_checks.core.measurement import Measurement, Trial
    from placement_checks.numerics.comparing import Difference
    from placement_checks.numerics.diagnosis import Diagnosis


@dataclass(frozen=True)
class GradientsEqual(Rule):
    """The gradient that each variable receives is that of the program for one GPU.

    A sum taken for a mean, a tower left out, labels of other rows: every device is right, the loss
    falls, and the model is worse than the one that a single GPU would train.

    Both programs run, on GPUs or on CPU devices in their place, from equal variables and on the
    same rows. What the optimiser is given is compared, not what it makes of it: Adam hides a sum
    taken for a mean. The error of a variable is its largest difference over its largest expected
    value, in eps of the dtype that it is computed in (float32: 1.2e-7). Up to `tolerance` of them
    it is equal, on two rows up to 16 times as many, and so it is up to `noise` times what the
    reference's own gradient moves by when its rows are put in three other orders; in twelve, where
    a difference is small. A gradient that is zero in truth is what rounding makes of the largest,
    and is said to be too noisy to compare; where the dtype hides a hundredth, nothing is checked.

    A finding says what explains the difference: the gradients are added up, a tower or the last
    rows are left out, unequal towers are averaged as if equal, labels of other rows, ...

    What is meant is declared: `scale` if the gradients are so many times the reference's (a sum,
    with a rate that is divided by the towers; a loss scale); `shares` if towers have parts of
    different size, such as [3, 1]; `statistics` = "tower" if batch normalisation or clipping
    looks at the rows of each tower alone; `rows`, the size of the global batch, if batches are
    always divided evenly (0: a few, and one more). `allow` lists variables that may differ, or
    patterns such as bn/*, and `seconds` is what one run may take.
    """

    name = "gradients-equal"
    kind = "executed"
    requires = frozenset({Need.MEASUREMENT})
    explained_by = ("every-tower-counts", "variables-shared")

    tolerance: float = 32.0
    noise: float = 8.0
    scale: float = 1.0
    shares: tuple[int, ...] = ()
    statistics: Literal["batch", "tower"] = "batch"
    allow: tuple[str, ...] = ()
    rows: int = 0
    seconds: float = 60.0

    def __post_init__(self) -> None:
        for name in ("tolerance", "noise", "seconds"):
            if getattr(self, name) <= 0:
                raise ConfigError(name, f"{getattr(self, name)} is not above 0", "give more")
        if not self.scale:
            raise ConfigError("scale", "0 leaves no gradient", "give the factor of the gradients")
        if self.rows < 0:
            raise ConfigError("rows", f"{self.rows} is below 0", "give a number of rows")
        if any(share < 1 for share in self.shares):
            raise ConfigError("shares", "a tower gets no rows", "give whole numbers above 0")

    def check(self, evidence: Evidence) -> Verdict:
        placement = evidence.placement
        from placement_checks.numerics.comparing import divide_gradients
        from placement_checks.numerics.training_divergence import compensated_factor

        measured = evidence.measurement
        assert measured
        findings = [
            _missing(placement, measured, name, in_reference=in_reference)
            for name, in_reference in measured.missing.items()
            if not matches_any(name, self.allow)
        ]
        notes = list(measured.notes)
        factor = compensated_factor(measured)
        if factor != 1:
            steps = plural(len(measured.trajectory.steps) if measured.trajectory else 0, "step")
            notes.append(
                f"all gradients are {factor:.4g} times the reference's, and the learning rate "
                f"compensates for it: the weights are equal after {steps}"
            )
        worst: dict[str, Difference] = {}
        for trial in measured.trials:
            differences = self._differences(measured, trial)
            for difference in differences:
                if _severity(difference) > _severity(worst.get(difference.variable)):
                    worst[difference.variable] = difference
            if factor != 1:
                trial = divide_gradients(trial, factor)
                differences = self._differences(measured, trial)
            findings += _findings(placement, measured, trial, differences)
            if findings:  # other batches show the same mistake
                break
        return self._verdict(measured, findings, list(worst.values()), notes)

    def _differences(self, measured: Measurement, trial: Trial) -> list[Difference]:
        from placement_checks.numerics.comparing import compare_gradients

        differences = compare_gradients(
            trial, measured.precisions, tolerance=self.tolerance, times_noise=self.noise
        )
        return [
            difference
            for difference in differences
            if not matches_any(difference.variable, self.allow)
        ]

    def _verdict(
        self,
        measured: Measurement,
        findings: Sequence[Finding],
        differences: Sequence[Difference],
        notes: Sequence[str],
    ) -> Verdict:
        figures = [difference.figures() for difference in differences]
        names = {
            state: [difference.variable for difference in differences if difference.state == state]
            for state in ("equal", "noise", "too-coarse", "differs")
        }
        zero = [
            difference.variable
            for difference in differences
            if difference.state == "equal" and difference.ratio is None
        ]
        notes = [*notes, *_left_out(measured, names["noise"], zero)]
        if findings:
            number = len(findings)
            verb = "differs" if number == 1 else "differ"
            variables = {*(difference.variable for difference in differences), *measured.missing}
            count = f"{number} of {plural(len(variables), 'variable')} {verb}"
            verdict = self.verdict(findings, "; ".join([count, *notes]))
        elif names["too-coarse"]:
            verdict = self.not_checked(
                f"the gradients of {_some(names['too-coarse'])} are computed in "
                f"{measured.precisions[names['too-coarse'][0]]}, too coarse to show a difference "
                "of 1 %",
                "build the model in float32 or float64 to compare",
            )
        elif len(names["equal"]) == len(zero) and not names["differs"]:
            verdict = self.not_checked("; ".join(notes) or "no variable is left to compare")
        else:
            worst = [] if names["differs"] else [_worst(differences)]
            verdict = self.verdict((), "; ".join([*worst, *notes]))
        return replace(verdict, figures=figures)


def _findings(
    placement: Placement, measured: Measurement, trial: Trial, differences: Sequence[Difference]
) -> Iterator[Finding]:
    """One for each gradient that differs on one batch."""
    wrong = {
        difference.variable: difference
        for difference in differences
        if difference.state == "differs"
    }
    found = _diagnoses(placement, measured, trial, wrong)
    for variable, difference in wrong.items():
        yield _finding(placement, measured, difference, found[variable])


def _diagnoses(
    placement: Placement, measured: Measurement, trial: Trial, wrong: Collection[str]
) -> dict[str, Diagnosis]:
    from placement_checks.numerics.diagnosis import (
        COUNTS_OR_STATISTICS,
        NORM_OF_SLICES,
        Diagnosis,
        diagnose,
    )

    found = diagnose(measured, trial, [name for name in wrong if name not in trial.not_finite])
    if placement.cached(norms_of_slices):
        for name, diagnosis in found.items():
            if diagnosis.mistake == "changed":
                found[name] = NORM_OF_SLICES
    if placement.cached(own_counts):
        for name, diagnosis in found.items():
            if diagnosis.mistake == "statistics":
                found[name] = COUNTS_OR_STATISTICS
    for name in trial.not_finite.keys() & wrong:
        op, where = trial.not_finite[name]
        at = f", built at {where}" if where else ""
        found[name] = Diagnosis(
            f"it is NaN or infinite; the first op that yields such a value is {op}{at}",
            "look at what that op is given, a logarithm or a division by zero",
            (op,),
        )
    return found


def _severity(difference: Difference | None) -> tuple[bool, float]:
    """What sorts the differences of one variable on several batches."""
    if difference is None:
        return False, -1.0
    return difference.state == "differs", difference.error


def _finding(
    placement: Placement, measured: Measurement, difference: Difference, diagnosis: Diagnosis
) -> Finding:
    name = difference.variable
    place = place_of(placement, name, diagnosis)
    factor = diagnosis.ratio if diagnosis.mistake == "scaled" else None
    scaling = () if factor is None else scalings(placement, factor)
    verb = (
        f"is {diagnosis.ratio:.4g} times the reference's"
        if diagnosis.ratio is not None
        else "is not the reference's"
    )
    return Finding(
        object=name,
        op=placement.ops[name].type,
        evidence="executed",
        expected="the reference's gradient",
        found=_found(difference),
        ops=tuple(place.ops) or (measured.updates.get(name, name),),
        frames=place.frames,
        alike=(diagnosis.mistake, diagnosis.fix, place.frames),
        path=(*diagnosis.shown, *place.path, *path_lines(placement, scaling)),
        message=f"the gradient of {name} {verb}: {diagnosis.what}"
        f"{_multiplied(placement, scaling)}",
        consequence=diagnosis.consequence,
        fix=diagnosis.fix,
    )


def _multiplied(placement: Placement, scaling: Sequence[int]) -> str:
    """What multiplies the losses, as a clause."""
    if not scaling:
        return ""
    name = placement.by_number[scaling[0]].name
    return f", by which {name} multiplies the loss, and its gradients are not divided by it"


def _found(difference: Difference) -> str:
    if difference.ratio is None:
        return "NaN or infinite" if isnan(difference.error) else "not zero"
    return f"{difference.ratio:.4g} times, off by {difference.error:.2g} eps"


def _missing(
    placement: Placement, measured: Measurement, name: str, *, in_reference: bool
) -> Finding:
    at = measured.updates.get(name, name)
    return Finding(
        object=name,
        op=placement.ops[name].type,
        evidence="executed",
        expected="the reference's gradient" if in_reference else "no gradient",
        found="no gradient" if in_reference else "a gradient",
        ops=(at,),
        message=(
            f"{name} receives no gradient, and in {measured.reference} it does"
            if in_reference
            else f"{name} receives a gradient, and in {measured.reference} it does not"
        ),
        fix="give both programs the same variables to train: var_list, trainable, stop_gradient",
    )


def _worst(differences: Sequence[Difference]) -> str:
    errors = [
        difference.error
        for difference in differences
        if difference.state == "equal" and difference.ratio is not None
    ]
    return f"{plural(len(errors), 'variable')}, at most {max(errors, default=0.0):.1f} eps apart"


def _left_out(
    measured: Measurement, noisy: Collection[str], zero: Collection[str]
) -> Iterator[str]:
    """Notes on the gradients that say nothing, and on those that could not be read."""
    if noisy:
        yield f"too noisy to compare: {_some(noisy)}"
    if zero:
        yield f"zero in the reference: {_some(zero)}"
    if measured.unread:
        reason = next(iter(measured.unread.values()))
        yield f"not read: {_some(measured.unread)} ({reason})"


def _some(names: Collection[str]) -> str:
    """The first of some names."""
    first = list(names)[:3]
    more = len(names) - len(first)
    return join_and([*first, *([f"{more} more"] if more else [])])
