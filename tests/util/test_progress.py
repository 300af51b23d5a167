from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Mapping
from pathlib import Path

import pytest

from placement_checks.util import progress
from placement_checks.util.progress import step, track

ERASED = "\r\x1b[2K"
QUICK = "progress._DRAW_INTERVAL = progress._LINE_INTERVAL = 0.02\n"
WORK = """
with progress.step("building train.py:build"), progress.live():
    print("a report")
    time.sleep(0.5)
print("threads", threading.active_count())
"""
REPORT = "a report\nthreads 1\n"


# The last one makes Python write each argument of print() on its own, so that messages of other
# threads may come between them.
NOT_INHERITED = ("PYTEST_CURRENT_TEST", "NO_COLOR", "PYTHONUNBUFFERED")


def environment(**own: str) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name not in NOT_INHERITED}
    return {**inherited, "TERM": "xterm", **own}


def ran(
    script: str, stderr: int = subprocess.PIPE, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    head = "import os, sys, threading, time\nfrom placement_checks.util import progress\n"
    done = subprocess.run(
        [sys.executable, "-c", head + script],
        stdout=subprocess.PIPE,
        stderr=stderr,
        env=env or environment(),
        text=True,
        timeout=60,
    )
    done.stderr = _timeless(done.stderr or "")
    return done


def _timeless(text: str) -> str:
    return re.sub(r"\b\d+ s\b", "0 s", text)


def on_a_terminal(
    script: str, env: Mapping[str, str] | None = None, columns: int = 100
) -> tuple[subprocess.CompletedProcess[str], str]:
    """The output of a script, and the standard error that a terminal receives."""
    terminal, end = pty.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    done = ran(script, end, env)
    os.set_blocking(terminal, False)
    try:
        return done, _timeless(os.read(terminal, 1 << 16).decode())
    except BlockingIOError:
        return done, ""
    finally:
        os.close(terminal)
        os.close(end)


def test_a_terminal_shows_one_line_and_erases_it() -> None:
    done, drawn = on_a_terminal(QUICK + WORK)
    assert (done.returncode, done.stdout) == (0, REPORT)
    *lines, last = drawn.split(ERASED)[1:]
    assert set(lines) == {"building train.py:build … 0 s  "}
    assert len(lines) > 1
    assert last == ""


def test_without_a_terminal_progress_is_printed_line_by_line() -> None:
    done = ran(QUICK + WORK)
    assert (done.returncode, done.stdout) == (0, REPORT)
    lines = done.stderr.splitlines()
    assert set(lines) == {"placement-checks: building train.py:build (0 s)"}
    assert len(lines) > 1


def test_a_long_name_is_cut() -> None:
    done = ran((QUICK + WORK).replace("train.py:build", f"train.py --dir={'x' * 300} --last"))

    first, *_ = done.stderr.splitlines()
    assert first.startswith("placement-checks: building train.py --dir=xxx")
    assert first.endswith("xxx --last (0 s)")
    assert len(first) < 150


@pytest.mark.parametrize("plain", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_a_terminal_without_erasing_gets_lines(plain: dict[str, str]) -> None:
    _, messages = on_a_terminal(QUICK + WORK, environment(**plain))
    assert set(messages.splitlines()) == {"placement-checks: building train.py:build (0 s)"}


def test_quick_work_shows_nothing() -> None:
    assert on_a_terminal(WORK)[1] == ""
    assert ran(WORK).stderr == ""


def test_pytest_shows_nothing() -> None:
    in_pytest = environment(PYTEST_CURRENT_TEST="test_it (call)")
    assert on_a_terminal(QUICK + WORK, in_pytest)[1] == ""
    assert ran(QUICK + WORK, env=in_pytest).stderr == ""


def test_a_line_is_no_wider_than_the_terminal() -> None:
    long = WORK.replace("train.py", "a/very/long/path/to/some/programs/train.py")
    _, drawn = on_a_terminal(QUICK + long, columns=40)
    line = drawn.split(ERASED)[1]
    assert len(line) in (38, 39)
    assert re.fullmatch(r"building a/.*….*/train\.py:build … 0 s  ", line)


def test_names_are_escaped() -> None:
    _, drawn = on_a_terminal(QUICK + WORK.replace("train", r"\x1b[31m"))
    assert drawn.split(ERASED)[1] == r"building \x1b[31m.py:build … 0 s  "


def test_an_unwritable_stream_is_ignored() -> None:
    with open("/dev/full", "wb") as full:
        assert ran(QUICK + WORK, full.fileno()).stdout == REPORT
    assert ran("os.close(2)\n" + QUICK + WORK).stdout == REPORT
    reading, writing = os.pipe()
    os.close(reading)
    assert ran(QUICK + WORK, writing).stdout == REPORT
    os.close(writing)


def test_a_full_pipe_does_not_block() -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writing, b"." * 4096)
    os.set_blocking(writing, True)
    assert ran(QUICK + WORK, writing).stdout == REPORT
    os.close(reading)
    os.close(writing)


def test_an_interrupt_erases_the_line() -> None:
    interrupted = """
try:
    with progress.step("building"), progress.live():
        time.sleep(0.5)
        raise KeyboardInterrupt
except KeyboardInterrupt:
    print("threads", threading.active_count())
"""
    done, drawn = on_a_terminal(QUICK + interrupted)
    assert done.stdout == "threads 1\n"
    assert drawn.startswith(f"{ERASED}building … 0 s")
    assert drawn.endswith(ERASED)


def test_progress_goes_to_the_original_standard_error(tmp_path: Path) -> None:
    redirected = f"""
with progress.step("importing TensorFlow"), progress.live():
    os.dup2(os.open({str(tmp_path / "held")!r}, os.O_WRONLY | os.O_CREAT), 2)
    time.sleep(0.5)
"""
    assert "placement-checks: importing TensorFlow (0 s)\n" in ran(QUICK + redirected).stderr
    assert (tmp_path / "held").read_bytes() == b""


def test_lines_of_user_code_stay_whole_in_a_pipe() -> None:
    printing = """
with progress.step("building"), progress.live():
    for number in range(200):
        print("user", number, "says so", file=sys.stderr)
        time.sleep(0.002)
"""
    lines = ran(QUICK + printing).stderr.splitlines()
    messages = [line for line in lines if line.startswith("placement-checks: building (")]
    assert messages
    own = [line for line in lines if line not in messages]
    assert own == [f"user {number} says so" for number in range(200)]


def test_nested_work_is_shown_from_the_outside_in() -> None:
    with step("running train.py:build"):
        messages = [progress._current_step() for _ in track("abc", "step")]
        assert progress._current_step() == "running train.py:build"
    assert messages == [f"running train.py:build: step {number} of 3" for number in (1, 2, 3)]
    assert progress._current_step() == "working"


def test_a_single_step_is_not_counted() -> None:
    with step("running"):
        assert [progress._current_step() for _ in track("a", "step")] == ["running"]


def test_a_loop_that_was_left_by_an_error_is_over() -> None:
    steps = track("abc", "step")
    with contextlib.suppress(ZeroDivisionError), step("running"):
        for _ in steps:
            raise ZeroDivisionError
    assert progress._current_step() == "working"
    with step("judging"):
        steps.close()  # type: ignore[attr-defined]
        assert progress._current_step() == "judging"
