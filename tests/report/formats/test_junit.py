from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.graphs import placement
from support.outcomes import HOSTILE, MOVED, SAME, written_as
from support.reports import broken, finding, report

from placement_checks import Verdict
from placement_checks.core.errors import PlacementError
from placement_checks.core.evidence import Evidence
from placement_checks.core.results import Report
from placement_checks.util.text import printable

COUNTS = ("tests", "failures", "errors", "skipped")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").write_text("x = 1\n")
    os.utime("a.py", (0, 0))  # not changed since the program was built
    monkeypatch.delenv("GITHUB_WORKSPACE", raising=False)


def suites_of(*reports: Report, **more: Any) -> ET.Element:
    text = written_as("junit", *reports, **more)
    assert text.startswith("<?xml version='1.0' encoding='utf-8'?>\n<testsuites ")
    return ET.fromstring(text)


def counts(element: ET.Element) -> list[int]:
    return [int(element.attrib[name]) for name in COUNTS]


def test_a_suite_for_each_program_and_a_case_for_each_rule() -> None:
    one = report(
        broken("a", finding("v"), finding("w")),
        Verdict("b", "kept", None, note="2 towers"),
        Verdict("c", "not-checked", None, "no reference"),
    )
    suites = suites_of(one, report(Verdict("a", "kept", None), program="q"))

    assert counts(suites) == [4, 1, 0, 1]
    first, second = suites
    assert (first.attrib["name"], second.attrib["name"]) == ("p on gpu*2", "q on gpu*2")
    assert (counts(first), counts(second)) == ([3, 1, 0, 1], [1, 0, 0, 0])
    properties = {each.attrib["name"]: each.attrib["value"] for each in first.iter("property")}
    assert properties == {"program": "p", "machine": "gpu*2", "placer": "phantom"}
    a, b, c = first.iter("testcase")
    assert a.attrib == {
        "classname": "p on gpu*2", "name": "a", "file": "a.py", "line": "1"
    }  # fmt: skip
    (failure,) = a
    assert failure.attrib == {
        "message": "v is [on a GPU], and 1 finding more", "type": "broken"
    }  # fmt: skip
    assert failure.text == (
        "  a.py:1: v is [on a GPU]\n      | x = 1\n      likewise 1 more: w\n    fix: pin it"
    )
    assert [(each.tag, each.text) for each in b] == [("system-out", "2 towers")]
    assert [(each.tag, each.attrib["message"]) for each in c] == [("skipped", "no reference")]


def test_unchecked_required_rules_fail() -> None:
    open_one = report(
        Verdict("a", "not-checked", None, "no reference"), Verdict("b", "kept", None)
    )

    for more in ({"require_all": True}, {"requested": ("a", "b")}):
        suites = suites_of(open_one, **more)
        assert counts(suites) == [2, 1, 0, 0]
        (failure,) = suites.iter("failure")
        assert failure.attrib["message"] == "not checked: no reference"


def test_an_error_is_reported_once() -> None:
    fault = PlacementError("p", "KeyError: 'x'")
    of_rule = report(Verdict("a", "not-checked", None, "it failed", error=fault))
    other = PlacementError("b.py", "is not there", "name another", is_predicate=True)

    suites = suites_of(of_rule, errors=[*of_rule.errors, other])

    assert counts(suites) == [2, 0, 2, 0]
    in_rule, alone = suites.iter("testcase")
    assert (in_rule.attrib["name"], alone.attrib["name"]) == ("a", "b.py")
    (error,) = alone
    assert (error.attrib["message"], error.text) == (
        "is not there", "b.py is not there; name another"
    )  # fmt: skip


@given(st.text(st.characters(exclude_categories=[])))
def test_any_text_is_valid_xml(text: str) -> None:
    evidence = Evidence(placement(program=text))
    verdicts = [
        broken("a", finding(text, fix=text, message=text, consequence=text)),
        Verdict("b", "kept", None, note=text),
        Verdict("c", "not-checked", None, text),
    ]
    errors = [PlacementError(text, text)]

    suites = suites_of(Report(evidence, verdicts), errors=errors)

    first, *_ = suites
    assert first.attrib["name"] == f"{printable(text)} on gpu*2"


def test_control_characters_are_visible() -> None:
    text = written_as("junit", report(broken("a", finding(HOSTILE))))

    (failure,) = ET.fromstring(text).iter("failure")
    assert r"w|`</b>\x1b[2J\n::error::@you" in failure.attrib["message"]
    assert r"\u202e\x00 is [on a GPU]" in str(failure.text)


def test_a_baseline_is_a_test_case() -> None:
    program = report(Verdict("a", "kept", None))

    (failure,) = suites_of(replace(program, baseline=MOVED)).iter("failure")
    same = suites_of(replace(program, baseline=SAME))

    assert failure.attrib["message"] == "1 moved, 0 new, 0 gone; 9 ops placed as in w.txt"
    assert "/cpu:0 -> /gpu:0" in str(failure.text)
    assert counts(same) == [2, 0, 0, 0]
