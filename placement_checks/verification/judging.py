"""Judges a program by the rules, finds the root causes of its findings, and orders them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from placement_checks.core.errors import as_error
from placement_checks.core.evidence import Evidence
from placement_checks.core.facts import Fact, FactKind
from placement_checks.core.placement import Placement
from placement_checks.core.results import Finding, Report, Verdict, worst_impact
from placement_checks.rules.base import Rule
from placement_checks.util.progress import step
from placement_checks.util.resources import gc_paused
from placement_checks.verification.policy import judged_by, rules_for


def verify(
    evidence: Evidence | Placement,
    policies: Sequence[Mapping[str, Mapping[str, Any]]] = (),
    *,
    only: Collection[str] = (),
    without: Collection[str] = (),
) -> Report:
    """Judge a program.

    Args:
        evidence: the return value of `place`, or a placement alone.
        policies: parameters of rules; if several policies set a field, the first one applies. The
            program's own policy comes after them.
        only: names of rules; empty for all rules.
        without: names of rules to skip.

    Raises:
        UsageError: a rule does not exist, or the program was not placed before.
        ConfigError: a policy names an unknown rule or field, or a value is invalid.
    """
    __tracebackhide__ = True
    evidence = Evidence.wrap(evidence)
    return judge(replace(evidence, settings=judged_by(evidence.settings, policies, only, without)))


def judge(evidence: Evidence) -> Report:
    """Judge a program by the rules that its settings select.

    Raises:
        UsageError: a rule does not exist, or no rule is left.
    """
    __tracebackhide__ = True
    rules = rules_for(evidence.settings)
    with step(f"judging {evidence.placement.program}"), gc_paused():
        verdicts = [_judge(rule, evidence) for rule in rules]
    verdicts = with_causes(verdicts, [rule.states for rule in rules])
    return Report(evidence, in_order(map(_with_headline, verdicts, rules)))


def _judge(rule: Rule, evidence: Evidence) -> Verdict:
    """The verdict of a rule.

    A rule that raises an exception is not checked. If the placement is incomplete, rules that
    would be kept are not checked, and neither are rules that absent ops would break.
    """
    try:
        verdict = rule.judge(evidence)
    except Exception as fault:
        error = as_error(evidence.placement.program, fault)
        reason = "; ".join(filter(None, (error.message, error.fix)))
        verdict = Verdict(rule.name, "not-checked", None, reason, error=error, fix=error.fix)
    if verdict.findings:
        findings = [
            replace(finding, impact=finding.impact or rule.impact) for finding in verdict.findings
        ]
        verdict = replace(verdict, findings=findings)
    unproven = ("kept", "broken", "doubtful") if rule.by_absence else ("kept",)
    complete = evidence.placement.complete
    if not complete and verdict.state in unproven:
        return rule.not_checked(complete.reason, verdict.note)
    return verdict


def _with_headline(verdict: Verdict, rule: Rule) -> Verdict:
    """Add the headline of the root causes."""
    roots = [finding for finding in verdict.findings if finding.is_root]
    return replace(verdict, headline=rule.headline(roots)) if roots else verdict


def with_causes(verdicts: Sequence[Verdict], kinds: Sequence[FactKind | None]) -> list[Verdict]:
    """Set ``follows`` of each finding to the rule of its root cause.

    Groups of findings from which more findings follow come first.

    Args:
        verdicts: the verdicts of all rules on one program.
        kinds: for each verdict, the kind of facts that the findings of its rule state.
    """
    return list(_Causes(verdicts, kinds).verdicts())


def in_order(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """Put verdicts, and the findings of each verdict, into the order of all reports.

    Broken rules come first, then doubtful rules, then the others. Broken rules are in the order of
    their impact, and then of the number of findings that follow from them. A rule without a root
    cause comes after the rules that have one. The findings of a rule are root causes, by impact,
    then consequences, then doubts. Otherwise the order does not change.
    """
    verdicts = list(verdicts)
    followers = Counter(
        finding.follows for verdict in verdicts for finding in verdict.findings if finding.follows
    )

    def key(verdict: Verdict) -> tuple[bool | int, ...]:
        roots = [each for each in verdict.findings if each.is_root]
        return (
            not verdict.findings,
            verdict.state == "doubtful",
            not roots,
            worst_impact(roots or verdict.findings),
            -followers[verdict.rule],
        )

    return sorted(map(_with_findings_in_order, verdicts), key=key)


def _with_findings_in_order(verdict: Verdict) -> Verdict:
    def key(finding: Finding) -> tuple[bool | int, ...]:
        impact = worst_impact([finding])
        return finding.is_doubt, finding.follows is not None, impact

    findings = sorted(verdict.findings, key=key)
    return replace(verdict, findings=findings) if findings else verdict


class _Causes:
    """The forest of findings: each finding follows from at most one other finding.

    A finding is a pair of indices: its verdict, and its place in the verdict.
    """

    def __init__(self, verdicts: Sequence[Verdict], kinds: Sequence[FactKind | None]) -> None:
        self._verdicts = verdicts
        self._kinds = kinds
        # The first finding of each rule that states a fact of a kind, or a fact.
        self._of_kind: dict[FactKind, dict[int, _Index]] = defaultdict(dict)
        self._stating: dict[Fact, dict[int, _Index]] = defaultdict(dict)
        for index in self._indices():
            for fact in self._facts(index):
                stated = Fact(fact.kind) if fact.is_general else fact
                self._of_kind[fact.kind].setdefault(index[0], index)
                self._stating[stated].setdefault(index[0], index)
        self._causes = {index: self._cause(index) for index in self._indices()}
        self._roots = {index: self._root(index) for index in self._indices()}
        self._followers: dict[_Index, list[Finding]] = defaultdict(list)
        for index, root in self._roots.items():
            if root != index:
                self._followers[root].append(self._finding(index))

    def verdicts(self) -> Iterator[Verdict]:
        """Yields the verdicts with the root causes of their findings."""
        for number, verdict in enumerate(self._verdicts):
            yield (
                replace(verdict, findings=self._findings(number)) if verdict.findings else verdict
            )

    def _indices(self) -> Iterator[_Index]:
        for number, verdict in enumerate(self._verdicts):
            yield from ((number, place) for place in range(len(verdict.findings)))

    def _finding(self, index: _Index) -> Finding:
        number, place = index
        return self._verdicts[number].findings[place]

    def _facts(self, index: _Index) -> Sequence[Fact]:
        """The facts that a finding states. A doubt states no fact."""
        finding, kind = self._finding(index), self._kinds[index[0]]
        if finding.is_doubt or kind is None:
            return ()
        subjects = dict.fromkeys((finding.object, *finding.ops, *finding.others))
        return finding.facts or [Fact(kind, subject) for subject in subjects]

    def _cause(self, index: _Index) -> _Index | None:
        """The first finding of another rule that states a cause of this finding."""
        finding = self._finding(index)
        searched: list[Fact] = []
        for fact in self._facts(index):
            if fact.subject == finding.object:
                searched += fact.causes()
        for fact in finding.may_follow:
            searched += (fact, *fact.causes())
        for fact in searched:
            if fact.is_general:
                found = [*self._of_kind.get(fact.kind, {}).values()]
            else:
                stated = (self._stating.get(each, {}) for each in (fact, Fact(fact.kind)))
                found = [cause for by_rule in stated for cause in by_rule.values()]
            for cause in found:
                if cause[0] != index[0]:
                    return cause
        return None

    def _root(self, index: _Index) -> _Index:
        """The finding at the end of the chain of causes; of a circle, its first finding."""
        chain = [index]
        while (cause := self._causes[chain[-1]]) is not None:
            if cause in chain:
                return min(chain[chain.index(cause) :])
            chain.append(cause)
        return chain[-1]

    def _findings(self, number: int) -> list[Finding]:
        """The findings of a verdict, with their root causes; first those that explain most."""
        found, following = [], Counter[Hashable]()
        for place, finding in enumerate(self._verdicts[number].findings):
            root, followers = self._roots[number, place], self._followers[number, place]
            follows = None if root == (number, place) else self._verdicts[root[0]].rule
            impact = worst_impact([finding, *followers])  # of the whole mistake
            found.append(replace(finding, follows=follows, impact=impact))
            following[finding.group] += len(followers)
        return sorted(found, key=lambda finding: -following[finding.group])


_Index = tuple[int, int]
