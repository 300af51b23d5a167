"""The time to place and judge a program for a cluster depends on the number of ops only.

The program has a tower on every GPU of every worker, and variables on parameter servers. The
figures are in `extra_info` of `--benchmark-json=FILE`; without `--benchmark-only` the large ones
are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import psutil
import pytest
import tensorflow as tf
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks import figures
from benchmarks.figures import Record
from benchmarks.turns import timed
from placement_checks import Machine, Report, place, verify
from placement_checks.placer.worker.client import phantom

pytest.importorskip("pytest_benchmark", reason="pip install placement_checks[benchmark]")

tf1 = tf.compat.v1
GPUS = 8
LAYERS = 2
SMALL = (2, 4)  # numbers of workers and servers
CLUSTERS = [SMALL, (8, 4), (64, 1), (64, 4), (64, 16), (256, 4)]


def towers(workers: int, servers: int) -> Callable[..., object]:
    """A builder of a tower on each GPU: two layers forward, and their gradients."""

    def build() -> object:
        losses: list[Any] = []
        tower_grads: list[Any] = []
        for worker in range(workers):
            for gpu in range(GPUS):
                with (
                    tf.device(f"/job:worker/task:{worker}/gpu:{gpu}"),
                    tf.name_scope(f"tower_{len(losses)}"),
                    tf1.variable_scope("", reuse=bool(losses)),
                ):
                    losses.append(tower(tower_grads, servers))
        average = []
        for pairs in zip(*tower_grads, strict=True):
            with tf.device(pairs[0][1].device):
                average.append((tf.add_n([grad for grad, _ in pairs]) / len(pairs), pairs[0][1]))
        train_op = tf1.train.GradientDescentOptimizer(0.1).apply_gradients(average)
        return {"train_op": train_op, "loss": losses}

    return build


def tower(tower_grads: list[Any], servers: int) -> Any:
    x = tf1.placeholder(tf.float32, [None, 8])
    reads, variables = [], []
    for layer in range(LAYERS):
        with tf.device(f"/job:ps/task:{layer % servers}/cpu:0"):
            variables.append(tf1.get_variable(f"w{layer}", [8, 8]))
        # Gradients with respect to the value that this tower read. With respect to the variable,
        # TensorFlow would search all previous towers.
        reads.append(tf.identity(variables[-1]))
        x = tf.nn.relu(x @ reads[-1])
    loss = tf.reduce_mean(x)
    gradients = tf1.gradients(loss, reads, colocate_gradients_with_ops=True)
    tower_grads.append(list(zip(gradients, variables, strict=True)))
    return loss


@cache
def built(workers: int, servers: int) -> tf.Graph:
    with tf.Graph().as_default() as graph:
        towers(workers, servers)()
    return graph


def of_placer() -> int:
    """The memory of the placer process, in bytes."""
    assert phantom.pid is not None
    return int(psutil.Process(phantom.pid).memory_info().rss)


@pytest.mark.parametrize(("workers", "servers"), CLUSTERS)
def test_placing_a_cluster(
    benchmark: BenchmarkFixture, record: Record, workers: int, servers: int
) -> None:
    if benchmark.disabled and (workers, servers) != SMALL:
        pytest.skip("large graphs take a minute to build: --benchmark-only")
    graph = built(workers, servers)
    machine = Machine.parse(f"ps*{servers}; worker*{workers}: gpu*{GPUS}")
    place(built(*SMALL))  # starts the placer process, which has a figure of its own
    before = of_placer()
    placing: list[float] = []
    judging: list[float] = []

    def check() -> Report:
        seconds, placement = timed(lambda: place(graph, machine=machine))
        placing.append(seconds)
        seconds, report = timed(partial(verify, placement))
        judging.append(seconds)
        return report

    report = benchmark.pedantic(check, rounds=3)
    if (workers, servers) == (64, 4):
        record(figures.CLUSTER, placing)

    assert report.count("broken") == 0
    used = {op.assigned for op in report.evidence.ops.values()}
    assert len(used) == workers * GPUS + min(servers, LAYERS)
    ops = len(report.evidence.ops)
    benchmark.extra_info |= {
        "ops": ops,
        "place": [round(seconds, 2) for seconds in placing],
        "judge": [round(seconds, 2) for seconds in judging],
        "place, microseconds an op": round(min(placing) / ops * 1e6, 1),
        "judge, microseconds an op": round(min(judging) / ops * 1e6, 1),
        "placer, bytes an op": round((of_placer() - before) / ops),
    }
