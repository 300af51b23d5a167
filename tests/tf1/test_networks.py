"""Networks in the style of 2017 are built and trained."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from placement_checks.tf1.lazy_modules import UsedNames

Run = Callable[[str], dict[str, Any]]
tf1 = tf.compat.v1

SLIM = """
import numpy as np
import tensorflow as tf
import tensorflow.contrib.slim as slim
from tensorflow.contrib.framework import get_or_create_global_step

hparams = tf.contrib.training.HParams(rate=0.5, decay=1e-3, depth=4)
hparams.parse("rate=0.25")

def arguments():
    with slim.arg_scope(
        [slim.conv2d, slim.fully_connected],
        weights_initializer=tf.contrib.layers.xavier_initializer(),
        weights_regularizer=tf.contrib.layers.l2_regularizer(hparams.decay),
        normalizer_fn=slim.batch_norm,
        normalizer_params={"is_training": True},
    ) as scope:
        return scope

x = tf.placeholder(tf.float32, [6, 8, 8, 3])
y = tf.placeholder(tf.int32, [6])
with slim.arg_scope(arguments()):
    net = slim.repeat(x, 2, slim.conv2d, hparams.depth, [3, 3], scope="conv")
    net = slim.max_pool2d(net, [2, 2])
    net = slim.dropout(slim.flatten(net), 0.9)
    logits = slim.fully_connected(net, 3, activation_fn=None, normalizer_fn=None)
slim.losses.sparse_softmax_cross_entropy(logits, y)
loss = slim.losses.get_total_loss()
optimizer = tf.train.MomentumOptimizer(hparams.rate, 0.9)
train_op = slim.learning.create_train_op(loss, optimizer, get_or_create_global_step())
"""

LAYERS = """
import tensorflow as tf

x = tf.placeholder(tf.float32, [6, 8, 8, 3])
y = tf.placeholder(tf.int32, [6])
net = tf.layers.conv2d(x, 4, 3, activation=tf.nn.relu)
net = tf.layers.batch_normalization(net, training=True)
net = tf.layers.max_pooling2d(net, 2, 2)
logits = tf.layers.dense(tf.layers.flatten(net), 3)
loss = tf.losses.sparse_softmax_cross_entropy(y, logits)
with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
    step = tf.train.get_or_create_global_step()
    train_op = tf.train.AdamOptimizer(0.05).minimize(loss, global_step=step)
"""

CELLS = """
import numpy as np
import tensorflow as tf

x = tf.placeholder(tf.float32, [6, 5, 3])
y = tf.placeholder(tf.int32, [6])
cell = tf.contrib.rnn.MultiRNNCell(
    [tf.contrib.rnn.DropoutWrapper(tf.nn.rnn_cell.BasicLSTMCell(4), output_keep_prob=1.0)] * 1
)
outputs, state = tf.nn.dynamic_rnn(cell, x, dtype=tf.float32)
logits = tf.contrib.layers.fully_connected(outputs, 3, activation_fn=None)
loss = tf.contrib.seq2seq.sequence_loss(
    logits, tf.tile(tf.expand_dims(y, 1), [1, 5]), tf.ones([6, 5])
)
step = tf.train.get_or_create_global_step()
train_op = tf.train.AdamOptimizer(0.05).minimize(loss, global_step=step)
"""


@pytest.mark.parametrize("program", [SLIM, LAYERS, CELLS], ids=["slim", "layers", "cells"])
def test_a_network_learns(run: Run, used: UsedNames, program: str) -> None:
    made = run(program)

    rng = np.random.default_rng(0)
    rows = {made["x"]: rng.normal(size=made["x"].shape), made["y"]: rng.integers(0, 3, 6)}
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        losses = [session.run([made["train_op"], made["loss"]], rows)[1] for _ in range(20)]
        steps = session.run(tf1.train.get_global_step())

    assert losses[-1] < losses[0]
    assert steps == 20
    assert {variable.op.type for variable in tf1.global_variables()} == {"VariableV2"}
    assert not used.missing


def test_names_that_a_network_of_slim_uses_are_recorded(run: Run, used: UsedNames) -> None:
    run(SLIM)

    assert used.found == {
        "tf.contrib.framework.get_or_create_global_step",
        "tf.contrib.layers.l2_regularizer",
        "tf.contrib.layers.xavier_initializer",
        "tf.contrib.slim.arg_scope",
        "tf.contrib.slim.batch_norm",
        "tf.contrib.slim.conv2d",
        "tf.contrib.slim.dropout",
        "tf.contrib.slim.flatten",
        "tf.contrib.slim.fully_connected",
        "tf.contrib.slim.learning.create_train_op",
        "tf.contrib.slim.losses.get_total_loss",
        "tf.contrib.slim.losses.sparse_softmax_cross_entropy",
        "tf.contrib.slim.max_pool2d",
        "tf.contrib.slim.repeat",
        "tf.contrib.training.HParams",
    }


def test_statistics_of_batch_normalization_are_updated(run: Run) -> None:
    run(SLIM)
    slim_updates = tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)
    with tf.Graph().as_default():
        run(LAYERS)
        updates = tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)

    assert len(slim_updates) == 4
    assert len(updates) == 2


def test_a_device_function_that_names_variables_sees_them(run: Run) -> None:
    made = run(
        """
        import tensorflow as tf

        def choose(op):
            return "/cpu:0" if op.type in ["Variable", "VariableV2"] else "/gpu:0"

        with tf.device(choose):
            w = tf.get_variable("w", [2])
            out = w * 2
        """
    )

    assert made["w"].op.device == "/cpu:0"
    assert made["out"].device == "/gpu:0"
