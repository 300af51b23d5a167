"""The rows that a captured program reads from its queues and iterators."""

from __future__ import annotations

from pathlib import Path

import pytest

from placement_checks.capture.child_process.request import CaptureRequest
from placement_checks.capture.child_process.runner import CapturedRun
from placement_checks.capture.child_process.supervisor import Channels
from placement_checks.core.settings import Settings
from placement_checks.core.target import RowsToRead, Script
from placement_checks.targets.forms import parse_target


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("TF_CONFIG", raising=False)
    file = tmp_path / "train.py"
    file.touch()
    return file


def rows_of(program: Path, rows: RowsToRead, ranks: int) -> RowsToRead:
    script = Script(parse_target(str(program)), Settings(horovod=ranks or None), rows=rows)
    request = CaptureRequest(script, 2, None, (), names_gpus=False, control=program.parent)
    return CapturedRun(request, Channels("", "", (0, 0)))._rows


@pytest.mark.parametrize(
    ("rows", "ranks", "cluster", "read"),
    [
        ("all", 0, False, "all"),
        ("of-towers", 0, False, "of-towers"),
        ("of-towers", 2, False, "all"),  # a rank has one batch, which other ranks may read too
        ("of-towers", 0, True, "all"),
        ("none", 2, True, "none"),
    ],
)
def test_ranks_and_workers_read_all_rows(
    program: Path,
    monkeypatch: pytest.MonkeyPatch,
    rows: RowsToRead,
    ranks: int,
    cluster: bool,
    read: RowsToRead,
) -> None:
    if cluster:
        monkeypatch.setenv("TF_CONFIG", "{}")
    assert rows_of(program, rows, ranks) == read


def test_the_rows_do_not_make_another_program(program: Path) -> None:
    """A reference with the same command as the program is not captured twice."""
    target = parse_target(str(program))

    assert Script(target, rows="none") == Script(target)
