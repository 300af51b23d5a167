"""The exit status after a signal, and other conditions that hold before any command."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from support.forked import run_forked

SWALLOWS = """
    import os
    import time

    def build(num_gpus):
        try:
            os.kill(os.getpid(), {signal})
            time.sleep(60)
        except BaseException:
            pass
        return None
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_code_swallows_decides_the_status(tmp_path: Path, number: int) -> None:
    lines = SWALLOWS.format(signal=int(number)).splitlines()
    (tmp_path / "swallows.py").write_text("\n".join(line[4:] for line in lines))

    done = run_forked(["-m", "placement_checks", "verify", "swallows.py:build"], tmp_path)

    assert done.returncode == 128 + number


@pytest.mark.parametrize("command", ["rules", "verify train.py", "diff a.py b.py"])
def test_a_deleted_working_directory(tmp_path: Path, command: str) -> None:
    code = """
import os, runpy, sys
os.mkdir("gone"); os.chdir("gone"); os.rmdir("../gone")
runpy.run_module("placement_checks", run_name="__main__", alter_sys=True)
"""
    done = run_forked(["-c", code, *command.split()], tmp_path)

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "placement-checks: the working directory cannot be used: No such file or directory; maybe "
        "it has been deleted; change to another directory\n"
    )


@pytest.mark.parametrize("limit", ["inf", "1e400", "nan", "0", "-1"])
def test_a_time_limit_is_a_finite_positive_number(tmp_path: Path, limit: str) -> None:
    (tmp_path / "train.py").touch()

    done = run_forked(
        ["-m", "placement_checks", "verify", "train.py", f"--limit={limit}"], tmp_path
    )

    assert done.returncode == 2
    assert done.stderr == (
        f"placement-checks: limit={float(limit)!r} is not a finite positive number of seconds; "
        "give one, such as limit=600\n"
    )


@pytest.mark.parametrize("limit", ["inf", "nan", "0", "-1.0", "true"])
def test_a_time_limit_in_the_configuration(tmp_path: Path, limit: str) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "pyproject.toml").write_text(f"[tool.placement_checks]\nlimit = {limit}\n")

    done = run_forked(["-m", "placement_checks", "verify", "train.py"], tmp_path)

    assert done.returncode == 2
    assert "tool.placement_checks.limit" in done.stderr
