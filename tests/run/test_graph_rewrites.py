"""Programs with images in NCHW run on CPU devices, which have kernels for NHWC only."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support import pairs

from placement_checks.numerics.comparing import differing_variables
from placement_checks.run.graph_rewrites import convert_to_channels_last

tf1 = tf.compat.v1

Layers = Callable[[Any, Any, str], Any]


def strided(x: Any, kernel: Any, layout: str) -> Any:
    strides, dilations = ([1, 1, 2, 1], [1, 1, 1, 1])
    if layout == "NHWC":
        strides = [1, 2, 1, 1]
    return tf.nn.conv2d(x, kernel, strides, "SAME", layout, dilations)


def padded(x: Any, kernel: Any, layout: str) -> Any:
    pads = [[0, 0], [1, 2], [0, 1], [0, 0]]
    if layout == "NCHW":
        pads = [pads[0], pads[3], *pads[1:3]]
    return tf.nn.conv2d(x, kernel, 1, pads, layout)


def pooled(pool: Callable[..., Any], x: Any, kernel: Any, layout: str) -> Any:
    size = [1, 2, 3, 1] if layout == "NHWC" else [1, 1, 2, 3]
    return pool(strided(x, kernel, layout), size, size, "VALID", layout)


def by_depth(x: Any, kernel: Any, layout: str) -> Any:
    return tf.nn.depthwise_conv2d(x, kernel, [1, 1, 1, 1], "SAME", layout)


def reordered(change: Callable[..., Any], x: Any, kernel: Any, layout: str) -> Any:
    x = tf.nn.conv2d(x, kernel, 1, "SAME", layout)
    x = x[:, :, :, :8] if layout == "NCHW" else x[:, :, :8]
    return change(x, 2, data_format=layout)


@pytest.mark.parametrize(
    "layers",
    [
        strided,
        padded,
        by_depth,
        partial(pooled, tf.nn.max_pool2d),
        partial(pooled, tf.nn.avg_pool2d),
        partial(reordered, tf.nn.depth_to_space),
        partial(reordered, tf.nn.space_to_depth),
    ],
    ids=[
        *("strided", "padded", "by depth", "max pool", "average pool"),
        *("depth to space", "space to depth"),
    ],
)
def test_values_and_gradients_equal_the_other_layout(layers: Layers) -> None:
    rng = np.random.default_rng(0)
    image = rng.normal(size=(2, 8, 9, 3)).astype(np.float32)
    weights = rng.normal(size=(3, 3, 3, 4)).astype(np.float32)

    def computed(layout: str) -> list[Any]:
        graph = tf.Graph()
        with graph.as_default():
            x = tf1.placeholder(tf.float32, [None, 8, 9, 3], name="x")
            kernel = tf.identity(weights, name="kernel")
            first = tf.transpose(x, [0, 3, 1, 2]) if layout == "NCHW" else x
            y = layers(first, kernel, layout)
            y = tf.transpose(y, [0, 2, 3, 1]) if layout == "NCHW" else y
            tf.identity(y, name="y")
            for number, gradient in enumerate(tf.gradients(tf.reduce_sum(y**2), [x, kernel])):
                tf.identity(gradient, name=f"gradient_{number}")
        graph_def = graph.as_graph_def()
        convert_to_channels_last(graph_def)
        with tf.Graph().as_default():
            tf.graph_util.import_graph_def(graph_def, name="")
            with tf1.Session() as session:
                fetches = ["y:0", "gradient_0:0", "gradient_1:0"]
                return list(session.run(fetches, {"x:0": image}))

    for one, other in zip(computed("NCHW"), computed("NHWC"), strict=True):
        assert one.shape == other.shape
        assert np.max(np.abs(one - other)) <= 1e-5 * np.max(np.abs(other))


def test_other_graphs_are_unchanged() -> None:
    with tf.Graph().as_default() as graph:
        strided(tf1.placeholder(tf.float32, [None, 8, 9, 3]), tf.ones([3, 3, 3, 4]), "NHWC")
    before, after = graph.as_graph_def(), graph.as_graph_def()

    convert_to_channels_last(after)

    assert after == before


def test_towers_with_channels_first_are_compared() -> None:
    def loss(x: Any, y: Any) -> Any:
        images = tf.reshape(x, [-1, 1, 2, 2])
        with tf.device("/cpu:0"):
            kernel = tf1.get_variable(
                "kernel", [2, 2, 1, 3], initializer=tf1.random_normal_initializer()
            )
        out = tf.nn.conv2d(images, kernel, 1, "SAME", data_format="NCHW")
        out = tf.nn.max_pool2d(out, 2, 2, "SAME", data_format="NCHW")
        return tf.reduce_mean((tf.reduce_sum(out, [1, 2, 3])[:, None] - y) ** 2)

    towers = partial(pairs.towers, loss=loss)
    measured = pairs.measured(towers, partial(towers, 1))

    assert measured.trials[0].found.keys() == {"kernel"}
    assert not differing_variables(measured.trials[0], measured.precisions)
