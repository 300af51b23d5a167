"""The time to write a report."""

from __future__ import annotations

import time
from io import StringIO
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture
from rich.console import Console
from support.reports import broken, finding, report

from benchmarks import figures
from benchmarks.figures import Record
from placement_checks.report.text.writer import write

pytest.importorskip("pytest_benchmark", reason="pip install placement_checks[benchmark]")

FINDINGS = 10_000


@pytest.mark.parametrize("everything", [False, True])
@pytest.mark.parametrize("alike", [True, False], ids=["alike", "each another"])
def test_many_findings(
    benchmark: BenchmarkFixture, record: Record, fixtures: Path, everything: bool, alike: bool
) -> None:
    source = fixtures / "programs/graph/mnist.py"
    found = [
        finding(
            f"tower_{number % 8}/layer_{number}/weights",
            message=f"variable tower_{number % 8}/layer_{number}/weights sits on /device:GPU:0, "
            f"not on /device:CPU:0; it requests {'it' if alike else number}",
            consequence="Each step copies it to the other GPUs.",
            fix="create it under tf.device('/cpu:0')",
            frames=(f"{source}:20", f"{source}:{1 + number % 100}"),
            device_line=f"{source}:12",
            path=(f"read_{number}", f"matmul_{number}"),
        )
        for number in range(FINDINGS)
    ]
    program = report(broken("variables-on-host", *found))
    costs = []

    def cost() -> None:
        began = time.process_time()
        text = StringIO()
        write([program], Console(file=text), everything=everything)
        costs.append(time.process_time() - began)
        assert "10,000 findings" in text.getvalue()

    benchmark.pedantic(cost, rounds=3)

    if everything and not alike:
        record(figures.REPORT, costs)
    benchmark.extra_info["CPU s"] = [round(each, 3) for each in costs]
