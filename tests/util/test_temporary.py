"""A temporary directory, which goes even if its owner is killed."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from placement_checks.util.temporary import temporary_directory

PREFIX = "placement_checks_test_"
ROOT = Path(__file__).parents[2]
OWNER = """
import subprocess, time
from placement_checks.util.temporary import temporary_directory
with temporary_directory({prefix!r}) as (path, guard):
    (path / "file").write_text("text")
    if {is_writing}:
        subprocess.Popen(["sleep", "60"], pass_fds=[guard], stdout=subprocess.DEVNULL)
    print(path, flush=True)
    time.sleep(60)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def start_owner(folder: Path, *, is_writing: bool = False) -> tuple[subprocess.Popen[str], Path]:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER.format(prefix=PREFIX, is_writing=is_writing)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(folder), "PYTHONPATH": str(ROOT)},
    )
    assert owner.stdout is not None
    return owner, Path(owner.stdout.readline().strip())


def within(seconds: float, condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return False


def test_it_is_empty_and_private_and_goes_at_the_end(folder: Path) -> None:
    before = set(psutil.Process().children())

    with temporary_directory(PREFIX) as (path, _):
        assert path.parent == folder
        assert path.stat().st_mode & 0o777 == 0o700
        (path / "deep" / "er").mkdir(parents=True)

    assert list(folder.iterdir()) == []
    assert set(psutil.Process().children()) == before


def test_it_goes_if_the_block_raises(folder: Path) -> None:
    with pytest.raises(ValueError, match="x"), temporary_directory(PREFIX):
        raise ValueError("x")

    assert list(folder.iterdir()) == []


def test_it_goes_if_its_owner_is_killed(folder: Path) -> None:
    owner, path = start_owner(folder)
    assert (path / "file").exists()

    owner.kill()
    owner.communicate()

    assert within(10, lambda: not path.exists())


def test_it_stays_until_a_program_that_writes_to_it_has_ended(folder: Path) -> None:
    owner, path = start_owner(folder, is_writing=True)
    (program,) = [each for each in psutil.Process(owner.pid).children() if "60" in each.cmdline()]

    owner.kill()
    owner.communicate()
    time.sleep(0.3)
    assert (path / "file").exists()

    program.kill()
    assert within(10, lambda: not path.exists())


def test_the_next_owner_removes_what_a_killed_one_left(folder: Path) -> None:
    owner, abandoned = start_owner(folder)
    for child in psutil.Process(owner.pid).children():
        child.kill()  # the shell that would remove it
    owner.kill()
    owner.communicate()
    assert abandoned.exists()
    other, used = start_owner(folder)
    foreign = folder / f"{PREFIX}without_a_lock"
    foreign.mkdir()

    with temporary_directory(PREFIX) as (path, _):
        assert sorted(folder.iterdir()) == sorted([path, used, foreign])

    other.kill()
    other.communicate()
    assert within(10, lambda: not used.exists())
