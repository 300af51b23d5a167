"""The comparison with a git revision, in each format."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from support.outcomes import since_as
from support.reports import since

from placement_checks.core.revisions import Since
from placement_checks.report.page.data import revision_data


def written(format: str, comparison: Since | None = None) -> str:
    return since_as(format, since() if comparison is None else comparison)


SAME = replace(since(), programs=since().programs[1:2], errors=[], notes=[])


def test_text() -> None:
    assert (
        written("text")
        == """\
train.py:build: 1 moved, 0 new, 0 gone; 9 ops placed as in main; 2 rules newly broken; 1 rule \
no longer checked; 1 rule newly kept; different training step; different numbers
moved:
  input: /cpu:0 -> /gpu:0  (1 op: Mul x; q.py:1)
other changes, on the same devices:
  1 variable renamed: v -> w
newly broken: variables-on-host (kept at main)
  a.py:1: w is [on a GPU]
    fix: pin it
newly broken: slots-with-variables (2 findings, 1 at main)
  a.py:1: w is [on a GPU]
      likewise 1 more
    fix: pin it
no longer checked: no-idle-device (kept at main): there is one tower
training step, different: w: it counts twice  (q.py:2)
training step, not checked: v: an op is not known
training step, proved equal for every batch: 1 of 4 variables
numbers, different: other gradients for w
newly kept: one-update

other.py: nothing has moved: 4 ops placed as in main
training step, proved equal for every batch: 2 variables, if rows are rows

new.py: new, not in main; 1 broken rule
newly broken: no-fallback (not checked at main)
  a.py:1: w is [on a GPU]
    fix: pin it

gone.py: not listed in pyproject.toml any more, and checked at main

