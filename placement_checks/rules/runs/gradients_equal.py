from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from math import isclose
from typing import TYPE_CHECKING, Literal

from placement_checks.analysis.towers.analysis import analyze
from placement_checks.analysis.variables.gradient_flow import norms_of_slices
from placement_checks.analysis.variables.objectives import objectives
from placement_checks.core import mistakes
from placement_checks.core.errors import ConfigError
from placement_checks.core.evidence import Evidence
from placement_checks.core.facts import Fact, FactKind
from placement_checks.core.impact import Impact
from placement_checks.core.mistakes import Diagnosis
from placement_checks.core.placement import Placement
from placement_checks.core.results import Finding, PathStep, Verdict
from placement_checks.rules.base import (
    Rule,
    about,
    matches_any,
    path_lines,
    require_factors,
    require_positive,
)
from placement_checks.rules.gradient_mistakes import (
    MOVES_ROWS,
    combining_op,
    count_divisions,
    locate_mistake,
    loss_scale,
    ops_in_towers,
)
from placement_checks.rules.ranks import tower_kind
from placement_checks.rules.requirements import Need
from placement_checks.rules.step_equality import explain_numbers
from placement_checks.rules.towers.gradients_averaged import GradientsAveraged
from placement_checks.util.text import format_factor, listed, plural

if TYPE_CHECKING:
    from placement_checks.core.measurement import Measurement, RowMixing, Trial
    from placement_checks.numerics.comparing import Difference, Limits


