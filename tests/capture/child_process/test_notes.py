"""The remarks on captured programs in the report."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest
import tensorflow as tf
from tensorflow.core.framework import node_def_pb2

from placement_checks.capture.child_process import notes
from placement_checks.capture.child_process.notes import (
    created_path,
    file_guard_note,
    session_notes,
    version_1_notes,
)
from placement_checks.capture.in_process.builder import BuildRecorder, build
from placement_checks.capture.in_process.sessions import StopProgram
from placement_checks.core.program import Program
from placement_checks.core.settings import Settings
from placement_checks.core.target import Script, Target
from placement_checks.tf1.lazy_modules import UsedNames

tf1 = tf.compat.v1


def trained(name: str) -> Any:
    """The step of a model."""
    w = tf1.get_variable(name, [2], use_resource=True)
    return tf1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_sum(w), name=f"train_{name}")


def opened(target: str = "") -> Any:
    session = tf1.Session(target)
    session.run(tf1.global_variables_initializer())
    return session


def run(session: Any, step: Any) -> None:
    session.run(step)


LINE = f"tests/capture/child_process/test_notes.py:{run.__code__.co_firstlineno + 1}"


def once() -> None:
    step = trained("w")
    run(opened(), step)


def in_turn() -> None:
    steps = [trained("one"), trained("other")]
    session = opened()
    for _ in range(3):
        for step in steps:
            run(session, step)


def one_of_three() -> None:
    steps = [trained("c"), trained("b"), trained("a")]
    session = opened()
    for _ in range(100):
        run(session, steps[0])


def failing_after_one_of_two() -> None:
    """The program evaluates between its steps, with the zeros that the first step returned."""
    first, _ = trained("b"), trained("a")
    session = opened()
    run(session, first)
    fail()


def fail() -> None:
    raise ValueError("the loss is 0")


FAILS = f"tests/capture/child_process/test_notes.py:{fail.__code__.co_firstlineno + 1}"


def beside_another_graph() -> None:
    with tf.Graph().as_default():
        trained("of_another")
        opened()
    once()


def adding_gradients_up() -> None:
    w = tf1.get_variable("w", [2], use_resource=True)
    total = tf1.get_variable("total", [2], trainable=False, use_resource=True)
    optimizer = tf1.train.GradientDescentOptimizer(0.1)
    ((gradient, _),) = optimizer.compute_gradients(tf.reduce_sum(w * w), [w])
    add = total.assign_add(gradient)
    step = optimizer.apply_gradients([(total, w)])
    session = opened()
    accumulate(session, add)
    run(session, step)


def accumulate(session: Any, add: Any) -> None:
    session.run(add)


ADDS = f"tests/capture/child_process/test_notes.py:{accumulate.__code__.co_firstlineno + 1}"


def noting_gradients() -> None:
    """A run before a step with its own gradients."""
    w = tf1.get_variable("w", [2], use_resource=True)
    norm = tf1.get_variable("norm", [], trainable=False, use_resource=True)
    loss = tf.reduce_sum(w * w)
    noted = norm.assign(tf.norm(tf1.gradients(loss, w)[0]))
    step = tf1.train.GradientDescentOptimizer(0.1).minimize(loss)
    session = opened()
    session.run(noted)
    run(session, step)


def with_statistics() -> None:
    """A run before the step updates statistics, which contain no gradient."""
    w = tf1.get_variable("w", [2], use_resource=True)
    mean = tf1.get_variable("mean", [], trainable=False, use_resource=True)
    loss = tf.reduce_sum(w * w)
    step = tf1.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
    session = opened()
    session.run(mean.assign(0.9 * mean + loss))
    run(session, step)


def on_a_server() -> None:
    step = trained("w")
    run(opened("grpc://a:1"), step)


@pytest.mark.parametrize(
    ("program", "notes"),
    [
        (once, [f"run until its first training step, at {LINE}"]),
        (in_turn, [f"run until 2 different training steps, at {LINE}"]),
        (
            one_of_three,
            [
                f"run until its first training step, at {LINE}",
                "2 ops of optimizers never ran, such as "
                "train_a/update_a/ResourceApplyGradientDescent",
            ],
        ),
        (
            failing_after_one_of_two,
            [
                f"run until its first training step, at {LINE}",
                "1 op of optimizers never ran, such as "
                "train_a/update_a/ResourceApplyGradientDescent",
                "then the builder raised ValueError: the loss is 0, maybe because training steps "
                f"return zeros here; look at {FAILS}",
            ],
        ),
        (
            adding_gradients_up,
            [
                f"run until its first training step, at {LINE}",
                f"the step applies gradients that 1 other run accumulated, at {ADDS}; the rules "
                "check all these runs together",
            ],
        ),
        (
            noting_gradients,
            [
                f"run until its first training step, at {LINE}",
                "earlier runs accumulate gradients; the rules check only the run that applies "
                "them",
            ],
        ),
        (with_statistics, [f"run until its first training step, at {LINE}"]),
        (beside_another_graph, [f"run until its first training step, at {LINE}"]),
        (
            on_a_server,
            [
                f"run until its first training step, at {LINE}",
                "no connection was made to grpc://a:1",
            ],
        ),
    ],
)
def test_the_note_on_the_step(program: Callable[[], None], notes: Sequence[str]) -> None:
    found: list[str] = []

    def trains(building: BuildRecorder) -> NoReturn:
        found.extend(session_notes(building.watch))
        raise StopProgram

    build(Program.from_function(program), 2, trains)

    assert found == notes


@pytest.mark.parametrize(
    ("kept", "files"),
    [
        (["logs"], "logs"),
        (["logs", "logs", "notes.txt"], "logs and notes.txt"),
        (["a", "b", "c", "d"], "a, b, c and 1 more"),
    ],
)
def test_a_note_names_deleted_files(
    kept: Sequence[str], files: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    paths = [tmp_path / name for name in kept]

    assert list(file_guard_note(paths)) == [
        f"the program changes or deletes {files}; the originals are restored"
    ]
    assert list(file_guard_note([])) == []


@pytest.mark.parametrize(
    ("missing", "names"),
    [
        ([], None),
        (["a.b"], "a.b"),
        (["a", "b", "c"], "a, b and c"),
        (["a", "b", "c", "d", "e"], "a, b, c and 2 more"),
    ],
)
def test_the_note_on_names_missing_in_version_1(missing: list[str], names: str | None) -> None:
    used = UsedNames()
    used.missing.extend(missing)

    assert list(version_1_notes(used, [])) == (
        [f"it uses {names}, which --v1 does not provide"] if names else []
    )


@pytest.mark.parametrize(("op", "number"), [("VariableV2", 1), ("VarHandleOp", 0)])
def test_the_note_on_ref_variables(op: str, number: int) -> None:
    assert len(list(version_1_notes(UsedNames(), [node_def_pb2.NodeDef(op=op)]))) == number


BEGAN, ENDED = 1000.0, 2000.0  # of the earlier capture


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a file, both created during the earlier capture."""
    monkeypatch.chdir(tmp_path)
    logs = tmp_path / "runs" / "log"
    logs.mkdir(parents=True)
    (logs / "model.npz").write_text("")
    set_time(logs, 1500)
    return logs


