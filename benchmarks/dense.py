"""A layer of 4.2 million parameters under Adam: two towers, and one GPU.

As a script, it runs both in TensorFlow alone: two sessions, each with its variables and slots, and
as many steps as a comparison of numbers takes. So its memory is the baseline.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

tf1 = tf.compat.v1
WIDTH = 2048  # the square of this is the number of parameters
ROWS = 16
STEPS = 3


def _loss() -> tuple[Any, Any]:
    x = tf1.placeholder(tf.float32, [None, WIDTH], name="x")
    with tf.device("/cpu:0"):
        weights = tf1.get_variable("weights", [WIDTH, WIDTH])
    return x, tf.reduce_mean(tf.nn.relu(x @ weights))


def build_single() -> Mapping[str, Any]:
    with tf.device("/gpu:0"):
        x, loss = _loss()
        train_op = tf1.train.AdamOptimizer().minimize(loss)
    return {"train_op": train_op, "loss": loss, "inputs": {"x": x}}


def build_towers(num_gpus: int = 2) -> Mapping[str, Any]:
    return _towers(num_gpus, 1 / num_gpus)


def build_summed(num_gpus: int = 2) -> Mapping[str, Any]:
    """Towers that add up their gradients instead of averaging them."""
    return _towers(num_gpus, 1)


def _towers(num_gpus: int, share: float) -> Mapping[str, Any]:
    with tf.device("/cpu:0"):
        optimizer = tf1.train.AdamOptimizer()
    losses, inputs, tower_grads = [], [], []
    for i in range(num_gpus):
        with (
            tf.device(f"/gpu:{i}"),
            tf.name_scope(f"tower_{i}"),
            tf1.variable_scope(tf1.get_variable_scope(), reuse=i > 0),
        ):
            x, loss = _loss()
            tower_grads.append(optimizer.compute_gradients(loss))
        losses.append(loss)
        inputs.append({"x": x})
    with tf.device("/cpu:0"):
        average = [
            (tf.add_n([grad for grad, _ in pairs]) * share, pairs[0][1])
            for pairs in zip(*tower_grads, strict=True)
        ]
        train_op = optimizer.apply_gradients(average)
    return {"train_op": train_op, "loss": losses, "inputs": inputs}


def batch(rng: np.random.Generator, n: int) -> Mapping[str, np.ndarray]:
    return {"x": rng.standard_normal((n, WIDTH), np.float32)}


def main() -> None:
    """Take steps with both programs; their sessions stay open."""
    with contextlib.ExitStack() as sessions:
        steps = [sessions.enter_context(_session(build)) for build in (build_towers, build_single)]
        for _ in range(STEPS):
            for step in steps:
                step()


@contextlib.contextmanager
def _session(build: Callable[[], Mapping[str, Any]]) -> Any:
    """Returns a function that runs a step of a program on CPU devices that simulate GPUs."""
    from placement_checks.run.runnable import gpu_scope

    with tf.Graph().as_default(), gpu_scope(2, devices="simulated") as config:
        step = build()
        initializer = tf1.global_variables_initializer()
        with tf1.Session(config=config) as session:
            session.run(initializer)
            inputs = step["inputs"] if isinstance(step["inputs"], list) else [step["inputs"]]
            rows = batch(np.random.default_rng(0), ROWS)["x"]
            feeds = dict(
                zip((each["x"] for each in inputs), np.split(rows, len(inputs)), strict=True)
            )
            yield lambda: session.run(step["train_op"], feeds)


if __name__ == "__main__":
    main()
