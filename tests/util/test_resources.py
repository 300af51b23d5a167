from __future__ import annotations

from pathlib import Path

import pytest

from placement_checks.util import resources
from placement_checks.util.resources import available_memory

MACHINE = "MemTotal: 8000 kB\nMemAvailable:    4000 kB\nSwapFree:   1000 kB\n"


@pytest.fixture(autouse=True)
def _system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(resources, "_GROUPS", tmp_path)
    monkeypatch.setattr(resources, "_MEMORY", tmp_path / "meminfo")
    (tmp_path / "meminfo").write_text(MACHINE)


def test_memory_is_available_memory_and_swap() -> None:
    assert available_memory() == 5000 * 1024


@pytest.mark.parametrize(
    ("limit", "used", "statistics"),
    [
        ("memory.max", "memory.current", "memory.stat"),
        (
            "memory/memory.limit_in_bytes",
            "memory/memory.usage_in_bytes",
            "memory/memory.stat",
        ),
    ],
)
def test_a_container_has_no_more_than_its_limit(
    tmp_path: Path, limit: str, used: str, statistics: str
) -> None:
    (tmp_path / "memory").mkdir()
    (tmp_path / limit).write_text("3000000\n")
    (tmp_path / used).write_text("1000000\n")
    (tmp_path / statistics).write_text("anon 5\ninactive_file 200000\nactive_file 7\n")

    assert available_memory() == 2_200_000


def test_a_container_without_a_limit_has_the_machines_memory(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("1000000\n")

    assert available_memory() == 5000 * 1024


def test_a_limit_that_is_used_up_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("1100\n")
    (tmp_path / "memory.stat").write_text("")

    assert available_memory() == 0


@pytest.mark.parametrize("text", [None, "", "MemTotal: 8000 kB\n"])
def test_memory_is_unknown_without_meminfo(tmp_path: Path, text: str | None) -> None:
    (tmp_path / "meminfo").unlink()
    if text is not None:
        (tmp_path / "meminfo").write_text(text)

    assert available_memory() is None
