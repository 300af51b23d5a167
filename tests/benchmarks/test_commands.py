"""The cost of whole commands, including their start and all their processes."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import pytest
from benchmarks import figures
from benchmarks.figures import Record
from benchmarks.processes import Cost, cost
from benchmarks.turns import in_pairs
from pytest_benchmark.fixture import BenchmarkFixture

pytest.importorskip("pytest_benchmark", reason="pip install placement_checks[benchmark]")

VERIFY = [sys.executable, "-m", "placement_checks", "verify"]
BARE = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
PLUGIN = ["-p", "placement_checks.testing.pytest_plugin"]


@pytest.mark.parametrize(
    "figure", [figures.STATIC, figures.NUMERIC], ids=["static", "with numbers"]
)
def test_verifying_mnist(
    benchmark: BenchmarkFixture, record: Record, fixtures: Path, figure: str
) -> None:
    if benchmark.disabled:
        pytest.skip("verified by other tests, and here for the cost alone: --benchmark-only")
    towers, single, batch = (
        f"{fixtures / 'programs/graph/mnist.py'}:{name}"
        for name in ("build_towers", "build_single", "batch")
    )
    reference = ["--reference", single, "--batch", batch] if figure == figures.NUMERIC else []
    costs: list[Cost] = []
    benchmark.pedantic(lambda: costs.append(cost(*VERIFY, towers, *reference)), rounds=3)

    record(figure, [took.cpu for took in costs])
    benchmark.extra_info["GB"] = [round(took.peak, 3) for took in costs]


def test_a_session_without_the_plugin(
    benchmark: BenchmarkFixture, record: Record, tmp_path: Path
) -> None:
    (tmp_path / "test_nothing.py").write_text("def test_nothing():\n    pass\n")
    session = partial(
        cost,
        cwd=tmp_path,
        environment={"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""},
    )

    pairs = in_pairs(
        benchmark, partial(session, *BARE, *PLUGIN), partial(session, *BARE), rounds=30
    )

    record(figures.PLUGIN, [1000 * (with_it.cpu - bare.cpu) for with_it, bare in pairs])
