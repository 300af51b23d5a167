"""The replaced command ``rm`` of a captured program."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from placement_checks.capture.child_process import file_journal
from placement_checks.capture.child_process.file_journal import Journal, put_back
from placement_checks.capture.in_process.fake_gpus import shadow_command


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    home, journal = tmp_path / "home", tmp_path / "the journal's file"
    (home / "logs" / "old").mkdir(parents=True)
    (home / "logs" / "model.ckpt").write_text("a week of training")
    (home / "notes").write_text("notes")
    monkeypatch.chdir(home)
    Journal.create(journal)
    with shadow_command("rm", lambda _: file_journal.rm_script(journal)):
        yield journal


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["rm", *arguments], capture_output=True, text=True)


@pytest.mark.parametrize(
    "arguments", [["-rf"], ["-R"], ["--recursive", "--force"], ["-fr", "--"], ["-vr"]]
)
def test_directories_are_moved_to_the_backup(journal: Path, arguments: list[str]) -> None:
    done = run(*arguments, "logs", "notes")

    assert (done.returncode, done.stderr) == (0, "")
    assert not Path("logs").exists()
    assert not Path("notes").exists()
    assert put_back(journal) == [Path.cwd() / "logs", Path.cwd() / "notes"]
    assert Path("logs/model.ckpt").read_text() == "a week of training"


def test_invalid_arguments_are_refused_as_by_rm(journal: Path) -> None:
    refused = run("logs", "nothing")

    assert refused.returncode == 1
    assert "Is a directory" in refused.stderr
    assert "No such file" in refused.stderr
    assert run().returncode == 1
    assert run("-f").returncode == 0
    assert run("--version").stdout.startswith("rm ")
    assert Path("logs/model.ckpt").exists()
    assert put_back(journal) == []


def test_files_of_the_program_are_deleted(journal: Path) -> None:
    time.sleep(0.011)  # the clock of the file system ticks
    Path("-new").write_text("x")

    assert run("--", "-new").returncode == 0

    assert sorted(os.listdir()) == ["logs", "notes"]
    assert put_back(journal) == []


def test_an_empty_folder(journal: Path) -> None:
    assert run("-d", "logs/old").returncode == 0
    assert not Path("logs/old").exists()
    put_back(journal)
    assert Path("logs/old").is_dir()


def test_the_real_command_is_restored(journal: Path) -> None:
    put_back(journal)

    assert run("notes").returncode == 0

    assert os.listdir() == ["logs"]


def test_files_that_cannot_be_moved_stay(
    journal: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refusing(*_: object) -> None:
        raise OSError(16, "Device or resource busy")

    monkeypatch.setattr(file_journal, "original_rename", refusing)
    monkeypatch.setattr(sys, "argv", ["rm", str(journal), "/bin/false", "-rf", "logs"])
    with pytest.raises(SystemExit) as ended:
        file_journal.main()

    assert ended.value.code == 1
    assert capsys.readouterr().err.startswith(f"rm: {Path.cwd()}/logs: the program deletes or")
    assert Path("logs/model.ckpt").exists()


def test_a_missing_command_stays_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert file_journal.rm_script(Path("journal")) == ""
