from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.commands import Run

from placement_checks.cli import doctor
from placement_checks.core.checkup import Check, Checkup

LIMITED = Checkup(
    [
        Check("placer", "ok", "started"),
        Check("isolation", "limited", "no network namespace", "allow user namespaces"),
    ]
)
BROKEN = Checkup([Check("tensorflow", "missing", "is not installed", "pip install tensorflow")])


@pytest.mark.parametrize(
    ("checkup", "status", "text"),
    [
        (
            LIMITED,
            0,
            "ok       placer     started\n"
            "limited  isolation  no network namespace; allow user namespaces\n"
            "\n"
            "Programs can be checked here, with limits: see isolation.\n",
        ),
        (
            BROKEN,
            1,
            "missing  tensorflow  is not installed; pip install tensorflow\n"
            "\n"
            "Programs cannot be checked here, or only in part: see tensorflow.\n",
        ),
        (
            Checkup(LIMITED.checks[:1]),
            0,
            "ok       placer  started\n\nPrograms can be checked here.\n",
        ),
    ],
)
def test_the_report(
    run: Run, monkeypatch: pytest.MonkeyPatch, checkup: Checkup, status: int, text: str
) -> None:
    monkeypatch.setattr(doctor, "examine", lambda: checkup)

    ran = run("doctor")

    assert (ran.status, ran.out, ran.err) == (status, text, "")


def test_json_into_a_file(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor, "examine", lambda: BROKEN)

    ran = run("doctor", "--format", "json")
    into_file = run("doctor", "--format", "json", "--output", tmp_path / "report.json")

    assert (ran.status, into_file.status, into_file.out) == (1, 1, "")
    assert (tmp_path / "report.json").read_text() == ran.out
    document = json.loads(ran.out)
    assert document["can_check"] is False
    assert document["checks"] == [
        {
            "check": "tensorflow",
            "state": "missing",
            "found": "is not installed",
            "fix": "pip install tensorflow",
        }
    ]


def test_an_argument_is_a_usage_error(run: Run) -> None:
    ran = run("doctor", "train.py")

    assert (ran.status, ran.out) == (2, "")
    assert "placement-checks doctor --help" in ran.err
