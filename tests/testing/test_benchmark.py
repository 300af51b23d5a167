"""``tower_benchmark`` in a user's project, and where it is off."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest

from placement_checks.core import timing as loops
from placement_checks.run.timing import benchmark
from placement_checks.run.timing.thread_pools import POOL

TESTS = """
import pytest
from tail_dropped import batch, build_single, build_towers


def test_towers(tower_benchmark):
    timing = tower_benchmark(build_towers, build_single, batch, rows=64, rounds=4{more})
    assert timing.rows == 64
    assert timing.simulated.ratio > 0
"""


@pytest.fixture
def project(
    pytester: pytest.Pytester, fixtures: Path, monkeypatch: pytest.MonkeyPatch
) -> pytest.Pytester:
    """A process that has run sessions, and that takes the machine for idle, with two cores."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(2))
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)  # set if this suite runs under xdist
    monkeypatch.setenv(POOL, "1")
    monkeypatch.setattr(benchmark, "_MAX_CORES", math.inf)
    monkeypatch.setattr(benchmark, "MAX_TRACED", 3)
    monkeypatch.setattr(loops, "BASELINE_TOLERANCE", math.inf)
    monkeypatch.setattr(loops, "CONTENTION_TOLERANCE", math.inf)
    pytester.makeini(f"[pytest]\npythonpath = {fixtures / 'defects/graph'}")
    return pytester


def write(project: pytest.Pytester, more: str = "") -> None:
    project.makepyfile(test_towers=TESTS.replace("{more}", more))


def test_the_towers_are_timed_and_the_ratios_kept(project: pytest.Pytester) -> None:
    write(project)

    result = project.runpytest("--benchmark-json=run.json", "--benchmark-only", "-p", "no:xdist")

    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        [
            "*= towers compared with one GPU =*",
            "build_towers, 2 towers, compared with build_single",
            "*64 rows",
            "measured *(* to *)",
            "*benchmark: 1 tests*",
        ]
    )
    (kept,) = json.loads((project.path / "run.json").read_text())["benchmarks"]
    assert kept["stats"]["rounds"] == 4
    assert kept["extra_info"].keys() >= {
        "simulated_ratio", "measured_ratio", "baseline_ratio", "kind", "tensorflow", "onednn",
    }  # fmt: skip
    assert kept["extra_info"]["kind"] == "CPU devices of one core each"
    assert "not_measured" not in kept["extra_info"]


def test_a_ratio_over_the_limit_fails(project: pytest.Pytester) -> None:
    write(project, ", fail_over=0.001")

    result = project.runpytest("-p", "no:xdist")

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "E * the step time of the towers is * of the step time of one GPU, more than 0.001, "
            "with 64 rows on CPU devices of one core each"
        ]
    )


def test_a_busy_machine_skips_a_test_with_a_limit_and_keeps_the_simulated_ratio(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loops, "BASELINE_TOLERANCE", -1.0)
    write(project, ", fail_over=1000")

    result = project.runpytest("--benchmark-json=run.json", "-p", "no:xdist", "-rs")

    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED * the ratio could not be measured: the baseline is *"])
    (kept,) = json.loads((project.path / "run.json").read_text())["benchmarks"]
    assert kept["extra_info"]["simulated_ratio"] > 0
    assert kept["extra_info"]["not_measured"].startswith("the baseline is")
    assert "measured_ratio" not in kept["extra_info"]


def test_a_disabled_benchmark_runs_once(project: pytest.Pytester) -> None:
    write(project, ", fail_over=0.001")

    result = project.runpytest("--benchmark-disable", "-p", "no:xdist")

    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*towers compared with one GPU*")


def test_without_pytest_benchmark_the_package_is_named(project: pytest.Pytester) -> None:
    write(project)

    result = project.runpytest("-p", "no:benchmark", "-p", "no:xdist")

    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        ["tower_benchmark needs pytest-benchmark: pip install 'placement_checks[benchmark]'"]
    )


def test_xdist_disables_benchmarks_with_a_message(project: pytest.Pytester) -> None:
    project.makepyfile("def test_towers(tower_benchmark): raise AssertionError")

    result = project.runpytest("-n", "1", "-rs", "--benchmark-disable")

    result.assert_outcomes(skipped=1, warnings=0)
    result.stdout.fnmatch_lines(
        [
            "SKIPPED * tower_benchmark is off under xdist because workers share the cores: run it "
            "with -n 0"
        ]
    )


def test_programs_that_cannot_be_timed_have_a_reason(project: pytest.Pytester) -> None:
    write(project, ", gpus=3")

    result = project.runpytest("-p", "no:xdist")

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "E *InputError: build_towers: 64 rows cannot be split evenly among its 3 towers; take "
            "a multiple "
            "of 3, such as 12"
        ]
    )
