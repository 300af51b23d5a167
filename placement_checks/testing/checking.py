"""Assertions on a placement or a run; an AssertionError names the source lines and the fixes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from placement_checks.core.evidence import Evidence
from placement_checks.core.placement import NOT_ASKED, Placement
from placement_checks.core.results import Report, Verdict
from placement_checks.report.common.findings import group_findings
from placement_checks.report.text.findings import (
    allot_lines,
    finding_lines,
    first_lines,
    line_counts,
)
from placement_checks.targets.forms import resolve
from placement_checks.testing import running_test
from placement_checks.testing.program_names import program_name
from placement_checks.util.text import file_size, plural, printable
from placement_checks.verification.judging import judge, verify
from placement_checks.verification.placing import requested
from placement_checks.verification.policy import judged_by
from placement_checks.verification.running import with_runs

if TYPE_CHECKING:
    from placement_checks.core.program import Batch, TargetLike


_LINES = 40  # at most, for the findings of one rule
_HINT = "pytest -vv shows them"


def assert_rules(
    evidence: Evidence | Placement, *rules: str, one_tower: Collection[str] = ()
) -> None:
    """Assert that a program keeps the named rules, or every rule that can be checked.

    The policy of the program applies. Without names, the keys ``rules`` and ``without`` of
    ``[tool.placement_checks]`` select the rules for a program of the fixture `place`. The
    assertion also fails if a named rule could not be checked, or if no rule could be checked.

    Args:
        evidence: the return value of `place`, or a placement alone.
        rules: names of rules; by default, all rules that the settings select.
        one_tower: names of rules that may stay unchecked if the program has one tower.

    Raises:
        AssertionError: a rule is broken, or a named rule or all rules could not be checked.
        UsageError: a rule does not exist.
        ConfigError: the policy of the program is invalid.
    """
    __tracebackhide__ = True
    evidence = Evidence.wrap(evidence)
    if rules:
        selected = replace(evidence.settings, rules=rules, without=())
        evidence = replace(evidence, settings=selected)
    verdicts = _recorded_verdicts(judge(evidence))
    if broken := messages(evidence, verdicts):
        raise AssertionError("\n\n".join(broken))
    unchecked = [
        verdict
        for verdict in verdicts
        if verdict.state == "not-checked" and not (verdict.one_tower and verdict.rule in one_tower)
    ]
    for verdict in unchecked:
        if verdict.rule in rules or len(unchecked) == len(verdicts):
            _fail_unchecked(evidence, verdict)


def assert_training_equal(
    towers: TargetLike,
    single: TargetLike,
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
    """Assert that towers train like one GPU: equal gradients, and equal variables after steps.

    The first four arguments are the arguments of `assert_gradients_equal`; `steps` is the number
    of training steps. The other arguments are fields of the rule `gradients-equal`; `tolerance`
    and `allow` apply to `weights-equal` as well.

    Raises:
        AssertionError: a gradient, weight, slot, statistic or counter differs, or nothing could be
            compared.
        ConfigError: a field has an invalid value.
        InputError: a program or the batch function fails.
    """
    __tracebackhide__ = True
    shared: Mapping[str, Any] = {"tolerance": tolerance, "allow": allow}
    policy = {
        "gradients-equal": _without_none(
            noise=noise,
            scale=scale,
            shares=shares,
            statistics=statistics,
            rows=rows,
            seconds=seconds,
            **shared,
        ),
        "weights-equal": _without_none(steps=steps, **shared),
    }
    _assert_runs(towers, single, batch, gpus, policy)


def check_rule(evidence: Evidence | Placement, rule: str, /, **fields: Any) -> None:
    """Assert one rule.

    Args:
        evidence: the return value of `place`, or a placement alone.
        rule: the name of the rule.
        fields: values of its fields; None means the value of the program's policy, or the
            default.

    Raises:
        AssertionError: the rule is broken, or could not be checked; the message lists the
            findings.
        ConfigError: a field has an invalid value.
    """
    __tracebackhide__ = True
    evidence = Evidence.wrap(evidence)
    report = verify(evidence, [{rule: _without_none(**fields)}], only=[rule])
    (verdict,) = _recorded_verdicts(report)
    if verdict.state == "not-checked":
        _fail_unchecked(evidence, verdict)
    if verdict.state == "broken":
        raise AssertionError(_message(evidence, verdict))


def check_run(
    rule: str, towers: TargetLike, single: TargetLike, batch: Batch, gpus: int, /, **fields: Any
) -> None:
    """Assert one rule on the run of a program and its reference; for ``fields`` see `check_rule`.

    Raises:
        AssertionError: the rule is broken, or nothing could be compared; the message lists the
            findings.
        ConfigError: a field has an invalid value.
        InputError: a program or the batch function fails.
    """
    __tracebackhide__ = True
    _assert_runs(towers, single, batch, gpus, {rule: _without_none(**fields)})


def _assert_runs(
    towers: TargetLike, single: TargetLike, batch: Batch, gpus: int, policy: Mapping[str, Any]
) -> None:
    """Run both programs, and assert the rules of the policy."""
    __tracebackhide__ = True
    from placement_checks.testing.patches import check_patches

    evidence = requested(towers, gpus=gpus)
    check_patches(evidence)
    settings = judged_by(evidence.settings, [policy], list(policy))
    evidence = replace(evidence, settings=settings)
    devices = running_test.current().devices
    assert_rules(with_runs(evidence, resolve(single), batch, devices=devices), *settings.rules)


def _without_none(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _recorded_verdicts(report: Report) -> Sequence[Verdict]:
    """Record the verdicts for the summary, and return them.

    Raises:
        PlacementError: a rule raised an exception. The notes of the error have the messages of the
            broken rules.
    """
    __tracebackhide__ = True
    if record := running_test.current().record:
        for verdict in report.verdicts:
            record(report.evidence, verdict)
    if not report.errors:
        return report.verdicts
    error, *others = report.errors
    for note in (*map(str, others), *messages(report.evidence, report.verdicts)):
        error.add_note(note)
    raise error


def _fail_unchecked(evidence: Evidence, verdict: Verdict) -> NoReturn:
    """Fail the test, or skip it if no placer is available."""
    __tracebackhide__ = True
    message = printable(
        f"{verdict.rule} could not be checked on {program_name(evidence)}: {verdict.reason}"
    )
    if is_placer_unavailable(evidence.placement):
        import pytest

        pytest.skip(message)
    raise AssertionError(message)


def is_placer_unavailable(placement: Placement) -> bool:
    """Whether a placement lacks assigned devices because no placer is available here."""
    return not placement.assigned and placement.assigned != NOT_ASKED and not placement.refusals


def messages(evidence: Evidence, verdicts: Sequence[Verdict]) -> Sequence[str]:
    """Return a message for each broken rule, in the order of all reports.

    It counts the findings as `verify` does: findings that follow from another rule have a line.
    """
    return [_message(evidence, verdict) for verdict in verdicts if verdict.state == "broken"]


def _message(evidence: Evidence, verdict: Verdict) -> str:
    placement, measurement = evidence.placement, evidence.measurement
    machine = f" on {placement.machine.title}" if placement.machine else ""
    roots = [finding for finding in verdict.findings if finding.is_root]
    following = Counter(each.follows for each in verdict.findings if each.follows)
    parts = [f"{plural(len(roots), 'finding')}"] if roots else []
    parts += [
        f"{plural(number, 'finding')}, which {'follows' if number == 1 else 'follow'} from {cause}"
        for cause, number in following.items()
    ]
    broken = f"{verdict.rule} is broken by {program_name(evidence)}{machine}"
    if running_test.current().all_findings:
        groups = group_findings(each for each in verdict.findings if not each.is_doubt)
        findings = finding_lines(groups, everything=True)
    else:
        groups = group_findings(roots)
        (count,) = allot_lines([line_counts(groups)], _LINES)
        findings = first_lines(groups, max(1, count), _HINT)
        parts[-1] += f" ({_HINT})" if following else ""
    lines = [f"{broken}: {'; '.join(parts)}", *(line.text for line in findings)]
    if verdict.evidence == "executed" and measurement and measurement.saved:
        size = file_size(measurement.saved_bytes)
        lines.append(
            f"  the rows and initial values are saved ({size}): batch='{measurement.saved}'"
        )
    return "\n".join(map(printable, lines))
