"""Losses are selected from the scalars that a program reports."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import tensorflow as tf

from placement_checks import place

tf1 = tf.compat.v1


def test_an_accuracy_in_a_tuple_is_not_a_loss() -> None:
    """An accuracy of a single tower is no defect."""

    def build() -> object:
        x = tf1.placeholder(tf.float32, [None, 1])
        out = x * tf1.get_variable("w", [])
        cross_entropy = tf.reduce_mean(out * out, name="cross_entropy")
        total = tf.add(cross_entropy, 1.0, name="total")
        accuracy = tf.reduce_mean(tf.cast(out > 0, tf.float32))
        train_op = tf1.train.GradientDescentOptimizer(0.1).minimize(total)
        shown = tf.multiply(total, 2.0, name="shown")
        return train_op, cross_entropy, total, accuracy, shown

    assert _losses(build) == ("cross_entropy:0", "total:0", "shown:0")


@pytest.mark.parametrize("scaled", ["of_product", "of_quotient", "of_penalty", "of_stack"])
def test_a_scalar_computed_from_the_unscaled_loss_is_a_loss(scaled: str) -> None:
    """Gradients are taken of the scaled loss; the perplexity depends on the unscaled loss."""

    def build() -> object:
        x = tf1.placeholder(tf.float32, [None, 1])
        w = tf1.get_variable("w", [])
        words = tf.reduce_sum(tf.ones_like(x), name="words")
        loss = tf.reduce_mean(x * w * x * w)
        total = {
            "of_product": lambda: loss * 20.0,
            "of_quotient": lambda: loss / words,
            "of_penalty": lambda: tf.add_n([loss, tf.nn.l2_loss(w)]) * (1.0 / words),
            "of_stack": lambda: tf.reduce_mean(tf.stack([loss, loss + 1.0])),
        }[scaled]()
        train_op = tf1.train.GradientDescentOptimizer(0.1).minimize(total)
        accuracy = tf.reduce_sum(tf.cast(x * w > 0, tf.float32)) * (1.0 / words)
        rate = tf.divide(1000.0, words, name="rate")
        return train_op, tf.exp(loss, name="perplexity"), accuracy, rate

    assert _losses(build) == ("perplexity:0",)


def test_the_norm_of_gradients_is_not_a_loss() -> None:
    """The gradient of a trainable loss weight depends on the loss."""

    def build() -> object:
        x = tf1.placeholder(tf.float32, [None, 1])
        loss = tf.reduce_mean(tf.square(x * tf1.get_variable("w", [])))
        weight = tf1.get_variable("weight", [])
        optimizer = tf1.train.GradientDescentOptimizer(0.1)
        pairs = optimizer.compute_gradients(loss * weight)
        norm = tf.linalg.global_norm([gradient for gradient, _ in pairs])
        return optimizer.apply_gradients(pairs), norm, tf.exp(loss, name="perplexity")

    assert _losses(build) == ("perplexity:0",)


def _losses(build: Callable[[], object]) -> Sequence[str]:
    return place(build).placement.step.losses
