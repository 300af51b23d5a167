"""What placing and judging a tower graph cost, against building it in Python.

The figures are ratios of runs side by side, the median of five pairs; `--benchmark-json=FILE`
keeps them all as `extra_info`. What a judged graph costs alone is what the table shows.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

import pytest
import tensorflow as tf
from pytest_benchmark.fixture import BenchmarkFixture

from placement_checks import Program, place, verify

pytest.importorskip("pytest_benchmark", reason="pip install placement_checks[benchmark]")

tf1 = tf.compat.v1
PAIRS = 5
OPS_A_LAYER = 75

T = TypeVar("T")


def towers(ops: int) -> Callable[..., object]:
    """A builder of two towers of dense layers with momentum, about ``ops`` ops in all."""

    def build(num_gpus: int = 2) -> object:
        with tf.device("/cpu:0"):
            optimizer = tf1.train.MomentumOptimizer(0.1, 0.9)
        tower_grads, losses = [], []
        for i in range(num_gpus):
            with (
                tf.device(f"/gpu:{i}"),
                tf.name_scope(f"tower_{i}"),
                tf1.variable_scope("", reuse=i > 0),
            ):
                x = tf1.placeholder(tf.float32, [None, 8])
                for layer in range(max(1, ops // OPS_A_LAYER)):
                    with tf.device("/cpu:0"):
                        w = tf1.get_variable(f"w{layer}", [8, 8])
                        b = tf1.get_variable(f"b{layer}", [8])
                    x = tf.nn.relu(x @ w + b)
                losses.append(tf.reduce_mean(x))
                tower_grads.append(optimizer.compute_gradients(losses[-1]))
        with tf.device("/cpu:0"):
            average = [
                (tf.add_n([grad for grad, _ in pairs]) / num_gpus, pairs[0][1])
                for pairs in zip(*tower_grads, strict=True)
            ]
            return {"train_op": optimizer.apply_gradients(average), "loss": losses}

    return build


def timed(call: Callable[[], T]) -> tuple[float, T]:
    gc.collect()
    begin = time.perf_counter()
    result = call()
    return time.perf_counter() - begin, result


def built(build: Callable[..., object]) -> tf.Graph:
    with tf.Graph().as_default() as graph:
        build()
    return graph


@pytest.fixture(scope="module")
def _started() -> None:
    place(built(towers(1)))  # the placer process starts, which is reported apart


@pytest.mark.usefixtures("_started")
@pytest.mark.parametrize("ops", [1_000, 10_000, 100_000])
def test_placing_and_judging_against_building(benchmark: BenchmarkFixture, ops: int) -> None:
    if ops > 10_000 and benchmark.disabled:
        pytest.skip("building 100,000 ops takes a minute: --benchmark-only")
    build = towers(ops)
    ratios, rules = [], []
    for _ in range(PAIRS if benchmark.enabled else 1):
        building, graph = timed(lambda: built(build))
        placing, placement = timed(partial(place, graph))
        judging, report = timed(partial(verify, placement))
        ratios.append((placing + judging) / building)
        rules.append(judging / building)

    assert report.count("broken") == 0
    assert ops / 2 < len(placement.ops) < ops * 2
    assert statistics.median(ratios) < 0.5  # the figure to reach is 0.15, on a quiet machine
    benchmark.extra_info |= {
        "ops": len(placement.ops),
        "place and judge / build": [round(ratio, 3) for ratio in ratios],
        "judge / build": [round(ratio, 3) for ratio in rules],
    }
    benchmark.pedantic(lambda: verify(replace(placement)), rounds=3)


def test_the_generated_program_keeps_every_rule_that_can_be_judged() -> None:
    report = verify(place(Program("towers", towers(200))))

    assert report.count("broken") == 0
    assert report.count("kept") >= 14
