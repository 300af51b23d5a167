"""Tables of test cases for a rule. Each case has a program, an expected state and a snapshot.

`test_verdicts = verdicts(LossesApart, {"two towers": kept(program())})` is a test with one case.
The snapshot is the verdict as text, in the directory ``__snapshots__`` next to the test. `pytest
--snapshot-update` writes it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from placement_checks import Evidence, Finding, Placement, Report, Verdict
from placement_checks.core.results import State
from placement_checks.report.common.findings import Group, group_findings
from placement_checks.rules.base import Rule


@dataclass(frozen=True)
class Case:
    """A program, the parameters of the rule, and the state of the rule's verdict."""

    state: State
    program: Evidence | Placement
    parameters: Mapping[str, Any]


def kept(program: Evidence | Placement, **parameters: Any) -> Case:
    return Case("kept", program, parameters)


def broken(program: Evidence | Placement, **parameters: Any) -> Case:
    return Case("broken", program, parameters)


def doubtful(program: Evidence | Placement, **parameters: Any) -> Case:
    return Case("doubtful", program, parameters)


def not_checked(program: Evidence | Placement, **parameters: Any) -> Case:
    return Case("not-checked", program, parameters)


def verdicts(
    rule: type[Rule], cases: Mapping[str, Case]
) -> Callable[[Case, SnapshotAssertion], None]:
    """A test of each case, which has the case's name as its id."""

    @pytest.mark.parametrize("case", cases.values(), ids=cases)
    def test_verdicts(case: Case, snapshot: SnapshotAssertion) -> None:
        check_case(rule, case, snapshot)

    return test_verdicts


def check_case(rule: type[Rule], case: Case, snapshot: SnapshotAssertion) -> None:
    """Assert that a rule's verdict has the state of the case and equals the snapshot."""
    verdict = rule(**case.parameters).judge(case.program)
    text = verdict_text(verdict)
    assert verdict.state == case.state, text
    assert text == snapshot
    # Reports write figures as JSON.
    assert json.loads(json.dumps([*verdict.figures], allow_nan=False)) == [*verdict.figures]


def of_rules(report: Report, *rules: str) -> list[Verdict]:
    """The verdicts of some rules, in this order. A report has the order of their findings."""
    by_rule = {verdict.rule: verdict for verdict in report.verdicts}
    return [by_rule[rule] for rule in rules]


def verdict_text(verdict: Verdict) -> str:
    """A verdict as text for a snapshot. Findings that reports show as one have one fix."""
    return "\n".join(_lines(verdict))


def _lines(verdict: Verdict) -> Iterator[str]:
    remark = "one tower" if verdict.one_tower else verdict.evidence
    yield f"{verdict.state} ({remark})" if remark else verdict.state
    if verdict.reason is not None:
        yield f"reason: {verdict.reason}"
    if verdict.note is not None:
        yield f"note: {verdict.note}"
    for figure in verdict.figures:
        yield f"figure: {', '.join(f'{key} {_short(value)}' for key, value in figure.items())}"
    for group in group_findings(verdict.findings):
        yield from _group_lines(group)


def _group_lines(group: Group) -> Iterator[str]:
    for finding in group.findings:
        yield from _finding_lines(finding)
    consequences = dict.fromkeys(finding.consequence for finding in group.findings)
    yield from (f"  consequence: {each}" for each in consequences if each != "")
    yield f"  {group.first.advice}"


def _finding_lines(finding: Finding) -> Iterator[str]:
    yield f"- {finding.object} ({finding.op})" if finding.op else f"- {finding.object}"
    if finding.where:
        calls = f" ({' > '.join(finding.frames)})" if len(finding.frames) > 1 else ""
        yield f"  line: {finding.where}{calls}"
    if finding.device_line:
        yield f"  device requested at: {finding.device_line}"
    yield f"  {finding.message}"
    yield f"  evidence: {finding.evidence}"
    if finding.devices:
        yield f"  devices: {', '.join(device.short for device in finding.devices)}"
    for step in finding.path:
        yield f"  path: {step}"
    if finding.impact:  # another impact than the rule's
        yield f"  impact: {finding.impact.name.lower()}"
    for fact in finding.may_follow:
        yield f"  may follow from: {fact.kind.name.lower()} {fact.subject}".rstrip()
    if finding.known:
        yield f"  known limit of: {finding.known}"
    for other in finding.others:
        yield f"  also: {other}"


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
