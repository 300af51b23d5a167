from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from math import isnan
from typing import TYPE_CHECKING, Literal

from placement_checks.core.errors import ConfigError
from placement_checks.core.evidence import Evidence
from placement_checks.core.placement import Placement
from placement_checks.core.results import Finding, Verdict
from placement_checks.rules.base import Rule, built_at, is_among
from placement_checks.rules.needs import Need
from placement_checks.util.text import joined, plural

if TYPE_CHECKING:
    from placement_checks.core.measurement import Measurement, Trial
    from placement_checks.numerics.comparing import Difference
    from placement_checks.numerics.row_weights import Diagnosis


@dataclass(frozen=True)
class GradientsEqual(Rule):
    """The gradient that each variable receives is that of the program for one GPU.

    Both programs run, on GPUs or on CPU devices in their place, from equal variables and on the
    same rows. Compared is what the optimiser is given, not what it makes of it: Adam hides a sum
    taken for a mean. The error of a variable is its largest difference over its largest expected
    value, in eps of the dtype that it is computed in (float32: 1.2e-7); 32 is no difference, and
    neither is 8 times its noise, which is measured by giving the reference its rows in three other
    orders. A gradient that is zero in truth is what rounding makes of the largest, and is said to
    be too noisy to compare; where the dtype hides a hundredth, nothing is checked.

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
            raise ConfigError("scale", "0 leaves no gradient", "give what they are multiplied by")
        if self.rows < 0 or any(share < 1 for share in self.shares):
            raise ConfigError("rows, shares", "a part has no rows", "give whole numbers from 1 on")

    def check(self, evidence: Evidence) -> Verdict:
        placement = evidence.placement
        from placement_checks.numerics.trajectories import compensated_factor

        measured = evidence.measurement
        assert measured
        findings = [
            _missing(placement, measured, name, in_reference=in_reference)
            for name, in_reference in measured.missing.items()
            if not is_among(name, self.allow)
        ]
        notes = list(measured.notes)
        factor = compensated_factor(measured)
        if factor != 1:
            steps = plural(len(measured.trajectory.found) if measured.trajectory else 0, "step")
            notes.append(
                f"all gradients are {factor:.4g} times the reference's, and the rate makes up for "
                f"it: the weights are equal after {steps}"
            )
        worst: dict[str, Difference] = {}
        for trial in measured.trials:
            differences = self._differences(measured, trial)
            for each in differences:
                if _badness(each) > _badness(worst.get(each.variable)):
                    worst[each.variable] = each
            if factor != 1:
                undone = {name: found / factor for name, found in trial.found.items()}
                trial = replace(trial, found=undone)
                differences = self._differences(measured, trial)
            off = {each.variable: each for each in differences if each.state == "differs"}
            why = _causes(measured, trial, off)
            findings += [
                _finding(placement, measured, each, why[each.variable]) for each in off.values()
            ]
            if findings:  # other batches show the same mistake
                break
        return self._verdict(measured, findings, list(worst.values()), notes)

    def _differences(self, measured: Measurement, trial: Trial) -> list[Difference]:
        from placement_checks.numerics.comparing import gradients

        differences = gradients(
            trial, measured.precisions, tolerance=self.tolerance, times_noise=self.noise
        )
        return [each for each in differences if not is_among(each.variable, self.allow)]

    def _verdict(
        self,
        measured: Measurement,
        findings: Sequence[Finding],
        differences: Sequence[Difference],
        notes: list[str],
    ) -> Verdict:
        figures = [each.figures() for each in differences]
        said = {
            state: [each.variable for each in differences if each.state == state]
            for state in ("equal", "noise", "too-coarse", "differs")
        }
        zero = [
            each.variable for each in differences if each.state == "equal" and each.ratio is None
        ]
        if said["noise"]:
            notes.append(f"too noisy to compare: {_some(said['noise'])}")
        if zero:
            notes.append(f"zero in the reference: {_some(zero)}")
        if measured.unread:
            why = next(iter(measured.unread.values()))
            notes.append(f"not read: {_some(measured.unread)} ({why})")
        if findings:
            number = len(findings)
            verb = "differs" if number == 1 else "differ"
            every = len({*(each.variable for each in differences), *measured.missing})
            count = f"{number} of {plural(every, 'variable')} {verb}"
            verdict = self.verdict(findings, "; ".join([count, *notes]))
        elif said["too-coarse"]:
            verdict = self.not_checked(
                f"the gradients of {_some(said['too-coarse'])} are computed in "
                f"{measured.precisions[said['too-coarse'][0]]}, too coarse to tell a hundredth",
                "build the model in float32 or float64 to compare",
            )
        elif len(said["equal"]) == len(zero) and not said["differs"]:
            verdict = self.not_checked("; ".join(notes) or "no variable is left to compare")
        else:
            worst = [] if said["differs"] else [_worst(differences)]
            verdict = self.verdict((), "; ".join([*worst, *notes]))
        return replace(verdict, figures=figures)


def _causes(measured: Measurement, trial: Trial, off: Collection[str]) -> dict[str, Diagnosis]:
    from placement_checks.numerics.diagnosis import diagnoses
    from placement_checks.numerics.row_weights import Diagnosis

    why = diagnoses(measured, trial, [name for name in off if name not in trial.not_finite])
    for name in trial.not_finite.keys() & off:
        op, where = trial.not_finite[name]
        at = f", built at {where}" if where else ""
        why[name] = Diagnosis(
            f"it is NaN or infinite; the first op that yields such a value is {op}{at}",
            "look at what that op is given, a logarithm or a division by zero",
            (op,),
        )
    return why


def _badness(difference: Difference | None) -> tuple[bool, float]:
    """What sorts the differences of one variable on several batches."""
    if difference is None:
        return False, -1.0
    return difference.state == "differs", difference.error


def _finding(
    placement: Placement, measured: Measurement, each: Difference, why: Diagnosis
) -> Finding:
    name = each.variable
    at = measured.updates.get(name, name)
    so = (
        f"is {why.ratio:.4g} times the reference's"
        if why.ratio is not None
        else "is not the reference's"
    )
    return Finding(
        object=name,
        op=placement.ops[name].type,
        evidence="executed",
        expected="the reference's gradient",
        found=_found(each),
        where=placement.where(at),
        path=why.shown,
        message=f"the gradient of {name} {so}: {why.what}{built_at(placement, at)}",
        fix=why.fix,
    )


def _found(each: Difference) -> str:
    if each.ratio is None:
        return "NaN or infinite" if isnan(each.error) else "not zero"
    return f"{each.ratio:.4g} times, off by {each.error:.2g} eps"


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
        where=placement.where(at),
        message=(
            f"{name} receives no gradient, and in {measured.reference} it does"
            if in_reference
            else f"{name} receives a gradient, and in {measured.reference} it does not"
        )
        + built_at(placement, at),
        fix="give both programs the same variables to train: var_list, trainable, stop_gradient",
    )


def _worst(differences: Sequence[Difference]) -> str:
    compared = [each for each in differences if each.state == "equal" and each.ratio is not None]
    error = max((each.error for each in compared), default=0.0)
    return f"{plural(len(compared), 'variable')}, at most {error:.1f} eps apart"


def _some(names: Collection[str]) -> str:
    """The first of some names."""
    first = list(names)[:3]
    more = len(names) - len(first)
    return joined([*first, *([f"{more} more"] if more else [])])
