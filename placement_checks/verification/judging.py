"""The main job: judge one placement by the rules.

Root causes: a finding that another rule's finding on the same object explains follows it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from placement_checks.core.errors import as_error
from placement_checks.core.evidence import Evidence
from placement_checks.core.placement import Placement
from placement_checks.core.results import Finding, Report, Verdict
from placement_checks.rules.base import Rule
from placement_checks.rules.registry import impact_of
from placement_checks.util.progress import step
from placement_checks.util.resources import gc_paused
from placement_checks.verification.policy import Policy, policy_errors, rules_for

_ByObject = Mapping[str, Finding]


def with_causes(
    verdicts: Sequence[Verdict], explained_by: Mapping[str, Sequence[str]]
) -> list[Verdict]:
    """The verdicts, with the rule named that each of their findings follows from.

    Args:
        verdicts: of all rules that judged one program.
        explained_by: for each rule those whose finding on an object explains its own on that
            object; the first that has one counts.
    """
    found = {verdict.rule: _by_object(verdict) for verdict in verdicts}

    def with_its(verdict: Verdict) -> Verdict:
        findings = [
            replace(finding, follows=_root(finding, verdict.rule, found, explained_by))
            for finding in verdict.findings
        ]
        return replace(verdict, findings=findings) if findings else verdict

    return [with_its(verdict) for verdict in verdicts]


def _by_object(verdict: Verdict) -> _ByObject:
    """The findings by what they are about: their objects, and the ops that show the breach."""
    by_op = {
        name: finding for finding in verdict.findings for name in (*finding.ops, *finding.others)
    }
    return by_op | {finding.object: finding for finding in verdict.findings}


def _root(
    finding: Finding,
    rule: str,
    found: Mapping[str, _ByObject],
    explained_by: Mapping[str, Sequence[str]],
) -> str | None:
    """The rule that a finding follows from, at the end of the chain; None for a root cause."""
    cause, seen = finding.follows, {rule}
    while True:
        step = next(
            (
                each
                for each in explained_by.get(rule, ())
                if each not in seen and finding.object in found.get(each, {})
            ),
            None,
        )
        if step is None:
            return cause
        finding, rule, cause = found[step][finding.object], step, step
        seen.add(step)


def verify(
    evidence: Evidence | Placement,
    policies: Sequence[Policy] = (),
    *,
    only: Collection[str] = (),
    without: Collection[str] = (),
) -> Report:
    """Judge a program.

    Args:
        evidence: what `place` gives, or a placement alone.
        policies: parameters of rules; where two name the same one, the first counts. The
            program's own policy comes after them.
        only: names of rules; empty for all.
        without: names of rules to leave out.

    Raises:
        UsageError: a rule does not exist, or the program was not placed before.
        ConfigError: a policy names a rule or field that does not exist, or a value is not valid.
    """
    evidence = Evidence.of(evidence)
    rules = rules_of(evidence, policies, only, without)
    with step(f"judging {evidence.placement.program}"), gc_paused():
        verdicts = [_judged(rule, evidence) for rule in rules]
    return Report(
        evidence, with_causes(verdicts, {rule.name: rule.explained_by for rule in rules})
    )


def _judged(rule: Rule, evidence: Evidence) -> Verdict:
    """The verdict of a rule; a placement read in part keeps none, nor breaks one by absence."""
    verdict = _with_impact(rule, _verdict(rule, evidence))
    unproven = ("kept", "broken") if rule.by_absence else ("kept",)
    complete = evidence.placement.complete
    if not complete and verdict.state in unproven:
        return rule.not_checked(complete.reason, verdict.note)
    return verdict


def _with_impact(rule: Rule, verdict: Verdict) -> Verdict:
    """The verdict, with the impact of each finding that has none."""
    findings = [
        replace(finding, impact=finding.impact or impact_of(type(rule), finding.op))
        for finding in verdict.findings
    ]
    return replace(verdict, findings=findings) if findings else verdict


def _verdict(rule: Rule, evidence: Evidence) -> Verdict:
    """What a rule says; one that raises is not checked, and the others are judged."""
    try:
        return rule.judge(evidence)
    except Exception as fault:
        error = as_error(evidence.placement.program, fault)
        reason = f"{error.message}; {error.fix}"
        return Verdict(rule.name, "not-checked", None, reason, error=error)


def rules_of(
    evidence: Evidence,
    policies: Sequence[Policy] = (),
    only: Collection[str] = (),
    without: Collection[str] = (),
) -> list[Rule]:
    """The rules by which a program is judged, each with its parameters; as for `verify`."""
    __tracebackhide__ = True
    for policy in policies:
        for wrong in policy_errors(policy):
            raise wrong
    for wrong in policy_errors(evidence.policy, f"policy of {evidence.placement.program}: "):
        raise wrong
    return rules_for([*policies, evidence.policy], only=only, without=without)
