from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from placement_checks.capture.child_process import file_journal
from placement_checks.capture.child_process.file_journal import birth_time

TICK = 0.02 * 1e9  # ns; the clock of a file system is this coarse


def test_the_creation_time_of_a_file(tmp_path: Path) -> None:
    before = time.time_ns()
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_text("x")
    born = birth_time(file)
    assert born is not None
    assert before - TICK <= born <= time.time_ns()

    time.sleep(0.03)
    file.write_text("y")
    os.utime(file, (0, 0))
    file.rename(tmp_path / "other")
    link.symlink_to("other")

    assert birth_time(tmp_path / "other") == born
    assert (birth_time(link) or 0) > born


def test_an_unknown_creation_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert birth_time(tmp_path / "nothing") is None
    assert birth_time(Path("/proc/self/stat")) is None  # lacks a creation time
    monkeypatch.setattr(file_journal, "_statx", None)
    assert birth_time(tmp_path) is None
