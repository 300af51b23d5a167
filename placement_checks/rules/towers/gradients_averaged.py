from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isclose
from typing import TYPE_CHECKING, NamedTuple

from placement_checks.analysis.objective.gradient_weights import Unread
from placement_checks.analysis.objective.linear_forms import Factors, Weight
from placement_checks.analysis.objective.loss_terms import Term
from placement_checks.analysis.objective.objective import Formula, Objective, objective
from placement_checks.analysis.objective.row_shares import TowerTerm
from placement_checks.analysis.towers.analysis import analyze
from placement_checks.analysis.variables.gradient_flow import rows_of_other_towers
from placement_checks.core.evidence import Evidence
from placement_checks.core.impact import Impact
from placement_checks.core.missing import Missing
from placement_checks.core.op_types import MEAN
from placement_checks.core.placement import producer_of
from placement_checks.core.results import Finding, Verdict
from placement_checks.rules.base import AVERAGE, Rule, matches_any, require_factors
from placement_checks.rules.ranks import TowerKind, tower_kind
from placement_checks.rules.requirements import Need, no_gradients
from placement_checks.util.text import listed, plural

if TYPE_CHECKING:
    from placement_checks.numerics.diagnosis import Mistake

_ALL = -1  # instead of a tower's number: a term over the rows of all towers
# Whether a constant factor is right depends on the number of rows in each tower.
_SUMS = (
    "the loss is a sum times a constant; whether the constant is right depends on the number of "
    "rows, which the graph does not state"
)
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

    The rule reads the coefficients from constants of the graph, and runs nothing. The coefficient
    of a term in an update is its coefficient in the tower's loss, times the coefficient of the
    tower's gradient. For a mean over rows, and for a penalty such as weight decay, the
    coefficients of all towers must add up to the coefficient on one GPU. A sum over rows must have
    this coefficient in each tower. The rule ignores factors that all terms of an update share,
    such as a clip by the norm of the averaged gradient. It also ignores weight decay that is added
    to the averaged gradient, and the ops of an optimizer, even if the program assigns the
    variables itself, as BERT's Adam does. The weights of single terms, such as a learned or
    scheduled weight of a task, are equal if they are computed from the same variables,
    placeholders and constants. The gradients of rows that a tower looks up must be paired with the
    indices of these rows. The program is compared with its reference or, without a reference, with
    the program built for one GPU. gradients-equal also compares the values that a tower computes
    inside of a term.

    If the loss of a tower is a function of means, such as the root of a mean or a ratio of sums,
    the coefficients are compared as for a mean. If they are right, the variables are not checked,
    because the mean of such losses may differ from the loss of all rows.

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
        program, single = objective(evidence.placement), evidence.single_gpu
        if evidence.reference:
            comparison = _Comparison(program, objective(evidence.reference), self)
            if comparison.compared:
                return self._verdict(evidence, comparison)
        if isinstance(single, Missing):
            return self.not_checked(
                f"the program cannot be compared with its build for one GPU: {single}"
            )
        if len(analyze(single).towers) > 1:
            return self.not_checked("the program has several towers even if built for one GPU")
        return self._verdict(evidence, _Comparison(program, objective(single), self))

    def _verdict(self, evidence: Evidence, comparison: _Comparison) -> Verdict:
        findings = comparison.findings
        notes = [plural(len(comparison.compared), "variable")] if comparison.compared else []
        if comparison.assumes_equal_rows and comparison.compared and not findings:
            notes.append(f"holds only if all {comparison.parts_name} have equally many rows")
        if factors := sorted(set(comparison.compensated.values())):
            times = listed([f"{factor:.4g}" for factor in factors])
            notes.append(
                f"all gradients are {times} times as large as on one GPU, and the learning rate "
                "is divided by the same factor"
            )
        unread: dict[str, list[str]] = defaultdict(list)
        for variable, (_, reason) in comparison.unread.items():
            unread[reason].append(variable)
        for variables in unread.values():
            op, reason = comparison.unread[variables[0]]
            were = "was" if len(variables) == 1 else "were"
            notes.append(f"{listed(variables)} {were} not compared: {f'{op} {reason}'.strip()}")
        if comparison.compared:
            verdict = self.verdict(findings, "; ".join(notes))
        elif notes:
            verdict = self.not_checked("; ".join(notes))
        else:
            verdict = self.without(no_gradients(evidence, "no variable is updated by a gradient"))
        return replace(verdict, figures=comparison.figures())