@dataclass(frozen=True)
class GradientsEqual(Rule):
    """Each variable receives the same gradient as in the program for one GPU.

    Common mistakes are a sum in place of a mean, a tower that is left out, and labels of other
    rows. In each case every device is right and the loss falls, but the model is worse than a
    model that a single GPU would train.

    Both programs run, on GPUs or on CPU devices in their place, from equal variables and on the
    same rows. The inputs of the optimizer are compared, not its results: Adam hides a sum in place
    of a mean. The error of a variable is its largest difference, divided by its largest expected
    value, in eps of the dtype of the computation (float32: 1.2e-7). The gradient is equal if the
    error is at most `tolerance` (16 times as much on two rows), or at most `noise` times the noise
    of the reference. The noise is the change of the reference's own gradient in four perturbed
    runs, or in twelve if the difference is small. In a perturbed run the rows are in another
    order, and the weights change by up to 4 eps. A gradient that is mathematically zero consists
    of rounding errors of the largest gradient, and is reported as too noisy to compare. If the
    dtype cannot show a difference of 1 %, the rule is not checked.

    The reference computes on all rows at once. A whole program with batch statistics, or with a
    fixed size of its batch, computes on the rows of each tower instead, and the report states the
    reason. If its loss then combines rows otherwise than by a sum, such as by a division by a
    number of tokens, the rule is not checked.

    A finding names the mistake that explains the difference. For example, the gradients are added
    up, a tower or the last rows are left out, unequal towers are averaged as if they were equal,
    or labels of other rows are used.

    `scale`, `shares`, `statistics` and `rows` declare intended differences. `scale` is the factor
    of all gradients (a sum, with a learning rate that is divided by the number of towers; a loss
    scale). `shares` are the relative sizes of the towers' parts, such as [3, 1]. `statistics` =
    "tower" means that batch normalization or clipping uses the rows of each tower alone. `rows` is
    the size of the global batch, for programs that can split only batches of some sizes. The
    default, 0, compares two sizes: one that the towers share evenly, and one row more.

    `allow` lists variables that may differ, or patterns such as bn/*, and `seconds` is the time
    limit of one run.
    """

    name = "gradients-equal"
    kind = "executed"
    impact = Impact.TRAINING
    requires = frozenset({Need.MEASUREMENT})
    states = FactKind.GRADIENT
    threads = (
        "tensorflow/benchmarks#466: one variable update sums gradients, another averages them",
        "tensorflow/tensorflow#35333: too small gradients under a strategy",
        "keras-team/keras#16285: on x GPUs the loss is 1/x",
    )

    tolerance: float = 32.0
    noise: float = 8.0
    scale: float = 1.0
    shares: tuple[int, ...] = ()
    statistics: Literal["batch", "tower"] = "batch"
    allow: tuple[str, ...] = ()
    rows: int = 0
    seconds: float = 60.0

    def __post_init__(self) -> None:
        require_positive(self, "tolerance", "noise", "seconds")
        require_factors(self.scale, self.shares)
        if self.rows < 0:
            raise ConfigError("rows", f"{self.rows} is below 0", "give a number of rows")

    @property
    def limits(self) -> Limits:
        """The largest errors of equal gradients."""
        from placement_checks.numerics.comparing import Limits

        return Limits(self.tolerance, self.noise)

    def judge(self, program: Evidence | Placement) -> Verdict:
        """Return the verdict; if the programs were not run, with a note on gradients-averaged."""
        evidence = Evidence.wrap(program)
        verdict = with_rows(super().judge(evidence), evidence)
        if verdict.state != "not-checked" or evidence.measurement or not evidence.reference:
            return verdict
        if GradientsAveraged().judge(evidence).state == "not-checked":
            return verdict
        note = "gradients-averaged compares the graphs alone, without rows and values"
        return replace(verdict, note=note)

    def check(self, evidence: Evidence) -> Verdict:
        from placement_checks.numerics.comparing import divide_gradients
        from placement_checks.numerics.training_divergence import compensated_factor

        placement, measured = evidence.placement, evidence.measurement
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
            times = factor * measured.scale  # without the declared factor
            notes.append(
                "all gradients equal the reference's, although gradients-equal.scale declares "
                f"{measured.scale:.4g} times"
                if isclose(times, 1, rel_tol=1e-4)
                else f"all gradients are {times:.4g} times the reference's, and the learning rate "
                f"compensates for it: the weights are equal after {steps}"
            )
        worst: dict[str, Difference] = {}
        for trial in measured.trials:
            differences = self._differences(measured, trial)
            for difference in differences:
                other = worst.get(difference.variable, difference)
                worst[difference.variable] = max(other, difference, key=_severity)
            if factor != 1:
                trial = divide_gradients(trial, factor)
                differences = self._differences(measured, trial)
            wrong = [difference for difference in differences if difference.state == "differs"]
            variables = {difference.variable for difference in wrong}
            diagnoses = _diagnose(evidence, measured, trial, variables)
            findings += [
                _finding(placement, measured, difference, diagnoses[difference.variable])
                for difference in wrong
            ]
            if findings:  # other batches show the same mistake
                break
        return self._verdict(measured, findings, list(worst.values()), notes)

    def _differences(self, measured: Measurement, trial: Trial) -> list[Difference]:
        from placement_checks.numerics.comparing import compare_gradients

        differences = compare_gradients(trial, measured.precisions, self.limits)
        return [each for each in differences if not matches_any(each.variable, self.allow)]

    def _verdict(
        self,
        measured: Measurement,
        findings: Sequence[Finding],
        differences: Sequence[Difference],
        notes: Sequence[str],
    ) -> Verdict:
        names: dict[str, list[str]] = defaultdict(list)
        compared: list[Difference] = []
        zero: list[str] = []
        for difference in differences:
            names[difference.state].append(difference.variable)
            if difference.state == "equal" and difference.ratio is None:
                zero.append(difference.variable)
            elif difference.state == "equal":
                compared.append(difference)
        notes = list(notes)
        if noisy := names["noise"]:
            notes.append(f"{_gradients_text(noisy)} too noisy to compare")
        if zero:
            notes.append(f"{_gradients_text(zero)} zero in the reference")
        if measured.unreadable:
            reason = next(iter(measured.unreadable.values()))
            notes.append(f"{_gradients_text(list(measured.unreadable))} not compared: {reason}")
        if findings:
            verb = "differs" if len(findings) == 1 else "differ"
            variables = {*(each.variable for each in differences), *measured.missing}
            count = f"{len(findings)} of {plural(len(variables), 'variable')} {verb}"
            verdict = self.verdict(findings, "; ".join([count, *notes]))
        elif coarse := names["too-coarse"]:
            verdict = self.not_checked(
                f"the gradients of {listed(coarse)} are computed in "
                f"{measured.precisions[coarse[0]]}, too coarse to show a difference of 1 %",
                fix="build the model in float32 or float64 to compare",
            )
        elif not compared and not names["differs"]:
            verdict = self.not_checked("; ".join(notes) or "no variable is left to compare")
        else:
            if not names["differs"]:
                error = max((each.error for each in compared), default=0.0)
                notes.insert(
                    0,
                    f"{plural(len(compared), 'variable')}, with relative differences of at most "
                    f"{error:.1f} eps",
                )
            verdict = self.verdict((), "; ".join(notes))
        return replace(verdict, figures=[difference.figures() for difference in differences])


