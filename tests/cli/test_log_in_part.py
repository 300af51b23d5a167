"""Logs that could not be read in full: they can break rules, and keep none."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from support.commands import Ran, Run

HOST = "/job:localhost/replica:0/task:0/device"
PREFIX = "2018-10-21 18:30:00.140665: I tensorflow/core/common_runtime/placer.cc:922] "
MACHINE = f"{HOST}:GPU:0 -> device: 0, name: Tesla K40c\n"
VARIABLES = "".join(f"w_{n}: (VarHandleOp): {HOST}:CPU:0\n" for n in range(9_000))
COMPUTING = f"a: (MatMul): {HOST}:GPU:0\n"
SOUND = MACHINE + COMPUTING + VARIABLES
TORN = f"w: (VarHandleOp): /job:localhost/repl{PREFIX.replace(': I ', ': W ')}a warning\n"
ONE_TORN = (
    "1 of 9,002 records is torn, and its other copy is missing (search for 'w: (VarHandleOp): "
    "/job:localhost/repl'): log again with PYTHONUNBUFFERED=1, and copy whole lines"
)


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "train.log"


def cut(log: Path, text: str) -> str:
    """A compressed log without its last third."""
    packed = gzip.compress(text.encode())
    file = log.with_name("train.log.gz")
    file.write_bytes(packed[: len(packed) * 2 // 3])
    return file.name


def states(ran: Ran) -> dict[str, tuple[str, str | None]]:
    (program,) = json.loads(ran.out)["programs"]
    return {rule["rule"]: (rule["state"], rule["reason"]) for rule in program["rules"]}


def test_a_complete_log_keeps_rules(run: Run, log: Path) -> None:
    log.write_text(SOUND)

    assert run("verify", log).status == 0
    assert run("diff", log, log).status == 0


def test_a_cut_log_keeps_no_rule(run: Run, log: Path) -> None:
    ran = run("verify", cut(log, SOUND))

    unread = (
        "the log was not read in full: train.log.gz: its compressed data is cut short; copy it "
        "again"
    )
    assert ran.status == 2
    assert ran.out.splitlines()[:2] == ["train.log.gz on gpu*1 (a placement log)", unread]
    assert f"NOT CHECKED variables-on-host {unread}; " in ran.words
    assert "KEPT" not in ran.out


def test_torn_records_are_counted_and_no_rule_is_kept(run: Run, log: Path) -> None:
    log.write_text(SOUND + TORN)

    ran = run("verify", log, "--format", "json")

    assert ran.status == 2
    reason = f"the log was not read in full: {ONE_TORN}"
    assert states(ran)["variables-on-host"] == ("not-checked", reason)
    assert states(ran)["no-idle-device"] == ("not-checked", reason)
    assert all(state == "not-checked" for state, _ in states(ran).values())


def test_a_torn_record_with_a_whole_copy_is_not_lost(run: Run, log: Path) -> None:
    log.write_text(f"{SOUND}{TORN}{PREFIX}w: (VarHandleOp){HOST}:CPU:0\n")

    assert run("verify", log).status == 0
    assert "9,003 records, 9,002 placements of 9,002 ops" in run("log", log).out


def test_a_partial_log_can_break_rules(run: Run, log: Path) -> None:
    ran = run("verify", cut(log, f"v: (VarHandleOp): {HOST}:GPU:0\n{SOUND}"))

    assert ran.status == 1
    assert "variable v sits on /device:GPU:0, not on /device:CPU:0" in ran.out
    assert "KEPT" not in ran.out


def test_a_rule_about_missing_ops_is_not_checked(run: Run, log: Path) -> None:
    """Records of the GPU that seems idle may be lost."""
    file = cut(log, SOUND)

    ran = run("verify", file, "--gpus", "2", "--format", "json")

    assert states(ran)["no-idle-device"][0] == "not-checked"
    assert ran.status == 2


def test_a_graph_does_not_replace_lost_records(run: Run, log: Path, fixtures: Path) -> None:
    target = f"{fixtures}/programs/graph/mnist.py:build_towers"
    log.write_text(run("place", target).out + TORN)

    ran = run("verify", log, "--graph", target, "--gpus", "2")

    assert ran.status == 2
    assert "KEPT" not in ran.out


@pytest.mark.parametrize(
    "record",
    [
        f"x: (Add): {HOST}:GP",
        "x: (Ad",
        "x: (Add): ",
        f"# x: (Add): {HOST}:GP",
        f"{PREFIX}x: (Add): {HOST}:GP",
        f"{PREFIX.replace('placer', 'execute')}Executing op Add in device {HOST}:",
        f"{PREFIX}Executing op Ad",
        "x: /job:localhost/repl",
        '{"log":"x: (Add): /job:local',
        "2024-01-21T21:16:10Z stdout P x: (Add): /job:local",
    ],
)
def test_a_log_that_ends_within_a_record(run: Run, log: Path, record: str) -> None:
    log.write_text(SOUND + record)

    ran = run("verify", log)

    assert ran.status == 2
    assert "train.log: it ends in the middle of a record; copy it again when" in ran.words


@pytest.mark.parametrize(
    "text",
    [
        "$ ",
        "loss: 0.3",
        "done",
        f"x: (Add): {HOST}:CPU:0",
        f"Executing op Add in device {HOST}:CPU:0",
    ],
)
def test_a_log_that_ends_without_a_newline(run: Run, log: Path, text: str) -> None:
    log.write_text(SOUND + text)

    assert run("verify", log).status == 0


def test_incomplete_logs_are_never_reported_as_equal(run: Run, log: Path) -> None:
    log.write_text(SOUND)
    (torn := log.with_name("torn.log")).write_text(SOUND + TORN)

    ran = run("diff", log, torn)

    assert ran.status == 2
    assert ran.out == (
        f"nothing that was read has moved: 9,001 ops placed as in {log}\n"
        "other changes, on the same devices:\n"
        f"  {torn}: the log was not read in full: {ONE_TORN}\n"
    )


def test_differences_of_incomplete_logs_are_reported(run: Run, log: Path) -> None:
    log.write_text(SOUND)
    file = cut(log, SOUND.replace(COMPUTING, COMPUTING.replace("GPU:0", "GPU:1")))

    ran = run("diff", log, file)
    document = json.loads(run("diff", log, file, "--format", "json").out)

    assert ran.status == 1
    assert "1 moved" in ran.out
    assert ran.out.endswith("its compressed data is cut short; copy it again\n")
    assert document["notes"] == [
        "train.log.gz: the log was not read in full: train.log.gz: its compressed data is cut "
        "short; copy it again"
    ]
