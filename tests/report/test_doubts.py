"""Doubts: findings that may be intended. They are shown in every format, and fail nothing."""

from __future__ import annotations

import json
from xml.etree import ElementTree as ET

import pytest
from support.outcomes import written_as
from support.pictures import data_of
from support.reports import broken, finding, report, written
from support.towers import program

from placement_checks import Verdict
from placement_checks.report.formats import FORMATS

KEPT = Verdict("placeable", "kept", "assigned")
DOUBT = broken(
    "some-rule",
    finding("w", message="w keeps its value", fix="apply it", is_doubt=True),
    state="doubtful",
)
WRONG = broken("wrong-rule", finding("v", message="v is wrong"))


def test_a_doubt_does_not_change_the_exit_status() -> None:
    judged = report(DOUBT, KEPT)

    assert judged.status() == judged.status(require_all=True) == 0
    assert judged.status(requested=["some-rule"]) == report(DOUBT).status() == 0
    assert report(DOUBT, WRONG).status() == 1
    assert judged.counts == "1 kept, 0 broken, 1 doubtful, 0 not checked"
    assert report(KEPT).counts == "1 kept, 0 broken, 0 not checked"


@pytest.mark.parametrize("format", sorted(FORMATS.keys() - {"html"}))
def test_every_format_shows_a_doubt_after_the_findings(format: str) -> None:
    text = written_as(format, report(DOUBT, WRONG, KEPT))

    assert text.index("v is wrong") < text.index("w keeps its value")


def test_the_text_names_it_a_doubt() -> None:
    text = written_as("text", report(DOUBT, KEPT))

    assert "DOUBTFUL     some-rule" in text
    assert "some-rule: 1 doubt\n  a.py:1: w keeps its value\n    unless intended: apply it" in text
    assert "1 program, rules: 1 kept, 0 broken, 1 doubtful, 0 not checked." in text


def test_github_shows_a_notice() -> None:
    (doubt,) = (
        line for line in written_as("github", report(DOUBT)).splitlines() if "keeps" in line
    )

    assert doubt.startswith("::notice title=some-rule%2C a doubt::a.py:1: w keeps its value")


def test_sarif_has_a_note() -> None:
    (run,) = json.loads(written_as("sarif", report(DOUBT, WRONG)))["runs"]

    assert [(each["ruleId"], each["level"]) for each in run["results"]] == [
        ("wrong-rule", "error"),
        ("some-rule", "note"),
    ]


def test_junit_passes_with_an_output() -> None:
    root = ET.fromstring(written_as("junit", report(DOUBT, KEPT)))
    (case,) = (each for each in root.iter("testcase") if each.get("name") == "some-rule")

    assert (root.get("failures"), root.get("skipped")) == ("0", "0")
    assert [child.tag for child in case] == ["system-out"]
    assert "w keeps its value" in (case[0].text or "")


def test_junit_counts_findings_without_doubts() -> None:
    both = broken("some-rule", finding("v"), *DOUBT.findings)
    root = ET.fromstring(written_as("junit", report(both)))
    (failure,) = root.iter("failure")

    assert "more" not in (failure.get("message") or "")
    assert "w keeps its value" in "".join(each.text or "" for each in root.iter("system-out"))


def test_json_marks_it() -> None:
    document = json.loads(written_as("json", report(DOUBT, KEPT)))
    rule, kept = document["programs"][0]["rules"]

    assert (rule["state"], kept["state"]) == ("doubtful", "kept")
    assert [each["doubt"] for each in rule["findings"]] == [True]


def test_the_page_shows_it() -> None:
    data = data_of(program(), DOUBT, KEPT)

    assert (data["state"], data["findings"][0]["doubt"]) == ("kept", True)
    assert "1 doubtful." in data["facts"]
    assert data_of(program(), DOUBT)["state"] == "doubtful"
    assert data_of(program(), DOUBT)["headline"] == "w keeps its value."


def test_a_grid_of_programs_has_a_column() -> None:
    text = written(report(DOUBT, KEPT), report(WRONG, KEPT))

    assert text.splitlines()[:2] == ["┌ wrong-rule", "│ ┌ some-rule"]
    assert "findings of each rule; . kept, ? doubtful, - not checked" in text
    assert "doubtful, -" not in written(report(KEPT), report(WRONG, KEPT))
