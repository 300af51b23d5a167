from __future__ import annotations

from pathlib import Path

import pytest
from support.reports import report

from placement_checks.report.locations import Location, Repository


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of a checkout, which is the current one."""
    folder = tmp_path / "checkout" / "models"
    folder.mkdir(parents=True)
    (folder / "a.py").touch()
    (folder / "saved.pb").touch()
    (tmp_path / "lib.py").touch()
    monkeypatch.chdir(folder)
    monkeypatch.delenv("GITHUB_WORKSPACE", raising=False)
    return folder


def test_the_checkout_contains_the_current_directory(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Repository().root == here
    monkeypatch.setenv("GITHUB_WORKSPACE", str(here.parent))
    assert Repository().root == here.parent
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path / "another"))
    assert Repository().root == here


def test_a_checkout_behind_a_link(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link").symlink_to(here.parent)
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path / "link"))

    assert Repository().location("a.py:1") == Location("models/a.py", 1)


@pytest.mark.parametrize(
    "line",
    [None, "", "a.py", "a.py:0", "a.py:-1", "a.py:x", ":1", "gone.py:1", ".:1", "<stdin>:1",
     "a\0b:1", "a" * 5000 + ":1"],
)  # fmt: skip
def test_findings_without_a_file(here: Path, line: str | None) -> None:
    assert Repository().location(line) is None


def test_files_outside_have_absolute_paths(here: Path, tmp_path: Path) -> None:
    assert Repository().location("../../lib.py:3") == Location(str(tmp_path / "lib.py"), 3)


@pytest.mark.parametrize(
    ("program", "file"),
    [
        ("a.py", "a.py"),
        ("a.py:build(depth=50)", "a.py"),
        ("saved.pb", "saved.pb"),
        ("a.b:build", None),
        ("gone.py:build", None),
    ],
)
def test_without_a_line_the_location_is_the_program_file(
    here: Path, program: str, file: str | None
) -> None:
    expected = Location(file, None) if file else None
    assert Repository().location_of(None, report(program=program)) == expected
    assert Repository().location_of("a.py:7", report(program=program)) == Location("a.py", 7)
