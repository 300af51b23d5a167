from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isinf
from typing import TYPE_CHECKING, NamedTuple

from placement_checks.analysis.towers.analysis import analyze
from placement_checks.analysis.variables.gradient_flow import gradient_flow
from placement_checks.analysis.variables.layout import variable_layout
from placement_checks.core import mistakes
from placement_checks.core.errors import ConfigError
from placement_checks.core.evidence import Evidence
from placement_checks.core.facts import Fact, FactKind
from placement_checks.core.impact import Impact
from placement_checks.core.mistakes import Diagnosis, TowerKind
from placement_checks.core.op_types import is_gradient_update
from placement_checks.core.placement import Placement
from placement_checks.core.results import Finding, Verdict
from placement_checks.core.strategies import Strategy
from placement_checks.rules.base import Rule, about, matches_any, require_positive, unless_allowed
from placement_checks.rules.gradient_mistakes import MistakeLocation, locate_mistake
from placement_checks.rules.ranks import ranks_of, tower_kind
from placement_checks.rules.requirements import Need
from placement_checks.rules.runs.gradients_equal import with_rows
from placement_checks.rules.source_lines import blame
from placement_checks.rules.step_equality import difference_from_reference, explain_numbers
from placement_checks.util.text import listed, plural

if TYPE_CHECKING:
    from placement_checks.core.measurement import Measurement, Trajectory
    from placement_checks.numerics.comparing import Difference, Limits
    from placement_checks.numerics.training_divergence import Divergence


# Errors, as parts of a variable's change. With a sum in place of a mean, the error is the whole
# change, or half of it.
_LITTLE, _HALF = 0.05, 0.5


