"""One answer to how many GPUs there are, whatever call it is asked by.

TensorFlow is asked where all of its functions come together, in the eager context and in the list
of local devices: `tf.config`, `tf.compat.v1.config` and their `experimental` are other modules,
and a program may have taken a function out of one before.

The program gets the answer, and libraries that it uses, and a strategy that was given no devices.
TensorFlow and Keras themselves ask what they can compute here, and get what the machine has: with
a GPU, Keras 3 makes a recurrent layer of an op that CPUs do not have.

The driver's library and its command ``nvidia-smi``, for as many GPUs as a program is told.

Commands of the shell that others stand in for, first on the path.
"""

from __future__ import annotations

import contextlib
import ctypes
import ctypes.util
import inspect
import os
import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import device_attributes_pb2

from placement_checks.tf import patching, sessions
from placement_checks.tf.patching import patched
from placement_checks.tf.simulated_devices import is_stand_in


@contextlib.contextmanager
def shadow_command(name: str, script: Callable[[Path], str]) -> Iterator[Path]:
    """Put a command before all others of its name in this block.

    Args:
        name: of the command.
        script: what it is, for the folder in which it lies.

    Yields:
        That folder, which is removed at the end.
    """
    owner = os.getpid()
    folder = Path(tempfile.mkdtemp(prefix="placement_checks_"))
    command = folder / name
    command.write_text(script(folder))
    command.chmod(0o755)
    os.environ["PATH"] = os.pathsep.join([str(folder), os.environ.get("PATH", os.defpath)])
    try:
        yield folder
    finally:
        path = os.environ.get("PATH", os.defpath).split(os.pathsep)
        os.environ["PATH"] = os.pathsep.join(each for each in path if each != str(folder))
        if os.getpid() == owner:  # not in a process that the program has forked
            shutil.rmtree(folder, ignore_errors=True)


_LIBRARY = "nvidia-ml"
_COMMAND = "nvidia-smi"
_MARK = "asked"  # a file that the command makes
_SUCCESS, _INVALID, _NOT_SUPPORTED = 0, 2, 3  # nvmlReturn_t

# Answers `nvidia-smi -L` and `--query-gpu=...`; what else it is asked gets the list.
_SCRIPT = """#!/bin/sh
: > {mark}
fields= header=yes unit=' MiB' percent=' %'
for option in "$@"; do
  case $option in --query-gpu=*) fields=$(echo "${{option#*=}}" | tr , ' ') ;; esac
  case $option in *noheader*) header= ;; esac
  case $option in *nounits*) unit= percent= ;; esac
done
if [ -n "$fields" ] && [ -n "$header" ]; then echo $fields | sed 's/ /, /g'; fi
gpu=0
while [ $gpu -lt {gpus} ]; do
  line=
  for field in $fields; do
    case $field in
      index) value=$gpu ;;
      count) value={gpus} ;;
      name|gpu_name) value='NVIDIA GPU' ;;
      uuid|gpu_uuid) value=GPU-$gpu ;;
      memory.total|memory.free) value=16384$unit ;;
      memory.*) value=0$unit ;;
      utilization.*) value=0$percent ;;
      *) value='[N/A]' ;;
    esac
    line="${{line:+$line, }}$value"
  done
  if [ -n "$fields" ]; then echo "$line"; else echo "GPU $gpu: NVIDIA GPU (UUID: GPU-$gpu)"; fi
  gpu=$((gpu + 1))
done
"""


@contextlib.contextmanager
def answering_tools(gpus: int, ways: set[str]) -> Iterator[None]:
    """Let the library and the command tell of ``gpus`` GPUs, and add to ``ways`` which was asked.

    The library answers through `ctypes`, however it is loaded; the command is first on the path.
    """

    def loading(original: Callable[..., None]) -> Callable[..., None]:
        def init(self: Any, name: Any, *args: Any, **kwargs: Any) -> None:
            if _LIBRARY in str(name):
                ways.add(_LIBRARY)
                _become_library(self, gpus)
            else:
                original(self, name, *args, **kwargs)

        return init

    def finding(original: Callable[..., Any]) -> Callable[..., Any]:
        return lambda name: f"lib{name}.so.1" if name == _LIBRARY else original(name)

    with (
        patched(ctypes.CDLL, "__init__", loading),
        patched(ctypes.util, "find_library", finding),
        _command(gpus, ways),
    ):
        yield


