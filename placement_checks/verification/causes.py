"""Root causes: a finding that another rule's finding on the same object explains follows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from placement_checks.core.results import Finding, Verdict

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