@dataclass(frozen=True)
class WeightsEqual(Rule):
    """After some training steps all variables have the same values as in the reference.

    One gradient does not show mistakes between steps: towers that train separate copies, repeated
    updates, averages that move once per tower, counters that jump.

    Weights, slots, statistics and the step counter start equal, and both programs take the same
    steps. A learning rate that is a variable starts equal too, unless it may compensate for a
    factor of all gradients. Integers must be equal. Other variables are compared as in
    gradients-equal; their noise is the change of the reference in the perturbed runs. Optimizers
    such as Adam divide the gradient by its size, so rounding decides the direction of elements
    with a gradient close to zero. These elements are left out, and a difference of up to a
    fiftieth of a variable's change is accepted.

    After the last step both programs are given the reference's variables, and the gradients are
    compared once more. This shows copies that no step refreshes, even if the optimizer hides them.

    A step may read a variable and update it in no defined order. An example is a group of moving
    averages and the update, `tf.group(train_op, averages.apply(variables))`: the average takes the
    value before or after the update at random, on one GPU too. Such a variable is left out, and
    the note states this. Under `tf.control_dependencies([train_op])` the variable is compared.

    If the reference computes on the rows of each tower alone, running statistics are not compared.

    A program may use another learning rate for several GPUs, or ranks of Horovod, than for one:
    many programs multiply it by their number. If the reference is the program itself, and weights
    differ after such an update, only integer variables, such as the step counter, are judged.

    `steps` is the number of steps, at least 3; `allow` lists variables that may differ, or
    patterns such as bn/*. The fields of gradients-equal that declare differences apply here too.
    """

    name = "weights-equal"
    kind = "executed"
    impact = Impact.TRAINING
    requires = frozenset({Need.TRAJECTORY})
    states = FactKind.VALUE
    threads = (
        "tensorflow/tensorflow#14486: fine-tuning on towers is much worse, with unknown cause",
    )

    steps: int = 3
    tolerance: float = 32.0
    noise: float = 8.0
    allow: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.steps < 3:
            raise ConfigError(
                "steps", f"{self.steps} steps are too few to show later mistakes", "give 3 or more"
            )
        require_positive(self, "tolerance", "noise")

    @property
    def limits(self) -> Limits:
        """The largest errors of equal variables."""
        from placement_checks.numerics.comparing import Limits

        return Limits(self.tolerance, self.noise)

    def judge(self, program: Evidence | Placement) -> Verdict:
        """Return the verdict, with a note on the rows that the reference computed on."""
        evidence = Evidence.wrap(program)
        return with_rows(super().judge(evidence), evidence)

    def check(self, evidence: Evidence) -> Verdict:
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
            self.limits,
            scale=measured.scale * compensated_factor(measured),
        )
        equal = [each for each in equal if not matches_any(each.variable, self.allow)]
        divergences = [
            each for each in divergences if not matches_any(each.difference.variable, self.allow)
        ]
        setting = None
        if ranks_of(placement) or measured.reference == placement.program:
            setting = _other_setting(evidence)
        intended = []
        if setting is not None:  # it explains all differences but those of counters
            intended = [each for each in divergences if not _is_integer(measured, each)]
            divergences = [each for each in divergences if _is_integer(measured, each)]
        diverging = [divergence.difference for divergence in divergences]
        stale = variables_with_stale_copies(measured) - {each.variable for each in diverging}
        run = _Run(evidence, measured, trajectory, divergences)
        findings = [
            run.divergence(each) for each in sorted(divergences, key=lambda each: each.step)
        ]
        findings += unless_allowed(map(run.stale_copy, sorted(stale)), self.allow)
        racing = {
            name: read
            for name, read in variables_with_races(measured, trajectory).items()
            if not matches_any(name, self.allow)
        }
        undetectable = undetectable_changes(measured, trajectory, equal)
        if intended and setting is not None and not findings:
            variable, text = setting
            return self.not_checked(
                f"the optimizer of {variable} has another setting than on one GPU, so the weights "
                f"may differ on purpose: {text}",
                fix="use the same setting to compare weights",
            )
        verdict = self._verdict(trajectory, findings, equal, racing, undetectable)
        return replace(verdict, figures=[each.figures() for each in (*diverging, *equal)])

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
            are = f"{name} is" if len(racing) == 1 else f"{len(racing)} variables are"
            left_out = [
                f"{are} not compared: the step may read {read} for {name} before or after {read} "
                "is updated; read it under tf.control_dependencies([train_op])"
            ]
        compared = {each.variable for each in equal}
        noisy = sorted(
            name
            for name in trajectory.trained - compared - racing.keys()
            if not matches_any(name, self.allow)
        )
        if noisy and not findings:
            are = (
                f"gradient of {noisy[0]} is"
                if len(noisy) == 1
                else f"gradients of {listed(noisy)} are"
            )
            left_out.append(f"the {are} too noisy to compare weights")
        if not findings:
            if too_coarse:
                return self.not_checked(
                    f"the precision of {too_coarse[0]} is too coarse to show a difference of 1 %",
                    fix="build the model in float32 or float64 to compare",
                )
            trained = trajectory.trained & trajectory.steps[-1].keys()
            reason = fix = ""
            if not any(_changes(trajectory, each.variable) for each in equal):
                reason = "no variable that the steps change is left to compare"
            elif trained and not any(_changes(trajectory, name) for name in trained):
                reason = "no trained variable changes in these steps, as with a learning rate of 0"
            elif (noisy or trained & racing.keys()) and trained.isdisjoint(compared):
                reason = "no trained variable is left to compare"
            elif trained and trained == undetectable.keys() and min(undetectable.values()) > _HALF:
                reason = (
                    "the trained variables change so little in these steps that an error of half "
                    "the change would not be detected, and no gradient was compared"
                )
                fix = "check at a larger learning rate"
            if reason:
                return self.not_checked("; ".join([reason, *left_out]), fix=fix)
        steps = plural(len(trajectory.steps), "step")
        notes = [f"{plural(len(equal) - len(too_coarse), 'variable')} equal after {steps}"]
        if undetectable:
            name, part = max(undetectable.items(), key=lambda item: item[1])
            if part > _LITTLE and not isinf(part):
                notes.append(
                    f"an error of up to {part:.0%} of the change of {name} would not be detected"
                )
        return self.verdict(findings, "; ".join([*notes, *left_out]))


def _changes(trajectory: Trajectory, name: str) -> bool:
    last = trajectory.steps[-1][name]
    return bool((last.expected != last.start).any())


def _other_setting(evidence: Evidence) -> tuple[str, str] | None:
    """Return a trained variable with another setting of its optimizer than in the reference.

    Returns:
        The variable, and the difference in words; None if no setting differs.
    """
    for variable in gradient_flow(evidence.placement).trained:
        difference = difference_from_reference(evidence, variable)
        if difference is not None and difference.mistake is mistakes.SETTING:
            return variable, difference.text
    return None


class Cause(NamedTuple):
    """A likely cause.

    Attributes:
        diagnosis: the mistake.
        may_follow: further facts that explain the cause.
        place: the ops on the lines to edit, if they are known.
    """

    diagnosis: Diagnosis
    may_follow: tuple[Fact, ...] = ()
    place: MistakeLocation = MistakeLocation()


def _wrong_gradient(variable: str | None) -> tuple[Fact, ...]:
    """The facts that explain a variable whose gradient, or the one of ``variable``, is wrong."""
    return (Fact(FactKind.GRADIENT, variable or ""), Fact(FactKind.GRADIENT))


# The facts that explain a gradient of old values, if no copy with old values is known.
_DRIFTING_COPIES = tuple(
    map(Fact, (FactKind.UNSHARED, FactKind.UNSYNCED, FactKind.OBJECTIVE, FactKind.SCALED))
)


