"""Graphs of many kinds for three CPU devices, to compare with the oracle."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

tf1 = tf.compat.v1


def unpinned() -> Any:
    x = tf1.placeholder(tf.float32, [4, 4])
    w = tf1.get_variable("w", [4, 4])
    return tf.reduce_sum(x @ w)


def queues_and_strings() -> Any:
    with tf.device("/cpu:1"):
        queue = tf1.FIFOQueue(4, [tf.string], shapes=[[]])
        enqueue = queue.enqueue(tf.constant("a"))
    with tf.device("/cpu:2"):
        table = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(["a"], [1]), default_value=0
        )
        found = table.lookup(queue.dequeue())
    return enqueue, found


def integers() -> Any:
    with tf.device("/cpu:2"):
        step = tf1.get_variable("step", [], tf.int32, tf1.zeros_initializer(), use_resource=False)
    with tf.device("/cpu:1"):
        return tf1.assign_add(step, 1)


def loop_over_variable() -> Any:
    with tf.device("/cpu:0"):
        w = tf1.get_variable("w", [4, 4])
    with tf.device("/cpu:2"):
        x = tf1.placeholder(tf.float32, [4, 4])
        _, y = tf.while_loop(lambda i, _: i < 3, lambda i, s: (i + 1, tf.tanh(s @ w)), [0, x])
        return tf1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_sum(y))


def loop_of_version_1() -> Any:
    with tf.device("/cpu:1"):
        tf1.disable_control_flow_v2()
        try:
            x = tf1.placeholder(tf.float32, [4, 4])
            _, y = tf.while_loop(lambda i, _: i < 3, lambda i, s: (i + 1, tf.tanh(s)), [0, x])
            return tf1.cond(tf.reduce_sum(y) > 0, lambda: y + 1, lambda: y - 1)
        finally:
            tf1.enable_control_flow_v2()


def gradients_of_a_loop_of_version_1() -> Any:
    tf1.disable_control_flow_v2()
    try:
        with tf.device("/cpu:0"):
            w = tf1.get_variable("w", [4, 4])
        with tf.device("/cpu:2"):
            x = tf1.placeholder(tf.float32, [4, 4])
            _, y = tf.while_loop(lambda i, _: i < 3, lambda i, s: (i + 1, tf.tanh(s @ w)), [0, x])
        return tf1.gradients(y, [w], colocate_gradients_with_ops=True)
    finally:
        tf1.enable_control_flow_v2()


def colocated() -> Any:
    with tf.device("/cpu:2"):
        x = tf1.placeholder(tf.float32, [4])
    with tf1.colocate_with(x):
        y = x + 1
    with tf.device("/cpu:1"), tf1.colocate_with(x):
        return y * 2


def sparse_gradients() -> Any:
    with tf.device("/cpu:1"):
        table = tf1.get_variable("table", [30, 4], use_resource=False)
    with tf.device("/cpu:2"):
        rows = tf.nn.embedding_lookup(table, tf1.placeholder(tf.int32, [None]))
        return tf1.train.AdamOptimizer().minimize(tf.reduce_sum(rows))


def images_and_summaries() -> Any:
    with tf.device("/cpu:1"):
        image = tf.io.decode_jpeg(tf1.placeholder(tf.string, []))
        resized = tf.image.resize(tf.cast(image, tf.float32), [8, 8])
        tf1.summary.scalar("mean", tf.reduce_mean(resized))
    return tf1.summary.merge_all()


def savers() -> Any:
    with tf.device("/cpu:2"):
        tf1.get_variable("a", [4])
        tf1.get_variable("b", [4], use_resource=False)
    return tf1.train.Saver().saver_def


def datasets() -> Any:
    with tf.device("/cpu:1"):
        data = tf.data.Dataset.range(8).map(lambda x: x * 2).batch(2)
        iterator = tf1.data.make_initializable_iterator(data)
    with tf.device("/cpu:2"):
        return iterator.get_next() + 1


def missing_device() -> Any:
    with tf.device("/cpu:7"):
        return tf1.placeholder(tf.float32, [4]) + 1


def missing_job() -> Any:
    with tf.device("/job:ps/task:0"):
        return tf1.placeholder(tf.float32, [4]) + 1


def two_resources() -> Any:
    with tf.device("/cpu:1"):
        v = tf1.get_variable("v", [4], use_resource=False)
    with tf.device("/cpu:2"):
        w = tf1.get_variable("w", [4], use_resource=False)
    return tf1.assign(v, w)


GRAPHS = [
    unpinned,
    queues_and_strings,
    integers,
    loop_over_variable,
    loop_of_version_1,
    gradients_of_a_loop_of_version_1,
    colocated,
    sparse_gradients,
    images_and_summaries,
    savers,
    datasets,
    missing_device,
    missing_job,
    two_resources,
]
PROGRAMS = [
    "programs/graph/mnist.py:build_towers",
    "programs/graph/mnist.py:build_towers_ref",
    "programs/graph/autoencoder.py:build_towers(depths=(4,))",
    "sound/graph/unusual.py:model_parallel",
    "sound/graph/unusual.py:partitioned",
    "sound/graph/unusual.py:loops_and_branches",
    "sound/graph/unusual.py:keras_layers",
]
