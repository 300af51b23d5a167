"""The project itself: what lies at its top, and that its rooms keep to their doors."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import placement_checks

ROOT = Path(__file__).parents[1]
TOP = {
    "placement_checks",
    "tests",
    "fixtures",
    "conftest.py",
    "tox.ini",
    "pyproject.toml",
    "README.md",
}


def test_the_top_of_the_project_explains_itself() -> None:
    names = {path.name for path in ROOT.iterdir() if not path.name.startswith(".")}

    assert names >= TOP
    assert (ROOT / "placement_checks" / "py.typed").is_file()


def test_the_extras_and_the_entry_point_are_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    assert set(project["optional-dependencies"]) == {"benchmark", "data"}
    plugin = "placement_checks.testing.pytest_plugin"
    assert project["entry-points"]["pytest11"] == {"placement": plugin}


@pytest.mark.parametrize(
    "module",
    [
        "cli",
        "report.json",
        "report.text",
        "testing.assertions",
        "testing.pytest_plugin",
        "verification.configuration",
        "verification.judging",
    ],
)
def test_what_judges_and_reports_loads_no_tensorflow(module: str) -> None:
    code = (
        f"import sys, placement_checks.{module}; "
        "assert not {'tensorflow', 'google.protobuf', 'keras'} & sys.modules.keys()"
    )

    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_public_name_exists() -> None:
    for name in placement_checks.__all__:
        assert getattr(placement_checks, name).__doc__