def _wrong_value(variable: str | None) -> tuple[Fact, ...]:
    """The facts that explain a variable of which only the difference is known.

    They are facts on ``variable``, the likeliest cause, and else on any variable.
    """
    return (Fact(FactKind.VALUE, variable or ""), Fact(FactKind.VALUE))


@dataclass(frozen=True)
class _Run:
    """The steps of both programs, and all divergences of variables in them."""

    evidence: Evidence
    measured: Measurement
    trajectory: Trajectory
    divergences: Sequence[Divergence]

    @property
    def placement(self) -> Placement:
        """The program."""
        return self.evidence.placement

    def divergence(self, divergence: Divergence) -> Finding:
        """Return the finding on a variable that differs from the reference."""
        name, cause = divergence.difference.variable, self._find_cause(divergence)
        steps = plural(divergence.step, "step")
        facts = (Fact(FactKind.VALUE, name), Fact(FactKind.DIAGNOSED, name))
        return Finding(
            **about(self.placement.ops[name], "executed"),
            ops=tuple(cause.place.ops) or (self.measured.updates.get(name, name),),
            frames=cause.place.frames,
            group_key=(cause.diagnosis.what, cause.place.frames),
            message=f"variable '{name}' differs from the reference after {steps}: "
            f"{cause.diagnosis.what}",
            consequence=cause.diagnosis.consequence,
            fix=cause.diagnosis.fix,
            facts=facts[:1] if cause.may_follow else facts,
            may_follow=cause.may_follow,
        )

    def stale_copy(self, name: str) -> Finding:
        """Return the finding on a gradient that differs although all variables are equal."""
        steps = plural(len(self.trajectory.steps), "step")
        copies = stale_copies(self.placement, name).ops
        found = mistakes.COPIES.stated(tower_kind(self.placement))
        return Finding(
            **about(self.placement.ops[name], "executed"),
            ops=tuple(copies) or (self.measured.updates.get(name, name),),
            group_key="gradient",
            message=f"after {steps} the gradient of {name} differs from the reference's, although "
            f"all variables are equal: {found.what}",
            consequence=found.consequence,
            fix=found.fix,
        )

    def _find_cause(self, divergence: Divergence) -> Cause:
        """Return the likely cause of a divergence."""
        from placement_checks.numerics.training_divergence import variables_with_stale_copies

        name = divergence.difference.variable
        trained = self.trajectory.owners.get(name)
        if earlier := self._earlier_cause(divergence, trained):
            return earlier
        kind = tower_kind(self.placement)
        if _is_integer(self.measured, divergence):
            reference, towers = self.trajectory.steps[divergence.step - 1][name].moved
            change = "that step changes it by another amount than in the reference"
            if towers.size == 1:
                change = (
                    f"that step changes it by {towers.flat[0]:g}, but by {reference.flat[0]:g} in "
                    "the reference"
                )
            return Cause(mistakes.COUNTER.stated(kind, change=change))
        if trained in variables_with_stale_copies(self.measured):
            place = stale_copies(self.placement, trained or name)
            drifting = () if place.ops else _DRIFTING_COPIES
            return Cause(mistakes.COPIES.stated(kind), drifting, place)
        strategy = self.placement.strategy
        if strategy is not None and strategy.is_later_copy(name):
            found = _mirrored_copy(strategy, name, divergence.moved, kind)
            return Cause(found, (Fact(FactKind.STEP, name), *_wrong_value(name)))
        return self._change_cause(divergence, is_trained=trained == name)

    def _change_cause(self, divergence: Divergence, *, is_trained: bool) -> Cause:
        """Return the likely cause, judged by the change of a variable in a step."""
        kind, name = tower_kind(self.placement), divergence.difference.variable
        moved = divergence.moved
        if moved is not None and abs(moved) < 1e-3:
            return Cause(mistakes.UNCHANGED.stated(kind, step=divergence.step))
        is_multiple = moved is not None and abs(moved - 1) > 1e-3
        factor = f"{moved:.3g}" if moved is not None else ""
        number, place = repeated_updates(self.placement, name, is_trained=is_trained)
        equal = "its gradient is equal; " if self._has_equal_gradient(name) else ""
        group = variable_layout(self.placement).copies.get(name)
        copies = group.copies.values() if group else ()
        may_follow = tuple(Fact(FactKind.GRADIENT, each) for each in copies if each != name)
        if is_multiple and number > self._updates_in_reference(name):
            found = mistakes.REPEATED.stated(kind, count=number, factor=factor)
        elif proved := explain_numbers(self.evidence, name):
            found, place = proved, locate_mistake(self.placement, name, proved)
        elif is_multiple:
            found = mistakes.OTHER_RATE.stated(kind, factor=factor)
        else:
            op = self.measured.updates.get(name, "")
            mistake = mistakes.OTHER_OPTIMIZER if equal else mistakes.OTHER_UPDATE
            found, place = mistake.stated(kind, op=op and f", {op},"), MistakeLocation()
            may_follow = _wrong_value(name)
        return Cause(found._replace(what=f"{equal}{found.what}"), may_follow, place)

    def _updates_in_reference(self, name: str) -> int:
        reference = self.evidence.reference
        found = analyze(reference).updates.by_variable.get(name, ()) if reference else ()
        return max(1, len(found))

    def _has_equal_gradient(self, name: str) -> bool:
        """Whether the gradient of a trained variable was compared, and is equal."""
        from placement_checks.numerics.comparing import compare_gradients

        compared = compare_gradients(self.measured.trials[0], self.measured.precisions)
        return any(each.variable == name and each.state == "equal" for each in compared)

    def _earlier_cause(self, divergence: Divergence, trained: str | None) -> Cause | None:
        """Return an earlier mistake that explains a divergence, if there is one.

        ``trained`` is the trained variable that the variable belongs to.
        """
        from placement_checks.numerics.comparing import differing_variables

        name = divergence.difference.variable
        wrong = differing_variables(self.measured.trials[0], self.measured.precisions)
        if trained in wrong:
            what = "the gradient differs, see gradients-equal"
            return _follows(what, "gradients-equal", _wrong_gradient(trained))
        if earlier := self.measured.earlier.get(trained or "", frozenset()) & wrong:
            what = (
                f"the gradient of {min(earlier)} differs, and its update comes earlier in the step"
            )
            return _follows(what, f"the gradient of {min(earlier)}", _wrong_gradient(min(earlier)))
        if trained is None and wrong and not _is_integer(self.measured, divergence):
            what = f"the gradient of {min(wrong)} differs, which may be the cause"
            return _follows(what, f"the gradient of {min(wrong)}", _wrong_gradient(min(wrong)))
        diverging = {
            other.difference.variable
            for other in self.divergences
            if other.step <= divergence.step
        }
        if trained != name and trained in diverging:
            what = f"{trained} differs too, and may be the cause"
            return _follows(what, f"the finding on {trained}", _wrong_value(trained))
        first = min(self.divergences, key=lambda other: other.step)
        if divergence.step > first.step:
            cause = first.difference.variable
            steps = plural(first.step, "step")
            what = f"{cause} differs earlier, after {steps}, and may be the cause"
            return _follows(what, f"the finding on {cause}", _wrong_value(cause))
        return None


