"""The time to average the gradients of towers and to apply the update, on one thread.

The gradients are in variables, so nothing can be added up in place. The update is gradient
descent, the shortest one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.turns import in_turn, one_core_each
from placement_checks import average_gradients

pytest.importorskip("pytest_benchmark", reason="pip install placement_checks[benchmark]")

tf1 = tf.compat.v1
TOWERS = 2
SMALL, LARGE = (
    "0.18 million",
    "16.8 million",
)  # parameters of mnist.py, of a larger net
ROUNDS = {SMALL: 300, LARGE: 25}

Grads = Sequence[Sequence[tuple[Any, Any]]]
Averaging = Callable[[Grads], Sequence[tuple[Any, Any]]]


def by_variable(mean: Callable[[list[Any]], Any]) -> Averaging:
    """Averages the gradients of one variable after the other."""
    return lambda tower_grads: [
        (mean([grad for grad, _ in pairs]), pairs[0][1])
        for pairs in zip(*tower_grads, strict=True)
    ]


def averagings(mnist: ModuleType) -> dict[str, Averaging]:
    return {
        "concat, reduce_mean": mnist.average_gradients,
        "stack, reduce_mean": by_variable(lambda grads: tf.reduce_mean(tf.stack(grads), axis=0)),
        "add_n": by_variable(lambda grads: tf.add_n(grads) / len(grads)),
        "average_gradients": average_gradients,
    }


def shapes(mnist: ModuleType, parameters: str) -> list[Any]:
    if parameters == LARGE:
        return [[4096, 4096], [4096], [4096, 10], [10]]
    with tf.Graph().as_default():
        mnist.build_single()
        return [variable.shape for variable in tf1.trainable_variables()]


def gradients(shapes: Sequence[Any]) -> Grads:
    """Pairs of gradient and variable for each tower, as ``compute_gradients`` returns them."""

    def made(name: str) -> list[Any]:
        normal = tf1.random_normal_initializer()
        return [
            tf1.get_variable(f"{name}/{number}", shape, tf.float32, normal, use_resource=True)
            for number, shape in enumerate(shapes)
        ]

    variables = made("model")
    return [
        [
            (gradient.read_value(), variable)
            for gradient, variable in zip(made(f"tower_{tower}"), variables, strict=True)
        ]
        for tower in range(TOWERS)
    ]


@pytest.mark.parametrize("parameters", ROUNDS)
def test_averaging(benchmark: BenchmarkFixture, mnist: ModuleType, parameters: str) -> None:
    if parameters == LARGE and benchmark.disabled:
        pytest.skip("its steps take a tenth of a second each: --benchmark-only")
    with tf.Graph().as_default(), tf.device("/cpu:0"):
        tower_grads = gradients(shapes(mnist, parameters))
        optimizer = tf1.train.GradientDescentOptimizer(0.1)
        averages = {name: average(tower_grads) for name, average in averagings(mnist).items()}
        updates = {name: optimizer.apply_gradients(each) for name, each in averages.items()}
        initializer = tf1.global_variables_initializer()
        with tf1.Session(config=one_core_each(tf1.ConfigProto(), 1)) as session:
            session.run(initializer)
            means = session.run([[mean for mean, _ in each] for each in averages.values()])
            steps = {name: session.make_callable(update) for name, update in updates.items()}
            in_turn(benchmark, steps, rounds=ROUNDS[parameters])
            towers = session.run([[grad for grad, _ in tower] for tower in tower_grads])

    for average in means:
        for mean, *grads in zip(average, *towers, strict=True):
            np.testing.assert_allclose(mean, np.mean(grads, axis=0), rtol=1e-6, atol=1e-6)
