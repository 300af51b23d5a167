"""The main job: judge one placement by the rules."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from placement_checks.core.errors import as_error
from placement_checks.core.evidence import Evidence
from placement_checks.core.placement import Placement
from placement_checks.core.results import Report, Verdict
from placement_checks.rules.base import Rule
from placement_checks.rules.registry import impact_of
from placement_checks.util.garbage import gc_paused
from placement_checks.util.progress import doing
from placement_checks.verification.causes import with_causes
from placement_checks.verification.policy import Policy, policy_errors, rules_for


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
    with doing(f"judging {evidence.placement.program}"), gc_paused():
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
