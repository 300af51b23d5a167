"""One answer to how many GPUs there are, whatever call it is asked by.

TensorFlow is asked where all of its functions come together, in the eager context and in the list
of local devices: `tf.config`, `tf.compat.v1.config` and their `experimental` are other modules,
and a program may have taken a function out of one before.

The program gets the answer, and libraries that it uses, and a strategy that was given no devices.
TensorFlow and Keras themselves ask what they can compute here, and get what the machine has: with
a GPU, Keras 3 makes a recurrent layer of an op that CPUs do not have.
"""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import device_attributes_pb2

from placement_checks.loading.nvidia_tools import answering_tools
from placement_checks.loading.simulated import is_stand_in
from placement_checks.loading.tf_internals import gpu_counts, patching

_GPU = "GPU"
_MEMORY = 16 << 30  # bytes of each GPU
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_LIBRARIES = ("tensorflow", "keras", "tf_keras", "placement_checks")
_DETAILS = {"device_name": "NVIDIA GPU", "compute_capability": (9, 0)}


class Asked:
    """By which calls the program has asked how many GPUs there are.

    Attributes:
        ways: the names of the calls, such as ``list_physical_devices``.
    """

    def __init__(self) -> None:
        self.ways: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self.ways)


@contextlib.contextmanager
def answering_gpus(gpus: int) -> Iterator[Asked]:
    """Let the program in this block find so many GPUs, those of the machine not among them.

    What it sets for such GPUs, like the growth of their memory, has no effect.
    ``CUDA_VISIBLE_DEVICES`` is at the end what it was before.

    Args:
        gpus: how many there are; none may be.

    Yields:
        Whether, and how, the program has asked.
    """
    asked = Asked()
    visible = os.environ.get(_VISIBLE)
    try:
        with (
            gpu_counts.around_context(_of_context(gpus, asked)),
            gpu_counts.around_listed_devices(_local_devices(gpus, asked)),
            gpu_counts.around_session_devices(_session_devices(gpus, asked)),
            answering_tools(gpus, asked.ways),
        ):
            yield asked
    finally:
        os.environ.pop(_VISIBLE, None)
        if visible is not None:
            os.environ[_VISIBLE] = visible


def _for_program(answer: patching.Around) -> patching.Around:
    """Like ``answer``, for the program; others get what the machine has."""

    def around(original: Callable[..., Any]) -> Callable[..., Any]:
        answering = answer(original)

        def call(*args: Any, **kwargs: Any) -> Any:
            is_programs = _is_programs(inspect.currentframe())
            return (answering if is_programs else original)(*args, **kwargs)

        return call

    return around


def _is_programs(frame: FrameType | None) -> bool:
    """Whether what asks, some frames further out, is neither TensorFlow nor Keras."""
    while frame is not None:
        module, function = str(frame.f_globals.get("__name__")), frame.f_code.co_name
        if module.startswith(gpu_counts.STRATEGIES):
            return function not in gpu_counts.CHOOSING_A_REDUCTION
        is_between = module in gpu_counts.ASKED_THROUGH
        is_between |= (module, function) == gpu_counts.NUMBER_OF_GPUS
        if not is_between and module != __name__:
            return module.partition(".")[0] not in _LIBRARIES
        frame = frame.f_back
    return False


def _of_context(gpus: int, asked: Asked) -> Mapping[str, patching.Around]:
    """What takes the place of the methods of the eager context."""
    physical = [tf.config.PhysicalDevice(f"/physical_device:GPU:{i}", _GPU) for i in range(gpus)]
    logical = [tf.config.LogicalDevice(f"/device:GPU:{i}", _GPU) for i in range(gpus)]
    growth: dict[Any, Any] = {}
    parts: dict[Any, Any] = {}

    def number(_: Callable[..., Any]) -> Callable[..., int]:
        def num_gpus(_: Any) -> int:
            asked.ways.add("num_gpus")
            return gpus

        return num_gpus

    methods = {
        "list_physical_devices": _listing(physical, "list_physical_devices", asked),
        "list_logical_devices": _listing(logical, "list_logical_devices", asked),
        "get_visible_devices": _listing(physical, "get_visible_devices", asked),
        "num_gpus": number,
        "set_visible_devices": _set_visible,
        "get_memory_growth": _of_gpus(growth.get),
        "set_memory_growth": _of_gpus(growth.__setitem__),
        "get_logical_device_configuration": _of_gpus(parts.get),
        "set_logical_device_configuration": _of_gpus(parts.__setitem__),
        "get_device_details": _of_gpus(lambda _: dict(_DETAILS)),
        "get_memory_info": _of_gpus(lambda _: {"current": 0, "peak": 0}),
        "reset_memory_stats": _of_gpus(lambda _: None),
    }
    return {name: _for_program(answer) for name, answer in methods.items()}


