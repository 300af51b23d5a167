"""Functions and names of ``tf.contrib`` that are nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

import tensorflow as tf


class ModeKeys:
    """`tf.contrib.learn.ModeKeys`."""

    TRAIN = "train"
    EVAL = "eval"
    INFER = "infer"


def batch_and_drop_remainder(batch_size: Any) -> Callable[[Any], Any]:
    """`tf.contrib.data.batch_and_drop_remainder`, for `Dataset.apply`."""
    return lambda dataset: dataset.batch(batch_size, drop_remainder=True)


def no_memory_statistics() -> Any:
    """`tf.contrib.memory_stats.MaxBytesInUse` and its kin, of which TensorFlow has no op now.

    Raises:
        tf.errors.NotFoundError: always; programs expect it where there is no GPU.
    """
    raise tf.errors.NotFoundError(
        None, None, "TensorFlow 2 has no ops that tell how much memory is in use"
    )


def get_backward_walk_ops(
    seed_ops: Any,
    inclusive: bool = True,
    within_ops: Collection[Any] | None = None,
    stop_at_ts: Iterable[Any] = (),
    control_inputs: bool = False,
) -> list[Any]:
    """`tf.contrib.graph_editor.get_backward_walk_ops`: all ops that some ops depend on.

    Args:
        seed_ops: ops or tensors, or one.
        inclusive: whether they are among the result.
        within_ops: if given, no other ops are visited.
        stop_at_ts: tensors, beyond which the walk does not go.
        control_inputs: whether it follows control inputs.
    """
    seeds = list(dict.fromkeys(_op_of(seed) for seed in _listed(seed_ops)))
    stops = {tensor.ref() for tensor in stop_at_ts}
    seen = dict.fromkeys(seeds)
    waiting = list(seeds)
    while waiting:
        op = waiting.pop()
        before = [tensor.op for tensor in op.inputs if tensor.ref() not in stops]
        for other in before + (list(op.control_inputs) if control_inputs else []):
            if other not in seen and (within_ops is None or other in within_ops):
                seen[other] = None
                waiting.append(other)
    return list(seen) if inclusive else [op for op in seen if op not in seeds]


def sequence_loss(
    logits: Any,
    targets: Any,
    weights: Any,
    average_across_timesteps: bool = True,
    average_across_batch: bool = True,
    softmax_loss_function: Callable[..., Any] | None = None,
    name: str | None = None,
) -> Any:
    """`tf.contrib.seq2seq.sequence_loss`: the weighted cross entropy of a batch of sequences.

    Args:
        logits: of shape batch, time, classes.
        targets: the classes, of shape batch, time.
        weights: of each of them.
        average_across_timesteps: whether the loss is the mean over time, or one for each step.
        average_across_batch: whether it is the mean over the batch, or one for each sequence.
        softmax_loss_function: called with ``labels`` and ``logits`` in place of the softmax.
        name: of the scope.
    """
    tf1 = tf.compat.v1
    loss_of = softmax_loss_function or tf1.nn.sparse_softmax_cross_entropy_with_logits
    axes = [
        axis for axis, mean in enumerate((average_across_batch, average_across_timesteps)) if mean
    ]
    with tf1.name_scope(name, "sequence_loss", [logits, targets, weights]):
        shape = tf.shape(targets)
        flat = loss_of(
            labels=tf.reshape(targets, [-1]), logits=tf.reshape(logits, [-1, tf.shape(logits)[2]])
        )
        losses = tf.reshape(flat, shape) * weights
        if not axes:
            return losses
        return tf.reduce_sum(losses, axes) / (tf.reduce_sum(weights, axes) + 1e-12)


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple | set | frozenset) else [value]


def _op_of(value: Any) -> Any:
    return value if isinstance(value, tf.Operation) else value.op