@contextlib.contextmanager
def _command(gpus: int, ways: set[str]) -> Iterator[None]:
    def script(folder: Path) -> str:
        return _SCRIPT.format(mark=shlex.quote(str(folder / _MARK)), gpus=gpus)

    with shadow_command(_COMMAND, script) as folder:
        try:
            yield
        finally:
            if (folder / _MARK).exists():
                ways.add(_COMMAND)


def _become_library(loaded: ctypes.CDLL, gpus: int) -> None:
    """Make what was to be the driver's library one that answers for GPUs that need not exist."""

    class Library(ctypes.CDLL):
        def __getitem__(self, name: Any) -> Any:
            return _function(str(name), gpus)

        __getattr__ = __getitem__

    loaded.__class__ = Library


def _function(name: str, gpus: int) -> Callable[..., int]:
    """A function of the library by its name, with or without the number of its version."""

    def count(number: Any) -> int:
        _write(number, ctypes.c_uint, gpus)
        return _SUCCESS

    def handle(index: Any, device: Any) -> int:
        number = int(getattr(index, "value", index))
        if not 0 <= number < gpus:
            return _INVALID
        _write(device, ctypes.c_size_t, number + 1)
        return _SUCCESS

    functions: dict[str, Callable[..., int]] = {
        "nvmlInit": _done,
        "nvmlInitWithFlags": _done,
        "nvmlShutdown": _done,
        "nvmlDeviceGetCount": count,
        "nvmlDeviceGetHandleByIndex": handle,
        "nvmlDeviceGetName": _name,
        "nvmlDeviceGetMemoryInfo": _memory,
    }
    answer: Callable[..., int] = functions.get(name.partition("_")[0], _unsupported)

    def call(*arguments: Any) -> int:  # of its own: callers set argtypes and restype
        return answer(*arguments)

    return call


def _done(*_: Any) -> int:
    return _SUCCESS


def _unsupported(*_: Any) -> int:
    return _NOT_SUPPORTED


def _name(_device: Any, text: Any, size: Any) -> int:
    written = b"NVIDIA GPU\0"[: int(getattr(size, "value", size))]
    ctypes.memmove(text, written, len(written))
    return _SUCCESS


def _memory(_device: Any, memory: Any) -> int:
    """Total, free and used."""
    three: Any = ctypes.c_ulonglong * 3
    _write(memory, three, three(_MEMORY, _MEMORY, 0))
    return _SUCCESS


def _write(where: Any, kind: Any, value: Any) -> None:
    """Write to what a pointer, or `ctypes.byref`, leads to."""
    pointer: Any = ctypes.cast(where, ctypes.POINTER(kind))
    pointer[0] = value


_GPU = "GPU"
_MEMORY = 16 << 30  # bytes of each GPU
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_LIBRARIES = ("tensorflow", "keras", "tf_keras", "placement_checks")
_DETAILS = {"device_name": "NVIDIA GPU", "compute_capability": (9, 0)}


class GpuQueries:
    """By which calls the program has asked how many GPUs there are.

    Attributes:
        ways: the names of the calls, such as ``list_physical_devices``.
    """

    def __init__(self) -> None:
        self.ways: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self.ways)


@contextlib.contextmanager
def fake_gpu_count(gpus: int) -> Iterator[GpuQueries]:
    """Let the program in this block find so many GPUs, those of the machine not among them.

    What it sets for such GPUs, like the growth of their memory, has no effect.
    ``CUDA_VISIBLE_DEVICES`` is at the end what it was before.

    Args:
        gpus: how many there are; none may be.

    Yields:
        Whether, and how, the program has asked.
    """
    asked = GpuQueries()
    visible = os.environ.get(_VISIBLE)
    try:
        with (
            sessions.around_context(_of_context(gpus, asked)),
            sessions.around_device_list(_local_devices(gpus, asked)),
            sessions.around_session_methods({"list_devices": _session_devices(gpus, asked)}),
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
        if module.startswith(sessions.STRATEGY_MODULES):
            return function not in sessions.REDUCTION_CHOOSERS
        is_between = module in sessions.DEVICE_QUERY_MODULES
        is_between |= (module, function) == sessions.NUM_GPUS_FUNCTION
        if not is_between and module != __name__:
            return module.partition(".")[0] not in _LIBRARIES
        frame = frame.f_back
    return False


def _of_context(gpus: int, asked: GpuQueries) -> Mapping[str, patching.Around]:
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


def _listing(gpus: list[Any], way: str, asked: GpuQueries) -> patching.Around:
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


def _local_devices(gpus: int, asked: GpuQueries) -> patching.Around:
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


def _session_devices(gpus: int, asked: GpuQueries) -> patching.Around:
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
