"""Lets logical CPU devices simulate GPUs while eager code runs until its first training step.

* Code that names one of these CPU devices is refused, because it could not be distinguished from
  code that names a GPU.
* Steps that compute with DTensor are refused.
* Ops without a CPU kernel return zeros. Programs often build a model by calling it once, with
  channels first, which convolutions on CPUs do not support. The results of such a call do not
  matter.
* `zeros_like` returns zeros in place of the results of a function that is not executed.
"""

from __future__ import annotations

import contextlib
import inspect
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from placement_checks.core.devices import Device
from placement_checks.core.errors import graph_error_causes
from placement_checks.core.user_code import is_user_file, users_line
from placement_checks.tf.eager import (
    DEVICE_QUERY_MODULES,
    DEVICE_SCOPE_MODULES,
    eager_op_errors,
)
from placement_checks.tf.graphs import definition_of
from placement_checks.tf.patches import Patch
from placement_checks.tf.patching import patched
from placement_checks.tf.simulated_devices import to_requested

# The modules between the program and the check of a device scope, on the stack.
_BETWEEN = DEVICE_QUERY_MODULES | DEVICE_SCOPE_MODULES | {contextlib.__name__}
_THIS_ROOM = f"{__package__}."


class Refusal(BaseException):
    """Ends eager code that cannot be captured. Programs catch `Exception`, but not this class."""

    def __init__(self, message: str, fix: str, *, is_predicate: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix
        self.is_predicate = is_predicate


def check_device_scope(name: Any) -> None:
    """Check the device of a `tf.device` scope.

    A name with a job comes from TensorFlow: it is the device of a tensor or variable.

    Raises:
        Refusal: the program names a CPU device that simulates a GPU.
    """
    text = name.to_string() if hasattr(name, "to_string") else name
    # Only parse the rare names of CPU devices other than CPU:0.
    if isinstance(text, str) and "CPU:" in text.upper() and not text.endswith(":0"):
        device = Device.parse(text)
        if device.job is None and _simulates_gpu(device) and _is_opened_by_user():
            raise _refusal(device)


def check_strategy_devices(strategy: Any) -> None:
    """Check the devices of a strategy.

    Raises:
        Refusal: a device of the strategy is a CPU device that simulates a GPU.
    """
    for name in strategy.extended.worker_devices:
        device = Device.parse(name)
        if _simulates_gpu(device):
            raise _refusal(device)


def check_step_inputs(tensors: Iterable[Any]) -> None:
    """Check the inputs of a training step, which include the handles of its variables.

    Raises:
        Refusal: an input is a DTensor. The devices of its parts are not in the graph of the step.
    """
    if any(":CUSTOM:" in str(getattr(each, "device", "")) for each in tensors):
        raise Refusal(
            "trains with DTensor (tf.experimental.dtensor), which is not supported",
            "check a program that distributes its step with tf.distribute or tf.device",
            is_predicate=True,
        )


def _simulates_gpu(device: Device) -> bool:
    return to_requested(device) != device


def _is_opened_by_user() -> bool:
    """Whether code of the user opens the scope that is being checked."""

    def is_between(module: str) -> bool:
        return module in _BETWEEN or module.startswith(_THIS_ROOM)

    frame = inspect.currentframe()
    while frame is not None and is_between(str(frame.f_globals.get("__name__"))):
        frame = frame.f_back
    return frame is not None and is_user_file(frame.f_code.co_filename, None)


def _refusal(device: Device) -> Refusal:
    named = Device(type=device.type, index=device.index)
    # The traceback of an op has the original lines of functions that AutoGraph has converted.
    is_traced = not tf.executing_eagerly()
    line = users_line(tf.no_op().traceback if is_traced else traceback.extract_stack())
    return Refusal(
        f"requests {named}{line and f' ({line})'}, but this check uses {named} in place of "
        f"{to_requested(named)}",
        "name GPU devices, and no CPU device except /cpu:0",
        is_predicate=True,
    )


def zeros_like(outputs: Any) -> Any:
    """Replace the symbolic tensors in a structure by zeros, with 1 for unknown dimensions."""
    flat = tf.nest.flatten(outputs, expand_composites=True)
    zeros = [_zeros(each) if isinstance(each, tf.Tensor) else each for each in flat]
    return tf.nest.pack_sequence_as(outputs, zeros, expand_composites=True)


def _zeros(tensor: Any) -> Any:
    sizes = () if tensor.shape.rank is None else tensor.shape.as_list()
    shape = [1 if size is None else size for size in sizes]
    return tf.fill(shape, "") if tensor.dtype == tf.string else tf.zeros(shape, tensor.dtype)


_NO_KERNEL = ("No OpKernel was registered", "NHWC", "CUDA", "NCCL", "cuDNN", "DNN library")


@contextlib.contextmanager
def fake_gpu_only_ops() -> Iterator[None]:
    """Let eager ops without a CPU kernel return zeros in this block."""

    def fast(execute: Callable[..., Any]) -> Callable[..., Any]:
        def executed(context: Any, kind: str, name: Any, *given: Any) -> Any:
            try:
                return execute(context, kind, name, *given)
            except eager_op_errors() as error:
                if not is_gpu_only_error(str(error)):
                    raise
                inputs = len(definition_of(kind).input_arg)
                return _fake_results(kind, given[:inputs], given[inputs:])

        return executed

    def slow(execute: Callable[..., Any]) -> Callable[..., Any]:
        # Functions are executed by this method too, with arguments by name.
        def executed(
            op_name: Any, num_outputs: int, inputs: Any, attrs: Any, *others: Any, **named: Any
        ) -> Any:
            try:
                return execute(op_name, num_outputs, inputs, attrs, *others, **named)
            except eager_op_errors() as error:
                if not is_gpu_only_error(str(error)) or not isinstance(op_name, bytes):
                    raise
                return tf.nest.flatten(_fake_results(op_name.decode(), inputs, attrs))

        return executed

    with patched(Patch.FAST_OP, fast), patched(Patch.SLOW_OP, slow):
        yield


def is_gpu_only_error(message: str) -> bool:
    """Whether TensorFlow's message reports an op without a CPU kernel.

    Names of files in the frames of a graph's error do not count.
    """
    causes = graph_error_causes(message) or [message]
    return any(text in cause for cause in causes for text in _NO_KERNEL)


def _fake_results(kind: str, inputs: Sequence[Any], attributes: Sequence[Any]) -> Any:
    """Return zeros for the results of an op, with the shapes that TensorFlow infers.

    ``attributes`` contains the names and values of attributes in turn.
    """
    definition = definition_of(kind)
    names = [argument.name for argument in definition.input_arg]
    inferred = {argument.type_attr for argument in definition.input_arg}
    pairs = zip(attributes[::2], attributes[1::2], strict=True)
    with tf.Graph().as_default():
        outputs = getattr(tf.raw_ops, kind)(
            **dict(zip(names, map(_placeholders, inputs), strict=False)),
            **{name: value for name, value in pairs if name not in inferred},
        )
    return zeros_like(outputs)


def _placeholders(value: Any) -> Any:
    """Return placeholders for an input or a list of inputs.

    An integer tensor may be a shape, so it becomes a constant.
    """
    if isinstance(value, list | tuple) and value and isinstance(value[0], tf.Tensor):
        return [_placeholders(each) for each in value]
    if isinstance(value, tf.Tensor):
        if value.dtype.is_integer:
            return tf.constant(value.numpy())
        return tf.compat.v1.placeholder(value.dtype, value.shape)
    return value
