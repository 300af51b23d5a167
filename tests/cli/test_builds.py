"""Each command builds a program only for the numbers of GPUs that its output depends on."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.commands import Run

PROGRAM = """
import sys

import tensorflow as tf

tf1 = tf.compat.v1


def build(num_gpus):
    with open("builds", "a") as file:
        file.write(f"{num_gpus} ")
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

    file = Path("builds")
    assert (file.read_text().split() if file.exists() else []) == builds.split()


def test_a_baseline_without_changes_needs_one_build(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CI", raising=False)  # where baselines are not written
    run("verify", "train.py:build", "--rule", "one-update", "--baseline", ".", "--update")
    Path("builds").unlink()
    (baseline,) = Path().glob("*.txt")

    assert run("diff", baseline, "train.py:build").status == 0
    assert Path("builds").read_text() == "2 "


@pytest.mark.one_version
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

    assert Path("builds").read_text().split() == builds.split()
