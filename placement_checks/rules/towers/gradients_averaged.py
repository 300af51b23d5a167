from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isclose
from typing import TYPE_CHECKING, NamedTuple

from placement_checks.analysis.towers.analysis import analyze
from placement_checks.analysis.variables.gradient_flow import gradient_flow, rows_of_other_towers
from placement_checks.analysis.variables.objectives import objectives
from placement_checks.core.evidence import Evidence
from placement_checks.core.impact import Impact
from placement_checks.core.missing import Missing
from placement_checks.core.placement import Placement
from placement_checks.core.results import Finding, Verdict
from placement_checks.rules.base import AVERAGE, Rule, matches_any, require_factors
from placement_checks.rules.ranks import TowerKind, tower_kind
from placement_checks.rules.requirements import Need, no_gradients
from placement_checks.rules.step_equality import compare_with_one_gpu, towers_by_part
from placement_checks.step.comparison import TOWERS, State, StepEquality
from placement_checks.step.explanation import Obligation
from placement_checks.step.kinds import Cause, Origin
from placement_checks.step.parts import OF_ANY_SIZE, Part, describe
from placement_checks.step.terms import Assumption
from placement_checks.step.weights import ExampleTerm, Penalty, Weights
from placement_checks.util.text import listed, plural

if TYPE_CHECKING:
    from placement_checks.numerics.diagnosis import Mistake

# Whether a factor of a sum over rows is right depends on how many rows each program reads.
_SUMS = (
    "the loss is a sum times a constant; whether the constant is right depends on the number of "
    "rows, which the graph does not state"
)
_OTHER = "its loss terms count as on one GPU, but its update is another one"
_TOLERANCE = 1e-4  # relative; weights are products of a few float32 constants
# Fixes if the coefficients of the losses are wrong, but the coefficients of the penalties are
# right.
_DIVIDE_LOSSES = "divide the losses by the number of towers, but not the penalties"
_KEEP_LOSSES = "do not divide the losses: the mean of the gradients divides them"
_COUNT_ONCE = (
    "let the penalty count once: add it to the loss of every tower and average the gradients, or, "
    "if gradients are added up, add it to the loss of one tower only"
)


class _Fixes(NamedTuple):
    """The fixes for gradients that are added up, or divided too often, and for penalties."""

    added_up: str
    divided: str
    penalty: str


_FIXES: Mapping[TowerKind, _Fixes] = {
    "tower": _Fixes(
        f"average over towers: {AVERAGE}",
        "divide the losses by the number of towers or take the mean of the gradients, not both; "
        "if the loss is a sum over rows, add up the gradients",
        _COUNT_ONCE,
    ),
    "replica": _Fixes(
        "divide the loss by the rows of all replicas: tf.nn.compute_average_loss(losses, "
        "global_batch_size=…); if it is already, add up the gradients once: "
        "optimizer.apply_gradients adds them up, too",
        "divide the loss by the rows of all replicas alone, as tf.nn.compute_average_loss does, "
        "and add up the gradients: tf.distribute.ReduceOp.SUM",
        "give each replica its part: tf.nn.scale_regularization_loss(penalty)",
    ),
    "rank": _Fixes(
        "average the gradients once, op=hvd.Average, or divide each loss by hvd.size()",
        "divide once: average the gradients, op=hvd.Average, and leave the losses as they are",
        _COUNT_ONCE,
    ),
}


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
    because the mean of such losses may differ from the loss of all rows. Variables that a part of
    the batch does not train, or that train another function than on one GPU, are left to
    every-tower-counts and equal-to-one-gpu.

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
    explained_by = (
        *("every-tower-counts", "one-update", "variables-shared", "created-in-scope"),
        "towers-alike",
    )
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
            return self.not_checked("the program has several towers even if built for one GPU")
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
        unread: dict[str, list[str]] = defaultdict(list)
        for variable, reason in comparison.unread.items():
            unread[reason].append(variable)
        for reason, variables in unread.items():
            were = "was" if len(variables) == 1 else "were"
            notes.append(f"{listed(variables)} {were} not compared: {reason}")
        if comparison.compared:
            verdict = self.verdict(findings, "; ".join(notes))
        elif notes:
            verdict = self.not_checked("; ".join(notes))
        else:
            verdict = self.without(no_gradients(evidence, "no variable is updated by a gradient"))
        return replace(verdict, figures=comparison.figures())


