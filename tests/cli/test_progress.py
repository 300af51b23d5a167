from __future__ import annotations

import json

import pytest
from support.commands import Run

from placement_checks.util import progress

FILES = [f"fixtures/defects/graph/{name}.py" for name in ("sum_for_mean", "divided_twice")]


def test_progress_goes_to_stderr(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_LINE_INTERVAL", 0.01)
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    first, second = (f"{file}:build_towers" for file in FILES)
    single, batch = (f"{FILES[0]}:{name}" for name in ("build_single", "batch"))
    ran = run("verify", first, second, "--rule", "weights-equal", "--format", "json",
              "--reference", single, "--batch", batch)  # fmt: skip
    json.loads(ran.out)
    for work in (
        f"program 1 of 2: building {first} for 2 GPUs",
        f"program 2 of 2: building {second} for 2 GPUs",
        f"program 1 of 2: running {first}",
    ):
        assert f"placement-checks: {work}" in ran.err
