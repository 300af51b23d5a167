"""What placing and judging a graph cost, against building it in Python."""

from __future__ import annotations

import pytest
import tensorflow as tf

from placement_checks import Placement, place, verify

pytest.importorskip("pytest_benchmark", reason="pip install placement_checks[benchmark]")

tf1 = tf.compat.v1
OPS = pytest.mark.parametrize("ops", [1_000, 10_000])


def build(ops: int) -> tf.Graph:
    """Two towers of matrix products with shared weights, about ``ops`` ops in all."""
    with tf.Graph().as_default() as graph:
        for i in range(2):
            with tf.device(f"/gpu:{i}"), tf1.variable_scope("", reuse=i > 0):
                x = tf1.placeholder(tf.float32, [None, 8])
                for layer in range(max(1, ops // 24)):
                    with tf.device("/cpu:0"):
                        w = tf1.get_variable(f"w{layer}", [8, 8])
                    x = tf.nn.relu(x @ w)
    return graph


@pytest.fixture(scope="module")
def graphs() -> dict[int, tf.Graph]:
    return {ops: build(ops) for ops in (1_000, 10_000)}


@OPS
def test_building(benchmark, ops: int) -> None:
    graph = benchmark.pedantic(build, args=(ops,), rounds=3)

    assert len(graph.get_operations()) > ops / 2


@OPS
def test_placing(benchmark, graphs: dict[int, tf.Graph], ops: int) -> None:
    place(graphs[ops])  # the placer process starts

    placement: Placement = benchmark.pedantic(place, args=(graphs[ops],), rounds=5)

    assert not placement.refusals


@OPS
def test_judging(benchmark, graphs: dict[int, tf.Graph], ops: int) -> None:
    placement = place(graphs[ops])

    report = benchmark.pedantic(verify, args=(placement,), rounds=5)

    assert report.count("broken") == 0
