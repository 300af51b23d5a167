"""``placement-checks diff``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.commands import Run
from support.pictures import embedded
from support.tower_programs import towers

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
    assert ran.out == "nothing has moved: 4 ops placed as in old.log\n"


def test_differences_in_text(run: Run, logs: None) -> None:
    ran = run("diff", "old.log", "new.log")

    assert ran.status == 1
    assert ran.out == (
        "1 moved, 1 new, 1 gone; 2 ops placed as in old.log\n"
        "moved:\n"
        "  1 op: /gpu:1 -> /gpu:0  (MatMul b)\n"
        "new:\n"
        "  1 op on /cpu:0  (Add come)\n"
        "gone:\n"
        "  1 op, was on /cpu:0  (NoOp gone)\n"
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
    (moved,), (new,), (gone,) = (document[key] for key in ("moved", "new", "gone"))
    assert (document["baseline"], document["program"]) == ("old.log", "new.log")
    assert document["same"] == 2
    assert (moved["names"], moved["old"], moved["new"]) == (["b"], "/gpu:1", "/gpu:0")
    assert (new["names"], new["new"], gone["names"], gone["old"]) == (
        *(["come"], "/cpu:0"),
        *(["gone"], "/cpu:0"),
    )


@pytest.mark.smoke
def test_a_log_and_its_program(run: Run, fixtures: Path, tmp_path: Path) -> None:
    target = f"{fixtures}/programs/graph/mnist.py:build_towers"
    log = tmp_path / "towers.log"
    log.write_text(run("place", target).out.replace("GPU:1", "GPU:0", 1))

    ran = run("diff", target, log)

    assert ran.status == 1
    assert ran.out.startswith("1 moved, 0 new, 0 gone; 834 ops placed as in ")
    assert "\n  1 op: /gpu:1 -> /gpu:0  (" in ran.out


def test_two_programs_may_have_other_names(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("old.py").write_text(towers())
    Path("new.py").write_text(towers(scope="net/dense", tower="replica"))
    Path("moved.py").write_text(towers(scope="net/dense", tower="replica", product_on="0"))

    kept = run("diff", "old.py:build", "new.py:build")
    broken = run("diff", "old.py:build", "moved.py:build")
    page = run("diff", "old.py:build", "moved.py:build", "--format", "html")

    assert (kept.status, broken.status, page.status) == (0, 1, 1)
    assert kept.out == (
        "nothing has moved: 88 ops placed as in old.py:build\n"
        "other changes, on the same devices:\n"
        "  1 variable renamed: fc/weights -> net/dense/weights\n"
    )
    assert broken.out.startswith("1 moved, 0 new, 0 gone; 83 ops placed as in old.py:build\n")
    assert "\n  forward and backward of tower 1, layer net/dense: /gpu:1 -> " in broken.out
    assert embedded(page.out)[0]["headline"].startswith("1 moved, 0 new, 0 gone; ")


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