def _follows(what: str, first: str, facts: tuple[Fact, ...]) -> Cause:
    """Return the cause of a difference that another finding, with one of the facts, explains."""
    return Cause(Diagnosis(what, f"fix {first} first"), facts)


def _is_integer(measured: Measurement, divergence: Divergence) -> bool:
    return measured.dtypes[divergence.difference.variable].startswith(("int", "uint"))


def _mirrored_copy(
    strategy: Strategy, name: str, moved: float | None, kind: TowerKind
) -> Diagnosis:
    amount = " by a different amount than" if moved is None else f" {moved:.3g} times as much as"
    return mistakes.COPY.stated(
        kind,
        device=strategy.replicas[strategy.copies[name].replica].short,
        amount=amount,
        first=strategy.replicas[0].short,
    )


def stale_copies(placement: Placement, variable: str) -> MistakeLocation:
    """Return the variables that towers read instead of ``variable``, and that no step updates.

    Their initial values are copies of ``variable``.
    """
    analysis = analyze(placement)
    flow = analysis.flow

    def starts_as_copy(name: str) -> bool:
        written = [op for _, values in flow.writers.get(flow.number[name], ()) for op in values]
        return flow.number[variable] in flow.reachable(written)

    frozen = analysis.variables_read - analysis.updates.by_variable.keys() - {variable}
    return MistakeLocation([name for name in sorted(frozen) if starts_as_copy(name)])


def repeated_updates(
    placement: Placement, name: str, *, is_trained: bool
) -> tuple[int, MistakeLocation]:
    """Return how many ops of a step update a variable, and the updates that are wrong, if any.

    For a trained variable, the wrong updates are the ops that are not optimizer updates. For
    another variable, the location is the call that repeats its update for each tower.
    """
    analysis = analyze(placement)
    names, types = analysis.flow.names, analysis.flow.types
    updates = [update.op for update in analysis.updates.by_variable.get(name, ())]
    if len(updates) < 2:
        return len(updates), MistakeLocation()
    if is_trained:
        others = [op for op in updates if not is_gradient_update(types[op])]
        return len(updates), MistakeLocation([names[op] for op in others])
    trained = next(iter(gradient_flow(placement).trained.values()), ())
    frames = blame(placement, [names[updates[0]]], [names[trained[0].op]]) if trained else ()
    return len(updates), MistakeLocation([names[op] for op in updates], frames)
