"""Whether a loss is a mean over rows: the divisors of its sums."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from placement_checks.analysis.towers.analysis import analyze
from placement_checks.analysis.towers.inputs import LossScales, loss_scales
from placement_checks.graph.reading import from_live_graph

tf1 = tf.compat.v1
ROWS = 8


def scales(loss: Callable[[Any, Any], Any], rows: int | None = ROWS) -> LossScales | None:
    """The scales of a loss of x (rows, 4) and y (rows, 4), with a weight penalty."""
    with tf.Graph().as_default() as graph:
        x = tf1.placeholder(tf.float32, [rows, 4], name="x")
        y = tf1.placeholder(tf.float32, [rows, 4], name="y")
        weights = tf1.get_variable("weights", [4])
        total = tf.identity(loss(x * weights, y) + 3.0 * tf.nn.l2_loss(weights), name="total")
    analysis = analyze(from_live_graph(graph, "program").read_placement("program"))
    return loss_scales(analysis, analysis.flow.number[total.op.name])


def squared(x: Any, y: Any) -> Any:
    return tf.math.squared_difference(x, y)


@pytest.mark.parametrize(
    "loss",
    [
        lambda x, y: tf.reduce_mean(squared(x, y)),
        lambda x, y: tf.reduce_mean(tf.reduce_sum(squared(x, y), axis=1)),
        lambda x, y: -tf.reduce_mean(x) + tf.cast(tf.reduce_mean(y), tf.float32),
        lambda x, y: tf.reduce_mean(tf.stack([tf.reduce_mean(x), tf.reduce_mean(y)])),
        lambda x, y: tf.add_n([tf.stop_gradient(tf.reduce_mean(x)), tf.reduce_mean(y)]),
    ],
)
def test_means_have_no_divisor(loss: Callable[[Any, Any], Any]) -> None:
    assert scales(loss) == LossScales([], [])


@pytest.mark.parametrize("rows", [ROWS, None])
def test_the_divisors_of_sums(rows: int | None) -> None:
    def of_library(x: Any, y: Any) -> Any:
        return tf1.losses.mean_squared_error(x, y, scope="squares")

    def written_down(x: Any, y: Any) -> Any:
        return tf.math.divide(tf.reduce_sum(squared(x, y)), tf.constant(8.0, name="eight"))

    assert scales(of_library, rows) == LossScales(["squares/num_present"], [])
    assert scales(written_down, rows) == LossScales(["eight"], [])


def test_the_factors_of_a_mean() -> None:
    factor = LossScales([], ["factor"])

    assert scales(lambda x, y: tf.constant(8.0, name="factor") * tf.reduce_mean(x - y)) == factor
    assert scales(lambda x, y: tf.reduce_mean(x - y) * tf.constant(8.0, name="factor")) == factor


@pytest.mark.parametrize(
    "loss",
    [
        lambda x, y: tf.reduce_sum(squared(x, y)),
        lambda x, y: tf.reduce_mean(x) + tf.reduce_sum(y),
        lambda x, y: tf.reduce_sum(tf.reduce_mean(squared(x, y), axis=1)),
        lambda x, y: tf.reduce_mean(tf.stack([tf.reduce_sum(x), tf.reduce_sum(y)])),
        lambda x, y: tf.reduce_mean(x) * tf.reduce_mean(y),
        lambda x, y: 1.0 / tf.reduce_mean(x - y),
        lambda x, y: tf.reduce_max(x - y),
    ],
)
def test_losses_that_are_no_mean(loss: Callable[[Any, Any], Any]) -> None:
    assert scales(loss) is None
