"""The impact of findings decides their order in every report format."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.outcomes import written_as
from support.pictures import data_of
from support.reports import broken, finding, report, written
from support.towers import program

from placement_checks import Report, Verdict
from placement_checks.core.impact import Impact
from placement_checks.report.formats import FORMATS
from placement_checks.report.items import items, ranked
from placement_checks.report.outcome import Outcome
from placement_checks.verification import judging

KEPT = Verdict("kept-rule", "kept", "assigned")


def verdicts() -> list[Verdict]:
    """Rules in the opposite order of their impact; the rule of least impact has most findings."""
    return [
        broken(
            "slow-rule", *(finding(f"v{n}", group_key=n, impact=Impact.LAYOUT) for n in range(40))
        ),
        KEPT,
        broken("wrong-rule", finding("w", impact=Impact.TRAINING)),
        broken("wrong-too", finding("u", impact=Impact.TRAINING)),
        broken("stopping-rule", finding("s", message="s hangs", impact=Impact.EXECUTION)),
    ]


IN_ORDER = ["stopping-rule", "wrong-rule", "wrong-too", "slow-rule"]


def in_order(text: str) -> list[str]:
    """The rules in the order of their first mention in a text."""
    return sorted(IN_ORDER, key=lambda rule: (text.find(rule), rule))


# A page is compressed.
@pytest.mark.parametrize("format", sorted(FORMATS.keys() - {"html"}))
def test_failures_come_before_wrong_training_and_layout(
    format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = written_as(format, report(*verdicts()))

    assert in_order(text[text.index('"results"') :] if format == "sarif" else text) == IN_ORDER


def test_a_grid_of_programs_has_the_columns_in_that_order() -> None:
    sound = Report(report().evidence, [KEPT])

    text = written(report(*verdicts()), sound)

    assert in_order(text) == IN_ORDER


def test_a_page_has_the_headline_and_the_findings_in_that_order() -> None:
    data = data_of(program(), *verdicts())

    assert data["headline"] == "s hangs."
    assert data["facts"][0].endswith(
        "are broken: stopping-rule, wrong-rule, wrong-too and slow-rule."
    )
    assert list(dict.fromkeys(each["rule"] for each in data["findings"])) == IN_ORDER
    assert [each["rule"] for each in data["rules"]] == [*IN_ORDER[:3], "slow-rule", "kept-rule"]


def test_the_headline_prefers_wrong_training_to_layout() -> None:
    idle = broken("no-idle-device", finding("/device:GPU:1", op="", impact=Impact.LAYOUT))
    wrong = broken("some-rule", finding("w", message="w is wrong", impact=Impact.TRAINING))

    assert data_of(program(), idle, wrong)["headline"] == "w is wrong."


def test_a_list_has_all_of_the_training_before_the_layout() -> None:
    """Of one impact the first finding of each rule comes before the second of any."""
    wrong = [finding(f"w{n}", group_key=n, impact=Impact.TRAINING) for n in range(3)]
    slow = [finding(f"v{n}", group_key=n, impact=Impact.LAYOUT) for n in range(2)]
    program = report(broken("slow", *slow), broken("wrong", *wrong), broken("wrong-too", wrong[0]))

    found = [
        (each.rules[0], each.groups[0].first.object) for each in ranked(items(Outcome([program])))
    ]

    assert found == [
        ("wrong", "w0"),
        ("wrong-too", "w0"),
        ("wrong", "w1"),
        ("wrong", "w2"),
        ("slow", "v0"),
        ("slow", "v1"),
    ]


def test_severity_comes_before_frequency() -> None:
    slow = broken("slow", finding("v", impact=Impact.LAYOUT))
    wrong = broken("wrong", finding("w", impact=Impact.TRAINING))

    reports = [report(slow, program=name) for name in "pq"] + [report(slow, wrong)]

    assert [rule for each in ranked(items(Outcome(reports))) for rule in each.rules] == [
        "wrong",
        "slow",
    ]


def test_an_unjudged_finding_counts_as_layout() -> None:
    unknown = broken("unknown", finding("w"))
    wrong = broken("wrong", finding("w", impact=Impact.TRAINING))

    found = judging.in_order([KEPT, unknown, wrong])
    assert [each.rule for each in found] == ["wrong", "unknown", KEPT.rule]