def with_rows(verdict: Verdict, evidence: Evidence) -> Verdict:
    """Add a note if the reference did not compute on all rows at once."""
    if not evidence.measurement or not evidence.measurement.own_rows:
        return verdict
    rows = f"compared on each tower's rows alone, {evidence.measurement.own_rows}"
    return replace(verdict, note=f"{verdict.note}; {rows}" if verdict.note else rows)


def _gradients_text(variables: Sequence[str]) -> str:
    if len(variables) == 1:
        return f"the gradient of {variables[0]} is"
    return f"the gradients of {listed(variables)} are"


def _severity(difference: Difference) -> tuple[bool, float]:
    return difference.state == "differs", difference.error


def _missing(
    placement: Placement, measured: Measurement, name: str, *, in_reference: bool
) -> Finding:
    return Finding(
        **about(placement.ops[name], "executed"),
        ops=(measured.updates.get(name, name),),
        message=f"{name} receives no gradient, but does in {measured.reference}"
        if in_reference
        else f"{name} receives a gradient, but does not in {measured.reference}",
        fix="train the same variables in both programs: check var_list, trainable, stop_gradient",
        group_key=in_reference,
    )


def _diagnose(
    evidence: Evidence, measured: Measurement, trial: Trial, wrong: Collection[str]
) -> dict[str, Diagnosis]:
    from placement_checks.numerics.diagnosis import diagnose, diagnose_ratio, own_rows

    placement, kind = evidence.placement, tower_kind(evidence.placement)
    found = diagnose(measured, trial, [name for name in wrong if name not in trial.not_finite])
    counted = "only if the {}s have equal counts, and statistics per {} are intended: {}".format(
        kind, kind, "--set gradients-equal.statistics=tower"
    )
    for name, diagnosis in found.items():
        unexplained = diagnosis.mistake == mistakes.UNEXPLAINED.key
        if diagnosis.mistake == mistakes.CHANGED.key and placement.cached(norms_of_slices):
            found[name] = mistakes.NORM_OF_SLICES.stated(kind)
        elif diagnosis.mistake == mistakes.STATISTICS.key and placement.cached(count_divisions):
            found[name] = mistakes.COUNTS_OR_STATISTICS.stated(kind, declared=counted)
        elif diagnosis.mistake == mistakes.OWN_ROWS.key and placement.cached(count_divisions):
            found[name] = mistakes.OWN_COUNTS.stated(kind)
        elif unexplained and (mixing := _moved_rows(placement, measured)):
            found[name] = own_rows(mixing, kind)
        elif proved := _proved(evidence, measured, name, diagnosis):
            # Weights of rows mean nothing if another mistake explains the gradient.
            kept = diagnosis.shown if diagnosis.mistake in _PENALTIES else ()
            shown = _objectives(evidence, name) if unexplained else kept
            found[name] = proved._replace(shown=tuple(shown))
        elif unexplained:
            found[name] = diagnosis._replace(shown=tuple(_objectives(evidence, name)))
        elif diagnosis.ratio is not None and diagnosis.mistake in _FACTORS:
            scaling = loss_scale(placement, evidence.reference, diagnosis.ratio)
            if scaling is not None:
                by = placement.by_number[scaling].name
                scaled = diagnose_ratio(diagnosis.ratio, measured, by)
                found[name] = scaled._replace(shown=path_lines(placement, [scaling]))
    for name in trial.not_finite.keys() & wrong:
        op, where = trial.not_finite[name]
        at = f", built at {where}" if where else ""
        shown = (PathStep(op, op),)
        found[name] = mistakes.NOT_FINITE.stated(kind, shown=shown, op=op, where=at)
    return found


