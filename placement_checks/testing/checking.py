"""What the assertions share: they tell what they find once, with its line and the fix."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from placement_checks.core.evidence import Evidence
from placement_checks.core.placement import NOT_ASKED, Placement
from placement_checks.core.results import Report, Verdict, by_impact
from placement_checks.report.groups import grouped
from placement_checks.report.sections import Sections
from placement_checks.report.text.budget import dealt
from placement_checks.report.text.finding_lines import costs, finding_lines, first_lines
from placement_checks.testing import running_test
from placement_checks.testing.naming import program_name
from placement_checks.util.printable import printable
from placement_checks.util.text import file_size, plural
from placement_checks.verification.judging import verify

_LINES = 40  # of the findings of a rule
_HINT = "pytest -vv shows them"


def assert_rules(
    evidence: Evidence | Placement, *rules: str, one_tower: Collection[str] = ()
) -> None:
    """Assert that a placement keeps the named rules, or all of them that can be checked.

    The program's own policy counts. A rule that is named and cannot be checked fails.

    Args:
        evidence: what `place` gives, or a placement alone.
        rules: their names.
        one_tower: those of them that need not be checked where the program has one tower.

    Raises:
        AssertionError: a rule is broken, or a named one could not be checked.
        UsageError: a rule does not exist.
        ConfigError: the program's policy is wrong.
    """
    __tracebackhide__ = True
    evidence = Evidence.of(evidence)
    verdicts = _verdicts(verify(evidence, only=rules))
    if broken := messages(evidence, verdicts):
        raise AssertionError("\n\n".join(broken))
    unchecked = [
        verdict
        for verdict in verdicts
        if verdict.state == "not-checked" and not (verdict.one_tower and verdict.rule in one_tower)
    ]
    for verdict in unchecked:
        if verdict.rule in rules or len(unchecked) == len(verdicts):
            _not_checked(evidence, verdict)


def check_rule(evidence: Evidence | Placement, rule: str, /, **fields: Any) -> None:
    """Assert one rule; a field that is None is that of the program's policy, else the rule's own.

    Raises:
        AssertionError: the rule is broken, or could not be checked; the message lists every
            finding.
        ConfigError: a field that does not fit.
    """
    __tracebackhide__ = True
    policy = {rule: without_none(fields)}
    evidence = Evidence.of(evidence)
    (verdict,) = _verdicts(verify(evidence, [policy], only=[rule]))
    if verdict.state == "not-checked":
        _not_checked(evidence, verdict)
    if verdict.state == "broken":
        raise AssertionError(_message(evidence, verdict))


def without_none(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that a call sets; None stands for one that it leaves open."""
    return {name: value for name, value in fields.items() if value is not None}


def _verdicts(report: Report) -> Sequence[Verdict]:
    """The verdicts, with which observers are called; a rule that raised is not a broken one.

    Raises:
        PlacementError: a rule raised; the rules that are broken are added as notes.
    """
    __tracebackhide__ = True
    for verdict in report.verdicts:
        for observer in running_test.observers:
            observer(report.evidence, verdict)
    if not report.errors:
        return report.verdicts
    error, *others = report.errors
    for other in others:
        error.add_note(str(other))
    for message in messages(report.evidence, report.verdicts):
        error.add_note(message)
    raise error


def _not_checked(evidence: Evidence, verdict: Verdict) -> NoReturn:
    """Fail a test whose rule was not checked; skip it where no placer can answer here."""
    __tracebackhide__ = True
    message = printable(
        f"{verdict.rule} could not be checked on {program_name(evidence)}: {verdict.reason}"
    )
    if cannot_be_placed(evidence.placement):
        import pytest

        pytest.skip(message)
    raise AssertionError(message)


def cannot_be_placed(placement: Placement) -> bool:
    """Whether a placer was asked and none can answer here."""
    return not placement.assigned and placement.assigned != NOT_ASKED and not placement.refusals


def messages(evidence: Evidence, verdicts: Sequence[Verdict]) -> Sequence[str]:
    """One for each broken rule; of one that follows from another no more than that."""
    sections = Sections(verdicts)
    return [
        _message(
            evidence,
            verdict,
            None if running_test.all_findings else sections.cause_of(verdict.rule),
        )
        for verdict in by_impact(verdicts)
        if verdict.state == "broken"
    ]


def _message(evidence: Evidence, verdict: Verdict, cause: str | None = None) -> str:
    placement, measurement = evidence.placement, evidence.measurement
    machine = f" on {placement.machine}" if placement.machine else ""
    headline = (
        f"{verdict.rule} is broken by {program_name(evidence)}{machine}: "
        f"{plural(len(verdict.findings), 'finding')}"
    )
    if cause and not running_test.all_findings:
        return printable(f"{headline}, which follow from {cause} ({_HINT})")
    lines = [headline, *_findings(verdict, placement)]
    if verdict.evidence == "executed" and measurement and measurement.saved:
        size = file_size(measurement.saved_bytes)
        what = f"the rows and first values are saved ({size})"
        lines.append(f"  {what}: batch='{measurement.saved}'")
    return "\n".join(map(printable, lines))


def _findings(verdict: Verdict, placement: Placement) -> Iterator[str]:
    groups = grouped(verdict.findings)
    if running_test.all_findings:
        told = finding_lines(groups, placement, everything=True)
    else:
        (shown,) = dealt([costs(groups, placement)], _LINES)
        told = first_lines(groups, max(1, shown), _HINT, placement)
    yield from (line.text for line in told)
