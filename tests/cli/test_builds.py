"""Each command builds a program only for the numbers of GPUs that its output depends on."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.commands import Run

PROGRAM = """
import pathlib
import sys
import time

import tensorflow as tf

tf1 = tf.compat.v1


def build(num_gpus):
    pathlib.Path("builds").mkdir(exist_ok=True)
    pathlib.Path("builds", f"{time.time_ns()} {num_gpus}").touch()
    x = tf1.placeholder(tf.float32, [None, 3], name="x")
    with tf.device("/cpu:0"):
        w = tf1.get_variable("w", [3, 1])
    gradients = []
    for gpu in range(num_gpus):
        with tf.device(f"/gpu:{gpu}"):
            loss = tf.reduce_mean(tf.square(x @ w), name=f"loss_{gpu}")
            gradients += tf.gradients(loss, w)
    with tf.device("/cpu:0"):
        mean = tf.add_n(gradients) / num_gpus
        return tf1.train.GradientDescentOptimizer(0.1).apply_gradients([(mean, w)])


def single():
    return build(1)


if __name__ == "__main__":
    with tf.Graph().as_default(), tf1.Session() as session:
        session.run(build(int(sys.argv[1])), {"x:0": [[1.0, 2.0, 3.0]]})
"""


def builds_so_far() -> list[str]:
    """The numbers of GPUs of all builds, in their order. Each build has created a file."""
    return [path.name.split()[1] for path in sorted(Path("builds").glob("*"))]


@pytest.fixture(autouse=True)
def _program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("command", "builds"),
    [
        ("place train.py:build", "2"),
        ("diff train.py:build train.py:build", "2 2"),
        ("explain loss_0 train.py:build", "2"),
        ("explain w train.py:build", "2 1"),
        ("verify train.py:build --rule variables-on-host --rule one-update", "2"),
        ("verify train.py:build --rule names-portable --without names-portable", ""),
        ("verify train.py:build --rule variables-shared", "2 1"),
        ("verify train.py:build --without variables-shared", "2 1"),
        ("verify train.py:build --rule one-update --reference train.py:single", "2"),
        ("verify train.py:build --rule names-portable --reference train.py:single", "2 1"),
    ],
)
def test_numbers_of_gpus(run: Run, command: str, builds: str) -> None:
    run(*command.split())

    assert builds_so_far() == builds.split()


def test_a_baseline_without_changes_needs_one_build(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CI", raising=False)  # where baselines are not written
    run("verify", "train.py:build", "--rule", "one-update", "--baseline", ".", "--update")
    shutil.rmtree("builds")
    (baseline,) = Path().glob("*.toml")

    assert run("diff", baseline, "train.py:build").status == 0
    assert builds_so_far() == ["2"]


@pytest.mark.parametrize(
    ("arguments", "builds"),
    [
        ("place train.py -- {gpus}", "2"),
        ("verify train.py --rule one-update -- {gpus}", "2"),
        ("verify train.py --rule names-portable -- {gpus}", "2 1"),
        ("verify train.py --rule variables-shared -- 2", "2"),
    ],
)
def test_whole_programs(run: Run, arguments: str, builds: str) -> None:
    run(*arguments.split())

    assert builds_so_far() == builds.split()


PIPELINE = """
import sys

import numpy as np
import tensorflow as tf

tf1 = tf.compat.v1
gpus, rows = int(sys.argv[1]), sys.argv[2]


def read(number):
    with open("reads", "a") as file:
        file.write(".")
    return np.ones(3, np.float32) * number


def row(number):
    return tf.ensure_shape(tf.numpy_function(read, [number], tf.float32), [3])


with tf.Graph().as_default(), tf1.Session() as session:
    data = tf.data.Dataset.range(64).map(row).batch(4)
    iterator = tf1.data.make_initializable_iterator(data)
    parts = (
        tf.split(iterator.get_next(), gpus)
        if rows == "split"
        else [iterator.get_next() for _ in range(gpus)]
    )
    with tf.device("/cpu:0"):
        w = tf1.get_variable("w", [3, 1])
    gradients = []
    for gpu, part in enumerate(parts):
        with tf.device(f"/gpu:{gpu}"):
            gradients += tf.gradients(tf.reduce_mean(tf.square(part @ w)), w)
    with tf.device("/cpu:0"):
        mean = tf.add_n(gradients) / gpus
        step = tf1.train.GradientDescentOptimizer(0.1).apply_gradients([(mean, w)])
    session.run([iterator.initializer, tf1.global_variables_initializer()])
    session.run(step)
"""


@pytest.mark.parametrize(
    ("command", "rows", "is_read"),
    [
        ("place", "of_each", False),
        ("verify --rule one-update", "of_each", False),
        ("verify --rule inputs-distinct", "split", False),
        ("verify --rule inputs-distinct", "of_each", True),
        ("verify --rule gradients-equal", "split", True),
    ],
)
def test_rows_are_read_only_if_they_are_used(
    run: Run, command: str, rows: str, is_read: bool
) -> None:
    """Towers that each take a batch might take the same rows."""
    Path("pipeline.py").write_text(PIPELINE)
    name, *options = command.split()

    ran = run(name, "pipeline.py", *options, "--", "{gpus}", rows)

    assert "placement-checks:" not in ran.err
    assert Path("reads").exists() == is_read


RANK = """
import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

tf1 = tf.compat.v1
hvd.init()
with tf.Graph().as_default(), tf1.Session() as session:
    data = tf.data.Dataset.from_tensor_slices(np.eye(8, 3, dtype=np.float32)).batch(4)
    rows = tf1.data.make_one_shot_iterator(data).get_next()
    w = tf1.get_variable("w", [3, 1])
    optimizer = hvd.DistributedOptimizer(tf1.train.GradientDescentOptimizer(0.1))
    step = optimizer.minimize(tf.reduce_mean(tf.square(rows @ w)))
    session.run(tf1.global_variables_initializer())
    session.run(step)
"""


def test_each_rank_reads_its_rows(run: Run) -> None:
    """A rank has a single batch, which other ranks may read too."""
    Path("rank.py").write_text(RANK)

    ran = run("verify", "rank.py", "--horovod", 2, "--rule", "inputs-distinct")

    assert ran.status == 1
    assert "received the same rows" in ran.out
