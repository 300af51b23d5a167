"""The user's source lines of an op, outermost first, without frames of other code."""

from __future__ import annotations

from pathlib import Path
from traceback import FrameSummary
from typing import Any
from zipfile import ZipFile

import pytest
import tensorflow as tf
from support.traced import built_eagerly

from placement_checks import place
from placement_checks.core.user_code import is_user_file, users_frames

MAIN = """
import tensorflow as tf
from layers import dense

tf1 = tf.compat.v1


def build():
    with tf.device("/cpu:0"):
        model()


def model():
    x = tf1.placeholder(tf.float32, [None, 4], name="x")
    y = dense(x)
    tf.cond(tf.reduce_sum(y) > 0, lambda: tf.exp(y, name="inside"), lambda: y)
"""
LAYERS = """
import tensorflow as tf

def dense(x):
    return tf.keras.layers.Dense(1, name="keras_layer")(x)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text(MAIN)
    (tmp_path / "layers.py").write_text(LAYERS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_frames_are_outermost_first(folder: Path) -> None:
    evidence = place("train.py:build")

    assert evidence.placement.where("x") == "train.py:14"
    assert [str(frame) for frame in evidence.placement.details.frames("x")] == [
        "train.py:10",
        "train.py:14",
    ]
    assert [frame.function for frame in evidence.placement.details.frames("x")] == [
        "build",
        "model",
    ]


LOOPS = """
import tensorflow as tf

tf1 = tf.compat.v1


def build():
    losses = []
    for tower in range(3):
        x = tf1.placeholder(tf.float32, [None, 4])
        for layer in range(3):
            x = tf.nn.relu(x)
            if layer:
                x = x + 1
        losses.append(tf.reduce_mean(x))
    tf1.gradients(losses, tf1.placeholder(tf.float32))
"""


def test_each_op_of_loops_in_loops_has_its_own_line(folder: Path) -> None:
    (folder / "train.py").write_text(LOOPS)
    placement = place("train.py:build").placement
    lines = {"Relu": 12, "AddV2": 14, "Mean": 15}

    for names in (list(placement.ops), sorted(placement.ops), list(placement.ops)[::-1]):
        asked = [placement.ops[name] for name in names]
        found = {(op.type, placement.where(op.name)) for op in asked if op.type in lines}
        assert found == {(kind, f"train.py:{line}") for kind, line in lines.items()}


def test_frames_of_keras_and_tensorflow_are_passed_over(folder: Path) -> None:
    evidence = place("train.py:build")
    kernel = next(variable.name for variable in evidence.variables if "kernel" in variable.name)

    assert [str(frame) for frame in evidence.placement.details.frames(kernel)] == [
        "train.py:10",
        "train.py:15",
        "layers.py:5",
    ]


def test_ops_of_function_bodies_have_lines_too(folder: Path) -> None:
    evidence = place("train.py:build")

    assert evidence.placement.where("cond/then/inside_0") == "train.py:16"
    assert str(evidence.placement.details.frames("cond/then/inside_0")[0]) == "train.py:10"


def test_lines_are_relative_to_the_current_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = folder / "inner"
    inner.mkdir()
    monkeypatch.chdir(inner)

    placement = place("../train.py:build").placement

    assert placement.where("x") == "../train.py:14"
    monkeypatch.chdir(folder)
    assert placement.where("x") == "train.py:14"


def test_lines_of_a_live_builder_are_relative_to_its_directory() -> None:
    import tensorflow as tf

    def build() -> None:
        tf.compat.v1.placeholder(tf.float32, name="x")

    line = place(build).placement.where("x")

    assert line is not None
    assert line.endswith(f"test_user_code.py:{build.__code__.co_firstlineno + 1}")


UNSAVED = """
import tensorflow as tf
from dataclasses import dataclass


@dataclass
class Net:
    x: object

    def __post_init__(self):
        self.out = tf.exp(self.x, name="out")


def build():
    with tf.device("/gpu:0"):
        Net(tf.compat.v1.placeholder(tf.float32, name="x"))
"""


@pytest.mark.parametrize(
    "name",
    [
        "<ipython-input-3-0f2d>",
        "/tmp/ipykernel_7/42.py",
        "/tmp/ipython-input-3757364245.py",
        "/tmp/ipython-input-1-2948238912.py",
        "<stdin>",
        "<python-input-0>",
        "<console>",
        "<string>",
        "<doctest a[0]>",
    ],
)
def test_lines_of_code_without_a_file(name: str) -> None:
    """The method that Python generates for the dataclass is skipped."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(UNSAVED, name, "exec"), names)

    details = place(names["build"]).placement.details

    assert list(map(str, details.frames("out"))) == [f"{name}:16", f"{name}:11"]
    assert str(details.device_line("out")) == f"{name}:15"


def test_lines_in_copies_by_autograph_are_not_named(tmp_path: Path) -> None:
    """The code is the user's, but AutoGraph deletes these files at the end."""
    stack = []
    for number, name in enumerate(["train.py", "__autograph_generated_file0a.py"], 1):
        (tmp_path / name).touch()
        stack.append(FrameSummary(str(tmp_path / name), number, "step", lookup_line=False))

    assert all(is_user_file(frame.filename, None) for frame in stack)
    assert [frame.line for frame in users_frames(stack, None)] == [1]


def test_lines_of_executed_text(folder: Path) -> None:
    (folder / "outer.py").write_text(f"exec({UNSAVED!r})")

    placement = place("outer.py:build").placement

    assert placement.where("out") == "<string>:11"


def test_lines_of_a_module_in_another_directory(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = MAIN.replace("from layers", "from other_layers")
    path = str(folder / "lib")
    (folder / "lib").mkdir()
    (folder / "lib/other_layers.py").write_text(LAYERS)
    (folder / "main").mkdir()
    (folder / "main/train.py").write_text(f"import sys; sys.path.append({path!r})\n{source}")

    evidence = place("main/train.py:build")
    kernel = next(variable.name for variable in evidence.variables if "kernel" in variable.name)

    assert evidence.placement.where(kernel) == "lib/other_layers.py:5"


def test_lines_of_a_module_in_an_archive(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ZipFile(folder / "models.zip", "w") as archive:
        archive.writestr("archived_layers.py", LAYERS.replace("layers.Dense(1", "layers.Dense(2"))
    monkeypatch.syspath_prepend("models.zip")
    (folder / "train.py").write_text(MAIN.replace("from layers", "from archived_layers"))

    evidence = place("train.py:build")
    kernel = next(variable.name for variable in evidence.variables if "kernel" in variable.name)

    assert evidence.placement.where(kernel) == "models.zip/archived_layers.py:5"


def test_frames_before_the_builder_are_omitted() -> None:
    def build() -> None:
        tf.constant(1.0, name="x")

    frames = place(build).placement.details.frames("x")

    assert [frame.function for frame in frames] == ["build"]


def test_frames_before_a_returned_step_are_omitted() -> None:
    def build() -> dict[str, Any]:
        w = tf.Variable(1.0, name="w")

        def step() -> None:
            with tf.GradientTape() as tape:
                loss = tf.square(w, name="loss")
            w.assign_sub(tape.gradient(loss, w))

        return {"step": step}

    frames = built_eagerly(build).requested.details.frames("loss")

    assert [frame.function for frame in frames] == ["step"]
