from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from pydantic_sarif.model import StaticAnalysisResultsFormatSarifVersion210JsonSchema as Sarif
from support.outcomes import HOSTILE, MOVED, SAME, written_as
from support.reports import broken, finding, report

from placement_checks import RULES, Verdict
from placement_checks.core.errors import InputError
from placement_checks.core.results import Report


@pytest.fixture(autouse=True)
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GITHUB_WORKSPACE", raising=False)
    for name in ("a.py", "größe 1.py"):
        (tmp_path / name).write_text("x = 1\n" * 99)
    return tmp_path


def run_of(*reports: Report, **more: Any) -> dict[str, Any]:
    """The run of a document, which is as the published schema has it."""
    document = json.loads(written_as("sarif", *reports, **more))
    Sarif.model_validate(document)
    assert document["version"] == "2.1.0"
    (run,) = document["runs"]
    assert isinstance(run, dict)
    return run


def result_of(*reports: Report) -> dict[str, Any]:
    (result,) = run_of(*reports)["results"]
    assert isinstance(result, dict)
    return result


def test_the_schema_refuses_unknown_keys() -> None:
    document = json.loads(written_as("sarif", report(broken("a", finding("w")))))
    document["runs"][0]["results"][0]["lines"] = []

    with pytest.raises(ValidationError, match="lines"):
        Sarif.model_validate(document)


def test_a_group_is_a_result_with_its_call_stack() -> None:
    frames = ("a.py:9", "größe 1.py:3", "a.py:5")
    found = finding("w", frames=frames, device_line="größe 1.py:2", consequence="It is slow.")

    result = result_of(report(broken("a", found)))

    (place,) = result["locations"]
    assert place["logicalLocations"] == [{"fullyQualifiedName": "w"}]
    assert place["physicalLocation"] == {
        "artifactLocation": {"uri": "a.py", "uriBaseId": "%SRCROOT%", "index": 0},
        "region": {"startLine": 5},
    }
    related = [
        (
            each["physicalLocation"]["artifactLocation"]["uri"],
            each["physicalLocation"]["region"]["startLine"],
            each["message"]["text"],
        )
        for each in result["relatedLocations"]
    ]
    assert related == [
        ("gr%C3%B6%C3%9Fe%201.py", 2, "the device is requested here"),
        ("gr%C3%B6%C3%9Fe%201.py", 3, "called from here"),
        ("a.py", 9, "called from here"),
    ]
    assert result["message"]["text"] == (
        "w is [on a GPU]\nIt is slow.\nfix: pin it\nin p on gpu*2"
    )


def test_files_are_listed_once_under_the_folder_of_the_repository(repository: Path) -> None:
    lines = ("a.py:1", "größe 1.py:2", "a.py:3")
    findings = [finding(f"v{n}", group_key=n, frames=(line,)) for n, line in enumerate(lines)]

    run = run_of(report(broken("a", *findings)))

    assert [each["location"]["uri"] for each in run["artifacts"]] == [
        "a.py", "gr%C3%B6%C3%9Fe%201.py",
    ]  # fmt: skip
    assert run["originalUriBaseIds"] == {"%SRCROOT%": {"uri": f"{repository.as_uri()}/"}}
    indices = [
        place["physicalLocation"]["artifactLocation"]["index"]
        for result in run["results"]
        for place in result["locations"]
    ]
    assert indices == [0, 1, 0]


@pytest.mark.parametrize("line", ["gone.py:3", "<ipython-input-1>:1"])
def test_without_a_line_the_location_is_the_program_file(line: str) -> None:
    program = report(broken("a", finding("w", frames=(line,))), program="a.py:build")
    (of_program,) = result_of(program)["locations"]
    (of_none,) = result_of(report(broken("a", finding("w", frames=(line,)))))["locations"]

    assert of_program["physicalLocation"] == {
        "artifactLocation": {"uri": "a.py", "uriBaseId": "%SRCROOT%", "index": 0}
    }
    assert of_none == {"logicalLocations": [{"fullyQualifiedName": "w"}]}
    assert result_of(program)["message"]["text"].startswith(f"{line}: w is ")


def prints(*lines: str) -> list[str]:
    """The fingerprints of findings on variables at these lines."""
    findings = [finding(f"v{n}", group_key=n, frames=(line,)) for n, line in enumerate(lines)]
    results = run_of(report(broken("a", *findings)))["results"]
    return [result["partialFingerprints"]["placementChecks/v1"] for result in results]


