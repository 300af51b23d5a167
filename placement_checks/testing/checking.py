"""What the assertions share: they tell what they find once, with its line and the fix.

What assertions have in common that run a program beside its reference.

What programs are called in tests, of which many may have a function of the same name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from placement_checks.core.evidence import Evidence
from placement_checks.core.placement import NOT_ASKED, Placement
from placement_checks.core.results import Report, Verdict, by_impact
from placement_checks.report.common.findings import Sections, group_findings
from placement_checks.report.text.findings import (
    allot_lines,
    finding_lines,
    first_lines,
    line_counts,
)
from placement_checks.testing import checking, running_test
from placement_checks.testing.program_names import program_name
from placement_checks.util.text import file_size, plural, printable
from placement_checks.verification import configuration
from placement_checks.verification.judging import verify
from placement_checks.verification.placing import requested
from placement_checks.verification.policy import Policy
from placement_checks.verification.running import with_numbers

if TYPE_CHECKING:
    from placement_checks.core.evidence import Evidence
    from placement_checks.core.program import Batch, Target


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
    groups = group_findings(verdict.findings)
    if running_test.all_findings:
        told = finding_lines(groups, placement, everything=True)
    else:
        (shown,) = allot_lines([line_counts(groups, placement)], _LINES)
        told = first_lines(groups, max(1, shown), _HINT, placement)
    yield from (line.text for line in told)


def check_run(
    rule: str, towers: Target, single: Target, batch: Batch, gpus: int, /, **fields: Any
) -> None:
    """Assert one rule on what running gives; for fields see `checking.check_rule`.

    Raises:
        AssertionError: the rule is broken, or nothing could be compared; the message lists every
            finding.
        ConfigError: a field that does not fit.
        InputError: a program or the batch function is at fault.
    """
    __tracebackhide__ = True
    _check(towers, single, batch, gpus, {rule: checking.without_none(fields)})


def assert_training_equal(
    towers: Target,
    single: Target,
    batch: Batch = None,
    *,
    gpus: int = 2,
    steps: int = 3,
    tolerance: float | None = None,
    noise: float | None = None,
    scale: float | None = None,
    shares: Sequence[int] | None = None,
    statistics: str | None = None,
    allow: Sequence[str] | str | None = None,
    rows: int | None = None,
    seconds: float | None = None,
) -> None:
    """Assert that towers get the gradients of one GPU, and after some steps its variables.

    The first four arguments are those of `assert_gradients_equal`, the last eight the fields of
    the rule `gradients-equal`; `tolerance` and `allow` hold for `weights-equal` too, and
    `steps` is how many are taken.

    Raises:
        AssertionError: a gradient, weight, slot, statistic or counter differs, or nothing could be
            compared.
        ConfigError: a field that does not fit.
        InputError: a program or the batch function is at fault.
    """
    __tracebackhide__ = True
    shared = checking.without_none({"tolerance": tolerance, "allow": allow})
    own = {
        "noise": noise,
        "scale": scale,
        "shares": shares,
        "statistics": statistics,
        "rows": rows,
        "seconds": seconds,
    }
    policy = {
        "gradients-equal": shared | checking.without_none(own),
        "weights-equal": shared | {"steps": steps},
    }
    _check(towers, single, batch, gpus, policy)


def _check(towers: Target, single: Target, batch: Batch, gpus: int, policy: Policy) -> None:
    """Run both programs, and assert the rules that the policy names."""
    __tracebackhide__ = True
    evidence = with_numbers(
        requested(towers, gpus=gpus),
        single,
        batch,
        devices=running_test.devices,
        policies=[policy],
        only=list(policy),
    )
    own = configuration.Settings(policy=evidence.policy)
    merged = configuration.Settings(policy=policy).defaulting_to(own).policy
    checking.assert_rules(replace(evidence, policy=merged), *policy)
