from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.commands import Run

from placement_checks.report.formats import json as json_format
from placement_checks.report.schemas import NAMES


@pytest.mark.parametrize("name", NAMES)
def test_the_schema_of_a_command(run: Run, name: str) -> None:
    ran = run("schema", name)

    assert (ran.status, ran.err) == (0, "")
    command = "placement-checks" if name != "error" else "What any command prints"
    assert json.loads(ran.out)["title"].startswith(command)


def test_an_unknown_name_is_refused(run: Run) -> None:
    ran = run("schema", "explain")

    assert (ran.status, ran.out) == (2, "")
    assert "'verify', 'place', 'log', 'diff', 'time', 'doctor', 'error'" in ran.err


def test_output_matches_the_schemas(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That is done by the fixture, for all tests of the command."""
    (tmp_path / "outputlog").write_text(
        "w: (VariableV2): /job:localhost/replica:0/task:0/device:GPU:0\n"
    )
    monkeypatch.chdir(tmp_path)
    for call in ("verify outputlog", "log outputlog", "diff outputlog outputlog", "log nothing"):
        assert run(*call.split(), "--format", "json").out.startswith("{")

    monkeypatch.setattr(json_format, "document", lambda _: {"schema": 3})
    with pytest.raises(AssertionError, match=r"is not valid under any of the given schemas"):
        run("verify", "outputlog", "--format", "json")