a note
4 programs compared with main (0123456789): 1 changed, 1 gone, 1 new, 1 same.
"""
    )


def test_text_without_changes() -> None:
    assert written("text", SAME) == (
        "other.py: nothing has moved: 4 ops placed as in main\n"
        "training step, proved equal for every batch: 2 variables, if rows are rows\n"
        "\n"
        "1 program compared with main (0123456789): 1 same.\n"
    )


def test_json() -> None:
    document = json.loads(written("json"))

    assert (document["since"], document["commit"]) == ("main", "0123456789abcdef")
    assert [each["state"] for each in document["programs"]] == ["changed", "same", "new", "gone"]
    assert document["errors"][0]["object"] == "last.py at main"
    training = [each["training"] for each in document["programs"]]
    assert [each and each["state"] for each in training] == ["different", "proved", None, None]
    assert training[0]["variables"][0] == {
        "variable": "w",
        "state": "different",
        "text": "it counts twice",
        "where": "q.py:2",
    }
    assert training[1]["assumed"] == ["rows are rows"]
    rules = document["programs"][0]["rules"]
    assert [(rule["effect"], rule["old"], rule["new"]) for rule in rules] == [
        ("broken", "kept", "broken"),
        ("broken", "broken", "broken"),
        ("unchecked", "kept", "not-checked"),
        ("kept", "broken", "kept"),
    ]
    assert rules[0]["findings"][0]["where"] == "a.py:1"


def test_a_comment_on_a_pull_request() -> None:
    lines = written("markdown").splitlines()

    assert lines[0] == (
        "**placement_checks: failed.** 4 programs compared with main (0123456789): 1 changed, "
        "1 gone, 1 new, 1 same."
    )
    assert lines[2:4] == ["| program | since <code>main (0123456789)</code> |", "|---|---|"]
    assert len([line for line in lines if line.startswith("| <code>")]) == 4
    folds = [line for line in lines if line.startswith(("<details", "<p>"))]
    assert [fold.partition("</b>")[0].rpartition("<b>")[2] for fold in folds] == [
        *("error", "variables-on-host", "slots-with-variables (2 findings)"),
        *("no-fallback", "moved", "no longer checked"),
        *("training step, different", "training step, proved equal for every batch"),
        *("numbers, different", "<p>a note</p>"),
    ]
    assert "" not in lines[lines.index(folds[0]) :]


def test_a_comment_without_changes() -> None:
    assert written("markdown", SAME).splitlines() == [
        "**placement_checks: nothing has changed.** 1 program compared with main (0123456789): "
        "1 same.",
        "",
        "| program | since <code>main (0123456789)</code> |",
        "|---|---|",
        "| <code>other.py</code> | nothing has moved: 4 ops placed as in main |",
        "",
        "<p><b>training step, proved equal for every batch</b> in <code>other.py on gpu*2</code>: "
        "2 variables, if rows are rows</p>",
    ]


def test_a_comment_is_short() -> None:
    changed = since().programs[0]
    many = replace(since(), programs=[replace(changed, name=f"p{n}.py") for n in range(50)])

    lines = written("markdown", many).splitlines()

    assert len(lines) <= 40
    assert "| and 42 more | |" in lines


def test_annotations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GITHUB_WORKSPACE", raising=False)
    for name in ("a.py", "q.py"):
        Path(name).write_text("")

    lines = written("github").splitlines()

    assert [line.partition("::")[2].partition("::")[0] for line in lines] == [
        "error title=placement_checks",
        "error file=a.py,line=1,title=variables-on-host",
        "error file=a.py,line=1,title=slots-with-variables (2 findings)",
        "error file=a.py,line=1,title=no-fallback",
        "error file=q.py,line=1,title=moved",
        "error title=gone",
        "error title=no longer checked",
        "error file=q.py,line=2,title=training step%2C different",
        "error title=numbers%2C different",
        "notice title=placement_checks",
    ]


def test_the_page_shows_what_changed() -> None:
    data = [revision_data(program, since()) for program in since().programs]

    assert [each and each["state"] for each in data] == ["differs", "placed", "differs", None]
    (changed, *_) = data
    assert changed is not None
    assert [each["rule"] for each in changed["findings"]] == [
        *("variables-on-host", "slots-with-variables", "moved", "no longer checked"),
    ]
    assert changed["headline"].startswith("1 moved, 0 new, 0 gone; 9 ops placed as in main; ")
    assert "<script" in written("html")
    assert written("html", replace(since(), programs=since().programs[3:])) == ""


def test_the_result_of_each_statement_is_in_sarif() -> None:
    (run,) = json.loads(written("sarif"))["runs"]

    found = [(each["ruleId"], each["level"]) for each in run["results"]]
    assert found == [
        ("moved", "error"),
        ("variables-on-host", "error"),
        ("slots-with-variables", "error"),
        ("no-fallback", "error"),
        ("training", "error"),
        ("numbers", "error"),
    ]
    (invocation,) = run["invocations"]
    notes = [
        (each["level"], each["message"]["text"])
        for each in invocation["toolExecutionNotifications"]
    ]
    assert notes == [
        ("error", "last.py at main does not import; repair it"),
        (
            "error",
            "no-idle-device is no longer checked in train.py:build on gpu*2: there is one tower "
            "(kept at main)",
        ),
        ("error", "gone.py: not listed in pyproject.toml any more, and checked at main"),
        ("note", "a note"),
    ]


def test_junit_has_a_suite_for_each_program_and_a_case_for_each_change() -> None:
    suites = ET.fromstring(written("junit"))

    cases = {
        suite.get("name"): {
            str(case.get("name")): [result.tag for result in case if result.tag != "system-out"]
            for case in suite.iter("testcase")
        }
        for suite in suites
    }
    assert cases == {
        "train.py:build on gpu*2": {
            "variables-on-host": ["failure"],
            "slots-with-variables": ["failure"],
            "moved": ["failure"],
            "no-idle-device": ["failure"],
            "training": ["failure"],
            "numbers": ["failure"],
        },
        "other.py on gpu*2": {"moved": [], "training": []},
        "new.py on gpu*2": {"no-fallback": ["failure"]},
        "errors": {"last.py at main": ["error"], "gone": ["error"]},
    }
    assert suites.get("failures") == "7"
