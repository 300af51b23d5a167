"""Captures at the same time (``--jobs``) have the results of captures one after the other."""

from __future__ import annotations

import contextlib
import json
import re
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.commands import Ran, Run
from support.repositories import commit, write

from placement_checks.capture.child_process import early

PROGRAM = """
import os
import shutil
import socket
import subprocess
import sys

import tensorflow as tf

tf1 = tf.compat.v1
gpus = int(sys.argv[1])
print("train on", gpus, flush=True)
BEFORE
with tf.Graph().as_default(), tf1.Session() as session:
    x = tf1.placeholder(tf.float32, [None, 3], name="x")
    with tf.device("/cpu:0"):
        w = tf1.get_variable("w", [3, 1])
    gradients = []
    for gpu, part in enumerate(tf.split(x, gpus)):
        with tf.device(f"/gpu:{gpu}"):
            loss = tf.reduce_mean(tf.square(part @ w))
            gradients += tf.gradients(loss, w)
    with tf.device("/cpu:0"):
        mean = tf.add_n(gradients) / gpus
        step = tf1.train.GradientDescentOptimizer(0.1).apply_gradients([(mean, w)])
    session.run(tf1.global_variables_initializer())
    AFTER
    session.run(step, {x: [[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]]})
"""

BEFORE = {
    "nothing": "",
    "deletes a directory": "tf.io.gfile.rmtree('runs')\ntf.io.gfile.makedirs('runs/new')",
    "overwrites a file": "open('notes.txt', 'w').write('gone')",
    "numbers its runs": (
        "run = len(os.listdir('runs'))\nos.makedirs(f'runs/{run}')\nprint('run', run, flush=True)"
    ),
    "runs a shell command": "subprocess.run(['sh', '-c', 'echo $0 >> new.txt', str(gpus)])",
    "binds a port": (
        "listener = socket.socket()\nlistener.bind(('127.0.0.1', PORT))\nlistener.listen()"
    ),
    "creates a cache": (
        "if not os.path.exists('cache'):\n    open('cache', 'w').write('rows')\n"
        "assert open('cache').read() == 'rows'"
    ),
    "writes records": (
        "if not os.path.exists('rows.tfrecord'):\n"
        "    with tf.io.TFRecordWriter('rows.tfrecord') as writer:\n"
        "        writer.write(b'row')\n"
        "print(list(tf.data.TFRecordDataset('rows.tfrecord').as_numpy_iterator()), flush=True)"
    ),
    "caches rows in a file": (
        "rows = tf.data.Dataset.range(3).cache('rows')\n"
        "print(list(rows.as_numpy_iterator()), flush=True)"
    ),
    "restores its model": (
        "if os.path.exists('saved'):\n"
        "    assert open('saved').read() == str(gpus), 'it is for another number'\n"
        "open('saved', 'w').write(str(gpus))"
    ),
    "restores its model with gfile": (
        "if tf.io.gfile.exists('saved'):\n"
        "    assert open('saved').read() == str(gpus), 'it is for another number'\n"
        "open('saved', 'w').write(str(gpus))"
    ),
    "fails for one GPU": "assert gpus > 1, 'it needs two'",
    "fails": "raise SystemExit('no data')",
}
TWO_PROGRAMS = """
[tool.placement_checks]
programs = [
    { target = "train.py", args = ["{gpus}"] },
    { target = "other.py", args = ["{gpus}"] },
]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    def enter(name: str) -> Path:
        folder = tmp_path / name
        (folder / "runs" / "old").mkdir(parents=True)
        (folder / "runs" / "old" / "model").write_text("a week of training")
        (folder / "notes.txt").write_text("a week of notes")
        monkeypatch.chdir(folder)
        return folder

    return enter


def contents(folder: Path) -> dict[str, bytes | None]:
    """The names and contents of all files and directories."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def program(before: str = "", after: str = "") -> str:
    """The program with statements before it builds its graph, and before its first step."""
    after = textwrap.indent(textwrap.dedent(after), "    ")
    return PROGRAM.replace("BEFORE", before).replace("    AFTER", after)


def verified(run: Run, program: str, jobs: int) -> Ran:
    Path("train.py").write_text(program)
    ran = run("verify", "train.py", "-j", jobs, "--rule", "variables-shared", "--", "{gpus}")
    return without_names(ran)


def without_names(ran: Ran) -> Ran:
    """The result without the names of directories and commits."""
    err = re.sub(r"jobs_\d", "", ran.err)
    return ran._replace(out=re.sub(r"\([0-9a-f]{10}\)", "", ran.out), err=err)


@pytest.mark.parametrize("before", BEFORE)
def test_a_program_that(
    run: Run, folder: Callable[[str], Path], before: str, unused_port: int
) -> None:
    text = BEFORE[before].replace("PORT", str(unused_port))

    states = []
    for jobs in (1, 2):
        directory = folder(f"jobs_{jobs}")
        states.append((verified(run, program(text), jobs), contents(directory)))

    assert states[0] == states[1]
    assert (states[0][0].status == 2) == (before == "fails")