def test_fingerprints_survive_moved_lines() -> None:
    assert prints("a.py:1", "a.py:2") == prints("a.py:31", "a.py:7")
    assert len({*prints("a.py:1", "a.py:2", "größe 1.py:1")}) == 3
    assert prints("a.py:1") != prints("größe 1.py:1")


def test_equal_fingerprints_are_numbered() -> None:
    same = [finding("w", group_key=n) for n in range(2)]
    results = run_of(report(broken("a", *same)))["results"]

    first, second = (each["partialFingerprints"]["placementChecks/v1"] for each in results)
    assert (first[-2:], second[-2:]) == (":1", ":2")
    assert first[:-2] == second[:-2]


def test_consequences_are_warnings_after_their_causes() -> None:
    run = run_of(report(broken("b", finding("w", follows="a")), broken("a", finding("w"))))
    results = [(each["ruleId"], each["ruleIndex"], each["level"]) for each in run["results"]]
    assert results == [("a", 0, "error"), ("b", 1, "warning")]


def test_rules_have_their_explanation() -> None:
    verdicts = [Verdict(rule, "kept", "assigned") for rule in RULES]
    run = run_of(report(*verdicts), explained=lambda rule: RULES[rule].explanation())

    rules = {rule["id"]: rule for rule in run["tool"]["driver"]["rules"]}
    assert list(rules) == list(RULES)
    rule = rules["variables-on-host"]
    assert rule["name"] == "VariablesOnHost"
    assert rule["shortDescription"]["text"] == (
        "Every variable sits on the declared device, /cpu:0 by default."
    )
    assert rule["fullDescription"]["text"].startswith("Towers that share variables read them")
    assert "variables-on-host.device = '/cpu:0'" in rule["help"]["text"]


def test_unchecked_rules_are_no_results() -> None:
    open_one = Verdict("a", "not-checked", None, "no reference")
    run = run_of(report(open_one, broken("b", finding("w"))), requested=("a",))

    (note,) = run["invocations"][0]["toolExecutionNotifications"]
    assert note["level"] == "warning"
    assert note["message"]["text"] == "a is not checked in p on gpu*2: no reference"
    assert len(run["results"]) == 1
    (note,) = run_of(report(open_one))["invocations"][0]["toolExecutionNotifications"]
    assert note["level"] == "note"


def test_errors_are_reported() -> None:
    run = run_of(errors=[InputError("b.py", "is not there", "name another", is_predicate=True)])

    (invocation,) = run["invocations"]
    assert not invocation["executionSuccessful"]
    (note,) = invocation["toolExecutionNotifications"]
    assert (note["level"], note["message"]["text"]) == (
        "error", "b.py is not there; name another"
    )  # fmt: skip


def test_hostile_names_are_neither_links_nor_escapes() -> None:
    text = written_as("sarif", report(broken("a", finding(HOSTILE)), program=HOSTILE))

    Sarif.model_validate_json(text)
    assert "\x1b" not in text
    assert "[a](1)" not in json.loads(text)["runs"][0]["results"][0]["message"]["text"]


def test_lines_are_distinct_and_limited() -> None:
    lines = ("a.py:9", "a.py:5")
    of_device = finding("w", frames=lines, device_line="a.py:9")
    others = [finding(f"v{n}", frames=("a.py:9", f"a.py:{n}")) for n in range(20, 80)]

    (first,) = result_of(report(broken("a", of_device)))["relatedLocations"]
    many = result_of(report(broken("a", finding("w", frames=lines), *others)))["relatedLocations"]

    assert first["message"]["text"] == "the device is requested here"
    assert [each["id"] for each in many] == list(range(1, 31))


def test_a_difference_from_a_baseline_is_a_result() -> None:
    program = replace(report(Verdict("a", "kept", None)), baseline=MOVED)

    run = run_of(program)
    (result,) = run["results"]

    rule = run["tool"]["driver"]["rules"][result["ruleIndex"]]
    assert (rule["id"], result["ruleId"]) == ("baseline", "baseline")
    assert rule["shortDescription"]["text"].startswith(
        "Every op is on the device that the baseline"
    )
    assert result["message"]["text"].startswith("1 moved, 0 new, 0 gone; 9 ops placed as in")
    (place,) = result["locations"]
    assert place["physicalLocation"]["region"] == {"startLine": 7}
    same = run_of(replace(program, baseline=SAME))
    assert same["results"] == []
    assert [rule["id"] for rule in same["tool"]["driver"]["rules"]] == ["a"]
