"""NVML and nvidia-smi are faked without NVIDIA's driver."""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import subprocess
from collections.abc import Iterator
from ctypes import CDLL, POINTER, Structure, byref, c_char_p, c_uint, c_ulonglong
from pathlib import Path
from typing import Any

import pytest

from placement_checks.capture.in_process.fake_gpus import fake_nvidia_tools


class Handle(Structure):
    pass


class Memory(Structure):
    _fields_ = (("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong))


@pytest.fixture
def ways() -> Iterator[set[str]]:
    ways: set[str] = set()
    with fake_nvidia_tools(2, ways):
        yield ways


@pytest.mark.usefixtures("ways")
def test_the_library_answers_common_queries() -> None:
    nvml = ctypes.cdll.LoadLibrary(str(ctypes.util.find_library("nvidia-ml")))
    handle, memory = POINTER(Handle)(), Memory()
    name = ctypes.create_string_buffer(64)
    by_index: Any = nvml["nvmlDeviceGetHandleByIndex_v2"]
    by_index.argtypes = [c_uint, POINTER(POINTER(Handle))]

    assert by_index(c_uint(1), byref(handle)) == 0
    assert handle
    assert nvml.nvmlDeviceGetMemoryInfo(handle, byref(memory)) == 0
    assert memory.total == memory.free == 16 << 30
    assert memory.used == 0
    assert nvml.nvmlDeviceGetName(handle, name, c_uint(64)) == 0
    assert name.value == b"NVIDIA GPU"
    assert nvml.nvmlDeviceGetHandleByIndex(2, byref(handle)) == 2
    assert nvml.nvmlDeviceGetFanSpeed(handle, byref(c_uint())) == 3
    assert nvml.nvmlShutdown() == 0


def test_a_class_imported_before_loads_the_fake_library(ways: set[str]) -> None:
    number = c_uint()
    assert CDLL("libnvidia-ml.so").nvmlDeviceGetCount(byref(number)) == 0
    assert number.value == 2
    assert ways == {"nvidia-ml"}


def test_other_libraries_are_loaded_as_usual(ways: set[str]) -> None:
    strlen = CDLL(None).strlen
    strlen.argtypes = [c_char_p]
    assert strlen(b"four") == 4
    assert ctypes.util.find_library("no such library") is None
    assert not ways


def answer(*options: str) -> str:
    run = subprocess.run(["nvidia-smi", *options], capture_output=True, text=True, check=True)
    return run.stdout


@pytest.mark.usefixtures("ways")
@pytest.mark.parametrize(
    ("options", "lines"),
    [
        (["-L"], ["GPU 0: NVIDIA GPU (UUID: GPU-0)", "GPU 1: NVIDIA GPU (UUID: GPU-1)"]),
        (
            ["--query-gpu=index,memory.free", "--format=csv"],
            ["index, memory.free", "0, 16384 MiB", "1, 16384 MiB"],
        ),
        (["--query-gpu=memory.used", "--format=csv,noheader,nounits"], ["0", "0"]),
        (["--query-gpu=count,utilization.gpu", "--format=csv,noheader"], ["2, 0 %", "2, 0 %"]),
        (["--query-gpu=name,pstate", "--format=csv,noheader"], ["NVIDIA GPU, [N/A]"] * 2),
    ],
)
def test_the_command(options: list[str], lines: list[str]) -> None:
    assert answer(*options).splitlines() == lines


def test_a_directory_with_quotes_and_spaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "it's a folder"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    ways: set[str] = set()
    with fake_nvidia_tools(1, ways):
        assert answer("-L").startswith("GPU 0")

    assert ways == {"nvidia-smi"}
    assert not list(folder.iterdir())


def test_a_forked_process_leaves_the_command(ways: set[str]) -> None:
    with fake_nvidia_tools(3, ways):
        child = os.fork()
        if child == 0:
            # The end of the block in the child, which returns from the program too.
            os.environ["PLACEMENT_CHECKS_CHILD"] = "1"
        else:
            assert os.waitpid(child, 0)[1] == 0
            assert len(answer("-L").splitlines()) == 3
    if "PLACEMENT_CHECKS_CHILD" in os.environ:
        os._exit(0)
