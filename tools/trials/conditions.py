"""Hostile conditions of the machine: a full disk, other users, few descriptors, and so on."""

from __future__ import annotations

import ctypes
import os
import random
import resource
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from .base import Arena, Outcome, Trial, execute
from .programs import RULE, prepared

_CHANGES = """
with open("logs/model.ckpt", "r+") as file:
    file.write("x")
os.remove("notes.txt")
shutil.rmtree("logs", ignore_errors=True)
"""
_NOBODY = 65534
_DROP_CAPABILITY, _CAPABILITIES = 24, 41  # prctl(2)
_NO_BYTECODE = {"PYTHONDONTWRITEBYTECODE": "1"}
_VERIFY = ("verify", "train.py", "--limit", "60", *RULE)


def trials(seed: int, count: int) -> Iterator[Trial]:
    every = [Trial("conditions", name, run) for name, run in _TRIALS.items()]
    random.Random(seed).shuffle(every)
    yield from every[:count]


def _verify(
    statuses: Sequence[int],
    words: str = "",
    *,
    code: str = _CHANGES,
    before: Callable[[], None] | None = None,
    options: Sequence[str] = (),
    prepare: Callable[[Arena], object] = lambda _: None,
    variables: dict[str, str] | None = None,
    without: Sequence[str] = (),
) -> Outcome:
    arena = prepared(code)
    prepare(arena)
    environment = {**arena.environment, **(variables or {})}
    for name in without:
        environment.pop(name, None)

    return arena.run(
        lambda: execute(_VERIFY, arena.home, environment, before=before, options=options),
        statuses,
        words,
    )


def _limit(kind: int, value: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(kind, (value, value))


def _on_small_disk(free: int) -> Outcome:
    """The user's files and the temporary directory are on a disk with few free bytes."""
    arena = prepared(_CHANGES)
    disk = arena.mount(1 << 20)
    if disk is None:
        arena.close()
        return Outcome()
    (arena.home / "filler").write_bytes(bytes(max(0, disk() - free)))
    try:
        return arena.run(
            lambda: execute(_VERIFY, arena.home, {**arena.environment, **_NO_BYTECODE}),
            [0, 2],
        )
    finally:
        arena.unmount()


def _drop_privileges() -> None:
    """Let root have the permissions of an ordinary user, from the next exec on."""
    for capability in range(_CAPABILITIES):
        ctypes.CDLL(None).prctl(_DROP_CAPABILITY, capability, 0, 0, 0)


def _make_read_only(arena: Arena) -> None:
    for directory, _, _ in os.walk(arena.home, topdown=False):
        Path(directory).chmod(0o555)


def _give_away_files(arena: Arena) -> None:
    """The directory is the user's, the files in it are not. So the user may delete them."""
    if os.geteuid() == 0:
        for name in ("notes.txt", "logs/model.ckpt"):
            os.chown(arena.home / name, _NOBODY, _NOBODY)


def _leave_foreign_files(arena: Arena) -> None:
    """Another user was killed, and has left files in the directory for temporary files."""
    foreign = arena.temporary / "placement_checks_capture_foreign"
    foreign.mkdir(mode=0o777)
    (foreign / "lock").touch()
    if os.geteuid() == 0:
        os.chown(foreign, _NOBODY, _NOBODY)


def _two_users() -> Outcome:
    outcome = _verify([0], before=_drop_privileges, prepare=_leave_foreign_files)
    if os.geteuid() != 0:
        return outcome
    left = [each for each in outcome.left_over if "placement_checks_capture_foreign" not in each]
    lost = outcome.lost if len(left) < len(outcome.left_over) else [*outcome.lost, "foreign files"]
    return replace(outcome, left_over=left, lost=lost)


_TRIALS: dict[str, Callable[[], Outcome]] = {
    "python -O": lambda: _verify([0], options=["-O"]),
    "python -OO": lambda: _verify([0], options=["-OO"]),
    "python -X dev": lambda: _verify([0], options=["-X", "dev"]),
    "warnings are errors": lambda: _verify([0], options=["-W", "error::ResourceWarning"]),
    "few descriptors": lambda: _verify([0, 2], before=_limit(resource.RLIMIT_NOFILE, 64)),
    "very few descriptors": lambda: _verify([0, 2], before=_limit(resource.RLIMIT_NOFILE, 24)),
    "files of at most 4 kB": lambda: _verify(
        [0, 2],
        before=_limit(resource.RLIMIT_FSIZE, 4096),
        variables=_NO_BYTECODE,
    ),
    "files of at most 100 bytes": lambda: _verify(
        [0, 2],
        before=_limit(resource.RLIMIT_FSIZE, 100),
        variables=_NO_BYTECODE,
    ),
    "no core files": lambda: _verify([0], before=_limit(resource.RLIMIT_CORE, 0)),
    "a strict umask": lambda: _verify([0], before=lambda: (os.umask(0o777), None)[1]),
    "no home": lambda: _verify([0], without=["HOME"]),
    "a missing home": lambda: _verify([0], variables={"HOME": "/nonexistent"}),
    "a missing temporary directory": lambda: _verify([0], variables={"TMPDIR": "/nonexistent"}),
    "no PATH": lambda: _verify([0], without=["PATH"]),
    "full disk": partial(_on_small_disk, 0),
    "disk with 4 kB": partial(_on_small_disk, 4096),
    "disk with 16 kB": partial(_on_small_disk, 16384),
    "disk with 64 kB": partial(_on_small_disk, 65536),
    "a read-only home": lambda: _verify([2], before=_drop_privileges, prepare=_make_read_only),
    "files of another user": lambda: _verify(
        [0],
        code="os.remove('notes.txt'); shutil.rmtree('logs')",
        before=_drop_privileges,
        prepare=_give_away_files,
    ),
    "two users": _two_users,
}
