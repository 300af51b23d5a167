"""Captured programs with input pipelines: the recorded elements are fed to both programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.verdicts import of_rules
from support.watched import hidden, judged, mean, normalized, watched_pipeline, with_dropout

from placement_checks import verify

tf1 = tf.compat.v1
ROWS = 8
Build = Callable[..., dict[str, Any]]


def queue() -> Callable[[], Any]:
    """A queue that a thread fills; each call takes rows from it, on the host."""
    x = tf1.random_normal([4 * ROWS, 4])
    rows = tf1.FIFOQueue(64, [tf.float32, tf.float32], [[4], [1]])
    filled = rows.enqueue_many([x, x[:, :1] ** 2])
    tf1.train.add_queue_runner(tf1.train.QueueRunner(rows, [filled]))
    return lambda: rows.dequeue_many(ROWS)


def iterator() -> Callable[[], Any]:
    rng = np.random.default_rng(0)
    arrays = tuple(rng.normal(size=[64, n]).astype(np.float32) for n in (4, 1))
    rows = tf.data.Dataset.from_tensor_slices(arrays).repeat().batch(ROWS)
    iterator = tf1.data.make_one_shot_iterator(rows)
    return lambda: iterator.get_next()


def towers(
    num_gpus: int,
    pipeline: Callable[[], Callable[[], Any]],
    loss: Callable[..., Any],
    average: Callable[[Any], Any],
) -> dict[str, Any]:
    """Towers that each take their own rows from a pipeline; an op waits for the pipeline."""
    optimizer = tf1.train.GradientDescentOptimizer(0.1)
    with tf.device("/cpu:0"):
        take = pipeline()
    tower_grads = []
    for i in range(num_gpus):
        with (
            tf.device(f"/gpu:{i}"),
            tf1.device(lambda op: "/cpu:0" if op.type == "VarHandleOp" else op.device),
            tf.name_scope(f"tower_{i}"),
            tf1.variable_scope(tf1.get_variable_scope(), reuse=tf1.AUTO_REUSE),
        ):
            with tf.device("/cpu:0"):
                x, y = take()
            with tf1.control_dependencies([x]):
                tower_grads.append(optimizer.compute_gradients(loss(x, y)))
    with tf.device("/cpu:0"):
        averaged = [
            (average([gradient for gradient, _ in of_one]), of_one[0][1])
            for of_one in zip(*tower_grads, strict=True)
        ]
        return {"train_op": optimizer.apply_gradients(averaged)}


def judge(
    pipeline: Callable[[], Callable[[], Any]],
    loss: Callable[..., Any] = hidden,
    average: Callable[[Any], Any] = mean,
) -> tuple[str, str, str]:
    """The states of the rules on gradients and weights, and the first message."""

    def build(num_gpus: int = 2) -> dict[str, Any]:
        return towers(num_gpus, pipeline, loss, average)

    def single() -> dict[str, Any]:
        return towers(1, pipeline, loss, mean)

    evidence = judged(watched_pipeline(build, 2), watched_pipeline(single, 1), seconds=20)
    report = verify(evidence, only=["gradients-equal", "weights-equal"])
    gradients, weights = of_rules(report, "gradients-equal", "weights-equal")
    return gradients.state, weights.state, "".join(f.message for f in gradients.findings[:1])


@pytest.mark.parametrize("loss", [hidden, with_dropout, normalized])
@pytest.mark.parametrize("pipeline", [queue, iterator])
def test_sound_towers_are_kept(pipeline: Any, loss: Callable[..., Any]) -> None:
    gradients, weights, _ = judge(pipeline, loss)

    assert (gradients, weights) == ("kept", "kept")


@pytest.mark.parametrize("pipeline", [queue, iterator])
@pytest.mark.parametrize(
    ("average", "text"),
    [
        (tf.add_n, "the gradients of 2 towers are added up instead of averaged"),
        (lambda of_towers: of_towers[0], "only the rows of tower 0 count"),
    ],
)
def test_mistakes_are_found(pipeline: Any, average: Callable[[Any], Any], text: str) -> None:
    gradients, _, message = judge(pipeline, average=average)

    assert gradients == "broken"
    assert text in message
