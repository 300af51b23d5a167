"""Files are restored and processes end, whatever a program does, whichever process is killed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from support.forked import start_forked
from support.trees import changes, tree
from trials import kills
from trials.base import Trial
from trials.programs import MODEL, program

from placement_checks.capture.child_process.capture_files import recover
from placement_checks.capture.child_process.parent import capture_program
from placement_checks.core.errors import InputError
from placement_checks.core.program import CapturedProgram
from placement_checks.core.settings import Settings
from placement_checks.core.target import Script
from placement_checks.targets.forms import parse_target


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    home, temporary = tmp_path / "home", tmp_path / "temporary"
    (home / "logs").mkdir(parents=True)
    temporary.mkdir()
    (home / "model.py").write_text(MODEL)
    (home / "logs" / "model.ckpt").write_text("a week of training")
    (home / "notes.txt").write_text("notes")
    monkeypatch.chdir(home)
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr("tempfile.tempdir", None)
    yield home
    assert not list(temporary.glob("placement_checks_*"))


def capture(code: str) -> CapturedProgram:
    Path("train.py").write_text(program(code))
    return capture_program(Script(parse_target("train.py"), Settings(limit=60.0)), 2)


DELETES = {
    "its own": """
        for name in os.listdir(tempfile.gettempdir()):
            shutil.rmtree(os.path.join(tempfile.gettempdir(), name), ignore_errors=True)
    """,
    "all": """
        top = os.path.dirname(tempfile.gettempdir())
        for name in os.listdir(top):
            shutil.rmtree(os.path.join(top, name), ignore_errors=True)
    """,
    "all, with rm": """
        os.system(f"rm -rf {os.path.dirname(tempfile.gettempdir())}/*")
    """,
}


@pytest.mark.parametrize("name", DELETES)
def test_a_program_that_deletes_temporary_files(home: Path, name: str) -> None:
    (home / "train.py").touch()
    before = tree(home / "logs")
    capture(f"""
        tempfile.mkdtemp()
        os.remove("notes.txt")
        shutil.rmtree("logs")
        {DELETES[name].strip()}
    """)

    assert changes(before, tree(home / "logs")) == []
    assert (home / "notes.txt").read_text() == "notes"


CLOSES = """
    os.closerange(3, 1024)
    files = [open(f"new{number}", "w+") for number in range(60)]
    open("notes.txt", "w").write("new")
"""


def test_a_program_that_closes_all_descriptors(home: Path) -> None:
    captured = capture(CLOSES)

    assert captured.notes[-1].startswith("the program changes or deletes notes.txt")
    assert (home / "notes.txt").read_text() == "notes"
    assert {path.read_bytes() for path in home.glob("new*")} == {b""}


STARTS = {
    "a daemon": """
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                open("daemon", "w").write(str(os.getpid()))
                time.sleep(1000)
            os._exit(0)
        os.wait()
    """,
    "a session": """
        command = ["sh", "-c", "echo $$ > daemon; exec sleep 1000"]
        subprocess.Popen(command, start_new_session=True)
    """,
    "a process group": """
        command = ["sh", "-c", "echo $$ > daemon; exec sleep 1000"]
        subprocess.Popen(command, process_group=0)
    """,
}


@pytest.mark.parametrize("ending", ["", "os._exit(0)", "os.abort()", "os.kill(os.getpid(), 9)"])
@pytest.mark.parametrize("name", STARTS)
def test_no_process_outlives_the_command(home: Path, name: str, ending: str) -> None:
    code = f"""
        {STARTS[name].strip()}
        while not os.path.exists("daemon") or not open("daemon").read():
            time.sleep(0.01)
        {ending}
    """
    if ending:
        with pytest.raises(InputError):
            capture(code)
    else:
        capture(code)

    assert not psutil.pid_exists(int((home / "daemon").read_text()))


def test_the_next_run_restores_files(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = tree(home / "logs")
    Path("train.py").write_text(
        program("shutil.rmtree('logs')\nopen('there', 'w').close()\ntime.sleep(600)")
    )
    command = start_forked(["-m", "placement_checks", "verify", "train.py"])
    wait_for((home / "there").exists)
    processes = psutil.Process(command.pid).children(recursive=True)
    for pid in (command.pid, *(each.pid for each in processes)):
        os.kill(pid, signal.SIGKILL)
    command.wait()
    psutil.wait_procs(processes, timeout=30)
    assert not (home / "logs").exists()

    recover.cache_clear()
    capture("")

    assert changes(before, tree(home / "logs")) == []
    assert f"restored after a killed run: {home}/logs" in capsys.readouterr().err


def wait_for(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + 100
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.05)


# The server and the supervisor. Other tests kill the command, the program and all processes; this
# test kills them at night.
TRIALS = [
    pytest.param(trial, marks=() if number in (1, 2) else pytest.mark.nightly, id=trial.name)
    for number, trial in enumerate(kills.trials(0, 10))
]


@pytest.mark.parametrize("trial", TRIALS)
def test_kills_at_random_moments(trial: Trial) -> None:
    outcome = trial.run()

    assert outcome.is_good, outcome
