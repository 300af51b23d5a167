"""Output that cannot be written, and files that are replaced whole or not at all."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]

COMMANDS = [
    "log session.log",
    "log session.log --format json",
    "log session.log --format lines",
    "verify session.log",
    "verify session.log --format json",
    "verify session.log --format html",
    "place session.log",
    "place session.log --format html",
    "diff session.log session.log",
    "diff session.log session.log --format json",
    "rules",
    "explain placeable",
    "--help",
    "verify --help",
    "--version",
]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, fixtures: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    log = (fixtures / "logs/2.20.0/session.log").read_bytes()
    Path("session.log").write_bytes(log)
    return tmp_path


def shell(command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run in bash; ``%`` is the command placement-checks."""
    return subprocess.run(
        ["bash", "-c", command.replace("%", f"{sys.executable} -m placement_checks")],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=False,
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_a_full_disk_is_an_error(command: str) -> None:
    ran = shell(f"% {command} >/dev/full")

    assert ran.returncode == 2
    assert ran.stderr == "placement-checks: standard output: No space left on device\n"


@pytest.mark.parametrize("command", ["log session.log", "verify session.log", "--help"])
def test_closed_or_unbuffered_standard_output(command: str) -> None:
    closed = shell(f"% {command} >&-")
    unbuffered = shell(f"% {command} >/dev/full", PYTHONUNBUFFERED="1")

    assert (closed.returncode, unbuffered.returncode) == (2, 2)
    assert closed.stderr == "placement-checks: standard output: Bad file descriptor\n"
    assert unbuffered.stderr == "placement-checks: standard output: No space left on device\n"


def test_a_program_that_closes_foreign_descriptors() -> None:
    Path("train.py").write_text("import os\n\ndef build():\n    os.closerange(3, 1024)\n")

    ran = shell("% verify train.py:build")

    assert (ran.returncode, ran.stdout) == (2, "")
    assert "placement-checks: " in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_disk_that_fills_up_during_output(unbuffered: str) -> None:
    """Python's own stream loses the rest without a word where it does not buffer."""
    line = "a: (MatMul): /job:localhost/replica:0/task:0/device:GPU:0\n"
    Path("long.log").write_text("".join(f"a{n}{line}" for n in range(2000)))

    ran = shell("ulimit -f 8; % log long.log --format lines > out", PYTHONUNBUFFERED=unbuffered)

    assert 0 < Path("out").stat().st_size < Path("long.log").stat().st_size
    assert ran.returncode == 2
    assert ran.stderr == "placement-checks: standard output: File too large\n"


@pytest.mark.parametrize("command", ["log long.log --format lines", "rules"])
def test_a_closed_pipe(command: str) -> None:
    line = "a: (MatMul): /job:localhost/replica:0/task:0/device:GPU:0\n"
    Path("long.log").write_text("".join(f"a{n}{line}" for n in range(5000)))

    ran = shell(f"% {command} | (exec <&-; sleep 0); exit ${{PIPESTATUS[0]}}")

    assert ran.returncode == 2
    assert ran.stderr == "placement-checks: standard output: Broken pipe\n"


def test_a_nonblocking_pipe_gets_everything() -> None:
    line = "a: (MatMul): /job:localhost/replica:0/task:0/device:GPU:0\n"
    Path("long.log").write_text("".join(f"a{n}{line}" for n in range(5000)))
    Path("run.py").write_text(
        "import os, subprocess, sys, time\n"
        "reading, writing = os.pipe()\n"
        "os.set_blocking(writing, False)\n"
        "command = [sys.executable, '-m', 'placement_checks', 'log', 'long.log', '--format',"
        " 'lines']\n"
        "ran = subprocess.Popen(command, stdout=writing)\n"
        "os.close(writing)\n"
        "time.sleep(1)\n"
        "text = open(reading).read()\n"
        "print(ran.wait(), text.count('MatMul'))\n"
    )

    ran = subprocess.run([sys.executable, "run.py"], capture_output=True, text=True, check=False)

    assert (ran.stdout, ran.stderr) == ("0 5000\n", "")


@pytest.mark.parametrize("to", ["2>&-", "2>/dev/full"])
def test_standard_error_that_cannot_be_written(to: str) -> None:
    assert shell(f"% log nowhere.log {to}").returncode == 2
    assert shell(f"% verify nowhere.py:f --format json {to}").returncode == 2
    sound = shell(f"% log session.log {to}")
    assert sound.returncode == 0
    assert sound.stdout == shell("% log session.log").stdout


def test_an_incomplete_log_is_reported_or_fails() -> None:
    cut = gzip.compress(Path("session.log").read_bytes())
    Path("cut.gz").write_bytes(cut[: len(cut) * 2 // 3])

    ran = shell("% log cut.gz")
    assert ran.stderr.startswith("placement-checks: cut.gz: ")
    assert shell("% log cut.gz 2>/dev/full").returncode == 2


def test_an_error_while_the_json_error_is_written() -> None:
    ran = shell("% verify nowhere.py:f --gpus 0 --format json >/dev/full")

    assert ran.returncode == 2
    assert ran.stderr.startswith("placement-checks: 0 GPUs: ")
    assert ran.stderr.count("\n") == 1


def test_output_goes_to_special_files() -> None:
    Path("rows").write_text("before\n")
    to_itself = shell("% verify session.log --output /dev/stdout >> rows")
    by_dash = shell("% verify session.log --output -")
    to_error = shell("% verify session.log --output /dev/stderr")
    through_a_pipe = shell("mkfifo fifo; cat fifo & % verify session.log --output fifo; wait")

    plain = shell("% verify session.log").stdout
    assert plain
    assert Path("rows").read_text() == f"before\n{plain}"
    assert by_dash.stdout == plain
    assert to_error.stderr == plain
    assert through_a_pipe.stdout == plain
    assert to_itself.stderr == ""


def test_a_full_device() -> None:
    ran = shell("% verify session.log --output /dev/full")

    assert ran.returncode == 2
    assert ran.stderr == "placement-checks: --output /dev/full: No space left on device\n"


def test_a_replaced_file_keeps_its_mode_and_links(run: Run) -> None:
    Path("folder").mkdir()
    file = Path("folder/report.json")
    file.write_text("old")
    file.chmod(0o640)
    Path("link").symlink_to(file)
    was = file.stat().st_ino

    run("verify", "session.log", "--format", "json", "--output", "link")

    assert json.loads(file.read_text())["programs"]
    assert file.stat().st_mode & 0o777 == 0o640
    assert file.stat().st_ino != was
    assert Path("link").is_symlink()
    assert os.listdir("folder") == ["report.json"]


def test_a_new_file_has_the_default_mode(run: Run) -> None:
    run("verify", "session.log", "--output", "report")
    Path("another").touch()

    assert Path("report").stat().st_mode == Path("another").stat().st_mode


@pytest.mark.parametrize("fault", ["write", "report"])
def test_a_file_is_unchanged_if_the_new_one_fails(
    run: Run, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device") if fault == "write" else RuntimeError("ours")

    Path("report").write_text("old")
    listed = sorted(os.listdir())
    at = (
        "pathlib.Path.replace"
        if fault == "write"
        else "placement_checks.report.formats.json.document"
    )
    monkeypatch.setattr(at, fail)

    ran = run("verify", "session.log", "--format", "json", "--output", "report")

    assert ran.status == 2
    assert Path("report").read_text() == "old"
    assert sorted(os.listdir()) == listed
    reason = (
        "--output report: No space left on device" if fault == "write" else "RuntimeError: ours"
    )
    assert ran.err.startswith(f"placement-checks: {reason}")
    assert ran.err.count("\n") == 1


def test_a_full_disk_leaves_the_old_file() -> None:
    Path("report").write_text("old")

    ran = shell("ulimit -f 1; % verify session.log --format html --output report")

    assert ran.returncode == 2
    assert ran.stderr == "placement-checks: --output report: File too large\n"
    assert Path("report").read_text() == "old"


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("nowhere/report", "No such file or directory"),
        ("kept", "Permission denied"),
        (".", "Is a directory"),
    ],
)
def test_an_unwritable_file_is_reported_before_anything_runs(
    run: Run, monkeypatch: pytest.MonkeyPatch, path: str, reason: str
) -> None:
    Path("kept").touch()
    monkeypatch.setattr(os, "access", lambda file, _mode: Path(file).name != "kept")
    monkeypatch.setattr(
        "placement_checks.cli.verify.gather", lambda *_, **__: pytest.fail("too late")
    )

    ran = run("verify", "session.log", "--output", path)

    assert (ran.status, ran.out) == (2, "")
    assert ran.err == f"placement-checks: --output {path}: {reason}\n"
    as_json = run("verify", "session.log", "--format", "json", "--output", path)
    assert json.loads(as_json.out)["error"]["message"] == reason
