from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import pytest
from support.graphs import op, placement

from placement_checks import RULES, Finding, Impact, Verdict, verify
from placement_checks.core.errors import ConfigError, InputError, UsageError, as_error
from placement_checks.core.evidence import Evidence
from placement_checks.core.missing import Missing
from placement_checks.core.results import Report, State
from placement_checks.core.settings import Policy, Settings
from placement_checks.rules.base import Rule
from placement_checks.rules.registry import in_order

KEPT: Final = "kept"
BROKEN: Final = "broken"
NOT_CHECKED: Final = "not-checked"


def report(**states: State) -> Report:
    return Report(
        Evidence(placement()), [Verdict(rule, state, None) for rule, state in states.items()]
    )


@pytest.mark.parametrize(
    ("states", "asked", "require_all", "status"),
    [
        ({"a": KEPT}, [], False, 0),
        ({"a": KEPT, "b": NOT_CHECKED}, [], False, 0),
        ({"a": KEPT, "b": NOT_CHECKED}, ["a"], False, 0),
        ({"a": KEPT}, ["a"], True, 0),
        ({"a": KEPT, "b": BROKEN}, [], False, 1),
        ({"a": BROKEN, "b": NOT_CHECKED}, ["b"], False, 1),
        ({"a": KEPT, "b": NOT_CHECKED}, [], True, 1),
        ({"a": KEPT, "b": NOT_CHECKED}, ["b"], False, 2),
        ({"a": KEPT, "b": NOT_CHECKED}, ["b"], True, 2),
        ({"a": NOT_CHECKED}, [], False, 2),
        ({"a": NOT_CHECKED}, [], True, 2),
        ({}, [], False, 2),
    ],
)
def test_the_status_counts_requested_rules(
    states: Mapping[str, State], asked: Sequence[str], require_all: bool, status: int
) -> None:
    assert report(**states).status(requested=asked, require_all=require_all) == status


@pytest.mark.parametrize("other", [KEPT, BROKEN, NOT_CHECKED])
@pytest.mark.parametrize("require_all", [False, True])
def test_a_rule_with_an_error_has_the_worst_status(other: State, require_all: bool) -> None:
    error = as_error("train.py:build", RuntimeError("a fault"))
    verdicts = [Verdict("a", other, None), Verdict("b", NOT_CHECKED, None, error=error)]

    assert Report(Evidence(placement()), verdicts).status(require_all=require_all) == 2


@pytest.mark.parametrize("program", [None, "train.py:build_towers", [placement()]])
def test_an_unplaced_program_is_refused(program: Any) -> None:
    with pytest.raises(UsageError) as refused:
        verify(program)

    assert str(refused.value) == (
        f"{program!r:.60} is not a placement; pass the result of place(build_towers), or for a "
        "log, read_logs(['outputlog']).placement()"
    )


def test_errors_are_reported_once_with_the_rules_that_raised_them() -> None:
    first, second, other = (as_error("p", RuntimeError(text)) for text in ("a\nb", "a", "c"))
    verdicts = [
        Verdict(rule, NOT_CHECKED, None, error=error)
        for rule, error in (("x", first), ("y", other), ("z", second), ("kept", None))
    ]

    assert [
        str(error).partition(";")[0] for error in Report(Evidence(placement()), verdicts).errors
    ] == [
        "p: x and z could not be checked: RuntimeError: a",
        "p: y could not be checked: RuntimeError: c",
    ]


@pytest.mark.parametrize(
    ("fix", "reason"), [("", "is damaged"), ("build it again", "is damaged; build it again")]
)
def test_the_reason_of_a_rule_with_an_error_has_the_fix(
    monkeypatch: pytest.MonkeyPatch, fix: str, reason: str
) -> None:
    rule = RULES["variables-on-host"]

    def judge(_rule: Rule, _evidence: Evidence) -> Verdict:
        raise InputError("train.py", "is damaged", fix, is_predicate=True)

    monkeypatch.setattr(rule, "judge", judge)

    (verdict,) = verify(placement(op("w", "VarHandleOp")), only=[rule.name]).verdicts

    assert verdict.reason == reason


@pytest.mark.parametrize(("state", "count"), [(KEPT, 2), (BROKEN, 1), (NOT_CHECKED, 0)])
def test_count_of_a_state(state: State, count: int) -> None:
    assert report(a=KEPT, b=BROKEN, c=KEPT).count(state) == count