class _Scaled(NamedTuple):
    """A variable whose loss terms that depend on examples are all multiplied by a factor.

    Attributes:
        factor: the factor.
        terms: the ops that compute the terms.
    """

    factor: float
    terms: Sequence[str]


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
        self._fixes = _FIXES[self.kind]
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
            weights = Weights([ExampleTerm(ratios, self.assumes_equal_rows, False, False, None)])
        assert weights is not None
        if isinstance(weights, Cause):
            return self._reason(name, weights)
        if not weights.examples:
            return []
        if found := self._incomplete(variable, weights.examples):
            return found
        return self._compare(variable, name, weights, is_proved=is_proved)

    def _reason(self, name: str, cause: Cause) -> str:
        """Why weights are unknown: the difference to one GPU, unless that is another setting."""
        difference = self._found.variables[name].difference
        if difference is not None and difference.obligation is not Obligation.UPDATE:
            return difference.text
        return f"{f'an op of type {cause.op} ' if cause.op else ''}{cause.text}"

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
            return "the loss has other terms than on one GPU"
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
                return self._joint(terms)
            is_compensated = is_proved or any(_close(rate * factor, 1.0) for rate in weights.rates)
            if scale == 1 and is_compensated:
                self.compensated.add(factor)
            else:
                self._scaled[variable] = _Scaled(factor, _ops([each.origin for each in terms]))
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
        joint = [each for each in terms if each.is_joint]
        if not joint:
            return ""
        op = next(iter(_ops([each.origin for each in joint])), "the loss")
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
        from placement_checks.numerics.diagnosis import scaled_steps

        fixes, factor, towers = self._fixes, scaled.factor, self._towers
        if self._penalties_are_right and self.kind == "tower":
            fixes = fixes._replace(added_up=_DIVIDE_LOSSES, divided=_KEEP_LOSSES)
        if _close(factor, towers):
            mistake: Mistake = "sum"
            added = "losses" if self._penalties_are_right else "gradients"
            what = f"the {added} of {towers} {self.kind}s are added up instead of averaged"
            fix = fixes.added_up
        elif _close(factor * towers, 1.0):
            mistake = "divided"
            what = (
                f"the gradients are divided by the number of {self.kind}s, {towers}, once too "
                "often"
            )
            fix = fixes.divided
        else:
            mistake = "scaled"
            what = f"all its terms are multiplied by {factor:.4g}"
            fix = "undo the factor, such as a loss scale, before the gradients are applied"
        if not self._penalties_are_right:
            fix += f"; if it is intended: --set gradients-averaged.scale={factor:.6g}"
        if (scale := self._rule.scale) != 1:
            what += f"; gradients-averaged.scale declares {scale:.4g} times"
        return self._finding(
            variable,
            mistake,
            factor,
            group_key=f"{factor:.4g}",
            message=f"the loss counts {factor:.4g} times in the update of {variable}, compared "
            f"with one GPU: {what}",
            fix=fix,
            consequence=scaled_steps(factor),
            at=self._lines_of_terms(scaled),
        )

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
        return self._finding(
            variable,
            "paired",
            None,
            group_key=source,
            message=f"the update of {variable} takes the gradient of {source}",
            fix="pair each gradient with the variable that it is taken with respect to",
            consequence="the variable is trained by the gradient of another variable",
        )

    def _misplaced_rows(self, variable: str) -> Finding | None:
        """Return a finding if a tower's gradients change rows that only other towers looked up."""
        found = None if self.kind != "tower" else rows_of_other_towers(self._placement, variable)
        if found is None:
            return None
        op, towers = found
        analysis = analyze(self._placement)
        left_out = analysis.names_of(sum(1 << tower for tower in towers))
        return self._finding(
            variable,
            "paired",
            None,
            group_key=left_out,
            message=f"the update of {variable} takes the gradients of {left_out}, but not the "
            "indices of the rows that they belong to",
            fix="concatenate the values of all towers, and in the same order their indices: "
            "tf.IndexedSlices(tf.concat([g.values for g in grads], 0) / num_gpus, "
            "tf.concat([g.indices for g in grads], 0))",
            consequence="rows are trained by the gradients of other rows",
            ops=[analysis.flow.names[op]],
        )

    def _unequal_terms(
        self, variable: str, terms: Sequence[ExampleTerm], ratios: Sequence[float]
    ) -> Finding:
        origins = [each.origin for each in terms]
        factors = listed(
            [
                f"{ratio:.4g} for {_ops([origin])[0] if _ops([origin]) else 'a term'}"
                for ratio, origin in zip(ratios, origins, strict=True)
            ],
            limit=4,
        )
        return self._finding(
            variable,
            "",
            None,
            group_key=factors,
            message=f"the loss terms do not count equally in the update of {variable}; their "
            f"factors, compared with one GPU: {factors}",
            fix="average all terms of the losses in the same way",
            consequence="the model is trained by another objective than on one GPU",
            ops=_ops(origins),
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
        declared = (
            f"; if unequal shares are intended: --set 'gradients-averaged.shares={intended}'"
            if can_differ and intended
            else ""
        )
        factors = listed(
            [f"{ratio:.4g} on {self._name(part)}" for part, ratio in ratios.items()], limit=4
        )
        fix = (
            "multiply the gradients of each tower by its share of the rows: "
            f"placement_checks.average_gradients(tower_grads, weights=rows){declared}"
        )
        consequence = "the rows of one tower count more than the rows of another"
        if len({ratio < 0 for ratio in ratios.values()}) > 1:
            fix = "give the losses of all towers the same sign"
            consequence = "the gradients of some towers undo the gradients of others"
        return self._finding(
            variable,
            "weights",
            None,
            group_key=factors,
            message=f"the losses of the {self.kind}s do not count equally in the update of "
            f"{variable}; their factors, compared with one GPU: {factors}",
            fix=fix,
            consequence=consequence,
        )

    def _other_terms(
        self,
        variable: str,
        part: Part,
        terms: int,
        expected: int,
        origins: Sequence[Origin | None],
    ) -> Finding:
        return self._finding(
            variable,
            "",
            None,
            group_key=terms,
            message=f"the loss of the tower on {self._name(part)} has {plural(terms, 'term')} "
            f"that {'depends' if terms == 1 else 'depend'} on {variable} and on examples, and the "
            f"loss of another tower has {expected}",
            fix="give the losses of all towers the same terms",
            consequence="the model is trained by an objective that depends on the tower",
            ops=_ops(origins),
        )

    def _penalized(self, variable: str, penalty: Penalty, factor: float) -> Finding:
        """Return a finding on a penalty, given the factor of the terms that depend on examples."""
        op = penalty.op
        if (origin := penalty.origin) is not None:
            op = (self._placement, self._one)[origin.program].ops[origin.op].type
        ratio = penalty.coefficient / factor / penalty.expected if penalty.expected else inf
        if ratio == inf:
            what = f"is in the losses of the {self.kind}s, but not on one GPU"
        elif ratio == 0:
            what = f"is in no loss of the {self.kind}s, but on one GPU"
        else:
            what = f"counts {ratio:.4g} times in all {self.kind}s together, compared with one GPU"
        return self._finding(
            variable,
            "penalty",
            ratio if ratio != inf else None,
            group_key=f"{ratio:.4g}",
            message=f"the penalty ({op}) on {variable} {what}",
            fix=self._fixes.penalty,
            consequence="the weights decay more than on one GPU"
            if ratio > 1
            else "the weights decay less than on one GPU",
        )

    def _finding(
        self,
        variable: str,
        mistake: Mistake,
        ratio: float | None,
        *,
        group_key: Hashable,
        message: str,
        fix: str,
        consequence: str,
        ops: Sequence[str] = (),
        at: Sequence[str] = (),
    ) -> Finding:
        """Return a finding at the ops ``at``, or else at the ops that make the mistake.

        If these are unknown too, it is at ``ops``, or else at the updates of the variable.
        """
        from placement_checks.numerics.diagnosis import Diagnosis
        from placement_checks.rules.gradient_mistakes import MistakeLocation, locate_mistake

        diagnosis = Diagnosis("", "", ratio=ratio, mistake=mistake)
        location = MistakeLocation(at)
        if not at:
            location = locate_mistake(self._placement, variable, diagnosis)
        names = analyze(self._placement).flow.names
        trained = gradient_flow(self._placement).trained.get(variable, ())
        updates = [names[update.op] for update in trained]
        return Finding(
            object=variable,
            op=self._placement.ops[variable].type,
            evidence="requested",
            ops=tuple(location.ops or ops or updates),
            frames=location.frames,
            group_key=(group_key, location.frames),
            path=location.path,
            message=message,
            consequence=consequence,
            fix=fix,
        )


def _ops(origins: Sequence[Origin | None]) -> Sequence[str]:
    """The ops of the program for several GPUs."""
    return [origin.op for origin in origins if origin and origin.program == TOWERS]


def _close(one: float, other: float) -> bool:
    return isclose(one, other, rel_tol=_TOLERANCE, abs_tol=1e-12)
