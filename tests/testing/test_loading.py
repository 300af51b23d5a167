"""Loading the plugin costs next to nothing, and no TensorFlow."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

LIMIT = 0.25  # of the time that pytest takes to load on the same machine; November 2026: 0.19
IMPORT = """
import sys
import time
begin = time.process_time()
import pytest
import _pytest.config, _pytest.main, _pytest.terminal
loaded = time.process_time()
import placement_checks.testing.pytest_plugin
print((time.process_time() - loaded) / (loaded - begin))
heavy = {"tensorflow", "numpy", "rich", "click"} & sys.modules.keys()
assert not heavy, heavy
"""


def run(*command: str, **variables: str) -> str:
    return subprocess.run(
        [sys.executable, *command],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, **variables},
    ).stdout


def test_loading_takes_a_part_of_the_time_of_pytest_and_no_tensorflow() -> None:
    """Processor time, of any of several processes: a busy machine only adds to it.

    They write bytecode, also if this process must not, because compiling takes longer.
    """
    runs = (run("-c", IMPORT, PYTHONDONTWRITEBYTECODE="") for _ in range(30))

    assert any(float(part) < LIMIT for part in runs)


def test_a_run_without_placements_loads_no_tensorflow_and_no_rules(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import sys\n\ndef test_it():\n"
        "    assert not {'tensorflow', 'placement_checks.rules.base'} & sys.modules.keys()\n"
        "    assert 'placement_checks.testing.pytest_plugin' in sys.modules\n"
    )

    assert "1 passed" in run("-m", "pytest", "-q", str(tmp_path), "-p", "no:cacheprovider")
