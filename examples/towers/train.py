"""Synchronous data parallelism with towers, in the style of TensorFlow 1.

python train.py --num_gpus 2 --steps 100
"""

from __future__ import annotations

import argparse

import numpy as np
import tensorflow as tf

tf1 = tf.compat.v1

FEATURES, HIDDEN, CLASSES = 64, 32, 10
LEARNING_RATE = 0.05


def variable(name, shape, initializer):
    """A variable on the host, which all towers share."""
    with tf.device("/cpu:0"):
        return tf1.get_variable(name, shape, initializer=initializer)


def inference(x):
    """The logits of rows, of shape (rows, CLASSES)."""
    normal, zeros = tf1.random_normal_initializer(0.0, 0.1), tf1.zeros_initializer()
    w1 = variable("hidden/weights", [FEATURES, HIDDEN], normal)
    b1 = variable("hidden/biases", [HIDDEN], zeros)
    w2 = variable("logits/weights", [HIDDEN, CLASSES], normal)
    b2 = variable("logits/biases", [CLASSES], zeros)
    return tf.matmul(tf.nn.relu(tf.matmul(x, w1) + b1), w2) + b2


def tower():
    """The inputs of one GPU, and the mean loss over its rows."""
    x = tf1.placeholder(tf.float32, [None, FEATURES], name="x")
    y = tf1.placeholder(tf.int32, [None], name="y")
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=inference(x))
    return {"x": x, "y": y}, tf.reduce_mean(losses)


def averaged(tower_grads):
    """The mean over towers of each variable's gradient."""
    return [
        (tf.add_n([gradient for gradient, _ in pairs]) / len(pairs), pairs[0][1])
        for pairs in zip(*tower_grads, strict=True)
    ]


def build_towers(num_gpus=2):
    """One tower on every GPU. The host holds the variables, averages gradients and updates."""
    inputs, losses, tower_grads = [], [], []
    with tf.device("/cpu:0"):
        optimizer = tf1.train.MomentumOptimizer(LEARNING_RATE, momentum=0.9)
    for i in range(num_gpus):
        with (
            tf.device(f"/gpu:{i}"),
            tf.name_scope(f"tower_{i}"),
            tf1.variable_scope(tf1.get_variable_scope(), reuse=i > 0),
        ):
            given, loss = tower()
            tower_grads.append(optimizer.compute_gradients(loss))
        inputs.append(given)
        losses.append(loss)
    with tf.device("/cpu:0"):
        train_op = optimizer.apply_gradients(averaged(tower_grads))
    return {"train_op": train_op, "loss": losses, "inputs": inputs}


def build_single():
    """The same model on one GPU: the reference for the towers."""
    with tf.device("/gpu:0"):
        given, loss = tower()
        train_op = tf1.train.MomentumOptimizer(LEARNING_RATE, momentum=0.9).minimize(loss)
    return {"train_op": train_op, "loss": loss, "inputs": given}


def batch(rng, n):
    """Random rows. One of the features of a row determines its class."""
    labels = rng.integers(CLASSES, size=n)
    x = rng.normal(0, 0.3, size=(n, FEATURES)).astype(np.float32)
    x[np.arange(n), labels] += 1
    return {"x": x, "y": labels.astype(np.int32)}


def main():
    """Train on the requested number of GPUs."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--num_gpus", type=int, default=2)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rows", type=int, default=64, help="a GPU")
    asked = parser.parse_args()
    with tf.Graph().as_default(), tf1.Session() as session:
        built = build_towers(asked.num_gpus)
        session.run(tf1.global_variables_initializer())
        rng = np.random.default_rng(0)
        for step in range(asked.steps):
            feeds = {}
            for given in built["inputs"]:
                rows = batch(rng, asked.rows)
                feeds |= {given[name]: rows[name] for name in given}
            losses, _ = session.run([built["loss"], built["train_op"]], feeds)
            if step % 10 == 0:
                print(f"step {step}: loss {np.mean(losses):.4f}")


if __name__ == "__main__":
    main()
