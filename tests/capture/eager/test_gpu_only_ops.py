"""Eager ops without a CPU kernel."""

from __future__ import annotations

import pytest
import tensorflow as tf

from placement_checks import watch
from placement_checks.capture.eager.devices import fake_gpu_only_ops, is_gpu_only_error

# The float32 ops run on CPUs with oneDNN kernels.
_OF_GPUS = tf.float64


def test_channels_first() -> None:
    images, weights = tf.ones([2, 3, 8, 8], _OF_GPUS), tf.ones([3, 3, 3, 4], _OF_GPUS)

    with fake_gpu_only_ops():
        convolved = tf.nn.conv2d(images, weights, 1, "SAME", data_format="NCHW")
        pooled = tf.nn.max_pool2d(convolved, 2, 2, "VALID", data_format="NCHW")
        added = tf.nn.bias_add(pooled, tf.ones([4], _OF_GPUS), data_format="NCHW")

    assert convolved.numpy().tolist() == tf.zeros([2, 4, 8, 8]).numpy().tolist()
    assert (pooled.shape, pooled.dtype) == ((2, 4, 4, 4), tf.float64)
    assert added.shape == (2, 4, 4, 4)


def test_an_op_with_list_arguments() -> None:
    images, weights = tf.ones([2, 3, 8, 8]), tf.ones([3, 3, 4, 3])

    with fake_gpu_only_ops():
        grown = tf.nn.conv2d_transpose(
            images, weights, [2, 4, 16, 16], 2, "SAME", data_format="NCHW"
        )

    assert (grown.shape, grown.dtype) == ((2, 4, 16, 16), tf.float32)


def test_an_op_with_several_results() -> None:
    images, scale = tf.ones([2, 3, 8, 8]), tf.ones([3])

    with fake_gpu_only_ops():
        normalized, mean, variance = tf.compat.v1.nn.fused_batch_norm(
            images, scale, scale, data_format="NCHW"
        )

    assert normalized.shape == (2, 3, 8, 8)
    assert mean.shape == variance.shape == (3,)


def test_ops_with_a_cpu_kernel_run() -> None:
    with fake_gpu_only_ops():
        convolved = tf.nn.conv2d(tf.ones([1, 2, 2, 1]), tf.ones([1, 1, 1, 1]), 1, "SAME")

    assert convolved[0, 0, 0, 0] == 1


def test_a_file_in_an_error_says_nothing_about_its_cause() -> None:
    frame = "Graph execution error:\n\nDetected at node 'a'\n    File \"NHWC.py\", line 3\n"

    assert not is_gpu_only_error(f"{frame}Incompatible shapes: [2] vs. [3]")
    assert is_gpu_only_error(f"{frame}No OpKernel was registered to support Op 'A'")


def test_an_invalid_op_stays_an_error() -> None:
    with fake_gpu_only_ops(), pytest.raises(tf.errors.InvalidArgumentError):
        tf.matmul(tf.ones([2, 3]), tf.ones([2, 3]))


def test_after_the_block_the_ops_fail_again() -> None:
    with fake_gpu_only_ops():
        pass

    images = tf.ones([1, 1, 2, 2], _OF_GPUS)
    with pytest.raises((tf.errors.UnimplementedError, tf.errors.InvalidArgumentError)):
        tf.nn.conv2d(images, images, 1, "SAME", data_format="NCHW")


def test_a_function_of_such_ops() -> None:
    steps = []

    @tf.function
    def sample(images: tf.Tensor) -> tf.Tensor:
        weights = tf.ones([3, 3, 3, 4])
        return tf.nn.conv2d(images, weights, 1, "SAME", data_format="NCHW")

    @tf.function
    def train(weight: tf.Variable) -> None:
        with tf.GradientTape() as tape:
            loss = 2.0 * weight
        weight.assign_sub(tape.gradient(loss, weight))

    with watch(2, eager=True) as code:
        steps.append(sample(tf.ones([2, 3, 8, 8])))
        weight = tf.Variable(1.0)
        for _ in range(2):
            train(weight)

    assert code.built is not None
    assert steps[0].shape == (2, 4, 8, 8)
