"""``time``: its report and its failures; the last test runs it as a user does."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.commands import Run
from support.schemas import valid
from support.timings import loop, timing

from placement_checks.cli import time as command
from placement_checks.report.commands.time import render_json
from placement_checks.run.timing import benchmark as execute_timing
from placement_checks.run.timing.thread_pools import POOL

MNIST = "fixtures/programs/graph/mnist.py"
DROPPED = (
    "fixtures/defects/graph/tail_dropped.py"  # small, with the same speed as a correct program
)
FIT = ("time", f"{DROPPED}:build_towers", "--rounds", 3)
PAIR = ("--reference", f"{DROPPED}:build_single", "--batch", f"{DROPPED}:batch")


@pytest.fixture(autouse=True)
def project(fixtures: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A directory with the fixtures, in a process that has run sessions."""
    (tmp_path / "fixtures").symlink_to(fixtures)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(POOL, "1")
    monkeypatch.setattr(execute_timing, "_MAX_CORES", math.inf)
    monkeypatch.setattr(execute_timing, "MAX_TRACED", 3)
    return tmp_path


def saved(path: Path, *timings: Any) -> Path:
    path.write_text(render_json(timings))
    return path


@pytest.mark.smoke
def test_each_batch_size_is_timed(run: Run) -> None:
    ran = run(*FIT, *PAIR, "--rows", 64, "--rows", 256, "--format", "json")

    timings = json.loads(ran.out)["timings"]
    assert ran.status == 0
    assert [timed["rows"] for timed in timings] == [64, 256]
    assert {timed["devices"] for timed in timings} == {"simulated"}
    assert all(len(timed["towers"]["wall"]) == 3 for timed in timings)
    assert all(timed["simulated_ratio"] > 0 for timed in timings)


def test_by_default_a_batch_has_about_128_rows(run: Run) -> None:
    ran = run(*FIT, *PAIR, "--gpus", 3)

    assert ran.status == 0
    assert f"{DROPPED}:build_towers, 3 towers, compared with {DROPPED}:build_single" in ran.out
    assert "129 rows" in ran.out


def test_a_traced_step_is_timed_with_recorded_rows(run: Run) -> None:
    functions = "fixtures/programs/eager/functions.py"
    ran = run(
        *("time", f"{functions}:train_mirrored", "--reference", f"{functions}:train_one_device"),
        *("--rounds", 3, "--format", "json"),
    )

    (timed,) = json.loads(ran.out)["timings"]
    assert ran.status == 0
    assert timed["rows"] == 24
    assert len(timed["towers"]["wall"]) == len(timed["single"]["wall"]) == 3
    assert timed["simulated_ratio"] > 0


def test_the_configured_reference_is_used(run: Run, project: Path) -> None:
    (project / "pyproject.toml").write_text(
        "[[tool.placement_checks.programs]]\n"
        f"target = '{DROPPED}:build_towers'\n"
        f"reference = '{DROPPED}:build_single'\n"
        f"batch = '{DROPPED}:batch'\n"
    )

    ran = run(*FIT, "--rows", 64)

    assert ran.status == 0
    assert "64 rows" in ran.out


@pytest.mark.parametrize("source", ["call", "pyproject.toml", "program"])
def test_towers_get_the_declared_shares(run: Run, project: Path, source: str) -> None:
    """Three shares of equal size are 129 rows; two would be 128."""
    file = "fixtures/defects/graph/divided_twice.py"
    towers = f"{file}:build_towers"
    call = ["--set", "gradients-equal.shares=[2, 1]"] if source == "call" else []
    if source == "pyproject.toml":
        (project / "pyproject.toml").write_text(
            "[tool.placement_checks.policy]\ngradients-equal = { shares = [2, 1] }\n"
        )
    if source == "program":
        (project / "declared.py").write_text(
            "import sys\nsys.path.append('fixtures/defects/graph')\nimport divided_twice\n\n"
            "def build_towers(num_gpus=2):\n"
            "    policy = {'gradients-equal': {'shares': [2, 1]}}\n"
            "    return {**divided_twice.build_towers(num_gpus), 'policy': policy}\n"
        )
        towers = "declared.py:build_towers"
    pair = [towers, "--reference", f"{file}:build_single", "--batch", f"{file}:batch"]

    ran = run("time", *pair, "--rounds", 3, *call)

    assert ran.status == 0
    assert "129 rows" in ran.out


def test_reports_and_chrome_trace(run: Run, project: Path) -> None:
    (project / "report.txt").write_text("of last week")

    ran = run(
        *FIT, *PAIR, "--rows", 64,
        "--output", "report.txt", "--output", "report.json", "--timeline", "step.json",
    )  # fmt: skip

    events = json.loads((project / "step.json").read_text())["traceEvents"]
    assert (ran.status, ran.out) == (0, "")
    assert "64 rows" in (project / "report.txt").read_text()
    assert valid("time", (project / "report.json").read_text())["timings"][0]["rows"] == 64
    assert {event["ph"] for event in events} == {"M", "X"}


