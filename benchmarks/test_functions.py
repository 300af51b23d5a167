"""The cost of flattening, reading, placing and judging a traced step, relative to tracing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
import tensorflow as tf
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks import figures
from benchmarks.figures import Record
from placement_checks import place, verify
from placement_checks.capture.in_process.builder import BuildRecorder, record_eager_code
from placement_checks.capture.in_process.sessions import StopProgram
from placement_checks.core.program import Program, WatchedCode
from placement_checks.tf.simulated_devices import configure_logical_cpus

pytest.importorskip("pytest_benchmark", reason="pip install placement_checks[benchmark]")

LAYERS = 117
NODES = 11_500
FEW, MANY = 30, 1020  # numbers of layers; the larger graph has 100,000 nodes


def train(layers: int) -> None:
    """Dense layers with momentum under MirroredStrategy, about 98 nodes a layer."""
    strategy = tf.distribute.MirroredStrategy(["/gpu:0", "/gpu:1"])
    with strategy.scope():
        variables = [
            tf.Variable(tf.ones(shape), name=f"{name}{layer}")
            for layer in range(layers)
            for name, shape in (("w", [8, 8]), ("b", [8]))
        ]
        optimizer = tf.keras.optimizers.SGD(0.1, momentum=0.9)
        optimizer.build(variables)

    def replica(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            for w, b in zip(variables[::2], variables[1::2], strict=True):
                x = tf.nn.relu(x @ w + b)
            loss = tf.reduce_mean(x)
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    def step(x: tf.Tensor) -> tf.Tensor:
        return strategy.reduce("sum", strategy.run(replica, args=(x,)), axis=None)

    train_step = tf.function(step, autograph=False)
    batches = tf.data.Dataset.from_tensor_slices(tf.ones([16, 8])).batch(8)
    for x in strategy.experimental_distribute_dataset(batches):
        train_step(x)


@contextmanager
def traced(layers: int) -> Iterator[BuildRecorder]:
    """The captured program, before its first step."""
    configure_logical_cpus(3)
    with record_eager_code(Program("program", lambda: None), 2) as building:
        with suppress(StopProgram):
            train(layers)
        yield building


def judged(building: BuildRecorder) -> int:
    """Judge all rules, and return the number of ops."""
    code = WatchedCode("program")
    code.built = building.capture_step()
    report = verify(place(code, gpus=2))
    assert report.count("broken") == 0
    assert report.count("kept") >= 12
    return len(report.evidence.ops)


def test_reading_and_judging_a_traced_step(benchmark: BenchmarkFixture, record: Record) -> None:
    if benchmark.disabled:
        pytest.skip("tracing 100,000 ops takes 10 s: --benchmark-only")
    spent: list[float] = []

    def judge(building: BuildRecorder) -> None:
        begin = time.process_time()
        ops = judged(building)
        spent.append(time.process_time() - begin)
        assert 0.9 < ops / NODES < 1.1

    with traced(1) as small:
        judged(small)  # the placer's process starts, which is reported apart
    with traced(LAYERS) as building:
        benchmark.pedantic(judge, (building,), rounds=3)

    record(figures.TRACED, spent)


def test_the_cost_grows_with_the_ops(benchmark: BenchmarkFixture) -> None:
    """The cost of an op stays the same up to the size of the largest models."""
    if benchmark.disabled:
        pytest.skip("tracing so many ops takes minutes: --benchmark-only")

    def cost_of_an_op(layers: int) -> float:
        with traced(layers) as building:
            begin = time.process_time()
            ops = judged(building)
            return (time.process_time() - begin) / ops

    cost_of_an_op(1)  # the placer's process starts
    few = min(cost_of_an_op(FEW) for _ in range(3))
    many = benchmark.pedantic(cost_of_an_op, (MANY,), rounds=1)

    assert many < 2 * few
    benchmark.extra_info["microseconds an op"] = [round(1e6 * each, 1) for each in (few, many)]
