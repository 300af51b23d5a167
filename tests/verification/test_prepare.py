"""A failing import of TensorFlow has its own error."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (
            "import nothing_of_that_name",
            "tensorflow cannot be imported: ModuleNotFoundError: No module named "
            "'nothing_of_that_name'; run python -c 'import tensorflow' to see the whole error",
        ),
        (
            "raise FileNotFoundError(2, 'No usable temporary directory found in /tmp')",
            "tensorflow cannot be imported: FileNotFoundError: [Errno 2] No usable temporary "
            "directory found in /tmp; run python -c 'import tensorflow' to see the whole error",
        ),
    ],
)
def test_the_reason_of_a_failed_import(tmp_path: Path, module: str, reason: str) -> None:
    (tmp_path / "tensorflow.py").write_text(module)
    (tmp_path / "train.py").write_text("def build(): pass\n")

    done = subprocess.run(
        [sys.executable, "-m", "placement_checks", "verify", "train.py:build"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == f"placement-checks: {reason}"
    assert "Traceback" not in done.stderr
