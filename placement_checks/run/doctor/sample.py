"""The training program that ``placement-checks doctor`` places, captures and runs.

``python sample.py N`` trains on N GPUs.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

tf1 = tf.compat.v1
_FEATURES = 4


def build(num_gpus: int) -> Any:
    """Build a linear model with a tower on each GPU, and its training step."""
    with tf.device("/cpu:0"):
        x = tf1.placeholder(tf.float32, [None, _FEATURES], name="x")
        y = tf1.placeholder(tf.float32, [None, 1], name="y")
        w = tf1.get_variable("w", [_FEATURES, 1], initializer=tf1.ones_initializer())
        rows = tf.shape(x)[0]
    gradients = []
    for gpu in range(num_gpus):
        with tf.device(f"/gpu:{gpu}"), tf1.name_scope(f"tower_{gpu}"):
            own = slice(gpu * rows // num_gpus, (gpu + 1) * rows // num_gpus)
            error = tf.reduce_sum(tf.square(tf.matmul(x[own], w) - y[own]))
            loss = tf.divide(error, tf.cast(rows, tf.float32), name="loss")
            (gradient,) = tf1.gradients(loss, [w])
            gradients.append(gradient)
    with tf.device("/cpu:0"):
        total = tf.add_n(gradients)
        return tf1.train.GradientDescentOptimizer(0.1).apply_gradients([(total, w)])


def batch(rng: np.random.Generator, n: int) -> dict[str, npt.NDArray[np.float32]]:
    """Return n random rows for the placeholders of `build`."""
    return {
        "x": rng.normal(size=(n, _FEATURES)).astype(np.float32),
        "y": rng.normal(size=(n, 1)).astype(np.float32),
    }


def main(num_gpus: int) -> None:
    with tf.Graph().as_default(), tf1.Session() as session:
        train_op = build(num_gpus)
        session.run(tf1.global_variables_initializer())
        rows = batch(np.random.default_rng(0), 8 * num_gpus)
        session.run(train_op, {f"{name}:0": values for name, values in rows.items()})


if __name__ == "__main__":
    main(int(sys.argv[1]))
