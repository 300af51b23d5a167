"""The configuration of another user is refused in one line, unless its directory is named."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.commands import Run

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to another user")


@pytest.fixture(autouse=True)
def foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The pyproject.toml of another user in a parent of the working directory."""
    file = tmp_path / "pyproject.toml"
    file.write_text(
        '[tool.placement_checks]\nreference = "evil.py:build"\nrules = ["placeable"]\n'
    )
    os.chown(file, 5432, 5432)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    Path("a.log").write_text("w: (VariableV2): /job:localhost/replica:0/task:0/device:CPU:0\n")
    return file


@pytest.mark.parametrize("command", ["verify", "place", "diff", "time"])
def test_no_command_uses_it(command: str, run: Run, foreign: Path) -> None:
    targets = ["a.log", "a.log"] if command == "diff" else ["a.log"]
    ran = run(command, *targets)

    assert ran.status == 2
    assert ran.out == ""
    assert ran.err.startswith(f"placement-checks: {foreign} belongs to the user 5432; if you ")
    assert ran.err.count("\n") == 1


def test_the_option_accepts_a_directory(run: Run, tmp_path: Path) -> None:
    ran = run("verify", "a.log", "--trust", tmp_path, "--trust=/nowhere")

    assert "placeable" in ran.out
    assert "belongs" not in ran.err
    assert "belongs" in run("verify", "a.log").err  # the next command does not accept it