_FACTORS = (mistakes.SCALED.key, mistakes.SUM.key)
_PENALTIES = (mistakes.PENALTY_REPEATED.key, mistakes.PENALTY_TOO_SMALL.key)


def _proved(
    evidence: Evidence, measured: Measurement, variable: str, diagnosis: Diagnosis
) -> Diagnosis | None:
    """Return what the graphs show about a gradient, if numbers alone do not explain it.

    A factor of gradients explains them. If both programs clip gradients, a factor may also result
    from another norm, or from another place of the clip.
    """
    placement, kind = evidence.placement, tower_kind(evidence.placement)
    names = analyze(placement).flow.names
    if (op := combining_op(placement, variable)) is not None:
        name = names[op]
        return mistakes.COMBINED.stated(kind, ops=(name,), op=name, type=placement.ops[name].type)
    if diagnosis.mistake in _PENALTIES:
        found = explain_numbers(evidence, variable)
        return found if found and found.mistake == mistakes.DECAY.key else None
    if diagnosis.mistake not in (mistakes.UNEXPLAINED.key, mistakes.CHANGED.key):
        is_clipped = variable in measured.changed and diagnosis.ratio is not None
        averaged = GradientsAveraged().judge(evidence) if is_clipped else None
        if averaged is None or any(each.object == variable for each in averaged.findings):
            return None
    found = explain_numbers(evidence, variable)
    settings = mistakes.SETTING.key, mistakes.COPIES_UPDATED_APART.key
    if found is None or found.mistake in settings:
        return None
    if variable in measured.changed and found.mistake in _DIFFERENCES:
        return mistakes.CHANGED_OTHERWISE.stated(kind, ops=found.ops, text=found.what)
    is_narrowed = found.mistake == mistakes.NARROWED.key
    return None if is_narrowed and diagnosis.mistake == mistakes.CHANGED.key else found


_DIFFERENCES = (mistakes.FIRST_DIFFERENCE.key, mistakes.NUMBER.key)


def _moved_rows(placement: Placement, measured: Measurement) -> RowMixing | None:
    """Return how the reference moves rows, if towers move their own rows by such an op."""
    mixing = measured.mixing
    if mixing is None or mixing.op_type not in MOVES_ROWS:
        return None
    return mixing if ops_in_towers(placement, mixing.op_type) else None


def _objectives(evidence: Evidence, variable: str) -> Iterator[str]:
    """Yield the objectives of a variable in both programs, if both can be read."""
    if not evidence.reference:
        return
    own, expected = (
        objectives(placement).get(variable)
        for placement in (evidence.placement, evidence.reference)
    )
    if own and expected:
        yield f"its update minimizes {own}"
        yield f"in the reference, it minimizes {expected}"


def _finding(
    placement: Placement, measured: Measurement, difference: Difference, diagnosis: Diagnosis
) -> Finding:
    name, ratio = difference.variable, diagnosis.ratio
    location = locate_mistake(placement, name, diagnosis)
    verb = f"is {format_factor(ratio)} times" if ratio is not None else "differs from"
    facts = (Fact(FactKind.GRADIENT, name), Fact(FactKind.DIAGNOSED, name))
    return Finding(
        **about(placement.ops[name], "executed"),
        ops=tuple(location.ops) or (measured.updates.get(name, name),),
        frames=location.frames,
        group_key=(diagnosis.mistake, location.frames),
        path=(*diagnosis.shown, *location.path),
        message=f"the gradient of {name} {verb} the reference's: {diagnosis.what}",
        consequence=diagnosis.consequence,
        fix=location.fix or diagnosis.fix,
        facts=facts[:1] if diagnosis.mistake in _UNKNOWN else facts,
        may_follow=_WIDER_CAUSES.get(diagnosis.mistake, ()),
    )


_UNKNOWN = ("", mistakes.UNEXPLAINED.key, mistakes.NARROWED.key)
# Facts on other variables that explain a gradient, by the kind of its mistake.
_WIDER_CAUSES = {
    **dict.fromkeys(
        _UNKNOWN,
        (*map(Fact, (FactKind.OBJECTIVE, FactKind.SCALED, FactKind.CLIPPED, FactKind.STEP)),),
    ),
    mistakes.OWN_ROWS.key: (Fact(FactKind.UNSYNCED),),
}