def test_timing_needs_a_reference(run: Run) -> None:
    ran = run(*FIT)

    assert (ran.status, ran.out) == (2, "")
    assert ran.err == (
        "placement-checks: no reference program is named; name the program for one GPU: "
        "--reference train.py:build_single\n"
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, ": No such file or directory"),
        ("", " is not a saved run"),
        ("[]", " is not a saved run"),
        ('{"schema": 2, "timings": [{"rows": 1}]}', " is not a saved run"),
        ('{"schema": 2, "timings": 1}', " is not a saved run"),
        ('{"timings": []}', " is not a saved run"),
        ("[" * 100_000, " is not a saved run"),
    ],
)
def test_an_invalid_saved_run_is_reported_before_timing(
    run: Run, project: Path, text: str | None, reason: str
) -> None:
    if text is not None:
        (project / "base.json").write_text(text)

    ran = run(*FIT, *PAIR, "--against", "base.json")

    assert (ran.status, ran.out) == (2, "")
    assert ran.err == (
        f"placement-checks: base.json{reason}; save a run with placement-checks time … "
        "--format json --output FILE\n"
    )


def test_a_run_saved_with_another_schema_is_refused(run: Run, project: Path) -> None:
    (project / "base.json").write_text('{"schema": 1, "timings": [{"replayed_ratio": 0.5}]}')

    ran = run(*FIT, *PAIR, "--against", "base.json")

    assert (ran.status, ran.out) == (2, "")
    assert ran.err == (
        "placement-checks: base.json has schema 1, but this version reads schema 2; run it "
        "again: placement-checks time … --format json --output FILE\n"
    )


def test_an_unwritable_file_is_reported_before_timing(run: Run) -> None:
    for option in ("--output", "--timeline"):
        ran = run(*FIT, *PAIR, option, "missing/file")

        assert (ran.status, ran.out) == (2, "")
        assert ran.err == f"placement-checks: {option} missing/file: No such file or directory\n"


def test_an_untimed_program_keeps_the_other_reports(run: Run, project: Path) -> None:
    (project / "report").write_text("of last week")

    ran = run(
        "time", "fixtures/sound/graph/styles.py:variable_scopes",
        "--reference", f"{DROPPED}:build_single", "--output", "report",
    )  # fmt: skip

    assert (project / "report").read_text() == "of last week"
    assert (ran.status, ran.out) == (2, "")
    assert ran.err.splitlines()[-1] == (
        "placement-checks: fixtures/sound/graph/styles.py:variable_scopes cannot be timed: "
        "fixtures/sound/graph/styles.py:variable_scopes declares no inputs; return them from the "
        "function that builds the graph: {'inputs': [{'x': x, 'y': y}, …]}"
    )


@pytest.mark.parametrize(
    ("timings", "most", "status", "message"),
    [
        ([timing()], 0.5, 0, ""),
        (
            [timing()],
            0.49,
            1,
            "placement-checks: 128 rows: the measured ratio 0.500 is over 0.49\n",
        ),
        (
            [timing(rows=64), timing(towers=loop(0.9))],
            0.8,
            1,
            "placement-checks: 128 rows: the measured ratio 0.900 is over 0.8\n",
        ),
        ([timing(2.0)], 0.8, 2, ""),
        ([timing(), timing(2.0)], 0.8, 2, ""),
        ([timing(2.0), timing(towers=loop(0.9))], 0.8, 1, None),
    ],
    ids=["at the limit", "over it", "one over it", "busy", "one busy", "one over, one busy"],
)
def test_a_ratio_that_was_not_measured_neither_passes_nor_fails(
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    timings: list[Any],
    most: float,
    status: int,
    message: str | None,
) -> None:
    monkeypatch.setattr(command, "_time", lambda *_: timings)

    ran = run(*FIT, *PAIR, "--fail-over", most)

    assert ran.status == status
    assert message is None or ran.err == message


def test_comparison_with_a_saved_run(
    run: Run, monkeypatch: pytest.MonkeyPatch, project: Path
) -> None:
    base = saved(project / "base.json", timing(towers=loop(0.4)))
    monkeypatch.setattr(command, "_time", lambda *_: [timing()])

    ran = run(*FIT, *PAIR, "--against", base.name)

    assert ran.status == 0
    assert ran.out.splitlines()[-1] == (
        "128 rows against base.json: measured 0.500, was 0.400; simulated -, was -"
    )


def test_the_command_in_its_own_process(project: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if key != POOL}
    ran = subprocess.run(
        [
            sys.executable, "-m", "placement_checks", "time", f"{MNIST}:build_towers",
            "--reference", f"{MNIST}:build_single", "--batch", f"{MNIST}:batch",
            "--rows", "64", "--rounds", "5", "--format", "json",
        ],
        cwd=project, capture_output=True, text=True, env=environment, check=True,
    )  # fmt: skip

    (timed,) = json.loads(ran.stdout)["timings"]
    assert timed["onednn"] == "1"
    assert sum(timed["single"]["cpu"]) < 1.3 * sum(timed["single"]["wall"])
    assert 0.35 < timed["simulated_ratio"] < 0.75
    assert ran.stderr == ""
