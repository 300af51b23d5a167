"""Hostile conditions of the machine: a full disk, other users, few descriptors, and so on."""

from __future__ import annotations

import os
import random
import resource
import stat
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from .base import Arena, Outcome, Trial, execute
from .programs import RULE, prepared

_CHANGES = """
with open("logs/model.ckpt", "r+") as file:
    file.write("x")
os.remove("notes.txt")
shutil.rmtree("logs", ignore_errors=True)
"""
_NOBODY = 65534
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
            lambda: execute(
                _VERIFY, arena.home, {**arena.environment, "PYTHONDONTWRITEBYTECODE": "1"}
            ),
            [0, 2],
        )
    finally:
        arena.unmount()


def _as_nobody(prepare: Callable[[Arena], object], statuses: Sequence[int]) -> Outcome:
    """Run as another user, if this user may."""
    if os.geteuid() != 0:
        return Outcome()
    arena = prepared(_CHANGES)
    arena.give_to(_NOBODY)
    prepare(arena)
    done = arena.run(
        lambda: execute(_VERIFY, arena.home, arena.environment, before=_become_nobody), statuses
    )
    return done


def _become_nobody() -> None:
    os.setgroups([])
    os.setgid(_NOBODY)
    os.setuid(_NOBODY)


def _make_read_only(arena: Arena) -> None:
    for directory, _, _ in os.walk(arena.home, topdown=False):
        os.chmod(directory, 0o555)


def _give_back_files(arena: Arena) -> None:
    """The directory is the user's, the files in it belong to root."""
    for name in ("notes.txt", "logs/model.ckpt"):
        os.chown(arena.home / name, 0, 0)


def _two_users() -> Outcome:
    """Root leaves the files of a killed capture; another user must not touch them."""
    if os.geteuid() != 0:
        return Outcome()
    arena = prepared(_CHANGES)
    arena.give_to(_NOBODY)
    foreign = arena.temporary / "placement_checks_capture_foreign"
    foreign.mkdir(mode=0o700)
    (foreign / "lock").touch()
    arena.temporary.chmod(stat.S_ISVTX | 0o777)
    outcome = arena.run(
        lambda: execute(_VERIFY, arena.home, arena.environment, before=_become_nobody), [0]
    )
    left = [each for each in outcome.left_over if str(foreign) not in each]
    lost = [] if len(left) < len(outcome.left_over) else [str(foreign)]
    return Outcome(
        [*outcome.lost, *lost],
        outcome.wrong_verdict,
        outcome.traceback,
        outcome.seconds,
        outcome.megabytes,
        left,
    )


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
        variables={"PYTHONDONTWRITEBYTECODE": "1"},
    ),
    "files of at most 100 bytes": lambda: _verify(
        [0, 2],
        before=_limit(resource.RLIMIT_FSIZE, 100),
        variables={"PYTHONDONTWRITEBYTECODE": "1"},
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
    "another user": partial(_as_nobody, lambda _: None, [0]),
    "a read-only home": partial(_as_nobody, _make_read_only, [2]),
    "files of root in a directory of the user": partial(_as_nobody, _give_back_files, [2]),
    "two users": _two_users,
}
