"""Assertions for tests: each lists every offender once, with its source line and the cure."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Collection, Sequence
from typing import Any, NoReturn

from placement_checks.core.evidence import Evidence
from placement_checks.core.placement import NOT_ASKED, Placement
from placement_checks.core.results import Report, Verdict
from placement_checks.report.finding_lines import finding_lines
from placement_checks.rules.base import Rule
from placement_checks.rules.registry import RULES
from placement_checks.util.printable import printable
from placement_checks.util.text import counted
from placement_checks.verification.judging import verify

# Told of every verdict; the pytest plugin listens, for its summary.
observers: list[Callable[[Evidence, Verdict], None]] = []
# Where programs are run whose numbers are compared; the plugin sets what its option says.
devices = "auto"


def assert_rules(known: Evidence | Placement, *rules: str, alone: Collection[str] = ()) -> None:
    """Assert that a placement keeps the named rules, or all of them that can be checked.

    The program's own policy counts. A rule that is named and cannot be checked fails.

    Args:
        known: what `place` found out, or a placement alone.
        rules: their names.
        alone: those of them that compare towers, and need not where there is one on purpose.

    Raises:
        AssertionError: a rule is broken, or a named one could not be checked.
        UsageError: there is no such rule.
        ConfigError: the program's policy is wrong.
    """
    __tracebackhide__ = True
    evidence = Evidence.of(known)
    verdicts = _verdicts(verify(evidence, only=rules))
    broken = [_message(evidence, each) for each in verdicts if each.state == "broken"]
    if broken:
        raise AssertionError("\n\n".join(broken))
    unchecked = [
        each
        for each in verdicts
        if each.state == "not-checked" and not (each.alone and each.rule in alone)
    ]
    for verdict in unchecked:
        if verdict.rule in rules or len(unchecked) == len(verdicts):
            _refuse(evidence, verdict)


def _assertion(rule: type[Rule]) -> Callable[..., None]:
    """An assertion of one rule: ``assert_RULE(placement, field=value, …)``.

    Fields that are not given are those of the program's policy, else the rule's own.
    """
    names = [field.name for field in dataclasses.fields(rule)]

    def assertion(placement: Placement, *args: Any, **kwargs: Any) -> None:
        __tracebackhide__ = True
        given = signature.bind(placement, *args, **kwargs).arguments
        del given["placement"]
        _assert(placement, rule.name, **given)

    parameter = inspect.Parameter
    signature = inspect.Signature(
        [
            parameter("placement", parameter.POSITIONAL_OR_KEYWORD, annotation=Evidence),
            *(parameter(name, parameter.POSITIONAL_OR_KEYWORD, default=None) for name in names),
        ]
    )
    assertion.__signature__ = signature  # type: ignore[attr-defined]
    assertion.__name__ = assertion.__qualname__ = f"assert_{rule.name.replace('-', '_')}"
    assertion.__doc__ = f"""Assert `{rule.name}`.

{rule.explanation()}

Raises:
    AssertionError: the rule is broken, or could not be checked; the message lists every finding.
    ConfigError: a field that does not fit.
"""
    return assertion


assert_placeable = _assertion(RULES["placeable"])
assert_no_fallback = _assertion(RULES["no-fallback"])
assert_variables_on_host = _assertion(RULES["variables-on-host"])
assert_variables_shared = _assertion(RULES["variables-shared"])
assert_slots_with_variables = _assertion(RULES["slots-with-variables"])
assert_no_idle_device = _assertion(RULES["no-idle-device"])
assert_towers_alike = _assertion(RULES["towers-alike"])
assert_inputs_distinct = _assertion(RULES["inputs-distinct"])
assert_losses_apart = _assertion(RULES["losses-apart"])
assert_gradients_colocated = _assertion(RULES["gradients-colocated"])
assert_averaging_on_host = _assertion(RULES["averaging-on-host"])
assert_every_tower_counts = _assertion(RULES["every-tower-counts"])
assert_one_update = _assertion(RULES["one-update"])
assert_loss_of_all_towers = _assertion(RULES["loss-of-all-towers"])
assert_randomness_apart = _assertion(RULES["randomness-apart"])
assert_names_portable = _assertion(RULES["names-portable"])
assert_update_ops_run = _assertion(RULES["update-ops-run"])
assert_transfer_budget = _assertion(RULES["transfer-budget"])
assert_shards_balanced = _assertion(RULES["shards-balanced"])
assert_session_memory = _assertion(RULES["session-memory"])


def _assert(known: Evidence | Placement, rule: str, **parameters: Any) -> None:
    """Assert one rule; parameters that are not given are those of the program's policy."""
    __tracebackhide__ = True
    given = {name: value for name, value in parameters.items() if value is not None}
    evidence = Evidence.of(known)
    (verdict,) = _verdicts(verify(evidence, [{rule: given}], only=[rule]))
    if verdict.state == "not-checked":
        _refuse(evidence, verdict)
    if verdict.state == "broken":
        raise AssertionError(_message(evidence, verdict))


def _verdicts(report: Report) -> Sequence[Verdict]:
    """The verdicts, which observers are told; a rule that failed is no breach of the program's.

    Raises:
        PlacementError: a rule failed; what others say is broken is added.
    """
    __tracebackhide__ = True
    for verdict in report.verdicts:
        for observer in observers:
            observer(report.evidence, verdict)
    if not report.errors:
        return report.verdicts
    error, *others = report.errors
    for other in others:
        error.add_note(str(other))
    for verdict in report.verdicts:
        if verdict.state == "broken":
            error.add_note(_message(report.evidence, verdict))
    raise error


def _refuse(evidence: Evidence, verdict: Verdict) -> NoReturn:
    """Nothing was looked at: that is no pass. Where no placer can answer here, it is a skip."""
    __tracebackhide__ = True
    message = printable(
        f"{verdict.rule} could not be checked on {evidence.placement.program}: {verdict.reason}"
    )
    if _cannot_be_placed(evidence.placement):
        import pytest

        pytest.skip(message)
    raise AssertionError(message)


def _cannot_be_placed(placement: Placement) -> bool:
    """Whether a placer was asked and none can answer here."""
    return not placement.assigned and placement.assigned != NOT_ASKED and not placement.refusals


def _message(evidence: Evidence, verdict: Verdict) -> str:
    placement, measurement = evidence.placement, evidence.measurement
    machine = f" on {placement.machine}" if placement.machine else ""
    headline = (
        f"{verdict.rule} is broken by {placement.program}{machine}: "
        f"{counted(len(verdict.findings), 'finding')}"
    )
    lines = [headline, *finding_lines(verdict.findings)]
    if verdict.evidence == "executed" and measurement and measurement.saved:
        lines.append(f"  the rows and first values are kept: batch='{measurement.saved}'")
    return "\n".join(map(printable, lines))
