"""Loading the plugin costs next to nothing, and no TensorFlow."""

from __future__ import annotations

import statistics
import subprocess
import sys

LIMIT = 0.020  # seconds over a pytest that does not load it
IMPORT = """
import sys, time
import pytest
import _pytest.config, _pytest.main, _pytest.terminal
begin = time.perf_counter()
import placement_checks.pytest_plugin
print(time.perf_counter() - begin)
heavy = {"tensorflow", "numpy", "rich", "click"} & sys.modules.keys()
assert not heavy, heavy
"""


def run(*command: str) -> str:
    return subprocess.run(
        [sys.executable, *command], check=True, capture_output=True, text=True
    ).stdout


def test_loading_takes_less_than_20_ms_and_no_tensorflow() -> None:
    """The median of several processes, as the machine may be busy."""
    seconds = statistics.median(float(run("-c", IMPORT)) for _ in range(7))

    assert seconds < LIMIT


def test_a_run_without_placements_loads_no_tensorflow(tmp_path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "test_it.py").write_text(
        "import sys\n\ndef test_it():\n    assert 'tensorflow' not in sys.modules\n"
        "    assert 'placement_checks.pytest_plugin' in sys.modules\n"
    )

    assert "1 passed" in run("-m", "pytest", "-q", str(tmp_path), "-p", "no:cacheprovider")