class _Summand(NamedTuple):
    """A term in the objective of one variable.

    Attributes:
        term: the term.
        tower: the tower that computes the term, or `_ALL`.
        weight: the weight of the term, without the tower's share of the rows.
        is_share: whether the share multiplies the weight.
    """

    term: Term
    tower: int
    weight: Weight
    is_share: bool


class _TermWeight(NamedTuple):
    """A loss term that depends on examples, in the objective of one variable.

    Attributes:
        kind: ``mean`` or ``sum`` over rows, or ``function`` of such means.
        factors: the factors of its weight that other terms do not have, such as the weight of a
            task, with symbols that the program for one GPU shares.
        weight: the coefficient of its weight.
        term: the term.
        adds_up: whether the terms of the towers add up to the term on one GPU: sums over rows,
            sums that are divided by the rows of all towers, and means that are multiplied by the
            tower's share of the rows. Other means are averaged.
        variables: the variables that it depends on, sorted by name. Terms of different towers
            correspond if they depend on the same variables.
    """

    kind: str
    factors: Factors
    weight: float
    term: Term
    adds_up: bool
    variables: Sequence[str]


def _shared(summands: Sequence[_Summand]) -> frozenset[tuple[str, int]]:
    """Return the factors that all summands share."""
    return frozenset.intersection(*(frozenset(each.weight.factors) for each in summands))


def _order(each: _TermWeight) -> tuple[str, Factors, Sequence[str], float]:
    return each.kind, each.factors, each.variables, each.weight


class _Penalty(NamedTuple):
    """A key that is equal for the same penalty in two builds of a program.

    Attributes:
        kind: the type of the op that computes the penalty.
        variables: the variables that it depends on.
        factors: the factors of its weight that other terms do not have.
    """

    kind: str
    variables: Sequence[str]
    factors: Factors


class _Parts(NamedTuple):
    """The objective of one variable, without the factors that all terms share.

    Attributes:
        towers: for each tower its terms that depend on examples, sorted by kind and weight.
        penalties: the weight of each penalty in all towers together.
        shared: the factors that all terms share, if they depend on variables, placeholders and
            constants alone, with symbols that the program for one GPU shares.
    """

    towers: Mapping[int, Sequence[_TermWeight]]
    penalties: Mapping[_Penalty, float]
    shared: Factors

    def divided_by(self, factor: float) -> _Parts:
        """Return the objective with all weights divided by a factor."""
        towers = {
            tower: [each._replace(weight=each.weight / factor) for each in terms]
            for tower, terms in self.towers.items()
        }
        penalties = {key: weight / factor for key, weight in self.penalties.items()}
        return self._replace(towers=towers, penalties=penalties)


def _total(penalties: Sequence[_Summand], towers: Collection[int]) -> float | None:
    """Return the weight of a penalty in all towers together; None if it depends on the rows."""
    weights = [each.weight.coefficient for each in penalties]
    if not any(each.is_share for each in penalties):
        return sum(weights)
    # The shares of all towers add up to 1.
    has_all = all(each.is_share for each in penalties) and len(penalties) == len(towers)
    return weights[0] if has_all and len({*weights}) == 1 else None


