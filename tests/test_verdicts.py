"""Records of verdicts: what they leave out, their programs, and how they are compared."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from verdicts.comparison import differences, read, report, summary
from verdicts.normalizing import normalized
from verdicts.programs import ROOT, Program, fixture_programs, other_programs
from verdicts.recording import record

# Files that only contain parts of programs.
PARTS = {
    *("defects/graph/numeric.py", "as_written/ways/towers.py"),
    *("programs/eager/functions_model.py", "programs/graph/random_models.py"),
    *(f"programs/graph/{name}.py" for name in ("digits", "pictures", "training")),
}


def finding(object: str, **more: Any) -> dict[str, Any]:
    return {"object": object, "op": "MatMul", "where": "a.py:1", "message": "wrong", **more}


def result(*findings: Mapping[str, Any], name: str = "p", **more: Any) -> dict[str, Any]:
    state = "broken" if findings else "kept"
    rule = {"rule": "one-update", "state": state, "note": None, "findings": [*findings], **more}
    document = {"schema": 2, "programs": [{"program": name, "notes": [], "rules": [rule]}]}
    return {"name": name, "status": int(bool(findings)), "document": document}


def compared(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(each.kind, each.text) for each in differences({"p": old}, {"p": new})]


def test_equal_records_have_no_differences() -> None:
    assert compared(result(finding("w")), result(finding("w"))) == []
    assert report([]) == "no differences"


def test_another_state_is_a_difference() -> None:
    assert compared(result(), result(finding("w"))) == [
        ("exit status", "- 0\n+ 1"),
        ("one-update: finding new", "w (a.py:1): wrong"),
        ("one-update: kept -> broken", ""),
    ]


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        ([finding("w")], [finding("w", message="bad")], "one-update: message"),
        ([finding("w")], [finding("w"), finding("w")], "one-update: finding new"),
        ([finding("w"), finding("v")], [finding("v")], "one-update: finding gone"),
        ([finding("w"), finding("v")], [finding("v"), finding("w")], "order of the findings"),
    ],
)
def test_changed_findings_are_differences(
    old: list[dict[str, Any]], new: list[dict[str, Any]], kind: str
) -> None:
    ((found, _),) = compared(result(*old), result(*new))

    assert found.endswith(kind)


def test_a_moved_finding_is_gone_and_new() -> None:
    old, new = result(finding("w")), result(finding("w", where="a.py:2"))

    assert [kind for kind, _ in compared(old, new)] == [
        "one-update: finding gone",
        "one-update: finding new",
    ]


def test_an_error_instead_of_a_document_is_a_difference() -> None:
    failed = {"name": "p", "status": -11, "output": "Segmentation fault"}

    kinds = [kind for kind, _ in compared(result(), failed)]

    assert kinds == [
        "exit status",
        "number of programs",
        "output without a document",
        "schema of the document",
    ]


def test_programs_of_only_one_record_are_differences() -> None:
    found = differences({"p": result()}, {"q": result(name="q")})

    assert [(each.kind, each.program) for each in found] == [
        ("program gone", "p"),
        ("program new", "q"),
    ]


def test_a_report_groups_differences_of_a_kind() -> None:
    names = [f"p{i}" for i in range(5)]
    old = {name: result(name=name, note="1 variable") for name in names}
    new = {name: result(name=name, note="2 variables") for name in names}
    found = differences(old, new)

    assert report(found).splitlines() == [
        "one-update: note: 5 in 5 programs",
        *(
            line
            for name in names[:3]
            for line in (f"  {name}", "    - 1 variable", "    + 2 variables")
        ),
        "  and 2 more of the same kind",
        "5 differences in 5 programs",
    ]
    assert "  p4" in report(found, everything=True)


def rule(name: str, **more: Any) -> dict[str, Any]:
    return {"rule": name, "state": "kept", "findings": [], **more}


def test_a_document_keeps_neither_versions_nor_paths_nor_times() -> None:
    document = {
        "schema": 2,
        "versions": {"tensorflow": "2.21.0"},
        "programs": [{"program": "/tmp/x/a.py", "notes": ["took 1.25 s"], "rules": []}],
    }

    assert normalized(document, {"/tmp/x/": ""}) == {
        "schema": 2,
        "programs": [{"program": "a.py", "notes": ["took … s"], "rules": []}],
    }


def test_frames_of_the_recording_process_are_left_out() -> None:
    frames = ["../tests/support/forked.py:178", "a.py:1"]
    document = {"programs": [{"rules": [rule("one-update", findings=[{"frames": frames}])]}]}

    (program,) = normalized(document, {})["programs"]

    assert program["rules"][0]["findings"] == [{"frames": ["a.py:1"]}]


def test_results_of_runs_are_rounded() -> None:
    numbers = rule("gradients-equal", note="eps 0.01234, 2 towers", figures=[{"ratio": 1.98}])
    times = rule("towers-overlap", note="overlap 47%", figures=[{"seconds": 1.0}])
    counted = rule("one-update", note="3 steps of 0.01234", figures=[{"share": 0.123}])

    (program,) = normalized({"programs": [{"rules": [numbers, times, counted]}]}, {})["programs"]

    assert program["rules"] == [
        rule("gradients-equal", note="eps 1e-02, 2 towers", figures=[{"ratio": 2.0}]),
        rule("towers-overlap", note="overlap …%"),
        counted,
    ]


@cache
def programs() -> Mapping[str, Program]:
    return {program.name: program for program in fixture_programs()}


def test_every_fixture_is_judged() -> None:
    words = [word for program in programs().values() for word in program.name.split()]
    judged = {word.partition(":")[0].removeprefix("fixtures/") for word in words}
    kinds = ("programs", "defects", "sound", "refactors", "as_written")
    folder = ROOT / "fixtures"

    files = {
        str(file.relative_to(folder)) for kind in kinds for file in (folder / kind).rglob("*.py")
    }

    missing = files - judged - {f"as_written/{word}" for word in words}
    assert missing == PARTS


@pytest.mark.parametrize(
    ("module", "table", "target"),
    [
        ("test_defects", "DEFECTS", "defects/graph/{}.py:build_towers"),
        ("test_numeric_defects", "DEFECTS", "defects/graph/{}.py:build_towers"),
        ("test_functions_defects", "DEFECTS", "defects/eager/functions_defects.py:{}"),
        ("test_functions_defects", "UNUSUAL", "sound/eager/functions_unusual.py:{}"),
        ("test_keras_behaviors", "KNOWN", "defects/eager/keras_behaviors.py:{}"),
        ("test_keras_fit", "EQUAL", "programs/eager/keras_fit.py:{}"),
        ("test_horovod", "DEFECTS", "defects/workers/horovod_graph_defects.py:{} --horovod 2"),
        ("test_horovod", "UNUSUAL", "sound/workers/horovod_graph_unusual.py:{} --horovod 2"),
        ("test_styles", "STYLES", "sound/graph/{}"),
    ],
)
def test_declared_programs_are_judged(module: str, table: str, target: str) -> None:
    from importlib import import_module

    names = getattr(import_module(f"fixtures.{module}"), table)
    expected = {f"fixtures/{target.format(name)}" for name in names if ":" not in name}
    if table == "STYLES":
        expected = {f"fixtures/{target.format(name)}" for name in names}

    judged = {name.partition(" --gpus ")[0] for name in programs()}
    assert expected <= judged


def test_a_record_holds_the_documents_of_its_programs(tmp_path: Path) -> None:
    name = "fixtures/defects/graph/same_batch.py:build_towers"
    (tmp_path / "nothing.py").write_text("raise SystemExit(3)\n")
    selected = [programs()[name], *other_programs(str(tmp_path))]

    record(selected, tmp_path / "record", numbers=False, jobs=1)

    found = read(tmp_path / "record")
    assert re.fullmatch(
        r"2 programs, 1 without verdicts; verdicts: 2 broken, \d+ kept, \d+ not-checked",
        summary(found),
    )
    (judged,) = found.pop(name)["document"]["programs"]
    (broken,) = (
        each
        for each in judged["rules"]
        if each["state"] == "broken" and each["rule"] != "equal-to-one-gpu"
    )
    assert (broken["rule"], broken["findings"][0]["object"]) == (
        "inputs-distinct",
        "IteratorGetNext",
    )
    assert broken["findings"][0]["where"].startswith("fixtures/defects/graph/same_batch.py:")
    assert not {"gradients-equal", "weights-equal"} & {each["rule"] for each in judged["rules"]}
    ((failed_name, failed),) = found.items()
    assert failed_name == f"{tmp_path.name}: nothing.py --gpus 2"
    assert failed["status"] == 2
    assert str(tmp_path) not in json.dumps(failed)
