"""Makes every function that a program asks report a number of GPUs.

In TensorFlow, the methods of the eager context and the list of local devices are patched. All
public functions in `tf.config`, `tf.compat.v1.config` and their `experimental` modules call them,
even if the program imported a function by name before the patch.

The program, its libraries, and a strategy without explicit devices find the fake GPUs. TensorFlow
and Keras themselves find the devices of this machine, because they choose ops by device: if Keras
3 finds a GPU, it builds recurrent layers from an op that has no CPU kernel.

Outside of TensorFlow, NVIDIA's management library (NVML) returns the number, because programs
compare it with ``CUDA_VISIBLE_DEVICES``. The command ``nvidia-smi`` lists this machine's GPUs.
"""

from __future__ import annotations

import contextlib
import ctypes
import inspect
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import takewhile
from types import FrameType
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import device_attributes_pb2

from placement_checks.core.devices import VISIBLE_GPUS
from placement_checks.core.machines import GpuLimit
from placement_checks.tf import eager, patching
from placement_checks.tf.patches import Patch
from placement_checks.tf.patching import all_patched, patched
from placement_checks.tf.simulated_devices import is_stand_in

_GPU = "GPU"
_MEMORY = 16 << 30  # bytes of each GPU
_LIBRARIES = ("tensorflow", "keras", "tf_keras", "placement_checks")
_DETAILS = {"device_name": "NVIDIA GPU", "compute_capability": (9, 0)}


_VISIBLE_GPU = re.compile(r"\d+|(GPU|MIG)-.*")  # an entry of CUDA_VISIBLE_DEVICES
_visible: list[Sequence[int]] = []  # the arguments of ``set_visible_devices``
# The value of CUDA_VISIBLE_DEVICES before the program, and when TensorFlow first uses GPUs.
_listed: list[str | None] = [None]


def visible_gpus() -> Sequence[int] | None:
    """The indices of the fake GPUs that the program made visible; None if it selected none.

    ``set_visible_devices`` selects from the GPUs in ``CUDA_VISIBLE_DEVICES``.
    """
    named = [each.strip() for each in (_value_read() or "").split(",") if each.strip()]
    listed = [int(each) for each in named] if named and all(map(str.isdigit, named)) else None
    if not _visible:
        return listed
    chosen = _visible[-1]
    return chosen if listed is None else [listed[i] for i in chosen if i < len(listed)]


def visible_limit() -> GpuLimit | None:
    """The setting of the program that hides the most GPUs; None if it has no such setting.

    A value of ``CUDA_VISIBLE_DEVICES`` from outside of the program does not count. After a block
    of `fake_gpu_count`, the result is the limit at its end.
    """
    chosen = [GpuLimit(len(gpus), "the call of set_visible_devices") for gpus in _visible[-1:]]
    return min([*_limit_of_variable(), *chosen], default=None)


def set_variable(value: str | None) -> None:
    """Set ``CUDA_VISIBLE_DEVICES`` as the import of the program has; None if it has not."""
    if value is not None:
        os.environ[VISIBLE_GPUS] = value


def read_variable() -> None:
    """Read ``CUDA_VISIBLE_DEVICES``. TensorFlow does so once, when it first uses GPUs."""
    if len(_listed) == 1:
        _listed.append(os.environ.get(VISIBLE_GPUS))


def _value_read() -> str | None:
    return _listed[1] if len(_listed) > 1 else os.environ.get(VISIBLE_GPUS)


def _limit_of_variable() -> Iterator[GpuLimit]:
    """Yield the limit that the program sets with ``CUDA_VISIBLE_DEVICES``, if it does."""
    value = _value_read()
    if value is not None and value != _listed[0]:
        # CUDA ignores the entries after an invalid one. An index may be valid on another machine.
        valid = takewhile(_VISIBLE_GPU.fullmatch, map(str.strip, value.split(",")))
        yield GpuLimit(len(list(valid)), f"{VISIBLE_GPUS}={value!r}")


def _listed_gpus(gpus: int) -> int:
    """The number of the fake GPUs that TensorFlow finds."""
    return min([gpus, *(limit.gpus for limit in _limit_of_variable())])


