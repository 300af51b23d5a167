"""Refuses eager code that itself names a CPU which stands in for a GPU.

Eager ops that GPUs alone can run: on the CPU their results are made up, of the right shapes.

Code for GPUs builds its models by calling them once, with channels first, which convolutions on
CPUs do not know. What comes of that matters to nobody before the first step.

Results of what is not run: all zeros, of the right dtypes and shapes.
"""

from __future__ import annotations

import contextlib
import inspect
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from placement_checks.core.devices import Device
from placement_checks.core.user_code import is_user_file, users_frames
from placement_checks.tf.eager import DEVICE_SCOPE_MODULES, around_eager_ops, eager_op_errors
from placement_checks.tf.graphs import definition_of
from placement_checks.tf.sessions import DEVICE_QUERY_MODULES
from placement_checks.tf.simulated_devices import to_requested

# What stands between a program and the check of a device scope that it opens.
_BETWEEN = DEVICE_QUERY_MODULES | DEVICE_SCOPE_MODULES | {contextlib.__name__}
_OURS = f"{__package__}."


class Refused(BaseException):
    """Ends eager code that cannot be watched; no handler of the program's own takes it.

    Args:
        message: what it does, one sentence.
        fix: what to do about it.
    """

    def __init__(self, message: str, fix: str) -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix


def refuse_stand_in(name: Any) -> None:
    """Check what a device scope is opened with.

    A full name, with its job, is that of a tensor or variable: what TensorFlow itself has said.

    Raises:
        Refused: the program names a CPU that stands in for a GPU.
    """
    text = name.to_string() if hasattr(name, "to_string") else name
    # Most scopes are of GPUs, or of the host: the others are worth a closer look.
    if isinstance(text, str) and "CPU:" in text.upper() and not text.endswith(":0"):
        device = Device.parse(text)
        if device.job is None and _is_stand_in(device) and _is_named_by_user():
            raise _refused(device)


def refuse_stand_ins(strategy: Any) -> None:
    """Check the devices of a strategy.

    Raises:
        Refused: the program names a CPU that stands in for a GPU.
    """
    for name in strategy.extended.worker_devices:
        device = Device.parse(name)
        if _is_stand_in(device):
            raise _refused(device)


def _is_stand_in(device: Device) -> bool:
    return to_requested(device) != device


def _is_named_by_user() -> bool:
    """Whether the user's own code has opened the scope, by ``tf.device``."""
    frame = inspect.currentframe()
    while frame is not None and _is_between(str(frame.f_globals.get("__name__"))):
        frame = frame.f_back
    return frame is not None and is_user_file(frame.f_code.co_filename, None)


def _is_between(module: str) -> bool:
    return module in _BETWEEN or module.startswith(_OURS)


def _refused(device: Device) -> Refused:
    named = Device(type=device.type, index=device.index)
    # An op knows the lines of functions that AutoGraph has converted.
    is_traced = not tf.executing_eagerly()
    frames = users_frames(tf.no_op().traceback if is_traced else traceback.extract_stack(), None)
    where = f" ({frames[-1]})" if frames else ""
    return Refused(
        f"names {named}{where}, which stands for {to_requested(named)} while it is watched",
        "name GPUs, and no CPU but /cpu:0",
    )


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


_NO_KERNEL = ("No OpKernel was registered", "NHWC", "CUDA", "NCCL", "cuDNN", "DNN library")


@contextlib.contextmanager
def gpu_only_ops_made_up() -> Iterator[None]:
    """Make up, in this block, what eager ops yield that have no kernel for the CPU."""

    def fast(execute: Callable[..., Any]) -> Callable[..., Any]:
        def executed(context: Any, kind: str, name: Any, *given: Any) -> Any:
            try:
                return execute(context, kind, name, *given)
            except eager_op_errors() as error:
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
            except eager_op_errors() as error:
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
