"""The memory to compare the numbers of two programs, in addition to TensorFlow's memory to run
both.

It is the peak of the command minus the peak of the script `dense`, which only opens both sessions
and takes as many steps.
"""

from __future__ import annotations

import sys
from functools import partial

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks import figures
from benchmarks.figures import Record
from benchmarks.processes import cost
from benchmarks.turns import in_pairs

pytest.importorskip("pytest_benchmark", reason="pip install placement_checks[benchmark]")

PARAMETERS = 2048**2
PROGRAM = __file__.replace("test_numbers", "dense")


@pytest.mark.parametrize(
    ("figure", "build", "status"),
    [(figures.EQUAL, "build_towers", 0), (figures.DIFFERENT, "build_summed", 1)],
    ids=["equal", "different"],
)
def test_memory_above_tensorflow(
    benchmark: BenchmarkFixture, record: Record, figure: str, build: str, status: int
) -> None:
    if benchmark.disabled:
        pytest.skip("only memory is measured, of millions of parameters: --benchmark-only")
    towers, single, batch = (f"{PROGRAM}:{name}" for name in (build, "build_single", "batch"))
    verify = [sys.executable, "-m", "placement_checks", "verify", towers]

    pairs = in_pairs(
        benchmark,
        partial(cost, *verify, "--reference", single, "--batch", batch, statuses=[status]),
        partial(cost, sys.executable, PROGRAM),
        rounds=2,
    )

    above = [verified.peak - alone.peak for verified, alone in pairs]
    record(figure, above)
    benchmark.extra_info |= {
        "bytes a parameter": [round(each * 1e9 / PARAMETERS) for each in above],
        "TensorFlow alone, GB": [round(alone.peak, 3) for _, alone in pairs],
        "CPU s": [round(verified.cpu, 1) for verified, _ in pairs],
    }
