"""The checks on a release tag, and the environments that workflows run."""

from __future__ import annotations

import configparser
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / ".ci" / "release_notes.py"
CHANGELOG = """\
## [Unreleased]

## [0.2.0] - 2027-01-31

### Added

- A rule.

## [0.1.0] - 2026-12-01

- The first one.
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / ".ci").mkdir()
    (tmp_path / ".ci" / SCRIPT.name).write_text(SCRIPT.read_text(encoding="utf-8"))
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "0.2.0"\n')
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    return tmp_path


def release_notes(project: Path, tag: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, project / ".ci" / SCRIPT.name, tag],
        capture_output=True,
        text=True,
        check=False,
    )


def test_release_notes_are_one_changelog_entry(project: Path) -> None:
    ran = release_notes(project, "v0.2.0")

    assert (ran.returncode, ran.stdout) == (0, "### Added\n\n- A rule.\n")


def test_a_tag_that_is_not_the_version_is_refused(project: Path) -> None:
    ran = release_notes(project, "v0.3.0")

    assert ran.returncode == 1
    assert ran.stderr == "v0.3.0: pyproject.toml has version 0.2.0; tag it v0.2.0\n"


@pytest.mark.parametrize(
    "changelog",
    [
        CHANGELOG.replace("0.2.0", "0.1.9"),
        CHANGELOG.replace(" - 2027-01-31", ""),
        CHANGELOG.replace("### Added\n\n- A rule.\n", ""),
    ],
)
def test_a_release_without_a_dated_entry_is_refused(project: Path, changelog: str) -> None:
    (project / "CHANGELOG.md").write_text(changelog)

    ran = release_notes(project, "v0.2.0")

    assert ran.returncode == 1
    assert ran.stderr.startswith("CHANGELOG.md: has no entry '## [0.2.0] - YYYY-MM-DD'")


def test_the_changelog_has_an_unreleased_section() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")

    assert re.findall(r"^## \[(.*?)\]", changelog, re.MULTILINE)[0] == "Unreleased"


@pytest.mark.parametrize("path", [".github/workflows/ci.yml", ".ci/run", "CONTRIBUTING.md"])
def test_environments_in_workflows_exist(path: str) -> None:
    tox = configparser.ConfigParser(interpolation=None)
    tox.read(ROOT / "tox.ini")
    there = set()
    for section in tox:
        name, *suffix = re.split(r"\{,|\}", section.partition(":")[2])
        there |= {name, *(f"{name}{each}" for each in suffix)}  # [testenv:tf215{,-nightly}]
    text = (ROOT / path).read_text(encoding="utf-8")

    named = re.findall(r"env: \[(.*?)\]| -e ([a-z0-9,-]+)", text)

    assert {name for names in named for name in re.split(r",\s*", "".join(names)) if name} <= there
    assert named
