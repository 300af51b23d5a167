"""Kills at random moments: of the command, of the processes of the program, of both."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import psutil

from .base import Arena, Execution, Outcome, Trial, changed, execute, snapshot
from .programs import RULE, prepared

# Changes files for some time, in all ways.
_CHANGES = """
open("started", "w").close()
for number in range(200):
    open("notes.txt", "w").write("x")
    shutil.rmtree("logs", ignore_errors=True)
    os.makedirs("logs/old", exist_ok=True)
    open("logs/model.ckpt", "a").write("x")
    os.rename("logs", "moved")
    os.rename("moved", "logs")
    with contextlib.suppress(FileNotFoundError):
        os.remove("linked.txt")
        os.truncate("data.db", 0)
        os.chmod("empty", 0o700)
        os.rmdir("empty")
    subprocess.Popen(["sleep", "100"], start_new_session=True) if number % 50 == 0 else None
    time.sleep(0.003)
"""
_SPAN = 2.0  # seconds in which the moment lies, from the first change of a file
_START = 4.0  # seconds from the start of the command, if the kill comes before the first change


def _command(command: psutil.Process) -> Sequence[psutil.Process]:
    return [command]


def _below(depth: int) -> Callable[[psutil.Process], Sequence[psutil.Process]]:
    """The descendants at a depth: 1 are servers of forks, 2 supervisors, 3 programs."""

    def find(command: psutil.Process) -> Sequence[psutil.Process]:
        found = [command]
        for _ in range(depth):
            found = [child for each in found for child in each.children()]
        return found

    return find


def _all(command: psutil.Process) -> Sequence[psutil.Process]:
    return [command, *command.children(recursive=True)]


_VICTIMS: dict[str, Sequence[Callable[[psutil.Process], Sequence[psutil.Process]]]] = {
    "command": [_command],
    "server": [_below(1)],
    "supervisor": [_below(2)],
    "program": [_below(3)],
    "command and supervisor": [_command, _below(2)],
    "command and program": [_command, _below(3)],
    "supervisor and program": [_below(2), _below(3)],
    "all": [_all],
}


def trials(seed: int, count: int) -> Iterator[Trial]:
    numbers = random.Random(seed)
    for number in range(min(count, 100)):
        victims = list(_VICTIMS)[number % len(_VICTIMS)]
        is_early = number % 10 == 9
        delay = numbers.uniform(0.0, _START if is_early else _SPAN)
        name = f"{victims} {delay:.3f} s after the {'start' if is_early else 'first change'}"
        yield Trial("kills", name, partial(_run, victims, delay, is_early=is_early))


def _run(victims: str, delay: float, *, is_early: bool) -> Outcome:
    arena = prepared("import contextlib\n" + _CHANGES)
    before = snapshot(arena.home)
    started = arena.home / "started"

    def kill(command: int) -> None:
        end = time.monotonic() + 60
        while not is_early and not started.exists() and time.monotonic() < end:
            time.sleep(0.005)
        time.sleep(delay)
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(command)
            found = [each for find in _VICTIMS[victims] for each in find(process)]
            for each in found:
                with contextlib.suppress(psutil.Error):
                    os.kill(each.pid, signal.SIGKILL)

    command = ["verify", "train.py", *RULE]
    done = execute(command, arena.home, arena.environment, meanwhile=kill)
    wrong = "" if done.status in (0, 2, -9) else f"status {done.status}: {done.err[-2000:]}"
    after = _next_run(arena, before)
    lost = changed(before, snapshot(arena.home))
    outcome = Outcome(
        lost,
        wrong,
        done.traceback or (after.traceback if after else ""),
        done.seconds,
        done.megabytes,
        arena.left_over(),
    )
    arena.close()
    return outcome


def _next_run(arena: Arena, before: dict[str, tuple[object, ...]]) -> Execution | None:
    """Run the command again, if the killed one has left something."""
    end = time.monotonic() + 5
    while time.monotonic() < end:
        if not arena.left_over_now() and not changed(before, snapshot(arena.home)):
            return None
        time.sleep(0.1)
    Path(arena.home, "next.py").write_text("raise SystemExit('ended')\n")
    return execute(["verify", "next.py"], arena.home, arena.environment)
