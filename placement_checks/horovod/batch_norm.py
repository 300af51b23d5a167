"""``hvd.SyncBatchNormalization``: batch normalization over the rows of all ranks."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from placement_checks.horovod.collectives import Sum, allreduce_tensor, process
from placement_checks.horovod.unsupported import unsupported

_IS_KERAS_3 = not hasattr(tf.keras.layers.BatchNormalization, "_calculate_mean_and_var")


class SyncBatchNormalization(tf.keras.layers.BatchNormalization):  # type: ignore[misc]
    """Batch normalization with the mean and variance over the rows of all ranks."""

    def __init__(self, fused: bool | None = False, **kwargs: Any) -> None:
        if fused in (True, None):
            raise ValueError("SyncBatchNormalization does not support fused=True.")
        if _IS_KERAS_3:
            raise unsupported(
                "SyncBatchNormalization with Keras 3, which Horovod 0.28 does not support,"
            )
        kwargs.setdefault("name", "sync_batch_normalization")
        super().__init__(fused=fused, **kwargs)

    def _moments(self, inputs: Any, reduction_axes: Any, keep_dims: bool, **kwargs: Any) -> Any:
        mean, variance = super()._moments(inputs, reduction_axes, keep_dims=keep_dims, **kwargs)
        size = process().initialized_rank().size
        if size == 1:
            return mean, variance
        of_rank = tf.stack([mean, variance + tf.math.square(mean)])
        means = allreduce_tensor(of_rank, Sum, None) / size
        group_mean, mean_of_squares = tf.unstack(means)
        return group_mean, mean_of_squares - tf.math.square(group_mean)