class _Comparison:
    """The objectives of a program, compared with the objectives of the program for one GPU.

    Attributes:
        parts_name: ``towers``, ``replicas`` or ``ranks``.
        compared: the variables that were compared.
        findings: the findings on these variables.
        unread: why the other variables were not compared.
        compensated: the factors of gradients that the learning rate compensates for, by variable.
        assumes_equal_rows: whether the numbers of rows of the towers are unknown, but matter.
    """

    def __init__(self, many: Objective, one: Objective, rule: GradientsAveraged) -> None:
        self._many, self._one, self._rule = many, one, rule
        self._placement = many.analysis.placement
        kind = tower_kind(self._placement)
        self.parts_name = f"{kind}s"
        self._fixes = _FIXES[kind]
        self.compared: list[str] = []
        self.findings: list[Finding] = []
        self.unread: dict[str, Unread] = {}
        self.compensated: dict[str, float] = {}
        self.assumes_equal_rows = False
        self._scaled: dict[str, tuple[float, int]] = {}  # the factor and the number of towers
        self._penalties_are_right = False  # although the other terms are multiplied by a factor
        for variable, formula in many.formulas.items():
            if matches_any(variable, rule.allow):
                continue
            found = self._judge(variable, formula)
            if isinstance(found, Unread):
                self.unread[variable] = found
            else:
                self.compared.append(variable)
                self.findings += found
        for variable, (factor, number) in self._scaled.items():
            self.findings.append(self._scaled_by(variable, factor, number))

    def _judge(self, variable: str, formula: Formula | Unread) -> Sequence[Finding] | Unread:
        """Return the findings on a variable, or why it cannot be compared.

        A factor of the whole objective becomes a finding later (see `_scaled`).
        """
        if finding := self._misplaced_rows(variable):
            return [finding]
        parts = self._parts(self._many, formula)
        if isinstance(parts, Unread):
            return parts
        if variable not in self._one.formulas:
            return Unread("", "the program for one GPU does not train the variable")
        source = "" if isinstance(formula, Unread) else formula[0].source
        if source:
            return [self._mispaired(variable, source)]
        expected = self._parts(self._one, self._one.formulas[variable])
        if isinstance(expected, Unread):
            op = f"in the program for one GPU: {expected.op}".strip()
            return expected._replace(op=op)
        if reason := self._incomparable(parts, expected):
            return Unread("", reason)
        if rates := self._many.unequal_rates(self._one, variable):
            parts = parts.divided_by(rates[0] / rates[1])
        found = self._compare(variable, parts, expected)
        if found or variable in self._scaled:
            return found
        if function := self._function(parts):
            return Unread(
                function,
                "is a function of means over the rows of one tower; the mean of such functions "
                "may differ from the function of all rows",
            )
        if own_count := self._own_count(parts):
            # The mean of such means is the mean on one GPU only if the counts of all towers are
            # equal.
            return Unread(
                own_count,
                "counts rows of one tower and divides its loss, so that rows count more in towers "
                "with fewer of them",
            )
        return found

    def figures(self) -> Sequence[Mapping[str, object]]:
        """Return each objective in words, its variables, and the objective on one GPU."""
        alike: dict[tuple[str, str], list[str]] = defaultdict(list)
        for variable in self._many.formulas:
            if objective_text := self._many.summary(variable):
                alike[objective_text, self._one.summary(variable)].append(variable)
        return [
            {"variables": variables, "objective": many, "expected": one or None}
            for (many, one), variables in alike.items()
        ]

    def _parts(self, side: Objective, formula: Formula | Unread) -> _Parts | Unread:
        """Return the parts of a formula, or the reason why they are unknown."""
        if isinstance(formula, Unread):
            return formula
        summands = self._summands(side, formula)
        rows: dict[str, set[int]] = defaultdict(set)
        own_factors = self._own_factors(side, summands)
        if isinstance(own_factors, Unread):
            return own_factors
        for term, tower, _, _ in summands:
            if term.kind == "other":
                return Unread(producer_of(term.tensor), "is a loss, but no sum or mean over rows")
            rows[term.rows].add(tower)
        towers: dict[int, list[_TermWeight]] = defaultdict(list)
        penalties: dict[_Penalty, list[_Summand]] = defaultdict(list)
        for each, factors in zip(summands, own_factors, strict=True):
            term, tower, weight, is_share = each
            variables = side.variables(term)
            if term.kind == "penalty":
                penalties[_Penalty(side.op_type(term), variables, factors)].append(each)
                continue
            of_all = bool(term.rows) and len(rows[term.rows]) > 1
            if of_all and side.scalars.is_of_part(term.rows):
                return Unread(
                    producer_of(side.scalars.describe(term.rows)),
                    "counts rows of a part of the batch, and divides the losses of several towers",
                )
            adds_up = is_share or of_all or term.kind == "sum"
            towers[tower].append(
                _TermWeight(term.kind, factors, weight.coefficient, term, adds_up, variables)
            )
        totals = {key: _total(each, towers) for key, each in penalties.items()}
        for penalty, total in totals.items():
            if total is None:
                return Unread(
                    "",
                    f"some towers multiply the penalty ({penalty.kind}) by their share of the "
                    "rows, and others do not",
                )
        return _Parts(
            {tower: sorted(each, key=_order) for tower, each in towers.items()},
            {key: total for key, total in totals.items() if total is not None},
            tuple(each for each in side.scalars.portable(sorted(_shared(summands))) if each[0]),
        )

    def _own_factors(
        self, side: Objective, summands: Sequence[_Summand]
    ) -> Sequence[Factors] | Unread:
        """Return for each summand the factors that not all summands have, as portable symbols.

        The factors are unknown if only the terms of some towers have them, such as the norm of the
        gradients of one tower.
        """
        common = _shared(summands)

        def members(summands: Iterable[_Summand]) -> Mapping[object, set[object]]:
            found: dict[object, set[object]] = defaultdict(set)
            for each in summands:
                if each.term.kind == "penalty":
                    penalty = side.op_type(each.term), side.variables(each.term)
                    found[penalty].add(each.term)
                else:
                    found["terms"].add(each.tower)
            return found

        in_all = members(summands)
        own_factors = []
        for summand in summands:
            own = [each for each in summand.weight.factors if each not in common]
            (kind,) = members([summand])
            for symbol, power in own:
                scaled = (each for each in summands if symbol in dict(each.weight.factors))
                ((key, _),) = side.scalars.portable([(symbol, power)])
                if not key or members(scaled)[kind] != in_all[kind]:
                    return Unread(
                        side.scalars.describe(symbol),
                        "multiplies only some terms of the loss, and is not a constant",
                    )
            own_factors.append(side.scalars.portable(own))
        return own_factors

    def _summands(self, side: Objective, formula: Formula) -> Sequence[_Summand]:
        """Return the terms of a formula with their total weights, without shares of rows."""
        merged: dict[tuple[Term, Factors], float] = defaultdict(float)
        for each in formula:
            merged[each.term, each.weight.factors] += each.weight.coefficient
        towers = {term: self._tower(side, term) for term, _ in merged}
        shares = side.row_shares.of_towers(
            [
                TowerTerm(towers[term], term, factors)
                for term, factors in merged
                if term.kind == "mean" and towers[term] != _ALL
            ]
        )
        summands = []
        for (term, factors), coefficient in merged.items():
            weight, share = Weight(coefficient, factors), shares.get(towers[term], ())
            is_share = bool(share) and {*share} <= {*factors}
            rest = weight.times(Weight(1.0, share), -1) if is_share else weight
            summands.append(_Summand(term, towers[term], rest, is_share))
        return summands

    @staticmethod
    def _tower(side: Objective, term: Term) -> int:
        """Return the number of the tower that computes a term, or `_ALL`."""
        if term.towers.bit_count() == 1:
            return term.towers.bit_length() - 1
        tower = side.analysis.tower_of[side.analysis.flow.op_of(term.tensor)]
        return _ALL if tower is None else tower

    def _incomparable(self, parts: _Parts, expected: _Parts) -> str:
        """Return why two objectives cannot be compared; ``""`` if they can."""
        if not parts.towers or not expected.towers:
            return "no term of the loss depends on examples"
        if _ALL in parts.towers and len(parts.towers) > 1:
            return "some terms of the loss depend on one tower, others on several"
        if _ALL not in parts.towers and len(parts.towers) < len(self._many.analysis.towers):
            towers = self._many.analysis.names_of(sum(1 << tower for tower in parts.towers))
            return f"the update takes gradients of {towers} only"
        if len(expected.towers) > 1:
            return "the program for one GPU has several towers"
        if parts.shared != expected.shared:
            return "a factor of its gradients is not the same as on one GPU"
        (alone,) = expected.towers.values()
        kinds = _kinds(alone)
        if not any(_kinds(terms) == kinds for terms in parts.towers.values()):
            return "the loss has other terms than on one GPU"
        if any(
            len(each) == len(alone) and _kinds(each) != kinds for each in parts.towers.values()
        ):
            return "the losses of the towers are means in one tower, and sums in another"
        sums = [each for each in alone if each.kind == "sum"]
        if any(not _close(abs(each.weight), 1.0) for each in sums):
            return _SUMS
        return ""

    def _compare(
        self, variable: str, parts: _Parts, expected: _Parts
    ) -> Sequence[Finding] | Unread:
        (alone,) = expected.towers.values()
        shares = self._shares(parts)
        ratios: dict[int, list[float]] = {}
        for tower, terms in sorted(parts.towers.items()):
            if _kinds(terms) != _kinds(alone):
                return [self._other_terms(variable, terms, tower, len(alone))]
            ratios[tower] = [
                _ratio(each.weight, expected.weight * (1.0 if each.adds_up else shares[tower]))
                for each, expected in zip(terms, alone, strict=True)
            ]
        factor = next(iter(ratios.values()))[0]
        if not all(_close(ratio, each[0]) for each in ratios.values() for ratio in each):
            return [self._unequal_terms(variable, parts, ratios)]
        if not all(_close(each[0], factor) for each in ratios.values()):
            return [self._uneven(variable, parts, ratios, shares)]
        if not factor:
            self._scaled[variable] = factor, len(parts.towers)
            return []
        scale = self._rule.scale
        factors = [factor]
        if self._adds_up_rows(parts, alone):
            factors.append(1.0)
        if not any(_close(each, scale) for each in factors) and (
            scale != 1 or not self._compensated(variable, factor)
        ):
            if any(each.kind == "sum" for each in alone):
                return Unread("", _SUMS)
            self._scaled[variable] = factor, len(parts.towers)
            # The factor may be applied before penalties are added.
            if parts.penalties and all(
                _close(weight, expected.penalties.get(key, 0.0))
                for key, weight in parts.penalties.items()
            ):
                self._penalties_are_right = True
                return []
        findings = []
        for key in sorted(parts.penalties.keys() | expected.penalties.keys(), key=str):
            weight = parts.penalties.get(key, 0.0)
            on_one = expected.penalties.get(key, 0.0)
            if not any(_close(weight / each, on_one) for each in factors):
                findings.append(self._penalized(variable, key.kind, weight / factor, on_one))
        return findings

    @staticmethod
    def _function(parts: _Parts) -> str:
        """Return the op of a loss that is a function of means; ``""`` if there is none."""
        terms = (each.term for of_tower in parts.towers.values() for each in of_tower)
        functions = (producer_of(term.tensor) for term in terms if term.kind == "function")
        return next(functions, "") if len(parts.towers) > 1 else ""

    def _own_count(self, parts: _Parts) -> str:
        """Return an op that counts rows of one tower by their values; ``""`` if there is none."""
        terms = [each for of_tower in parts.towers.values() for each in of_tower]
        counts = (each.term.rows for each in terms if each.term.is_weighted and not each.adds_up)
        first = next(counts, "") if len(parts.towers) > 1 else ""
        return producer_of(self._many.scalars.describe(first)) if first else ""

    def _adds_up_rows(self, parts: _Parts, alone: Sequence[_TermWeight]) -> bool:
        """Whether all terms are sums over a known number of rows, and count each row once.

        If each GPU has the same number of rows as a single GPU, such a sum grows with the number
        of GPUs. It is still the objective of a program that adds up the losses of all rows.
        """
        sides = [(self._one, alone), *((self._many, each) for each in parts.towers.values())]
        return all(
            (size := side.elements(each.term)) > 0
            and side.op_type(each.term) != MEAN
            and _close(abs(each.weight), size)
            for side, terms in sides
            for each in terms
        )

    def _compensated(self, variable: str, factor: float) -> bool:
        """Whether the learning rate is divided by the factor of the gradients."""
        many, one = self._many.learning_rate(variable), self._one.learning_rate(variable)
        if many is None or one is None or not one.coefficient:
            return False
        is_compensated = len(many.factors) == len(one.factors) and _close(
            factor * many.coefficient, one.coefficient
        )
        if is_compensated:
            self.compensated[variable] = factor
        return is_compensated

    def _shares(self, parts: _Parts) -> Mapping[int, float]:
        """Return the part of all rows that each tower has; equal parts if it is unknown."""
        sizes = self._rule.shares
        if len(sizes) != len(parts.towers):
            sizes = tuple(
                self._many.elements(terms[0].term) for _, terms in sorted(parts.towers.items())
            )
        if not all(sizes):
            sizes = (1,) * len(parts.towers)
            means = [each for terms in parts.towers.values() for each in terms if not each.adds_up]
            self.assumes_equal_rows |= len(sizes) > 1 and bool(means)
        return dict(zip(sorted(parts.towers), (size / sum(sizes) for size in sizes), strict=True))

    def _scaled_by(self, variable: str, factor: float, towers: int) -> Finding:
        from placement_checks.numerics.diagnosis import scaled_steps

        fixes = self._fixes
        if self._penalties_are_right and self.parts_name == "towers":
            fixes = fixes._replace(added_up=_DIVIDE_LOSSES, divided=_KEEP_LOSSES)
        if _close(factor, towers):
            mistake: Mistake = "sum"
            added = "losses" if self._penalties_are_right else "gradients"
            what = f"the {added} of {towers} {self.parts_name} are added up instead of averaged"
            fix = fixes.added_up
        elif _close(factor * towers, 1.0):
            mistake = "divided"
            what = (
                f"the gradients are divided by the number of {self.parts_name}, {towers}, once "
                "too often"
            )
            fix = fixes.divided
        else:
            mistake = "scaled"
            what = f"all its terms are multiplied by {factor:.4g}"
            fix = "undo the factor, such as a loss scale, before the gradients are applied"
        if factor and not self._penalties_are_right:
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
            at=self._lines_of_terms(variable),
        )

    def _lines_of_terms(self, variable: str) -> Sequence[str]:
        """Return the terms that depend on examples, if replicas multiply only these by a factor.

        The op that yields the loss may be a later sum with the penalties. The result is empty if
        no term has a source line.
        """
        formula = self._many.formulas[variable]
        if not self._penalties_are_right or self.parts_name != "replicas":
            return ()
        terms = [] if isinstance(formula, Unread) else [each.term for each in formula]
        ops = [producer_of(term.tensor) for term in terms if term.kind != "penalty"]
        return ops if any(map(self._placement.details.frames, ops)) else ()

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
        found = (
            None
            if self.parts_name != "towers"
            else rows_of_other_towers(self._placement, variable)
        )
        if found is None:
            return None
        op, towers = found
        analysis = self._many.analysis
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
        self, variable: str, parts: _Parts, ratios: Mapping[int, Sequence[float]]
    ) -> Finding:
        tower = next(tower for tower, each in ratios.items() if not _close(min(each), max(each)))
        factors = listed(
            [
                f"{ratio:.4g} for {producer_of(each.term.tensor)}"
                for ratio, each in zip(ratios[tower], parts.towers[tower], strict=True)
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
            ops=[producer_of(each.term.tensor) for each in parts.towers[tower]],
        )

    def _uneven(
        self,
        variable: str,
        parts: _Parts,
        ratios: Mapping[int, Sequence[float]],
        shares: Mapping[int, float],
    ) -> Finding:
        from placement_checks.numerics.diagnosis import integer_shares

        towers = self._many.analysis.towers
        are_means = not any(each.adds_up for terms in parts.towers.values() for each in terms)
        intended = integer_shares([ratios[tower][0] * shares[tower] for tower in ratios])
        declared = (
            f"; if unequal shares are intended: --set 'gradients-averaged.shares={intended}'"
            if are_means and intended
            else ""
        )
        factors = listed(
            [f"{min(each):.4g} on {towers[tower]}" for tower, each in ratios.items()], limit=4
        )
        fix = (
            "multiply the gradients of each tower by its share of the rows: "
            f"placement_checks.average_gradients(tower_grads, weights=rows){declared}"
        )
        consequence = "the rows of one tower count more than the rows of another"
        if len({each[0] < 0 for each in ratios.values()}) > 1:
            fix = "give the losses of all towers the same sign"
            consequence = "the gradients of some towers undo the gradients of others"
        return self._finding(
            variable,
            "weights",
            None,
            group_key=factors,
            message=f"the losses of the {self.parts_name} do not count equally in the update of "
            f"{variable}; their factors, compared with one GPU: {factors}",
            fix=fix,
            consequence=consequence,
        )

    def _other_terms(
        self, variable: str, of_tower: Sequence[_TermWeight], tower: int, expected: int
    ) -> Finding:
        towers = self._many.analysis.towers
        terms = len(of_tower)
        return self._finding(
            variable,
            "",
            None,
            group_key=terms,
            message=f"the loss of the tower on {towers[tower]} has {plural(terms, 'term')} that "
            f"{'depends' if terms == 1 else 'depend'} on {variable} and on examples, and the loss "
            f"of another tower has {expected}",
            fix="give the losses of all towers the same terms",
            consequence="the model is trained by an objective that depends on the tower",
            ops=[producer_of(each.term.tensor) for each in of_tower],
        )

    def _penalized(self, variable: str, kind: str, weight: float, expected: float) -> Finding:
        return self._finding(
            variable,
            "penalty",
            weight / expected if expected else None,
            group_key=f"{weight:.4g}",
            message=f"the penalty ({kind}) on {variable} has the coefficient {weight:.4g} in all "
            f"{self.parts_name} together, and {expected:.4g} on one GPU",
            fix=self._fixes.penalty,
            consequence="the weights decay more than on one GPU"
            if weight > expected
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
        names = self._many.analysis.flow.names
        updates = [names[update.op] for update in self._many.updates(variable)]
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


def _kinds(terms: Sequence[_TermWeight]) -> list[tuple[str, Factors]]:
    return [(each.kind, each.factors) for each in terms]


def _ratio(weight: float, expected: float) -> float:
    """Return the ratio of two weights; 1 if both are 0, as for a disabled term."""
    if expected:
        return weight / expected
    return inf if weight else 1.0


def _close(one: float, other: float) -> bool:
    return isclose(one, other, rel_tol=_TOLERANCE, abs_tol=1e-12)
