"""Functions and names of ``tf.contrib`` that TensorFlow 2 lacks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import tensorflow as tf

from placement_checks.util.walks import walk


class ModeKeys:
    """`tf.contrib.learn.ModeKeys`."""

    TRAIN = "train"
    EVAL = "eval"
    INFER = "infer"


def batch_and_drop_remainder(batch_size: Any) -> Callable[[Any], Any]:
    """`tf.contrib.data.batch_and_drop_remainder`, for `Dataset.apply`."""
    return lambda dataset: dataset.batch(batch_size, drop_remainder=True)


def BytesInUse() -> Any:  # noqa: N802
    """Replace the functions of `tf.contrib.memory_stats`, whose ops TensorFlow 2 lacks.

    Raises:
        tf.errors.NotFoundError: always; programs expect this error on machines without GPUs.
    """
    raise tf.errors.NotFoundError(None, None, "TensorFlow 2 has no ops that measure memory use")


BytesLimit = MaxBytesInUse = BytesInUse


def get_backward_walk_ops(
    seed_ops: Any,
    inclusive: bool = True,
    within_ops: Collection[Any] | None = None,
    stop_at_ts: Iterable[Any] = (),
    control_inputs: bool = False,
) -> list[Any]:
    """`tf.contrib.graph_editor.get_backward_walk_ops`: the ancestors of ops.

    Args:
        seed_ops: one or more ops or tensors.
        inclusive: whether the result includes the seeds.
        within_ops: the only ops to visit; None for all.
        stop_at_ts: tensors that the walk does not pass.
        control_inputs: whether the walk follows control inputs.
    """
    many = isinstance(seed_ops, list | tuple | set | frozenset)
    seeds = list(
        dict.fromkeys(getattr(seed, "op", seed) for seed in (seed_ops if many else [seed_ops]))
    )
    stops = {tensor.ref() for tensor in stop_at_ts}

    def before(op: Any) -> Iterator[Any]:
        sources = [tensor.op for tensor in op.inputs if tensor.ref() not in stops]
        sources += op.control_inputs if control_inputs else ()
        return (each for each in sources if within_ops is None or each in within_ops)

    return [op for op in walk(seeds, before) if inclusive or op not in seeds]


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
        logits: float, of shape [batch, time, classes].
        targets: the classes, integers of shape [batch, time].
        weights: the weight of each target, float of shape [batch, time].
        average_across_timesteps: average over time, instead of a loss for each step.
        average_across_batch: average over the batch, instead of a loss for each sequence.
        softmax_loss_function: replaces the softmax; called with ``labels`` and ``logits``.
        name: the name of the scope.
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


class GreedyLoadBalancingStrategy:
    """`tf.contrib.training`: assigns the next variable to the task with the least load.

    Programs pass it as the ``ps_strategy`` of `tf.train.replica_device_setter`, which spreads
    variables over parameter servers.
    """

    def __init__(self, num_tasks: int, load_fn: Callable[[Any], float]) -> None:
        self._loads = [0.0] * num_tasks
        self._load_fn = load_fn

    def __call__(self, op: Any) -> int:
        """Choose the task for an op; the first task if loads are equal."""
        task = self._loads.index(min(self._loads))
        self._loads[task] += self._load_fn(op)
        return task


def byte_size_load_fn(op: Any) -> float:
    """The size of an op's only output in bytes.

    Raises:
        ValueError: the static shape of the output is not fully defined.
    """
    (output,) = op.outputs
    if not output.shape.is_fully_defined():
        raise ValueError(f"the shape of {op.name} is not known: {output.shape}")
    return float(output.shape.num_elements() * output.dtype.size)


experimental_jit_scope = tf.compat.v1.xla.experimental.jit_scope