@contextlib.contextmanager
def fake_gpu_count(gpus: int, listed: str | None = None) -> Iterator[set[str]]:
    """Make the program in this block find a number of GPUs, instead of the GPUs of this machine.

    Except for ``set_visible_devices`` and ``CUDA_VISIBLE_DEVICES``, settings of these GPUs have no
    effect. ``CUDA_VISIBLE_DEVICES`` is restored at the end of the block.

    Args:
        gpus: the number of GPUs.
        listed: the value of ``CUDA_VISIBLE_DEVICES`` that the program has set before; None if it
            has not.

    Yields:
        The functions that the program calls to find GPUs, such as ``list_physical_devices``.
    """
    queries: set[str] = set()
    visible = os.environ.get(VISIBLE_GPUS)
    _visible.clear()
    _listed[:] = [visible]
    set_variable(listed)
    try:
        with (
            all_patched(_context_methods(gpus, queries)),
            patched(Patch.LIST_LOCAL, _local_devices(gpus, queries)),
            patched(Patch.LIST_OF_SESSION, _session_devices(gpus, queries)),
            patched(Patch.LOAD_LIBRARY, _nvml(gpus, queries)),
        ):
            yield queries
    finally:
        read_variable()
        os.environ.pop(VISIBLE_GPUS, None)
        if visible is not None:
            os.environ[VISIBLE_GPUS] = visible


def _for_program(answer: patching.Around) -> patching.Around:
    """Restrict a patch to calls of the program. TensorFlow and Keras call the original."""

    def around(original: Callable[..., Any]) -> Callable[..., Any]:
        fake = answer(original)

        def call(*args: Any, **kwargs: Any) -> Any:
            is_programs = _is_asked_by_program(inspect.currentframe())
            if is_programs:
                read_variable()
            return (fake if is_programs else original)(*args, **kwargs)

        return call

    return around


def _is_asked_by_program(frame: FrameType | None) -> bool:
    """Whether the caller, some frames up, is neither TensorFlow nor Keras."""
    while frame is not None:
        module, function = str(frame.f_globals.get("__name__")), frame.f_code.co_name
        if module.startswith(eager.STRATEGY_MODULES):
            return function not in eager.REDUCTION_CHOOSERS
        is_between = module in eager.DEVICE_QUERY_MODULES
        is_between |= (module, function) == eager.NUM_GPUS_FUNCTION
        if not is_between and module != __name__:
            return module.partition(".")[0] not in _LIBRARIES
        frame = frame.f_back
    return False


def _context_methods(gpus: int, queries: set[str]) -> Mapping[Patch, patching.Around]:
    physical = [tf.config.PhysicalDevice(f"/physical_device:GPU:{i}", _GPU) for i in range(gpus)]
    logical = [tf.config.LogicalDevice(f"/device:GPU:{i}", _GPU) for i in range(gpus)]
    growth: dict[Any, Any] = {}
    parts: dict[Any, Any] = {}

    def list_physical() -> list[Any]:
        return physical[: _listed_gpus(gpus)]

    def list_visible() -> list[Any]:
        present = list_physical()
        visible = _visible[-1] if _visible else range(len(present))
        return [present[index] for index in visible if index < len(present)]

    def list_logical() -> list[Any]:  # logical GPUs are numbered from 0
        return logical[: len(list_visible())]

    def num_gpus(_: Any) -> int:
        queries.add("num_gpus")
        return len(list_visible())

    methods: dict[Patch, patching.Around] = {
        Patch.LIST_PHYSICAL: _list_with_gpus(list_physical, "list_physical_devices", queries),
        Patch.LIST_LOGICAL: _list_with_gpus(list_logical, "list_logical_devices", queries),
        Patch.GET_VISIBLE: _list_with_gpus(list_visible, "get_visible_devices", queries),
        Patch.NUM_GPUS: lambda _: num_gpus,
        Patch.SET_VISIBLE: _set_visible,
        Patch.GET_MEMORY_GROWTH: _answer_for_gpus(growth.get),
        Patch.SET_MEMORY_GROWTH: _answer_for_gpus(growth.__setitem__),
        Patch.GET_LOGICAL: _answer_for_gpus(parts.get),
        Patch.SET_LOGICAL: _answer_for_gpus(parts.__setitem__),
        Patch.DEVICE_DETAILS: _answer_for_gpus(lambda _: dict(_DETAILS)),
        Patch.MEMORY_INFO: _answer_for_gpus(lambda _: {"current": 0, "peak": 0}),
        Patch.MEMORY_STATS: _answer_for_gpus(lambda _: None),
    }
    return {patch: _for_program(answer) for patch, answer in methods.items()}


