"""Results of what is not run: all zeros, of the right dtypes and shapes."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def zeros_like(outputs: Any) -> Any:
    """A structure of eager tensors in the place of a graph's; what is no tensor stays.

    An unknown dimension is 1.
    """
    flat = tf.nest.flatten(outputs, expand_composites=True)
    made = [_zeros(each) if isinstance(each, tf.Tensor) else each for each in flat]
    return tf.nest.pack_sequence_as(outputs, made, expand_composites=True)


def _zeros(tensor: Any) -> Any:
    sizes = () if tensor.shape.rank is None else tensor.shape.as_list()
    shape = [1 if size is None else size for size in sizes]
    return tf.fill(shape, "") if tensor.dtype == tf.string else tf.zeros(shape, tensor.dtype)
