"""The cost of whole commands, including their start and all their processes."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks import figures
from benchmarks.figures import Record
from benchmarks.processes import Cost, cost
from benchmarks.turns import in_pairs

pytest.importorskip("pytest_benchmark", reason="pip install placement_checks[benchmark]")

COMMAND = [sys.executable, "-m", "placement_checks"]
VERIFY = [*COMMAND, "verify"]
NUMBERS = ("gradients-equal", "weights-equal", "towers-overlap")
BARE = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
PLUGIN = ["-p", "placement_checks.testing.pytest_plugin"]


@pytest.mark.parametrize(
    "figure", [figures.STATIC, figures.NUMERIC], ids=["static", "with numbers"]
)
def test_verifying_mnist(
    benchmark: BenchmarkFixture, record: Record, fixtures: Path, figure: str
) -> None:
    if benchmark.disabled:
        pytest.skip("verified by other tests, and here for the cost alone: --benchmark-only")
    towers, single, batch = (
        f"{fixtures / 'programs/graph/mnist.py'}:{name}"
        for name in ("build_towers", "build_single", "batch")
    )
    reference = ["--reference", single, "--batch", batch] if figure == figures.NUMERIC else []
    costs: list[Cost] = []
    benchmark.pedantic(lambda: costs.append(cost(*VERIFY, towers, *reference)), rounds=3)

    record(figure, [took.cpu for took in costs])
    benchmark.extra_info["GB"] = [round(took.peak, 3) for took in costs]


# A graph of 20,000 ops, which takes its time in one process. With --stop it ends before its step.
PROGRAM = """
import os
import sys

import tensorflow as tf

tf1 = tf.compat.v1
gpus = int(sys.argv[1])
config = tf1.ConfigProto(allow_soft_placement=True)
with tf.Graph().as_default(), tf1.Session(config=config) as session:
    x = tf1.placeholder(tf.float32, [None, 3], name="x")
    with tf.device("/cpu:0"):
        w = tf1.get_variable("w", [3, 3])
    gradients = []
    for gpu, part in enumerate(tf.split(x, gpus)):
        with tf.device(f"/gpu:{gpu}"):
            for _ in range(1100):
                part = tf.tanh(part @ w)
            gradients += tf.gradients(tf.reduce_mean(part), w)
    with tf.device("/cpu:0"):
        mean = tf.add_n(gradients) / gpus
        step = tf1.train.GradientDescentOptimizer(0.1).apply_gradients([(mean, w)])
    session.run(tf1.global_variables_initializer())
    if "--stop" in sys.argv:
        os._exit(0)
    session.run(step, {x: [[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]]})
"""


@pytest.mark.parametrize("command", ["place", "verify"])
def test_a_whole_program(
    benchmark: BenchmarkFixture, record: Record, tmp_path: Path, command: str
) -> None:
    """The program alone for two GPUs, and the command, which captures it without numbers."""
    if benchmark.disabled:
        pytest.skip("verified by other tests, and here for the cost alone: --benchmark-only")
    (tmp_path / "train.py").write_text(PROGRAM)
    run = partial(cost, cwd=tmp_path, environment={"CUDA_VISIBLE_DEVICES": "-1"})
    without = [f"--without={rule}" for rule in NUMBERS] if command == "verify" else []

    pairs = in_pairs(
        benchmark,
        partial(run, *COMMAND, command, "train.py", *without, "--", "{gpus}"),
        partial(run, sys.executable, "train.py", "2", "--stop"),
        rounds=5,
    )

    record(figures.WHOLE.format(command), [ours.wall / own.wall for ours, own in pairs])


def test_a_session_without_the_plugin(
    benchmark: BenchmarkFixture, record: Record, tmp_path: Path
) -> None:
    (tmp_path / "test_nothing.py").write_text("def test_nothing():\n    pass\n")
    session = partial(
        cost,
        cwd=tmp_path,
        environment={"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""},
    )

    pairs = in_pairs(
        benchmark, partial(session, *BARE, *PLUGIN), partial(session, *BARE), rounds=30
    )

    record(figures.PLUGIN, [1000 * (with_it.cpu - bare.cpu) for with_it, bare in pairs])