def _list_with_gpus(
    list_gpus: Callable[[], list[Any]], function: str, queries: set[str]
) -> patching.Around:
    """Patch a method that lists the devices of one type, or of all types."""

    def around(original: Callable[..., Any]) -> Callable[..., list[Any]]:
        def listed(self: Any, device_type: str | None = None) -> list[Any]:
            if device_type in (None, _GPU):
                queries.add(function)
            if device_type == _GPU:  # without a call, which would start the eager runtime
                return list(list_gpus())
            others = [
                each
                for each in original(self, device_type)
                if each.device_type != _GPU and not is_stand_in(each)
            ]
            return others + list_gpus() if device_type is None else others

        return listed

    return around


def _answer_for_gpus(answer: Callable[..., Any]) -> patching.Around:
    """Patch a method that takes a device as first argument, for calls with a GPU."""

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
        if device_type in (None, _GPU):
            gpus = (each.name for each in given if each.device_type == _GPU)
            _visible.append([int(name.rpartition(":")[2]) for name in gpus])
        others = [each for each in given if each.device_type != _GPU]
        if device_type not in (None, _GPU):
            original(self, given, device_type)
        elif others:
            original(self, others, others[0].device_type)

    return set_visible_devices


def _local_devices(gpus: int, queries: set[str]) -> patching.Around:
    """Patch the list of local devices. A ``device_count`` for GPUs limits the fake GPUs."""

    def gpu(index: int) -> bytes:
        attributes = device_attributes_pb2.DeviceAttributes(
            name=f"/device:GPU:{index}",
            device_type=_GPU,
            memory_limit=_MEMORY,
            incarnation=index + 1,
            physical_device_desc=f"device: {index}, name: {_DETAILS['device_name']}, pci bus id: "
            f"0000:{index:02x}:00.0, compute capability: 9.0",
        )
        return bytes(attributes.SerializeToString())

    def around(original: Callable[..., Any]) -> Callable[..., list[bytes]]:
        def list_devices(serialized: bytes | None = None) -> list[bytes]:
            queries.add("list_local_devices")
            config = tf.compat.v1.ConfigProto.FromString(serialized or b"")
            number = min(_listed_gpus(gpus), config.device_count.get(_GPU, gpus))
            config.device_count[_GPU] = 0  # hides the GPUs of this machine
            return [*original(config.SerializeToString()), *map(gpu, range(number))]

        return list_devices

    return _for_program(around)


def _session_devices(gpus: int, queries: set[str]) -> patching.Around:
    """Patch ``Session.list_devices``: the fake GPUs of each task follow its CPU."""

    def around(original: Callable[..., Any]) -> Callable[..., list[Any]]:
        def list_devices(self: Any) -> list[Any]:
            queries.add("list_devices")
            listed = []
            for each in original(self):
                if each.device_type != _GPU:
                    listed.append(each)
                if each.name.endswith("CPU:0"):
                    task = each.name.removesuffix("CPU:0")
                    listed += [
                        type(each)(f"{task}GPU:{index}", _GPU, _MEMORY, index + 1)
                        for index in range(_listed_gpus(gpus))
                    ]
            return listed

        return list_devices

    return _for_program(around)


_LIBRARY = "nvidia-ml"
_SUCCESS, _NOT_SUPPORTED = 0, 3  # nvmlReturn_t
_COUNT = "nvmlDeviceGetCount"
_SUPPORTED = {"nvmlInit", "nvmlInitWithFlags", "nvmlShutdown", _COUNT}


def _nvml(gpus: int, queries: set[str]) -> patching.Around:
    """Patch `ctypes.CDLL`: NVML is found without a driver, and returns the number of GPUs only."""

    class FakeLibrary(ctypes.CDLL):
        def __getitem__(self, name: Any) -> Any:
            function = str(name).partition("_")[0]  # without a version, such as ``_v2``

            def call(*arguments: Any) -> int:  # a new function: callers set argtypes and restype
                if function == _COUNT:
                    ctypes.cast(arguments[0], ctypes.POINTER(ctypes.c_uint))[0] = gpus
                return _SUCCESS if function in _SUPPORTED else _NOT_SUPPORTED

            return call

        __getattr__ = __getitem__

    def around(original: Callable[..., None]) -> Callable[..., None]:
        def init(self: Any, name: Any, *args: Any, **kwargs: Any) -> None:
            if _LIBRARY in str(name):
                queries.add(_LIBRARY)
                self.__class__ = FakeLibrary
            else:
                original(self, name, *args, **kwargs)

        return init

    return around