@pytest.fixture
def unused_port() -> int:
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextlib.contextmanager
def signal_on_connection(signal: Path) -> Iterator[str]:
    """Yield a statement that makes this process create a file.

    Changes of files by the process that executes the statement would wait for their turn.
    """
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listener:

        def wait() -> None:
            listener.accept()[0].close()
            signal.touch()

        threading.Thread(target=wait, daemon=True).start()
        yield f"import socket; socket.create_connection({listener.getsockname()}).close()"


def test_programs_overlap_until_their_first_change(
    run: Run, folder: Callable[[str], Path]
) -> None:
    """The capture for two GPUs waits for the capture for one GPU, which must have started."""
    directory = folder("here")
    with signal_on_connection(directory / "signal") as connect:
        text = f"""
        import tempfile, time
        end = time.monotonic() + 60
        if gpus == 1:
            tempfile.TemporaryFile().close()  # in its own directory
            {connect}
            os.mkdir("made by one GPU")
        while gpus == 2 and "signal" not in os.listdir():
            assert time.monotonic() < end
            time.sleep(0.05)
        assert gpus == 1 or not os.path.exists("made by one GPU")
        """

        ran = verified(run, program(after=text), 2)

    assert ran.status == 0, ran


def test_both_sides_of_a_comparison_overlap(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The capture from the working tree waits for the capture at HEAD, which must have started."""
    home, signal = tmp_path / "project", tmp_path / "signal"
    with signal_on_connection(signal) as connect:
        commit(home, {"train.py": program(after=connect)})
        wait = f"""
        import time
        end = time.monotonic() + 60
        while gpus == 2 and {signal.name!r} not in os.listdir({str(tmp_path)!r}):
            assert time.monotonic() < end
            time.sleep(0.05)
        """
        write(home, {"train.py": program(after=wait)})
        monkeypatch.chdir(home)

        ran = run("diff", "--since", "HEAD", "-j", 2, "train.py", "--", "{gpus}")

    assert ran.status == 0, ran
    assert "nothing has moved" in ran.out


@pytest.mark.parametrize("before", ["numbers its runs", "fails"])
def test_both_sides_of_a_program_that(
    run: Run, folder: Callable[[str], Path], before: str
) -> None:
    changed = program(BEFORE[before])

    states = []
    for jobs in (1, 2):
        home = folder(f"jobs_{jobs}")
        commit(home, {".gitignore": "runs\n", "train.py": program(), "other.py": changed})
        write(home, {"pyproject.toml": TWO_PROGRAMS, "train.py": changed})
        ran = run("diff", "--since", "HEAD", "--link", "runs", "-j", jobs)
        states.append((without_names(ran), contents(home / "runs")))

    assert states[0] == states[1]
    assert (states[0][0].status == 2) == (before == "fails")


def test_too_little_memory(
    run: Run, folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder("here")
    monkeypatch.setattr(early, "available_memory", lambda: 3 << 30)

    ran = verified(run, program(), 2)

    assert ran.status == 0
    assert ran.err.count("too little memory") == 1


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_file_of_the_first_capture_that_lets_the_second_fail(
    run: Run, folder: Callable[[str], Path], jobs: int
) -> None:
    folder("here")
    restores = (
        "if os.path.isfile('log/gpus'):\n"
        "    assert open('log/gpus').read() == str(gpus), 'it is for another number'\n"
        "os.mkdir('log')\n"
        "open('log/gpus', 'w').write(str(gpus))"
    )
    Path("train.py").write_text(program(restores))

    ran = run(
        "verify",
        "train.py",
        "-j",
        jobs,
        "--rule",
        "gradients-averaged",
        "--format",
        "json",
        *("--", "{gpus}", "--logdir=log"),
    )

    (verdict,) = json.loads(ran.out)["programs"][0]["rules"]
    assert verdict["state"] == "not-checked"
    assert verdict["reason"] == (
        "built for one GPU, before its first training step it raised AssertionError: it is for "
        "another number; the run for 2 GPUs created log; if that is the cause, give each run its "
        "own path: --logdir=log{gpus}"
    )
    assert ran.err.count("train on 1") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        "programs/eager/functions.py:train_central",
        "programs/workers/workers_mirrored.py:train --machine worker*2:gpu*2",
    ],
)
def test_a_fixture(
    run: Run, fixtures: Path, monkeypatch: pytest.MonkeyPatch, arguments: str
) -> None:
    monkeypatch.chdir(fixtures)
    rules = "--rule gradients-averaged --rule replicas-in-sync"

    reports = [
        run("verify", *f"{arguments} {rules} --format json -j {jobs}".split()) for jobs in (1, 2)
    ]

    assert reports[0].status == reports[1].status
    assert reports[0].out == reports[1].out
    assert '"state": "kept"' in reports[0].out
