"""Side effects of an early capture, which wait for its turn."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from placement_checks.capture.child_process import file_guard, held_effects
from placement_checks.capture.child_process.held_effects import HeldEffects
from placement_checks.tf.patching import all_patched


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    marker = tmp_path / "early"
    marker.touch()
    return marker


@pytest.fixture
def effects(tmp_path: Path, marker: Path) -> HeldEffects:
    own = tmp_path / "own"
    own.mkdir()
    return HeldEffects(marker, own)


def waits(call: Callable[[], object], marker: Path) -> bool:
    """Whether a call does not return before the marker is gone, and then returns."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(0.2)
    waited = thread.is_alive()
    marker.unlink()
    thread.join(20)
    assert not thread.is_alive()
    return waited


W = os.O_WRONLY | os.O_CREAT
EVENTS: dict[str, tuple[str, tuple[Any, ...], bool]] = {
    "writing": ("open", ("new", "w", W), True),
    "appending by descriptor": ("open", ("new", None, os.O_WRONLY | os.O_APPEND), True),
    "writing to an open file": ("open", (3, "w", W), False),
    "writing to its own directory": ("open", ("own/new", "w", W), False),
    "writing elsewhere through its own directory": ("open", ("own/../new", "w", W), True),
    "writing bytes": ("open", (b"new", "wb", W), True),
    "discarding": ("open", ("/dev/null", "w", W), False),
    "compiling a module": ("open", ("package/__pycache__/m.pyc.123", None, W), False),
    "reading an old file": ("open", ("old", "r", os.O_RDONLY), False),
    "reading no file": ("open", ("none", "r", os.O_RDONLY), False),
    "making a directory": ("os.mkdir", ("new", 511, -1), True),
    "making a directory that exists": ("os.mkdir", ("own", 511, -1), False),
    "moving its own file out": ("os.rename", ("own/a", "b", -1, -1), True),
    "moving its own file": ("os.rename", ("own/a", "own/b", -1, -1), False),
    "removing": ("os.remove", ("old", -1), True),
    "binding a port": ("socket.bind", (None, ("", 80)), True),
    "locking": ("fcntl.flock", (3, 2), True),
    "starting a program": ("subprocess.Popen", ("sh", ["sh"], None, None), True),
    "asking for GPUs": (
        "subprocess.Popen",
        ("/bin/nvidia-smi", ["nvidia-smi"], None, None),
        False,
    ),
    "importing": ("import", ("numpy", None, None, None, None), False),
}


@pytest.mark.parametrize("name", EVENTS)
def test_event(
    effects: HeldEffects,
    marker: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    event, arguments, expected = EVENTS[name]
    (tmp_path / "old").write_text("rows")
    os.utime("old", (1, 1))

    assert waits(lambda: effects.audit(event, arguments), marker) == expected


CHANGES: dict[str, Callable[[], object]] = {
    "os.rename": lambda: os.rename("old", "new"),  # noqa: PTH104
    "os.replace": lambda: os.replace("old", "new"),  # noqa: PTH105
    "os.remove": lambda: os.remove("old"),  # noqa: PTH107
    "os.rmdir": lambda: os.rmdir("empty"),  # noqa: PTH106
    "shutil.rmtree": lambda: shutil.rmtree("logs"),
    "gfile.rename": lambda: tf.io.gfile.rename("old", "new"),
    "gfile.copy": lambda: tf.io.gfile.copy("old", "new"),
    "gfile.remove": lambda: tf.io.gfile.remove("old"),
    "gfile.rmtree": lambda: tf.io.gfile.rmtree("logs"),
    "gfile.makedirs": lambda: tf.io.gfile.makedirs("new/inner"),
    "gfile.GFile": lambda: tf.io.gfile.GFile("new", "w").write("rows"),
    "TFRecordWriter": lambda: tf.io.TFRecordWriter("new").close(),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_waits_for_the_turn(
    effects: HeldEffects,
    marker: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    hooks: list[Callable[..., None]] = []
    with monkeypatch.context() as patch:
        patch.setattr(sys, "addaudithook", hooks.append)  # a hook would stay
        holding = effects.hold()
        holding.__enter__()
    main = threading.get_ident()
    is_running = True

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if is_running and threading.get_ident() != main:
            hooks[0](event, arguments)

    sys.addaudithook(hook)
    (tmp_path / "old").write_text("rows")
    (tmp_path / "empty").mkdir()
    (tmp_path / "logs").mkdir()

    try:
        with all_patched(file_guard._ANNOUNCEMENTS):
            assert waits(CHANGES[name], marker)
    finally:
        is_running = False
        holding.__exit__(None, None, None)


@pytest.mark.parametrize("age", [-10, 10])
def test_a_file_that_may_be_incomplete_is_not_read(
    effects: HeldEffects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, age: int
) -> None:
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda *args: killed.append(args))
    file = tmp_path / "cache"
    file.touch()
    os.utime(file, (time.time() - age, time.time() - age))

    effects.audit("open", (str(file), "r", os.O_RDONLY))

    assert killed == ([(os.getpid(), signal.SIGKILL)] if age < 0 else [])


LOOKUPS: dict[str, Callable[[str], object]] = {
    "os.path.exists": lambda path: os.path.exists(path),  # noqa: PTH110
    "os.path.isfile": lambda path: os.path.isfile(path),  # noqa: PTH113
    "Path.exists": lambda path: Path(path).exists(),
    "Path.is_file": lambda path: Path(path).is_file(),
    "gfile.exists": lambda path: tf.io.gfile.exists(path),
}


@pytest.fixture
def looking(effects: HeldEffects) -> Iterator[HeldEffects]:
    """The effects, which note files that are missing. No hook is added: it would stay."""
    with all_patched(dict.fromkeys(held_effects._LOOKUPS, effects._note_absences)):
        yield effects


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda *args: killed.append(args))
    return killed


@pytest.mark.parametrize("name", [*LOOKUPS, "open"])
def test_a_file_that_another_capture_created_before_the_turn(
    looking: HeldEffects, marker: Path, tmp_path: Path, killed: list[tuple[int, int]], name: str
) -> None:
    path = tmp_path / "saved"
    if name == "open":
        looking.audit("open", (str(path), "r", os.O_RDONLY))
    else:
        assert not LOOKUPS[name](str(path))

    path.touch()
    marker.unlink()
    looking.wait()

    assert killed == [(os.getpid(), signal.SIGKILL)]


def test_files_that_the_program_need_not_miss(
    looking: HeldEffects, marker: Path, tmp_path: Path, killed: list[tuple[int, int]]
) -> None:
    before, own, folder, later = (tmp_path / name for name in ("a", "own/b", "c", "d"))
    before.touch()
    for look in LOOKUPS.values():
        assert look(str(before))
        assert not any(look(str(path)) for path in (own, folder, tmp_path / "never"))

    own.touch()
    folder.mkdir()
    marker.unlink()
    looking.wait()
    assert not later.exists()
    later.touch()
    looking.wait()

    assert not killed


def test_at_its_turn_nothing_waits(effects: HeldEffects, marker: Path, tmp_path: Path) -> None:
    marker.unlink()

    effects.audit("socket.bind", (None, ("", 80)))
    effects.audit("os.remove", (str(tmp_path / "file"), -1))

    assert effects.seconds == 0.0


def test_the_time_of_waiting_is_known(effects: HeldEffects, marker: Path) -> None:
    assert waits(effects.wait, marker)
    before = effects.seconds

    assert before >= 0.2
    time.sleep(0.05)
    assert effects.seconds == before
