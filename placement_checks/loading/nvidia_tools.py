"""The driver's library and its command ``nvidia-smi``, for as many GPUs as a program is told."""

from __future__ import annotations

import contextlib
import ctypes
import ctypes.util
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from placement_checks.loading.commands import standing_in
from placement_checks.loading.tf_internals.patching import patched

_LIBRARY = "nvidia-ml"
_COMMAND = "nvidia-smi"
_MARK = "asked"  # a file that the command makes
_MEMORY = 16 << 30  # bytes of each GPU
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

    with standing_in(_COMMAND, script) as folder:
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
