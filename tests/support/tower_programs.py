"""The source code of a program with towers, which tests refactor."""

from __future__ import annotations

MEAN = "tf.add_n(losses) / num_gpus"
_BUILD = """
import tensorflow as tf

tf1 = tf.compat.v1


def build(num_gpus=2):
    losses = []
    with tf.device("/cpu:0"):
        weights = tf1.get_variable("{scope}/weights", [4, 1], use_resource=True)
    for i in range(num_gpus):
        with tf.device(f"/gpu:{tower_on}"), tf.name_scope(f"{tower}_{{i}}"):
            x = tf1.placeholder(tf.float32, [None, 4])
            with tf.device(f"/gpu:{product_on}"):
                product = tf.matmul(x, weights)
            losses.append(tf.reduce_mean(tf.square(tf.nn.relu(product))))
    with tf.device("/cpu:0"):
        optimizer = tf1.train.GradientDescentOptimizer(0.1)
        loss = {loss}
        train_op = optimizer.minimize(loss, colocate_gradients_with_ops=True)
    return {{"train_op": train_op, "loss": losses}}
"""
_RUN = """
import sys

import tensorflow as tf

tf1 = tf.compat.v1
{build}

if __name__ == "__main__":
    tf1.disable_eager_execution()
    step = build(int(sys.argv[1]))
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        xs = [op.outputs[0] for op in session.graph.get_operations() if op.type == "Placeholder"]
        session.run(step["train_op"], {{x: [[1, 2, 3, 4]] for x in xs}})
"""


def towers(
    *,
    scope: str = "fc",
    tower: str = "tower",
    tower_on: str = "{i}",
    product_on: str = "",
    loss: str = MEAN,
) -> str:
    """A module with the function `build`.

    Args:
        scope: the scope of the only variable.
        tower: the scope of each tower, without its number.
        tower_on: the GPU of tower ``{i}``.
        product_on: the GPU of the product in tower ``{i}``; ``""`` for the GPU of the tower.
        loss: the expression for the whole loss.
    """
    product_on = product_on or tower_on
    return _BUILD.format(
        scope=scope, tower=tower, tower_on=tower_on, product_on=product_on, loss=loss
    )


def whole(build: str) -> str:
    """A whole program that takes the number of GPUs as its argument.

    Args:
        build: the statements that define or import the function `build`.
    """
    return _RUN.format(build=build)
