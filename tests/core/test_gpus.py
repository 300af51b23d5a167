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
        (None, (0, 2, 10)),
        ("", ()),
        ("2", (2,)),
        ("10, 0", (10, 0)),
        ("0,-1,2", (0,)),
        ("2,1,0", (2,)),
        ("NoDevFiles", ()),
    ],
)
def test_local_gpus_are_the_visible_gpus_of_the_driver(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, visible: str | None, gpus: tuple[int, ...]
) -> None:
    for name in ("nvidia10", "nvidia0", "nvidia2", "nvidiactl", "nvidia-uvm", "null"):
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
    assert local_gpus() == ()


@pytest.mark.parametrize("count", [1, 256])
def test_possible_numbers_of_gpus(count: int) -> None:
    assert checked_gpus(count) == count


@pytest.mark.parametrize("count", [-1, 0, 257])
def test_impossible_numbers_of_gpus(count: int) -> None:
    with pytest.raises(UsageError, match=f"{count} GPUs: one host has between 1 and 256"):
        checked_gpus(count)
