from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isclose
from typing import Any, NamedTuple

from placement_checks.analysis.towers.analysis import analyze
from placement_checks.analysis.variables.gradient_flow import gradient_flow
from placement_checks.analysis.variables.objectives import objectives
from placement_checks.core import mistakes
from placement_checks.core.evidence import Evidence
from placement_checks.core.facts import Fact, FactKind
from placement_checks.core.impact import Impact
from placement_checks.core.missing import Missing
from placement_checks.core.mistakes import Diagnosis, Mistake
from placement_checks.core.op_types import MEAN
from placement_checks.core.placement import Placement
from placement_checks.core.results import Finding, Verdict
from placement_checks.rules.base import (
    Rule,
    matches_any,
    not_compared,
    path_lines,
    require_factors,
)
from placement_checks.rules.gradient_mistakes import (
    MistakeLocation,
    joint_losses,
    locate_mistake,
    loss_scale,
    loss_scalings,
    rows_of_other_towers,
    scaled_gradients,
)
from placement_checks.rules.ranks import tower_kind
from placement_checks.rules.requirements import Need, no_gradients
from placement_checks.rules.source_lines import blame_selection
from placement_checks.rules.step_equality import (
    TOWERS_ON_ONE_GPU,
    compare_with_one_gpu,
    towers_by_part,
)
from placement_checks.step.comparison import TOWERS, State, StepEquality
from placement_checks.step.explanation import Excuse, Obligation
from placement_checks.step.kinds import Cause, Origin
from placement_checks.step.parts import OF_ANY_SIZE, Part, describe
from placement_checks.step.terms import Assumption
from placement_checks.step.weights import ExampleTerm, Penalty, Weights
from placement_checks.step.wording import cause_in_words
from placement_checks.util.late import Late
from placement_checks.util.text import listed, plural

# Whether a factor of a sum over rows is right depends on how many rows each program reads.
_SUMS = (
    "the loss is a sum times a constant; whether the constant is right depends on the number of "
    "rows, which the graph does not state"
)
_OTHER_TERMS = "the loss has other terms than on one GPU"
_OTHER = "its loss terms count as on one GPU, but its update is another one"
_TOLERANCE = 1e-4  # relative; weights are products of a few float32 constants


@dataclass(frozen=True)
class GradientsAveraged(Rule):
    """Each loss term and penalty counts as much in each update as on one GPU.

    Examples are a sum of gradients instead of the mean, one division too many, a weight decay that
    counts once for each tower, and a loss term that one tower lacks. These mistakes raise no
    error, but the program trains another objective than on one GPU.

    The rule reads both graphs as terms, like equal-to-one-gpu, and runs nothing. The coefficient
    of a term in an update is its coefficient in the tower's loss, times the coefficient of the
    tower's gradient. For a mean over rows, and for a penalty such as weight decay, the
    coefficients of all towers must add up to the coefficient on one GPU. A sum over rows must have
    this coefficient in each tower. A clip by the norm of the gradients is compared for gradients
    that it does not clip. Variables are not checked if their gradients have other factors that
    depend on gradients, such as one divided by the norm, and these differ from one GPU. Other
    learning rates are ignored. The program is compared with its reference or, without a reference,
    with the program built for one GPU.

    If the loss of a tower combines its rows, such as the root of a mean or a mean over tokens, the
    coefficients are compared as for a mean. If they are right, the variables are not checked,
    because the mean of such losses may differ from the loss of all rows. If a loss has terms for
    pairs of rows, no coefficient is right. Variables that a part of the batch does not train, or
    that train another function than on one GPU, are left to every-tower-counts and
    equal-to-one-gpu. Variables are not checked either if equal-to-one-gpu cannot read their
    gradients, for example behind a `tf.custom_gradient` of the program.

    If towers have unequal numbers of rows, each mean must be multiplied by its tower's share of
    the rows. If the graph does not state the numbers, the rule assumes that they are equal, and
    the verdict mentions this.

    `scale` is an intended factor of all gradients, and `shares` are the intended relative sizes of
    the towers' parts, such as [3, 1]. `allow` lists variables, or patterns. Values that are
    declared for gradients-equal apply here too.
    """

    name = "gradients-averaged"
    kind = "requested"
    impact = Impact.TRAINING
    requires = frozenset({Need.TWO_TOWERS, Need.LOSSES_APART})
    uses = frozenset({Need.SINGLE_GPU, Need.REFERENCE})
    declared_with = "gradients-equal"
    states = FactKind.OBJECTIVE
    breaks_in_changes = True

    scale: float = 1.0
    shares: tuple[int, ...] = ()
    allow: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require_factors(self.scale, self.shares)

    def check(self, evidence: Evidence) -> Verdict:
        found = compare_with_one_gpu(evidence)
        if isinstance(found, Missing):
            return self.without(found)
        one_gpu, equality = found
        if one_gpu is evidence.single_gpu and len(analyze(one_gpu).towers) > 1:
            return self.not_checked(TOWERS_ON_ONE_GPU)
        comparison = _Comparison(evidence.placement, one_gpu, equality, self)
        return self._verdict(evidence, comparison)

    def _verdict(self, evidence: Evidence, comparison: _Comparison) -> Verdict:
        findings = comparison.findings()
        notes = [plural(len(comparison.compared), "variable")] if comparison.compared else []
        if comparison.assumes_equal_rows and comparison.compared and not findings:
            notes.append(f"holds only if all {comparison.kind}s have equally many rows")
        if factors := sorted(comparison.compensated):
            times = listed([f"{factor:.4g}" for factor in factors])
            notes.append(
                f"all gradients are {times} times as large as on one GPU, and the learning rate "
                "is divided by the same factor"
            )
        notes += not_compared(comparison.unread)
        if comparison.compared:
            verdict = self.verdict(findings, "; ".join(notes))
        elif notes:
            verdict = self.not_checked("; ".join(notes))
        else:
            verdict = self.without(no_gradients(evidence, "no variable is updated by a gradient"))
        return replace(verdict, figures=Late(comparison.figures))