@pytest.fixture
def on_gpu() -> Evidence:
    """One variable on GPU:0, which breaks variables-on-host unless a policy lets it."""
    return Evidence(
        placement(op("w", "VarHandleOp", "/gpu:0", "GPU:0")),
        settings=Settings(policy=Policy({"variables-on-host": {"device": "/gpu:0"}})),
    )


def states(report: Report) -> dict[str, str]:
    return {verdict.rule: verdict.state for verdict in report.verdicts}


def test_verify_judges_by_every_rule(on_gpu: Evidence) -> None:
    """Rules without findings follow in their order."""
    report = verify(on_gpu)
    assert report.evidence.placement is on_gpu.placement
    found = [verdict.rule for verdict in report.verdicts if verdict.findings]
    others = [rule.name for rule in in_order(RULES.values()) if rule.name not in found]
    assert list(states(report)) == [*found, *others]


def test_a_given_policy_has_precedence_over_the_programs(
    on_gpu: Evidence,
) -> None:
    rule = "variables-on-host"
    assert states(verify(on_gpu, only=[rule])) == {rule: KEPT}
    for policies in ([{rule: {"device": "/cpu:0"}}], [{}, {rule: {"device": ["/cpu:0"]}}]):
        assert states(verify(on_gpu, policies, only=[rule])) == {rule: BROKEN}
    assert states(verify(on_gpu, [{rule: {"allow": ["w"]}}], only=[rule])) == {rule: KEPT}


def test_verify_leaves_rules_out(on_gpu: Evidence) -> None:
    report = verify(on_gpu, without=["no-fallback", "placeable"])
    assert set(RULES) - states(report).keys() == {"no-fallback", "placeable"}


def test_verify_refuses_unknown_rules(on_gpu: Evidence) -> None:
    with pytest.raises(UsageError, match="did you mean 'placeable'"):
        verify(on_gpu, only=["placable"])


def test_verify_refuses_a_wrong_policy(on_gpu: Evidence) -> None:
    with pytest.raises(ConfigError, match=r"^no-fallback\.allow: 3 does not fit"):
        verify(on_gpu, [{}, {"no-fallback": {"allow": 3}}])


@pytest.mark.parametrize(
    ("rule", "before"),
    [
        ("variables-on-host", KEPT),
        ("no-idle-device", BROKEN),  # what is not there breaks it
        ("towers-alike", NOT_CHECKED),
    ],
)
def test_a_partial_log_keeps_no_rule(rule: str, before: str) -> None:
    whole = placement(op("w", "VarHandleOp", "/cpu:0", "CPU:0"))
    part = replace(whole, complete=Missing("it was cut"))

    (verdict,) = verify(whole, only=[rule]).verdicts
    (unproved,) = verify(part, only=[rule]).verdicts

    assert verdict.state == before
    reason = verdict.reason if before == NOT_CHECKED else "it was cut"
    assert (unproved.state, unproved.reason, unproved.findings) == (NOT_CHECKED, reason, ())
    assert unproved.note == verdict.note


def test_an_incomplete_placement_breaks_rules_by_its_ops(on_gpu: Evidence) -> None:
    rule = "variables-on-host"
    policy = {rule: {"device": "/cpu:0"}}
    part = replace(on_gpu.placement, complete=Missing("it was cut"))

    assert states(verify(part, [policy], only=[rule])) == {rule: BROKEN}


def test_findings_have_the_impact_of_their_rule() -> None:
    graph = placement(op("w", "VarHandleOp", "/gpu:0", "GPU:0"), machine="gpu*1")

    (verdict,) = verify(graph, only=["variables-on-host"]).verdicts

    assert {finding.impact for finding in verdict.findings} == {Impact.LAYOUT}


def test_a_rule_may_give_a_finding_another_impact(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = RULES["variables-on-host"]
    stops = Finding("w", "VarHandleOp", "assigned", "", "", impact=Impact.EXECUTION)
    monkeypatch.setattr(rule, "check", lambda self, _: self.verdict([stops]))

    (verdict,) = verify(placement(), only=["variables-on-host"]).verdicts

    assert [finding.impact for finding in verdict.findings] == [Impact.EXECUTION]
