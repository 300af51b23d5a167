"""The GPUs of this machine, and how many a host can have."""

from __future__ import annotations

from pathlib import Path

import pytest

from placement_checks.core.devices import checked_gpus, local_gpus
from placement_checks.core.errors import UsageError

HERE = "placement_checks.core.devices.Path"


@pytest.mark.parametrize(
    ("visible", "gpus"),
    [
        (None, 3),
        ("", 0),
        ("2", 1),
        ("2, 0", 2),
        ("0,-1,2", 1),
        ("2,3,0", 1),
        ("NoDevFiles", 0),
        ("GPU-5655e43d-ad0a-e4c1-33ae-a8f4d894e3e8,GPU-8932f937", 2),
        ("MIG-GPU-8932f937-d72c-4106-c12f-20bd9faed9f6/1/2", 1),
    ],
)
def test_local_gpus_are_the_visible_gpus_of_the_driver(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, visible: str | None, gpus: int
) -> None:
    """The files have the numbers of the host; CUDA counts the GPUs of a container from 0."""
    for name in ("nvidia10", "nvidia3", "nvidia2", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    monkeypatch.setattr(HERE, lambda _: tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert local_gpus() == gpus


def test_without_a_driver_there_are_no_gpus(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(HERE, lambda _: tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert local_gpus() == 0


@pytest.mark.parametrize("count", [1, 256])
def test_possible_numbers_of_gpus(count: int) -> None:
    assert checked_gpus(count) == count


@pytest.mark.parametrize("count", [-1, 0, 257])
def test_impossible_numbers_of_gpus(count: int) -> None:
    with pytest.raises(UsageError, match=f"{count} GPUs: one host has between 1 and 256"):
        checked_gpus(count)