def _listing(gpus: list[Any], way: str, asked: Asked) -> patching.Around:
    """For a method that lists devices of a type, or all."""

    def around(original: Callable[..., Any]) -> Callable[..., list[Any]]:
        def listed(self: Any, device_type: str | None = None) -> list[Any]:
            if device_type in (None, _GPU):
                asked.ways.add(way)
            if device_type == _GPU:  # does not start TensorFlow's eager runtime
                return list(gpus)
            others = [
                each
                for each in original(self, device_type)
                if each.device_type != _GPU and not is_stand_in(each)
            ]
            return others + gpus if device_type is None else others

        return listed

    return around


def _of_gpus(answer: Callable[..., Any]) -> patching.Around:
    """For a method whose first argument is a device: what it answers for a GPU."""

    def around(original: Callable[..., Any]) -> Callable[..., Any]:
        def method(self: Any, device: Any, *args: Any, **kwargs: Any) -> Any:
            if _GPU in str(getattr(device, "device_type", device)):
                return answer(device, *args, *kwargs.values())
            return original(self, device, *args, **kwargs)

        return method

    return around


def _set_visible(original: Callable[..., Any]) -> Callable[..., None]:
    def set_visible_devices(self: Any, devices: Any, device_type: str | None = None) -> None:
        given = devices if isinstance(devices, list) else [devices]
        others = [each for each in given if each.device_type != _GPU]
        if device_type not in (None, _GPU):
            original(self, given, device_type)
        elif others:
            original(self, others, others[0].device_type)

    return set_visible_devices


def _local_devices(gpus: int, asked: Asked) -> patching.Around:
    """For the list of local devices, with as many GPUs as a configuration leaves."""

    def around(original: Callable[..., Any]) -> Callable[..., list[bytes]]:
        def list_devices(serialized: bytes | None = None) -> list[bytes]:
            asked.ways.add("list_local_devices")
            config = tf.compat.v1.ConfigProto.FromString(serialized or b"")
            number = min(gpus, config.device_count.get(_GPU, gpus))
            config.device_count[_GPU] = 0  # those of the machine are left alone
            return [*original(config.SerializeToString()), *map(_local_gpu, range(number))]

        return list_devices

    return _for_program(around)


def _local_gpu(index: int) -> bytes:
    attributes = device_attributes_pb2.DeviceAttributes(
        name=f"/device:GPU:{index}",
        device_type=_GPU,
        memory_limit=_MEMORY,
        incarnation=index + 1,
        physical_device_desc=f"device: {index}, name: {_DETAILS['device_name']}, pci bus id: "
        f"0000:{index:02x}:00.0, compute capability: 9.0",
    )
    return bytes(attributes.SerializeToString())


def _session_devices(gpus: int, asked: Asked) -> patching.Around:
    """For the devices of a session, those of each of its tasks behind its CPU."""

    def around(original: Callable[..., Any]) -> Callable[..., list[Any]]:
        def list_devices(self: Any) -> list[Any]:
            asked.ways.add("list_devices")
            listed = []
            for each in original(self):
                if each.device_type != _GPU:
                    listed.append(each)
                if each.name.endswith("CPU:0"):
                    task = each.name.removesuffix("CPU:0")
                    listed += [
                        type(each)(f"{task}GPU:{index}", _GPU, _MEMORY, index + 1)
                        for index in range(gpus)
                    ]
            return listed

        return list_devices

    return _for_program(around)
