"""The op of a reference that combines rows is found and named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf
from support import pairs

from placement_checks.core.measurement import RowMixing
from placement_checks.run.compare.row_mixing import find_row_mixing
from placement_checks.run.compare.sessions import Conditions, PairedSessions
from placement_checks.run.session import ProgramSession

tf1 = tf.compat.v1

Loss = Callable[[Any, Any], Any]


def mixing(loss: Loss, rows: int | None = None, batch: Any = pairs.batch) -> RowMixing | None:
    """How a reference with this loss combines rows; it takes ``rows`` rows, or any number."""
    pair = pairs.pair(
        lambda num_gpus: pairs.towers(num_gpus, loss=loss, rows=rows and rows // 2),
        lambda: pairs.towers(1, loss=loss, rows=rows),
    )
    conditions = Conditions()
    with (
        ProgramSession(pair.towers, 60) as towers,
        ProgramSession(pair.reference, 60) as reference,
    ):
        feeding = pair.feeding(batch)
        sessions = PairedSessions(towers, reference, feeding, conditions)
        sessions.initialize(None)
        return find_row_mixing(sessions, sessions.batch(feeding.rows))


def squares(x: Any, y: Any) -> Any:
    return tf.math.squared_difference(tf.tanh(pairs.predicted(x)), y)[:, 0]


def dense(x: Any, width: int = 3) -> Any:
    w = tf1.get_variable("first", [4, width], initializer=tf1.random_normal_initializer())
    return tf.matmul(x, w)


def mean(x: Any, y: Any) -> Any:
    return tf.reduce_mean(squares(x, y))


def decayed(x: Any, y: Any) -> Any:
    return 7 * tf.reduce_sum(squares(x, y)) + tf.nn.l2_loss(dense(tf.eye(4)))


def layer_normalized(x: Any, y: Any) -> Any:
    hidden = dense(x)
    average, variance = tf.nn.moments(hidden, [1], keepdims=True)
    return mean((hidden - average) * tf.math.rsqrt(variance + 1e-3), y)


def token_mean(x: Any, y: Any) -> Any:
    counts = tf.cast(y[:, 0] > 1.5, tf.float32)
    return tf.math.divide(tf.reduce_sum(squares(x, y) * counts), tf.reduce_sum(counts), "tokens")


def weighted(x: Any, y: Any) -> Any:
    counts = y[:, 0]
    return tf.reduce_mean(squares(x, y) * tf.math.divide(counts, tf.reduce_mean(counts), "shares"))


def root(x: Any, y: Any) -> Any:
    return tf.sqrt(mean(x, y), "root")


def soft_maximum(x: Any, y: Any) -> Any:
    return tf.math.log(tf.reduce_sum(tf.exp(squares(x, y))), "logarithm")


def hardest(x: Any, y: Any) -> Any:
    return tf.reduce_mean(tf.math.top_k(squares(x, y), 2, name="hardest").values)


def negatives(x: Any, y: Any) -> Any:
    hidden = dense(x)
    logits = tf.matmul(hidden, hidden, transpose_b=True, name="logits")
    return tf.reduce_mean(tf.reduce_logsumexp(logits, 1)) + mean(x, y)


def reversed_labels(x: Any, y: Any) -> Any:
    return mean(x, 0.7 * y + 0.3 * tf.reverse(y, [0], name="partners"))


@pytest.mark.parametrize("loss", [mean, decayed, layer_normalized])
@pytest.mark.parametrize("rows", [None, 16])
def test_sums_over_rows_combine_nothing_else(loss: Loss, rows: int | None) -> None:
    assert mixing(loss, rows) == RowMixing()


@pytest.mark.parametrize(
    ("loss", "op_type", "name"),
    [
        (token_mean, "RealDiv", "tokens"),
        (weighted, "RealDiv", "shares"),
        (root, "Sqrt", "root"),
        (soft_maximum, "Log", "logarithm"),
        (hardest, "TopKV2", "hardest"),
        (negatives, "MatMul", "logits"),
        (reversed_labels, "ReverseV2", "partners"),
    ],
)
def test_the_first_op_that_combines_rows_is_named(loss: Loss, op_type: str, name: str) -> None:
    found = mixing(loss)

    assert found
    assert not found.statistic
    assert found.op_type == op_type
    assert found.op.startswith(f"{op_type} {name}, ")


def test_a_difference_that_few_rows_do_not_show() -> None:
    """Only the last rows have other weights, and few rows of a batch are tried first."""

    def last_rows(x: Any, y: Any) -> Any:
        weights = tf.where(x[:, 0] > 8, 0.0, 1.0)
        errors = tf.reduce_sum(squares(x, y) * weights)
        return tf.math.divide(errors, tf.reduce_sum(weights), "tokens")

    def batch(rng: Any, n: int) -> Any:
        made = pairs.batch(rng, n)
        made["x"][-n // 4 :, 0] = 9
        return made

    found = mixing(last_rows, batch=batch)

    assert found
    assert found.op.startswith("RealDiv tokens, ")


def by_moments(x: Any) -> Any:
    average, variance = tf.nn.moments(x, [0])
    return tf.nn.batch_normalization(x, average, variance, None, None, 1e-3)


def by_squares(x: Any) -> Any:
    average, square = tf.reduce_mean(x, 0), tf.reduce_mean(x**2, 0)
    return (x - average) / tf.sqrt(tf.maximum(square - average**2, 0) + 1e-3)


def fused(x: Any) -> Any:
    width = x.shape[-1]
    normalized, _, _ = tf1.nn.fused_batch_norm(
        x[:, None, None], tf.ones([width]), tf.zeros([width]), epsilon=1e-3
    )
    return normalized[:, 0, 0]


@pytest.mark.parametrize(
    ("normalize", "rows"), [(by_moments, None), (by_squares, 16), (fused, None)]
)
def test_batch_statistics_are_told_from_other_ops(
    normalize: Callable[[Any], Any], rows: int | None
) -> None:
    def twice(x: Any, y: Any) -> Any:
        hidden = normalize(tf.nn.relu(dense(normalize(x), 4)))
        return mean(hidden, y)

    def twice_with_tokens(x: Any, y: Any) -> Any:
        return token_mean(normalize(dense(normalize(x), 4)), y)

    alone, with_tokens = mixing(twice, rows), mixing(twice_with_tokens, rows)

    assert alone
    assert alone.statistic
    assert not alone.op
    assert with_tokens
    assert with_tokens.statistic
    assert with_tokens.op.startswith("RealDiv tokens, ")


def test_a_deviation_that_is_added_to_the_loss_is_no_statistic() -> None:
    def spread(x: Any, y: Any) -> Any:
        hidden = dense(x)
        _, variance = tf.nn.moments(hidden, [0])
        return mean(hidden, y) + tf.reduce_mean(tf.nn.relu(3 - tf.sqrt(variance + 1e-3)))

    found = mixing(spread)

    assert found
    assert not found.statistic
    assert found.op


def test_standardized_labels_are_a_part_of_the_loss() -> None:
    found = mixing(lambda x, y: mean(x, by_squares(y)))

    assert found
    assert not found.statistic
    assert found.op


def test_a_root_of_a_mean_is_no_statistic_next_to_statistics() -> None:
    found = mixing(lambda x, y: root(by_moments(dense(x, 4)), y))

    assert found
    assert found.statistic
    assert found.op.startswith("Sqrt root, ")
