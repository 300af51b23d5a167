"""The time to read the longest logs, relative to a regular expression that is timed
alternately.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks import figures
from benchmarks.figures import Record
from benchmarks.processes import cost
from benchmarks.test_reading_logs import COMMANDS, LOGS, write_log
from benchmarks.turns import in_pairs

pytest.importorskip("pytest_benchmark", reason="pip install placement_checks[benchmark]")

NAMES = {
    "252k placements, torn records": "600,000 lines, 252,000 placements, 10,000 torn records",
    "21k placements, torn records": "600,000 lines, 10,000 torn records",
    "21k placements": "600,000 lines",
}


@pytest.mark.parametrize("name", NAMES)
def test_reading_relative_to_a_regular_expression(
    benchmark: BenchmarkFixture, record: Record, fixtures: Path, tmp_path: Path, name: str
) -> None:
    lines, block, blocks = LOGS[NAMES[name]]
    log = tmp_path / "train.log"
    write_log(log, fixtures, lines if benchmark.enabled else lines // 20, block, blocks)

    pairs = in_pairs(
        benchmark,
        partial(cost, *COMMANDS["placement-checks"], log),
        partial(cost, *COMMANDS["regex"], log),
        rounds=3,
    )

    record(figures.LOG.format(name), [ours.wall / regex.wall for ours, regex in pairs])
    benchmark.extra_info["CPU s / CPU s"] = [
        round(ours.cpu / regex.cpu, 3) for ours, regex in pairs
    ]
