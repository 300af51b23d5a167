"""Findings that follow from findings of another rule."""

from __future__ import annotations

from dataclasses import replace

import pytest

from placement_checks.core.results import Finding, Verdict
from placement_checks.rules.registry import RULES
from placement_checks.verification.judging import with_causes

EXPLAINED_BY = {"names": ["shared"], "weights": ["gradients", "shared"], "gradients": ["shared"]}


def broken(rule: str, *objects: str, ops: tuple[str, ...] = ()) -> Verdict:
    findings = [Finding(name, "", "requested", "", "", ops=ops) for name in objects]
    return Verdict(rule, "broken", "requested", None, findings)


def causes(*verdicts: Verdict) -> dict[str, dict[str, str | None]]:
    return {
        verdict.rule: {finding.object: finding.follows for finding in verdict.findings}
        for verdict in with_causes(verdicts, EXPLAINED_BY)
    }


def test_a_finding_follows_a_finding_on_the_same_object() -> None:
    expected = {"names": {"w": "shared", "v": None}, "shared": {"w": None}}

    assert causes(broken("names", "w", "v"), broken("shared", "w")) == expected
    assert causes(broken("shared", "w"), broken("names", "w", "v")) == expected


def test_other_ops_of_a_finding_explain_findings() -> None:
    assert causes(broken("shared", "w_1", ops=("w_1", "w")), broken("names", "w"))["names"] == {
        "w": "shared"
    }


def test_the_root_cause_is_named() -> None:
    assert causes(broken("weights", "w"), broken("gradients", "w"), broken("shared", "w")) == {
        "weights": {"w": "shared"},
        "gradients": {"w": "shared"},
        "shared": {"w": None},
    }


def test_kept_and_unselected_rules_explain_nothing() -> None:
    kept = Verdict("shared", "kept", "requested")

    assert causes(broken("names", "w"), kept)["names"] == {"w": None}
    assert causes(broken("names", "w"))["names"] == {"w": None}


def test_a_declared_cause_counts_if_its_rule_has_a_finding() -> None:
    verdict = broken("weights", "w/Momentum")
    changed = replace(verdict, findings=[replace(verdict.findings[0], follows="gradients")])

    gradients = broken("gradients", "w")
    assert causes(changed, gradients)["weights"] == {"w/Momentum": "gradients"}
    for others in ([], [replace(gradients, state="kept", findings=[])]):
        assert causes(changed, *others)["weights"] == {"w/Momentum": None}


def test_a_declared_cause_is_followed_to_its_own_cause() -> None:
    slot = broken("weights", "w/Momentum")
    slot = replace(slot, findings=[replace(slot.findings[0], follows="gradients")])
    gradients, shared = broken("gradients", "w", "v"), broken("shared", "w", "v")

    assert causes(slot, gradients, shared)["weights"] == {"w/Momentum": "shared"}
    assert causes(slot, gradients, broken("shared", "w"))["weights"] == {"w/Momentum": "gradients"}


@pytest.mark.parametrize("cause", ["gradients-averaged", "aggregated-before-clipped"])
def test_differences_of_numbers_follow_rules_on_the_graph(cause: str) -> None:
    explained_by = {name: rule.explained_by for name, rule in RULES.items()}
    verdicts = [broken(rule, "w") for rule in (cause, "gradients-equal", "weights-equal")]
    verdicts[2] = broken("weights-equal", "w", "v")  # the gradient of v is too noisy to compare
    verdicts[0] = broken(cause, "w", "v")

    _, gradients, weights = with_causes(verdicts, explained_by)
    assert [each.follows for each in (*gradients.findings, *weights.findings)] == [cause] * 3


def test_each_rule_names_rules_that_exist_and_none_explains_itself() -> None:
    explained_by = {name: rule.explained_by for name, rule in RULES.items()}

    def behind(name: str) -> set[str]:
        return {name}.union(*(behind(each) for each in explained_by[name]))

    for name, causes in explained_by.items():
        assert not any(name in behind(each) for each in causes)