def set_time(folder: Path, seconds: float) -> None:
    """Set the time of a directory and of its files."""
    for path in (*folder.iterdir(), folder):
        os.utime(path, (seconds, seconds))


def script(*args: str, **let: str) -> Script:
    return Script(Target("program", "train.py", "train.py"), Settings(args=args, let=let))


@pytest.mark.parametrize(
    ("program", "path", "argument"),
    [
        (script("--logdir=runs/log"), "runs/log", "--logdir=runs/log{gpus}"),
        (script("--gpus={gpus}", "--logdir=runs/log/"), "runs/log/", "--logdir=runs/log{gpus}/"),
        (script("--logdir", "runs/log"), "runs/log", "--logdir runs/log{gpus}"),
        (script("--verbose=1", "runs/log"), "runs/log", "runs/log{gpus}"),
        (script("-m=runs/log/model.npz"), "runs/log/model.npz", "-m=runs/log/model{gpus}.npz"),
        (script(LOGDIR="runs/log"), "runs/log", "--let LOGDIR=runs/log{gpus}"),
    ],
)
def test_a_path_that_an_earlier_capture_created(
    logs: Path, program: Script, path: str, argument: str
) -> None:
    assert created_path(program, BEGAN, ENDED) == (path, argument)


@pytest.mark.parametrize(
    "argument",
    [
        "--gpus={gpus}",
        "--rows=8",
        "--name=",
        "--dir=.",
        "--dir=..",
        "--dir=/",
        "--log=runs/{gpus}",
    ],
)
def test_arguments_without_such_a_path(logs: Path, argument: str) -> None:
    set_time(logs.parents[1], 1500)
    Path("runs/{gpus}").mkdir()
    os.utime("runs/{gpus}", (1500, 1500))

    assert created_path(script(argument), BEGAN, ENDED) is None


@pytest.mark.parametrize("seconds", [500, 2500])
def test_a_path_from_before_or_after_the_earlier_capture(logs: Path, seconds: float) -> None:
    set_time(logs, seconds)

    assert created_path(script("--logdir=runs/log"), BEGAN, ENDED) is None


def test_a_directory_with_files_of_the_user(logs: Path) -> None:
    (logs / "notes.txt").write_text("")
    os.utime(logs / "notes.txt", (500, 500))

    assert created_path(script("--logdir=runs/log"), BEGAN, ENDED) is None


def test_a_file_that_both_captures_write(logs: Path) -> None:
    (logs / "events").write_text("")
    os.utime(logs / "events", (2500, 2500))
    os.utime(logs, (2500, 2500))

    assert created_path(script("--logdir=runs/log"), BEGAN, ENDED) is not None


def test_a_large_directory_is_not_examined(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notes, "_MOST_FILES", 1)

    assert created_path(script("--logdir=runs/log"), BEGAN, ENDED) is None
