from __future__ import annotations

import json
from importlib import metadata

import pytest
from support.graphs import op, placement
from support.outcomes import written_as

from placement_checks import PlacementError, verify
from placement_checks.core.errors import ConfigError, InputError, PlacerError, UsageError
from placement_checks.core.evidence import Evidence
from placement_checks.core.missing import Missing
from placement_checks.core.results import Report
from placement_checks.core.versions import versions


@pytest.fixture
def report() -> Report:
    """One broken rule, three that are kept and one that is not checked."""
    graph = placement(
        op("größe", "VariableV2", "/gpu:0", "GPU:0"),
        op("a", "MatMul", "/gpu:0", "GPU:0", "größe"),
        lines={"größe": "main.py:9"},
        machine="gpu*1",
    )
    return verify(Evidence(graph, single_gpu=Missing("the builder has no argument num_gpus")))


def test_a_program_has_its_verdicts(report: Report) -> None:
    (program,) = json.loads(written_as("json", report))["programs"]
    rules = {rule.pop("rule"): rule for rule in program.pop("rules")}
    assert program == {
        "program": "train.py:build",
        "machine": "gpu*1",
        "placer": "phantom",
        "devices": None,
        "notes": [],
    }
    assert rules["placeable"] == {
        "state": "kept",
        "evidence": "assigned",
        "reason": None,
        "note": None,
        "findings": [],
    }
    assert rules["variables-shared"] == {
        "state": "not-checked",
        "evidence": None,
        "reason": "variables are read on /device:GPU:0 only, and the program cannot be compared "
        "with its build for one GPU: the builder has no argument num_gpus",
        "note": None,
        "findings": [],
    }
    assert rules["variables-on-host"] == {
        "state": "broken",
        "evidence": "assigned",
        "reason": None,
        "note": "1 variable",
        "findings": [
            {
                "object": "größe",
                "op": "VariableV2",
                "evidence": "assigned",
                "where": "main.py:9",
                "path": [],
                "frames": ["main.py:9"],
                "device_line": None,
                "consequence": "",
                "follows": None,
                "doubt": False,
                "known": None,
                "others": [],
                "message": "variable größe sits on /device:GPU:0, not on /device:CPU:0; "
                "it requests /device:GPU:0",
                "fix": "create it under `with tf.device('/cpu:0'):`",
            }
        ],
    }


def test_path_is_a_list() -> None:
    graph = placement(
        op("step", "VariableV2", "/gpu:0", "CPU:0", fallback_reason="no int32"),
        op("read", "Identity", "/gpu:0", "CPU:0", "step", fell_with_another=True),
    )
    (program,) = json.loads(written_as("json", verify(graph, only=["no-fallback"])))["programs"]
    assert program["rules"][0]["findings"][0]["path"] == ["read"]


def test_names_are_written_as_they_are(report: Report) -> None:
    assert '"größe"' in written_as("json", report)


def test_a_placement_with_requested_devices_only() -> None:
    bare = verify(placement(op("a", "NoOp"), machine=None, placer=None))
    (program,) = json.loads(written_as("json", bare))["programs"]
    assert (program["machine"], program["placer"]) == (None, None)


def test_a_document_without_programs() -> None:
    document = json.loads(written_as("json"))

    assert document == {"schema": 2, "versions": versions(), "programs": []}


@pytest.mark.parametrize(
    ("installed", "version"),
    [({}, None), ({"tensorflow-cpu": "2.16.1"}, "2.16.1"), ({"tf-nightly": "2.22.0"}, "2.22.0")],
)
def test_tensorflow_has_several_distribution_names(
    monkeypatch: pytest.MonkeyPatch, installed: dict[str, str], version: str | None
) -> None:
    def of(distribution: str) -> str:
        try:
            return installed[distribution]
        except KeyError:
            raise metadata.PackageNotFoundError(distribution) from None

    monkeypatch.setattr(metadata, "version", of)

    assert versions() == {"placement_checks": None, "tensorflow": version}


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (UsageError, "usage"),
        (ConfigError, "config"),
        (InputError, "input"),
        (PlacerError, "internal"),
    ],
)
def test_an_error_has_its_kind_and_fix(error: type[PlacementError], kind: str) -> None:
    raised = error("train.py", "is not there", "name another", details="not for programs")
    assert json.loads(written_as("json", errors=[raised])) == {
        "schema": 2,
        "error": {
            "kind": kind,
            "object": "train.py",
            "message": "is not there",
            "fix": "name another",
        },
    }


def test_programs_before_an_error_and_the_first_error_are_reported(report: Report) -> None:
    errors = [
        InputError("a.py", "is not there", is_predicate=True),
        InputError("b.py", "is not there", is_predicate=True),
    ]
    document = json.loads(written_as("json", report, errors=errors))
    assert len(document["programs"]) == 1
    assert document["error"]["object"] == "a.py"
    assert document["error"]["fix"] == ""
