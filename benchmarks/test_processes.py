"""The cost of a command covers all its processes and no others."""

from __future__ import annotations

import sys

import pytest

from benchmarks.processes import cost

BUSY = """
import time
held = bytearray(200_000_000)
while time.process_time() < 0.3:
    pass
"""
IN_A_CHILD = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BUSY!r}])"


@pytest.mark.parametrize("code", [BUSY, IN_A_CHILD])
def test_all_processes_of_a_command_count(code: str) -> None:
    held = bytearray(400_000_000)  # memory of this process, which does not count

    took = cost(sys.executable, "-c", code)

    assert 0.2 < took.peak < len(held) / 1e9
    assert 0.3 <= took.cpu < 3


def test_an_unexpected_status_is_not_a_measurement() -> None:
    assert cost(sys.executable, "-c", "raise SystemExit(1)", statuses=[1]).status == 1
    with pytest.raises(AssertionError):
        cost(sys.executable, "-c", "raise SystemExit(1)")
