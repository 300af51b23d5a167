"""The benchmarks run. `tox run -e bench` runs all of them, and times them."""

from __future__ import annotations

from pathlib import Path

from support.forked import run_forked

# All modules are imported. Each of these tests takes seconds.
SOME = "test_figures or test_mnist[2-128] or test_averaging[0.18"


def test_benchmarks_run() -> None:
    options = ["-v", "-p", "no:cacheprovider", "--benchmark-disable", "-k", SOME]

    done = run_forked(["-m", "pytest", *options, "benchmarks"], Path(__file__).parents[1])

    assert done.returncode == 0, done.stdout
    assert "test_towers.py::test_mnist[2-128] PASSED" in done.stdout
