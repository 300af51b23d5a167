"""The choice of the server that forks a process, and different random numbers in forks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from placement_checks.capture.child_process import fork_server
from placement_checks.capture.programs import load
from placement_checks.core.ranks import Rank
from placement_checks.targets.forms import resolve
from placement_checks.util.fork_server import ForkServer

TRAIN = """
import pathlib
import numpy as np
import tensorflow as tf
def train(num_gpus=2):
    own = pathlib.Path("/proc/self/cmdline").read_bytes().replace(b"\\0", b" ").decode()
    if tf.executing_eagerly():  # and is not built into a graph at first
        number = np.random.rand()
        pathlib.Path(f"seen-{number}.txt").write_text(f"{number} {own}")
    w = tf.Variable([1.0])
    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(w))
        w.assign_sub(tape.gradient(loss, w))
    step()
"""


class Stub(ForkServer):
    """Replaces a server that imports TensorFlow."""

    def __init__(self) -> None:
        self.ended = 0
        self.is_ours = True
        self.is_busy = False

    @property
    def is_own(self) -> bool:
        return self.is_ours

    @property
    def is_idle(self) -> bool:
        return not self.is_busy

    def end(self) -> None:
        self.ended += 1


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Stub]:
    """The servers that the test starts."""

    def of_module(_module: str, _environment: object) -> ForkServer:
        servers.append(Stub())
        return servers[-1]

    servers: list[Stub] = []
    monkeypatch.setattr(ForkServer, "from_module", of_module)
    monkeypatch.setattr(fork_server, "_cache", fork_server.ForkServerCache())
    return servers


def test_variables_read_after_the_import_need_no_new_server(started: list[Stub]) -> None:
    first = fork_server.fork_server({"PATH": "/bin", "TMPDIR": "/a", "TF_CONFIG": "{}"})
    second = fork_server.fork_server(
        {"PATH": "/bin", "TMPDIR": "/b", "CUDA_VISIBLE_DEVICES": "-1"}
    )

    assert [first] == [second] == started
    assert started[0].ended == 0


def test_ranks_of_horovod_share_a_server(started: list[Stub]) -> None:
    servers = {fork_server.fork_server(Rank(number, 3).environment) for number in range(3)}

    assert [*servers] == started


def test_other_variables_need_another_server(started: list[Stub]) -> None:
    fork_server.fork_server({"PATH": "/bin"})
    second = fork_server.fork_server({"PATH": "/bin", "TF_USE_LEGACY_KERAS": "1"})

    assert second is started[1]


def test_programs_of_two_versions_alternate_between_two_servers(started: list[Stub]) -> None:
    environments = ({"PATH": "/bin"}, {"PATH": "/bin", "TF_USE_LEGACY_KERAS": "1"})

    used = [fork_server.fork_server(environments[number % 2]) for number in range(5)]

    assert used == [started[number % 2] for number in range(5)]
    assert [server.ended for server in started] == [0, 0]


def test_a_third_server_ends_the_one_that_was_used_longest_ago(started: list[Stub]) -> None:
    for path in ("/a", "/b", "/a", "/c"):
        fork_server.fork_server({"PATH": path})

    assert [server.ended for server in started] == [0, 1, 0]


def test_a_server_with_children_ends_later(started: list[Stub]) -> None:
    fork_server.fork_server({"PATH": "/a"})
    started[0].is_busy = True
    for path in ("/b", "/c"):
        fork_server.fork_server({"PATH": path})
    assert [server.ended for server in started] == [0, 0, 0]

    started[0].is_busy = False
    fork_server.fork_server({"PATH": "/d"})

    assert [server.ended for server in started] == [1, 1, 0, 0]


def test_a_forked_process_has_its_own_server(started: list[Stub]) -> None:
    fork_server.fork_server({})
    started[0].is_ours = False

    assert fork_server.fork_server({}) is started[1]


def test_with_a_gpu_driver_nothing_is_forked(
    started: list[Stub], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork_server, "DRIVER", tmp_path)

    assert fork_server.fork_server({}) is None
    fork_server.fork_this_process(lambda: None)
    assert started == []


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text(TRAIN)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def numbers_and_commands(folder: Path) -> tuple[set[str], set[str]]:
    seen = [path.read_text().split(" ", 1) for path in folder.glob("seen-*.txt")]
    assert len(seen) == 2
    return {number for number, _ in seen}, {command for _, command in seen}


def test_unseeded_random_numbers_differ_between_forks(folder: Path) -> None:
    for gpus in (1, 2):
        load(resolve("train.py:train"), gpus)

    numbers, commands = numbers_and_commands(folder)

    assert len(numbers) == 2
    (command,) = commands
    assert "placement_checks.capture.child_process.fork_server" in command


def test_the_command_forks_itself(folder: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "placement_checks", "verify", "train.py:train"],
        stdout=subprocess.DEVNULL,
        check=False,
        env={**os.environ, "NO_COLOR": "1"},
    )

    numbers, commands = numbers_and_commands(folder)

    assert len(numbers) == 2
    (command,) = commands
    assert "-m placement_checks verify train.py:train" in command
