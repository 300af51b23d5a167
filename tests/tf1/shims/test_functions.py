"""Functions of ``tf.contrib`` that TensorFlow 2 lacks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import tensorflow as tf

from placement_checks.tf1.shims import functions
from placement_checks.tf1.shims.functions import GreedyLoadBalancingStrategy, byte_size_load_fn

tf1 = tf.compat.v1


@pytest.fixture(autouse=True)
def graph() -> Iterator[tf.Graph]:
    with tf.Graph().as_default() as graph:
        yield graph


@pytest.fixture
def chain() -> tf.Tensor:
    """a → b → c → d, with e before c by control."""
    before = tf1.placeholder(tf.float32, [], name="e")
    b = tf.tanh(tf1.placeholder(tf.float32, [], name="a"), name="b")
    with tf.control_dependencies([before]):
        c = tf.sin(b, name="c")
    return tf.cos(c, name="d")


def names(ops: list[tf.Operation]) -> set[str]:
    return {op.name for op in ops}


def test_all_dependencies_of_ops(graph: tf.Graph, chain: tf.Tensor) -> None:
    walk = functions.get_backward_walk_ops
    b = graph.get_operation_by_name("b")

    assert names(walk(chain)) == names(walk([chain.op])) == {"a", "b", "c", "d"}
    assert names(walk([chain, b], inclusive=False)) == {"a", "c"}
    assert names(walk(chain, control_inputs=True)) == {"a", "b", "c", "d", "e"}
    assert names(walk(chain, stop_at_ts=b.outputs)) == {"c", "d"}
    assert names(walk(chain, within_ops=[chain.op, b])) == {"d"}


def test_modes() -> None:
    assert [functions.ModeKeys.TRAIN, functions.ModeKeys.EVAL] == ["train", "eval"]
    assert functions.ModeKeys.INFER == "infer"


def test_no_op_measures_memory() -> None:
    with pytest.raises(tf.errors.NotFoundError, match="no ops that measure memory use"):
        functions.MaxBytesInUse()


def test_a_dataset_without_the_remainder() -> None:
    dataset = tf.data.Dataset.range(7).apply(functions.batch_and_drop_remainder(2))

    assert dataset.element_spec.shape == [2]


@pytest.mark.parametrize("over_time", [True, False])
@pytest.mark.parametrize("over_batch", [True, False])
def test_the_loss_of_sequences(over_time: bool, over_batch: bool) -> None:
    rng = np.random.default_rng(0)
    logits, targets = rng.normal(size=(2, 3, 4)), rng.integers(0, 4, (2, 3))
    weights = np.array([[1, 1, 0], [1, 0.5, 0.5]])
    chances = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    crosses = -np.log(np.take_along_axis(chances, targets[..., None], 2)[..., 0]) * weights
    axes = tuple(axis for axis, mean in enumerate((over_batch, over_time)) if mean)
    expected = crosses.sum(axes) / weights.sum(axes) if axes else crosses

    loss = functions.sequence_loss(
        tf.constant(logits), tf.constant(targets), tf.constant(weights), over_time, over_batch
    )

    with tf1.Session() as session:
        np.testing.assert_allclose(session.run(loss), expected, rtol=1e-6)
    assert loss.name.startswith("sequence_loss/")


def test_the_loss_of_sequences_by_another_function() -> None:
    loss = functions.sequence_loss(
        tf.zeros([2, 3, 4]),
        tf.zeros([2, 3], tf.int32),
        tf.ones([2, 3]),
        softmax_loss_function=lambda labels, logits: tf.cast(labels + 7, logits.dtype),
    )

    with tf1.Session() as session:
        assert session.run(loss) == pytest.approx(7)


def test_the_scope_of_xla() -> None:
    with functions.experimental_jit_scope():
        op = tf.constant(1.0).op

    assert op.get_attr("_XlaCompile")


def test_the_task_with_the_least_load_is_next() -> None:
    strategy = GreedyLoadBalancingStrategy(2, byte_size_load_fn)
    setter = tf1.train.replica_device_setter(ps_tasks=2, ps_strategy=strategy)

    with tf1.device(setter):
        made = [tf1.get_variable(f"v{size}", [size], use_resource=False) for size in (9, 2, 3, 5)]

    assert [variable.device for variable in made] == [
        f"/job:ps/task:{task}" for task in (0, 1, 1, 1)
    ]
    with pytest.raises(ValueError, match="the shape of x is not known"):
        byte_size_load_fn(tf1.placeholder(tf.float32, [None], name="x").op)