class _Scaled(NamedTuple):
    """A variable whose loss terms that depend on examples are all multiplied by a factor.

    Attributes:
        factor: the factor.
        terms: the ops that compute the terms.
        are_sums: whether the terms are sums over rows.
    """

    factor: float
    terms: Sequence[str]
    are_sums: bool


class _Comparison:
    """How often the loss terms of a program count, compared with the program for one GPU.

    Attributes:
        kind: ``tower``, ``replica`` or ``rank``.
        compared: the variables that were compared.
        unread: why the other variables were not compared.
        compensated: factors of gradients that the learning rate compensates for.
        assumes_equal_rows: whether the numbers of rows of the towers are unknown, but matter.
    """

    def __init__(
        self, many: Placement, one: Placement, found: StepEquality, rule: GradientsAveraged
    ) -> None:
        self._placement, self._one, self._rule = many, one, rule
        self.kind = tower_kind(many)
        self._towers = len(analyze(many).towers)
        self.compared: list[str] = []
        self.unread: dict[str, str] = {}
        self.compensated: set[float] = set()
        self._findings: list[Finding] = []
        self._scaled: dict[str, _Scaled] = {}
        self._penalties_are_right = False  # although the other terms are multiplied by a factor
        self._found = found
        self.assumes_equal_rows = Assumption.EQUAL_ROWS in self._found.assumed
        self._names = {found.copies[name][0]: name for name in found.trained}
        for variable in many.variables:
            if variable.name in self._names and not matches_any(variable.name, rule.allow):
                self._add(variable.name, self._names[variable.name])

    def findings(self) -> Sequence[Finding]:
        """The findings on all variables."""
        scaled = [self._scaled_by(variable, each) for variable, each in self._scaled.items()]
        return [*self._findings, *scaled]

    def figures(self) -> Sequence[Mapping[str, object]]:
        """Return each objective in words, its variables, and the objective on one GPU."""
        many, one = objectives(self._placement), objectives(self._one)
        alike: dict[tuple[str, str | None], list[str]] = defaultdict(list)
        for variable in self._placement.variables:
            name = self._names.get(variable.name)
            if name is not None and variable.name in many:
                alike[many[variable.name], one.get(name)].append(variable.name)
        return [
            {"variables": variables, "objective": many, "expected": one}
            for (many, one), variables in alike.items()
        ]

    def _add(self, variable: str, name: str) -> None:
        """Judge a variable, given its name on one GPU."""
        misplaced = self._misplaced_rows(variable)
        judged = [misplaced] if misplaced else self._judge(variable, name)
        if isinstance(judged, str):
            self.unread[variable] = judged
        else:
            self.compared.append(variable)
            self._findings += judged

    def _judge(self, variable: str, name: str) -> Sequence[Finding] | str:
        """Return the findings on a variable, or why it cannot be compared.

        A factor of all terms becomes a finding later (see `_scaled`).
        """
        if source := self._found.sources.get(name):
            return [self._mispaired(variable, source)]
        is_proved = self._found.variables[name].state is State.PROVED
        weights = self._found.weights.get(name)
        if is_proved and not (isinstance(weights, Weights) and weights.examples):
            parts = set(self._found.parts.values()) or {()}
            ratios = dict.fromkeys(parts, 1.0)
            weights = Weights([ExampleTerm(ratios, self.assumes_equal_rows, None, False, None)])
        assert weights is not None
        if isinstance(weights, Cause):
            return self._reason(name, weights)
        if not weights.examples:
            return self._without_terms(name)
        if found := self._incomplete(variable, weights.examples):
            return found
        return self._compare(variable, name, weights, is_proved=is_proved)

    def _without_terms(self, name: str) -> Sequence[Finding] | str:
        """Why a gradient is unknown, if it is not equal to the gradient on one GPU.

        Rates, rows that several towers read, and races are the subjects of other rules.
        """
        difference = self._found.variables[name].difference
        assert difference is not None
        excuse, obligation = difference.excuse, difference.obligation
        is_race = excuse is Excuse.OTHER_STEP and obligation is Obligation.UPDATE
        is_known = excuse is None or excuse.may_be_intended
        return [] if is_known or is_race or obligation is Obligation.ROWS else difference.text

    def _reason(self, name: str, cause: Cause) -> str:
        """Why weights are unknown: the difference to one GPU, unless that is another setting."""
        difference = self._found.variables[name].difference
        if difference is not None and difference.obligation is not Obligation.UPDATE:
            return difference.text
        return cause_in_words(cause)

    def _incomplete(
        self, variable: str, terms: Sequence[ExampleTerm]
    ) -> Sequence[Finding] | str | None:
        """Return what follows if some parts lack terms, or have terms that one GPU lacks."""
        parts = list(terms[0].ratios)
        present = {part: [bool(each.ratios[part]) for each in terms] for part in parts}
        empty = [part for part in parts if not any(present[part])]
        if empty:
            left = listed([describe(part) for part in parts if part not in empty])
            return f"the update takes the gradients of {left} of the batch only"
        is_extra = [inf in each.ratios.values() for each in terms]
        expected = [not extra for extra in is_extra]
        odd = [part for part in parts if present[part] != expected]
        if not odd:
            return None
        differences = [
            {extra for here, extra in zip(present[part], is_extra, strict=True) if here is extra}
            for part in odd
        ]
        # Terms in place of others are another function.
        if len(odd) == len(parts) or any(len(each) > 1 for each in differences):
            return _OTHER_TERMS
        part = odd[0]
        count, others = sum(present[part]), sum(expected)
        ops = [each.origin for each in terms if each.ratios[part]]
        return [self._other_terms(variable, part, count, others, ops)]

    def _compare(
        self, variable: str, name: str, weights: Weights, *, is_proved: bool
    ) -> Sequence[Finding] | str:
        terms, scale = weights.examples, self._rule.scale
        shares = self._shares(terms)
        ratios = {
            part: [each.ratios[part] / (share if each.is_mean else 1.0) for each in terms]
            for part, share in shares.items()
        }
        factor = next(iter(ratios.values()))[0]
        for part, of_part in ratios.items():
            if not all(_close(ratio, of_part[0]) for ratio in of_part):
                return [self._unequal_terms(variable, terms, ratios[part])]
        if not all(_close(of_part[0], factor) for of_part in ratios.values()):
            by_part = {part: of_part[0] for part, of_part in ratios.items()}
            return [self._uneven(variable, terms, by_part, shares)]
        if not _close(factor, scale):
            if not weights.is_same_batch and not all(each.is_mean for each in terms):
                return _SUMS
            if any(each.is_guess for each in terms) and not _close(factor, self._towers):
                return self._joint(terms) or self._reason(name, Cause("", _OTHER_TERMS))
            is_compensated = is_proved or any(_close(rate * factor, 1.0) for rate in weights.rates)
            difference = self._found.variables[name].difference
            if scale == 1 and is_compensated:
                self.compensated.add(factor)
            elif difference and difference.mistake is mistakes.COPIES_UPDATED_APART:
                text, ops = difference.text, _ops([difference.origin])
                mistake = difference.mistake
                return [self._stated(variable, mistake, group_key=text, ops=ops, text=text)]
            else:
                are_sums = not any(each.is_mean or each.joint for each in terms)
                ops = _ops([each.origin for each in terms])
                self._scaled[variable] = _Scaled(factor, ops, are_sums)
                # The factor may be applied before penalties are added.
                penalties = [each for each in weights.penalties if each.expected]
                are_right = all(_close(each.coefficient, each.expected) for each in penalties)
                if penalties and are_right:
                    self._penalties_are_right = True
                    return []
        findings = [
            self._penalized(variable, each, factor)
            for each in weights.penalties
            if not _close(each.coefficient / factor, each.expected)
        ]
        if findings or is_proved or variable in self._scaled:
            return findings
        if joint := self._joint(terms):
            return joint
        is_declared = scale != 1 or len({*shares.values()}) > 1
        is_explained = is_declared or factor in self.compensated
        if is_explained and not any(each.is_guess for each in terms):
            return []
        return self._reason(name, Cause("", _OTHER))

    def _joint(self, terms: Sequence[ExampleTerm]) -> str:
        """Return why the loss on all rows is not the mean of the losses; empty if it may be."""
        joint = [
            (None if each.joint.op == "Grad" else each.joint.origin, each.origin)
            for each in terms
            if each.joint
        ]
        if not joint:
            return ""
        op = next(iter(_ops(joint[0])), "the loss")
        return (
            f"{op} combines the rows of one {self.kind}, and the mean of such values may differ "
            "from the value for all rows"
        )

    def _shares(self, terms: Sequence[ExampleTerm]) -> Mapping[Part, float]:
        """Return how often a mean over each part counts, if rows are declared to be uneven."""
        parts, sizes = sorted(terms[0].ratios), self._rule.shares
        if len(sizes) != len(parts) or not all(
            part and part[-1].family in OF_ANY_SIZE for part in parts
        ):
            sizes = (1,) * len(parts)
        return {
            part: size * len(sizes) / sum(sizes) for part, size in zip(parts, sizes, strict=True)
        }

    def _name(self, part: Part) -> str:
        """The device of the tower that computes the loss of a part; else the part."""
        tower = towers_by_part(self._placement, self._found).get(part)
        return describe(part) if tower is None else str(analyze(self._placement).towers[tower])

    def _scaled_by(self, variable: str, scaled: _Scaled) -> Finding:
        from placement_checks.numerics.diagnosis import diagnose_factor

        factor = scaled.factor
        scale_op = loss_scale(self._placement, self._one, factor)
        are_right = self._penalties_are_right
        found = diagnose_factor(
            factor,
            self._towers,
            self.kind,
            "" if are_right else f"--set gradients-averaged.scale={factor:.6g}",
            of_losses=are_right or bool(joint_losses(self._placement, variable)),
            loss_scale="" if scale_op is None else self._placement.by_number[scale_op].name,
        )
        if scale_op is not None:
            found = found._replace(shown=path_lines(self._placement, [scale_op]))
        declared = ""
        if (scale := self._rule.scale) != 1:
            declared = f"; gradients-averaged.scale declares {scale:.4g} times"
        return self._finding(
            variable,
            found,
            f"the loss counts {factor:.4g} times in the update of {variable}, compared with one "
            f"GPU: {found.what}{declared}",
            group_key=f"{factor:.4g}",
            at=self._lines_of_terms(scaled),
            facts=(Fact(FactKind.SCALED, variable),),
            may_follow=(Fact(FactKind.ROWS),) if self._counts_rows_again(scaled) else (),
        )

    def _counts_rows_again(self, scaled: _Scaled) -> bool:
        """Whether the factor may only result from rows that all towers read.

        A sum over the rows of a tower is right if the towers read different rows. A mean over
        these rows is too large even then.
        """
        is_mean = any(self._placement.ops[name].type == MEAN for name in scaled.terms)
        return scaled.are_sums and not is_mean and _close(scaled.factor, self._towers)

    def _lines_of_terms(self, scaled: _Scaled) -> Sequence[str]:
        """Return the terms that depend on examples, if replicas multiply only these by a factor.

        The op that yields the loss may be a later sum with the penalties. The result is empty if
        no term has a source line.
        """
        if not self._penalties_are_right or self.kind != "replica":
            return ()
        has_lines = any(map(self._placement.details.frames, scaled.terms))
        return scaled.terms if has_lines else ()

    def _mispaired(self, variable: str, source: str) -> Finding:
        found = mistakes.PAIRED.stated(self.kind, text=f"it is the gradient of {source}")
        return self._finding(
            variable,
            found,
            f"the update of {variable} takes a wrong gradient: {found.what}",
            group_key=mistakes.PAIRED.key,
            selects=True,
        )

    def _misplaced_rows(self, variable: str) -> Finding | None:
        """Return a finding if a tower's gradients change rows that only other towers looked up."""
        found = None if self.kind != "tower" else rows_of_other_towers(self._placement, variable)
        if found is None:
            return None
        op, towers = found
        analysis = analyze(self._placement)
        left_out = analysis.names_of(sum(1 << tower for tower in towers))
        return self._stated(
            variable,
            mistakes.ROWS_PAIRED,
            group_key=left_out,
            ops=[analysis.flow.names[op]],
            left_out=left_out,
        )

    def _unequal_terms(
        self, variable: str, terms: Sequence[ExampleTerm], ratios: Sequence[float]
    ) -> Finding:
        factors: defaultdict[float, list[str]] = defaultdict(list)
        for ratio, each in zip(ratios, terms, strict=True):
            names = factors[round(ratio, 6)]
            names += [name for name in _ops([each.origin]) or ["a term"] if name not in names]
        by_error = sorted(factors, key=lambda ratio: (_close(ratio, 1), ratio))
        named = [f"{ratio:.4g} for {listed(factors[ratio])}" for ratio in by_error]
        wrong = [x.origin for ratio, x in zip(ratios, terms, strict=True) if not _close(ratio, 1)]
        return self._stated(
            variable,
            mistakes.TERMS,
            group_key=tuple(by_error),
            ops=_ops(wrong),
            factors=listed(named, limit=4),
        )

    def _uneven(
        self,
        variable: str,
        terms: Sequence[ExampleTerm],
        ratios: Mapping[Part, float],
        shares: Mapping[Part, float],
    ) -> Finding:
        from placement_checks.numerics.diagnosis import integer_shares

        intended = integer_shares([ratio * shares[part] for part, ratio in ratios.items()])
        can_differ = all(each.is_mean for each in terms) and all(
            part and part[-1].family in OF_ANY_SIZE for part in ratios
        )
        declared = f"if unequal shares are intended: --set 'gradients-averaged.shares={intended}'"
        factors = listed(
            [f"{ratio:.4g} on {self._name(part)}" for part, ratio in ratios.items()], limit=4
        )
        for part, ratio in ratios.items():
            if (scale_op := self._loss_scale_of(part, ratio)) is not None:
                return self._stated(
                    variable,
                    mistakes.LOSS_SCALE,
                    group_key=factors,
                    ops=scaled_gradients(self._placement, variable) or [scale_op],
                    op=scale_op,
                    factor=f"{ratio:.4g}",
                )
        is_opposed = len({ratio < 0 for ratio in ratios.values()}) > 1
        return self._stated(
            variable,
            mistakes.OPPOSED if is_opposed else mistakes.UNEVEN,
            group_key=factors,
            factors=factors,
            declared=declared if can_differ and intended and not is_opposed else "",
        )

    def _loss_scale_of(self, part: Part, ratio: float) -> str | None:
        """The op that multiplies the loss of a tower by the factor of its gradients."""
        analysis = analyze(self._placement)
        tower = towers_by_part(self._placement, self._found).get(part)
        scalings = () if _close(ratio, 1.0) else loss_scalings(self._placement, ratio)
        return next(
            (analysis.flow.names[op] for op in scalings if analysis.tower_of[op] == tower), None
        )

    def _other_terms(
        self,
        variable: str,
        part: Part,
        terms: int,
        expected: int,
        origins: Sequence[Origin | None],
    ) -> Finding:
        return self._stated(
            variable,
            mistakes.MISSING_TERM,
            group_key=terms,
            ops=_ops(origins),
            tower=f"the {self.kind} on {self._name(part)}",
            terms=plural(terms, "term"),
            depend="depends" if terms == 1 else "depend",
            others=expected,
        )

    def _penalized(self, variable: str, penalty: Penalty, factor: float) -> Finding:
        """Return a finding on a penalty, given the factor of the terms that depend on examples."""
        op = penalty.op
        if (origin := penalty.origin) is not None:
            op = (self._placement, self._one)[origin.program].ops[origin.op].type
        ratio = penalty.coefficient / factor / penalty.expected if penalty.expected else inf
        mistake = mistakes.OTHER_PENALTY
        if ratio == inf:
            counts = f"is in the losses of the {self.kind}s, but not on one GPU"
        elif ratio == 0:
            counts = f"is in no loss of the {self.kind}s, but on one GPU"
        else:
            counts = (
                f"counts {ratio:.4g} times in all {self.kind}s together, compared with one GPU"
            )
            if _close(ratio, self._towers):
                mistake = mistakes.PENALTY_REPEATED
            elif _close(ratio * self._towers, 1):
                mistake = mistakes.PENALTY_TOO_SMALL
        return self._stated(
            variable, mistake, group_key=f"{ratio:.4g}", op=f" ({op})", counts=counts
        )

    def _stated(
        self,
        variable: str,
        mistake: Mistake,
        *,
        group_key: Hashable,
        ops: Sequence[str] = (),
        **facts: Any,
    ) -> Finding:
        """Return the finding on a mistake in the update of a variable."""
        found = mistake.stated(self.kind, **facts)
        message = f"the update of {variable} differs from one GPU: {found.what}"
        return self._finding(variable, found, message, group_key=group_key, ops=ops)

    def _finding(
        self,
        variable: str,
        found: Diagnosis,
        message: str,
        *,
        group_key: Hashable,
        ops: Sequence[str] = (),
        at: Sequence[str] = (),
        selects: bool = False,
        facts: tuple[Fact, ...] = (),
        may_follow: tuple[Fact, ...] = (),
    ) -> Finding:
        """Return a finding at the ops ``at``, or else at the ops that make the mistake.

        If these are unknown too, it is at ``ops``, or else at the updates of the variable.
        ``selects`` is whether the list of variables or gradients is wrong.
        """
        location = MistakeLocation(at)
        if not at:
            location = locate_mistake(self._placement, variable, found)
        names = analyze(self._placement).flow.names
        trained = gradient_flow(self._placement).trained.get(variable, ())
        updates = [names[update.op] for update in trained]
        wrong = tuple(location.ops or ops or updates)
        selection = blame_selection(self._placement, wrong) if selects else ()
        return Finding(
            object=variable,
            op=self._placement.ops[variable].type,
            evidence="requested",
            ops=wrong,
            frames=location.frames or selection,
            group_key=(group_key, location.frames),
            path=(*found.shown, *location.path),
            message=message,
            consequence=found.consequence,
            fix=location.fix or found.fix,
            facts=facts,
            may_follow=may_follow,
        )


def _ops(origins: Sequence[Origin | None]) -> Sequence[str]:
    """The ops of the program for several GPUs."""
    return [origin.op for origin in origins if origin and origin.program == TOWERS]


def _close(one: float, other: float) -> bool:
    return isclose(one, other, rel_tol=_TOLERANCE, abs_tol=1e-12)
