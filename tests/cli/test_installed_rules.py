"""A rule of a distribution outside of the tree, on the command line in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.distributions import OPS_ON, installed

DEVICE = "/job:localhost/replica:0/task:0/device"
LOG = f"a: (MatMul): {DEVICE}:GPU:1\nb: (MatMul): {DEVICE}:GPU:0\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "outputlog").write_text(LOG)
    installed(
        tmp_path / "site",
        "our-rules",
        {"ops-on": "ours:OpsOn", "lost": "lost:Lost"},
        ours=OPS_ON,
    )
    return tmp_path


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(folder / "site"), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [sys.executable, "-m", "placement_checks", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )


LOST = (
    "lost:Lost cannot be imported: ModuleNotFoundError: No module named 'lost'; fix the import, "
    "uninstall our-rules, or skip it: --without 'lost'"
)


def test_an_installed_rule_is_listed(folder: Path) -> None:
    listed = run(folder, "rules")

    assert listed.returncode == 2
    *_, last = listed.stdout.splitlines()
    assert last.split(maxsplit=1) == ["ops-on", "Every op of one type is on one device."]
    assert listed.stderr == f"placement-checks: our-rules: {LOST}\n"


def test_an_installed_rule_is_explained_with_its_fields(folder: Path) -> None:
    explained = run(folder, "explain", "ops-on")

    assert (explained.returncode, explained.stderr) == (0, "")
    assert explained.stdout == (
        "Every op of one type is on one device.\n\n`type` names the type, `device` the device.\n\n"
        "Parameters and their defaults:\n  ops-on.type = 'MatMul'\n  ops-on.device = '/gpu:0'\n"
        "  ops-on.strict = False\n"
    )
    lost = run(folder, "explain", "lost")
    assert (lost.returncode, lost.stdout) == (2, "")
    assert lost.stderr == f"placement-checks: our-rules: {LOST}\n"


def test_an_installed_rule_is_judged_with_configured_fields(folder: Path) -> None:
    (folder / "pyproject.toml").write_text(
        '[tool.placement_checks]\nwithout = ["lost"]\n'
        '[tool.placement_checks.policy.ops-on]\ndevice = "/gpu:1"\n'
    )

    ran = run(folder, "verify", "outputlog", "--format", "json")

    assert ran.returncode == 1, ran.stderr
    (program,) = json.loads(ran.stdout)["programs"]
    (rule,) = (each for each in program["rules"] if each["rule"] == "ops-on")
    assert (rule["rule"], rule["state"], rule["evidence"]) == ("ops-on", "broken", "assigned")
    (finding,) = rule["findings"]
    assert (finding["object"], finding["message"], finding["fix"]) == (
        "b",
        "b is on /device:GPU:0",
        "put it on /device:GPU:1",
    )


def test_a_rule_that_cannot_be_loaded_does_not_stop_the_others(folder: Path) -> None:
    ran = run(folder, "verify", "outputlog", "--rule", "ops-on", "--rule", "lost")

    assert ran.returncode == 2
    assert "a is on /device:GPU:1" in ran.stdout
    assert ran.stderr == f"placement-checks: our-rules: lost could not be checked: {LOST}\n"
