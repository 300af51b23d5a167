"""Judges a program by the rules, and finds the root causes of its findings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from placement_checks.core.errors import as_error
from placement_checks.core.evidence import Evidence
from placement_checks.core.placement import Placement
from placement_checks.core.results import Finding, Report, Verdict
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
    verdicts = with_causes(
        verdicts,
        {rule.name: rule.explained_by for rule in rules},
        {rule.name for rule in rules if rule.explained_by_any},
    )
    return Report(evidence, _with_headlines(verdicts, rules))


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
    unproven = ("kept", "broken") if rule.by_absence else ("kept",)
    complete = evidence.placement.complete
    if not complete and verdict.state in unproven:
        return rule.not_checked(complete.reason, verdict.note)
    return verdict


def _with_headlines(verdicts: Sequence[Verdict], rules: Sequence[Rule]) -> list[Verdict]:
    """Add the headlines of the findings that do not follow from other rules."""
    roots = {
        verdict.rule
        for verdict in verdicts
        if any(finding.follows is None for finding in verdict.findings)
    }
    causes = [
        [finding for finding in verdict.findings if finding.follows not in roots]
        for verdict in verdicts
    ]
    return [
        replace(verdict, headline=rule.headline(own)) if own else verdict
        for verdict, rule, own in zip(verdicts, rules, causes, strict=True)
    ]


def with_causes(
    verdicts: Sequence[Verdict],
    explained_by: Mapping[str, Sequence[str]],
    by_any: Collection[str] = (),
) -> list[Verdict]:
    """Set ``follows`` of each finding to the rule of its root cause.

    Args:
        verdicts: the verdicts of all rules on one program.
        explained_by: for each rule, the rules that may explain its findings. A finding is
            explained by the first of these rules that has a finding on the same object.
        by_any: the rules whose findings are otherwise explained by a finding on any object.
    """
    found = {}  # by rule, the findings by object, and by the ops that show the breach
    for verdict in verdicts:
        by_op = {name: each for each in verdict.findings for name in (*each.ops, *each.others)}
        found[verdict.rule] = by_op | {each.object: each for each in verdict.findings}
    causes = {
        verdict.rule: [
            _root_cause(each, verdict.rule, found, explained_by)
            or _any_cause(verdict.rule, found, explained_by, by_any)
            for each in verdict.findings
        ]
        for verdict in verdicts
    }
    return [
        replace(
            verdict,
            findings=[
                replace(each, follows=_last_cause(cause, causes))
                for each, cause in zip(verdict.findings, causes[verdict.rule], strict=True)
            ],
        )
        if verdict.findings
        else verdict
        for verdict in verdicts
    ]


def _last_cause(cause: str | None, causes: Mapping[str, Sequence[str | None]]) -> str | None:
    """The rule that a cause follows from, if all findings of the cause follow from other rules.

    Args:
        cause: the root cause of a finding, which may be a rule that the finding itself names.
        causes: for each rule, the root causes of its findings.
    """
    seen = set()
    while cause is not None and cause not in seen:
        seen.add(cause)
        further = Counter(causes.get(cause, ()))
        if not further or None in further:
            return cause
        ((cause, _),) = further.most_common(1)
    return cause


def _any_cause(
    rule: str,
    found: Mapping[str, Mapping[str, Finding]],
    explained_by: Mapping[str, Sequence[str]],
    by_any: Collection[str],
) -> str | None:
    """The first rule that explains findings on any object; None if it has no finding."""
    causes = explained_by.get(rule, ()) if rule in by_any else ()
    return next((cause for cause in causes if found.get(cause)), None)


def _root_cause(
    finding: Finding,
    rule: str,
    found: Mapping[str, Mapping[str, Finding]],
    explained_by: Mapping[str, Sequence[str]],
) -> str | None:
    """The rule at the end of the chain of causes; None if the finding is a root cause.

    A cause that the finding itself names counts only if this rule has a finding. It may be kept on
    another machine, or not be selected.
    """
    cause = finding.follows if found.get(finding.follows or "") else None
    seen = {rule}
    while True:
        for other in explained_by.get(rule, ()):
            if other not in seen and finding.object in found.get(other, {}):
                break
        else:
            return cause
        finding = found[other][finding.object]
        rule = cause = other
        seen.add(other)
