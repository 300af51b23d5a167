"""The text report on terminals, narrow and without colors, and in a pipe."""

from __future__ import annotations

import fcntl
import os
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Mapping
from pathlib import Path

import pytest

CALL = [sys.executable, "-m", "placement_checks", "verify", "outputlog"]
COLOR = re.compile(r"\x1b\[[\d;]*\b(?:3|4|9|10)\d(?:;[\d;]*)?m")
CODES = re.compile(r"\x1b\[[\d;]*m")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "outputlog").write_text(
        "w: (VariableV2): /job:localhost/replica:0/task:0/device:GPU:0\n"
    )
    monkeypatch.chdir(tmp_path)
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


def on_terminal(columns: int, environment: Mapping[str, str]) -> str:
    """The output for a terminal with this number of columns."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    with subprocess.Popen(CALL, stdout=theirs, env={**os.environ, **environment}) as process:
        os.close(theirs)
        with open(ours, "rb", buffering=0) as stream:
            sent = b""
            try:
                while part := stream.read(4096):
                    sent += part
            except OSError:  # the other end of the terminal is closed
                pass
    assert process.returncode == 1
    return sent.decode().replace("\r\n", "\n")


def output_in_pipe(**environment: str) -> str:
    ran = subprocess.run(
        CALL, capture_output=True, text=True, env={**os.environ, **environment}, check=False
    )
    assert ran.returncode == 1
    return ran.stdout


def test_a_pipe_gets_no_colors_by_default() -> None:
    assert "\x1b" not in output_in_pipe()
    assert COLOR.search(output_in_pipe(FORCE_COLOR="1"))


def test_no_color() -> None:
    colored, plain = on_terminal(120, {}), on_terminal(120, {"NO_COLOR": "1"})

    assert COLOR.search(colored)
    assert not COLOR.search(plain)
    assert CODES.sub("", colored) == CODES.sub("", plain) == output_in_pipe()


def test_lines_fit_in_a_narrow_terminal() -> None:
    wide, narrow = (CODES.sub("", on_terminal(columns, {})) for columns in (120, 60))

    report, _, following = narrow.partition("next: ")
    assert max(map(len, report.split("\n"))) <= 60
    assert report.split() == wide.partition("next: ")[0].split()
    assert following == wide.partition("next: ")[2]  # it may hold a command to be copied
