"""Eager ops that GPUs alone can run: on the CPU their results are made up, of the right shapes.

Code for GPUs builds its models by calling them once, with channels first, which convolutions on
CPUs do not know. What comes of that matters to nobody before the first step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from placement_checks.loading.tf_internals.eager_devices import around_eager_ops, failed_eager_op
from placement_checks.loading.tf_internals.graph_building import definition_of
from placement_checks.loading.traced.made_up import zeros_like

_NO_KERNEL = ("No OpKernel was registered", "NHWC", "CUDA", "NCCL", "cuDNN", "DNN library")


@contextlib.contextmanager
def gpu_only_ops_made_up() -> Iterator[None]:
    """Make up, in this block, what eager ops yield that have no kernel for the CPU."""

    def fast(execute: Callable[..., Any]) -> Callable[..., Any]:
        def executed(context: Any, kind: str, name: Any, *given: Any) -> Any:
            try:
                return execute(context, kind, name, *given)
            except failed_eager_op() as error:
                if not is_gpu_only(str(error)):
                    raise
                inputs = len(definition_of(kind).input_arg)
                return _made_up(kind, given[:inputs], given[inputs:])

        return executed

    def slow(execute: Callable[..., Any]) -> Callable[..., Any]:
        # Functions, which this runs as well, are called with names.
        def executed(
            op_name: Any, num_outputs: int, inputs: Any, attrs: Any, *others: Any, **named: Any
        ) -> Any:
            try:
                return execute(op_name, num_outputs, inputs, attrs, *others, **named)
            except failed_eager_op() as error:
                if not is_gpu_only(str(error)) or not isinstance(op_name, bytes):
                    raise
                return tf.nest.flatten(_made_up(op_name.decode(), inputs, attrs))

        return executed

    with around_eager_ops(fast, slow):
        yield


def is_gpu_only(message: str) -> bool:
    """Whether what TensorFlow says of an op that failed is that GPUs alone can run it."""
    return any(text in message for text in _NO_KERNEL)


def _made_up(kind: str, inputs: Sequence[Any], attributes: Sequence[Any]) -> Any:
    """The results of an op, of the shapes that TensorFlow infers for it.

    Args:
        kind: its type.
        inputs: what it is given, in the order of its definition.
        attributes: pairs of an attribute and its value.
    """
    definition = definition_of(kind)
    names = [argument.name for argument in definition.input_arg]
    of_inputs = {argument.type_attr for argument in definition.input_arg}
    pairs = zip(attributes[::2], attributes[1::2], strict=True)
    with tf.Graph().as_default():
        outputs = getattr(tf.raw_ops, kind)(
            **dict(zip(names, map(_placeholders, inputs), strict=False)),
            **{name: value for name, value in pairs if name not in of_inputs},
        )
    return zeros_like(outputs)


def _placeholders(value: Any) -> Any:
    """What stands for an input, or a list of them, in a graph; whole numbers may be a shape."""
    if isinstance(value, list | tuple) and value and isinstance(value[0], tf.Tensor):
        return [_placeholders(each) for each in value]
    if isinstance(value, tf.Tensor):
        if value.dtype.is_integer:
            return tf.constant(value.numpy())
        return tf.compat.v1.placeholder(value.dtype, value.shape)
    return value
