"""Arguments of a traced step are matched by their places in the call, not by names of tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.eager_programs import WIDTH, watched

from placement_checks.core.errors import CannotRun
from placement_checks.run.compare.pair import ProgramPair
from placement_checks.run.session import ProgramSession

PARTS, ROWS = 3, 8


def data() -> list[np.ndarray[Any, Any]]:
    """Arrays of the same shape and dtype, so that only their places tell them apart."""
    rng = np.random.default_rng(0)
    return [rng.normal(size=(ROWS, WIDTH)).astype("float32") for _ in range(PARTS)]


def positional(strategy: Any, step: Callable[..., Any]) -> None:
    @tf.function
    def train_step(*batch: Any) -> Any:
        return strategy.run(step, args=batch)

    call(strategy, lambda a, b, c: train_step(a, b, c))


def numbered(strategy: Any, step: Callable[..., Any]) -> None:
    """The user's own names look like the numbered names of TensorFlow."""

    @tf.function
    def train_step(x: Any, x_1: Any, x_2: Any) -> Any:
        return strategy.run(step, args=(x, x_1, x_2))

    call(strategy, train_step)


def nested(strategy: Any, step: Callable[..., Any]) -> None:
    """One argument has several parts, and the order of its keys is not alphabetic."""

    @tf.function
    def train_step(features: Any, *more: Any) -> Any:
        return strategy.run(step, args=(features["b"], features["a"], *more))

    call(strategy, lambda a, b, c: train_step({"b": a, "a": b}, c))


def by_keyword(strategy: Any, step: Callable[..., Any]) -> None:
    @tf.function
    def train_step(first: Any, **others: Any) -> Any:
        return strategy.run(step, args=(first, others["z"], others["a"]))

    call(strategy, lambda a, b, c: train_step(a, z=b, a=c))


def with_number(strategy: Any, step: Callable[..., Any]) -> None:
    """All replicas share a number that is passed between the rows."""

    @tf.function
    def train_step(x: Any, rate: Any, *labels: Any) -> Any:
        return strategy.run(lambda a, b, c: step(rate * a, b, c), args=(x, *labels))

    call(strategy, lambda a, b, c: train_step(a, tf.constant(1.0), b, c))


def call(strategy: Any, train_step: Callable[..., Any]) -> None:
    dataset = tf.data.Dataset.from_tensor_slices(tuple(data())).batch(ROWS).repeat(3)
    for parts in strategy.experimental_distribute_dataset(dataset):
        train_step(*parts)


def program(loop: Callable[..., None]) -> Callable[[], None]:
    def run() -> None:
        strategy = tf.distribute.MirroredStrategy()
        with strategy.scope():
            w = tf.Variable(tf.ones([WIDTH, 1]), name="w")

        def step(first: Any, second: Any, third: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.matmul(first + 2 * second + 3 * third, w) ** 2) / ROWS
            gradient = tape.gradient(loss, w)
            total = tf.distribute.get_replica_context().all_reduce("SUM", gradient)
            w.assign_sub(0.1 * total)
            return loss

        loop(strategy, step)

    return run


@pytest.mark.parametrize("loop", [positional, numbered, nested, by_keyword, with_number])
def test_replicas_get_their_rows_of_each_argument(loop: Callable[..., None]) -> None:
    pair = ProgramPair.from_programs(
        watched(program(loop), 2), watched(program(loop), 1), "simulated"
    )
    feeding = pair.feeding(None)
    batch = feeding.batch(np.random.default_rng(0), feeding.rows)

    towers, reference = feeding.to_towers(batch), feeding.to_reference(batch)

    assert feeding.split == (tuple(range(4)), tuple(range(4, 8)))
    expected = objective(pair.reference, reference)
    assert objective(pair.towers, towers) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("kind", ["sparse", "ragged"])
def test_sparse_and_ragged_rows_are_refused(kind: str) -> None:
    def run() -> None:
        strategy = tf.distribute.MirroredStrategy()
        with strategy.scope():
            w = tf.Variable(tf.ones([WIDTH, 1]), name="w")

        def step(x: Any) -> Any:
            with tf.GradientTape() as tape:
                dense = tf.sparse.to_dense(x) if kind == "sparse" else x.to_tensor()
                loss = tf.reduce_sum(tf.matmul(dense, w) ** 2)
            w.assign_sub(tape.gradient(loss, w))
            return loss

        @tf.function
        def train_step(x: Any) -> Any:
            return strategy.run(step, args=(x,))

        rows = data()[0]
        each = (
            tf.sparse.from_dense(rows) if kind == "sparse" else tf.RaggedTensor.from_tensor(rows)
        )
        dataset = tf.data.Dataset.from_tensor_slices(each).batch(ROWS).repeat(3)
        for part in strategy.experimental_distribute_dataset(dataset):
            train_step(part)

    pair = ProgramPair.from_programs(watched(run, 2), watched(run, 1), "simulated")

    with pytest.raises(CannotRun, match="is fed 'x', a sparse or ragged tensor"):
        pair.feeding(None)


def objective(runnable: Any, feeds: Any) -> float:
    """The sum of the losses of all replicas."""
    with ProgramSession(runnable, 60) as session:
        session.initialize({})
        return float(sum(session.run(list(runnable.placement.step.objectives), feeds)))
