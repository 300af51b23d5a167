from __future__ import annotations

import json

import pytest
from support.commands import Run

from placement_checks.util import progress

MNIST = "fixtures/programs/graph/mnist.py"


def test_progress_goes_to_stderr(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_LINE_INTERVAL", 0.01)
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    towers = (f"{MNIST}:build_towers", f"{MNIST}:build_towers_ref")
    ran = run("verify", *towers, "--rule", "weights-equal", "--format", "json",
              "--reference", f"{MNIST}:build_single", "--batch", f"{MNIST}:batch")  # fmt: skip
    json.loads(ran.out)
    for work in (
        f"program 1 of 2: building {MNIST}:build_towers for 2 GPUs",
        f"program 2 of 2: building {MNIST}:build_towers_ref for 2 GPUs",
        f"program 1 of 2: running {MNIST}:build_towers",
    ):
        assert f"placement-checks: {work}" in ran.err
