"""``placement-checks diff``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.commands import Run

HOST = "/job:localhost/replica:0/task:0/device"


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old.log").write_text(
        f"w: (VarHandleOp): {HOST}:CPU:0\na: (MatMul): {HOST}:GPU:0\nb: (MatMul): {HOST}:GPU:1\n"
        f"gone: (NoOp): {HOST}:CPU:0\n"
    )
    (tmp_path / "new.log").write_text(
        f"w: (VarHandleOp): {HOST}:CPU:0\na: (MatMul): {HOST}:GPU:0\nb: (MatMul): {HOST}:GPU:0\n"
        f"come: (Add): {HOST}:CPU:0\n"
    )


def test_one_log_twice_has_no_difference(run: Run, logs: None) -> None:
    ran = run("diff", "old.log", "old.log")

    assert (ran.status, ran.err) == (0, "")
    assert ran.out == "old.log and old.log have 4 ops, each on the same device.\n"


def test_differences_in_text(run: Run, logs: None) -> None:
    ran = run("diff", "old.log", "new.log")

    assert ran.status == 1
    assert ran.out == (
        "/device:GPU:1 -> /device:GPU:0: 1 op\n"
        "  b (MatMul)\n"
        "\n"
        "only in old.log: 1 op\n"
        "  gone (NoOp)\n"
        "\n"
        "only in new.log: 1 op\n"
        "  come (Add)\n"
        "\n"
        "of 3 ops in both, 1 moved; 1 only in old.log, 1 only in new.log.\n"
    )


def test_arguments_belong_to_the_program(run: Run, logs: None) -> None:
    Path("train.py").write_text("import sys; sys.exit(len(sys.argv))")

    ran = run("diff", "old.log", "train.py", "--", "--num_gpus={gpus}")

    assert (ran.status, ran.out) == (2, "")
    assert "train.py: before its first training step it called sys.exit(2)" in ran.err


def test_two_logs_take_no_arguments(run: Run, logs: None) -> None:
    ran = run("diff", "old.log", "new.log", "--", "--num_gpus=2")

    assert ran.status == 2
    assert "-- --num_gpus=2 is for a program, but old.log is a placement log" in ran.err


def test_differences_in_json(run: Run, logs: None) -> None:
    ran = run("diff", "old.log", "new.log", "--format", "json")

    document = json.loads(ran.out)
    assert document.pop("versions").keys() == {"placement_checks", "tensorflow"}
    assert document == {
        "schema": 1,
        "old": "old.log",
        "new": "new.log",
        "ops": 3,
        "moved": [
            {"node": "b", "op": "MatMul", "old": [f"{HOST}:GPU:1"], "new": [f"{HOST}:GPU:0"]}
        ],
        "removed": [{"node": "gone", "op": "NoOp"}],
        "added": [{"node": "come", "op": "Add"}],
        "unread": [],
    }


@pytest.mark.smoke
def test_a_log_and_its_program(run: Run, fixtures: Path, tmp_path: Path) -> None:
    target = f"{fixtures}/programs/graph/mnist.py:build_towers"
    log = tmp_path / "towers.log"
    log.write_text(run("place", target).out.replace("GPU:1", "GPU:0", 1))

    ran = run("diff", target, log)

    assert ran.status == 1
    assert "/device:GPU:1 -> /device:GPU:0: 1 op\n" in ran.out
    assert "of 835 ops in both, 1 moved; 0 only in" in ran.out


def test_a_log_without_records_is_refused(run: Run, logs: None, tmp_path: Path) -> None:
    (tmp_path / "none.log").write_text("\n")

    ran = run("diff", "old.log", "none.log")

    assert (ran.status, ran.out) == (2, "")
    assert ran.err.startswith("placement-checks: none.log has no placements; the log is empty")


@pytest.mark.parametrize("other", ["old.log", "none.txt"])
def test_an_empty_file_is_refused(run: Run, logs: None, tmp_path: Path, other: str) -> None:
    (tmp_path / "none.txt").write_text("")

    ran = run("diff", "none.txt", other)

    assert (ran.status, ran.out) == (2, "")
    assert ran.err == (
        "placement-checks: none.txt is empty, so it is neither a baseline nor a placement log; "
        "write it again: pytest --placement-update, or placement-checks verify PROGRAM "
        "--baseline . --update; or write the log again: python train.py > log 2>&1\n"
    )
