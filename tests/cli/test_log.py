"""``placement-checks log``."""

from __future__ import annotations

import gzip
import json
import os
import pty
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.commands import Run
from support.tower_programs import towers

from placement_checks.core import limits
from placement_checks.core.limits import Limit

DEVICE = "/job:localhost/replica:0/task:0/device:GPU:0"


@pytest.fixture
def session(fixtures: Path) -> Path:
    return fixtures / "logs" / "1.15.5" / "session.log"


def test_text_lists_the_placements_by_device(run: Run, session: Path) -> None:
    ran = run("log", session)

    assert (ran.status, ran.err) == (0, "")
    assert ran.out == (
        f"{session}: 602 records, 301 placements of 162 ops\n"
        "\n"
        "  device         ops  variables  kinds\n"
        "  /device:CPU:0   57          8     12  "
        "Const 16, Assign 10, VariableV2 8, Identity 8, …\n"
        "  /device:CPU:1   64                27  Const 14, Identity 6, Shape 4, MatMul 3, …\n"
        "  /device:CPU:2   41                19  Const 9, Shape 4, Identity 4, MatMul 3, …\n"
    )


def test_the_json_document(run: Run, session: Path) -> None:
    ran = run("log", session, "--format", "json")
    document = json.loads(ran.out)
    truth = json.loads(session.with_name("session.truth.json").read_text())

    assert ran.status == 0
    assert (document["schema"], document["records"], document["reason"]) == (1, 602, None)
    ops = [[op["node"], op["op"], op["device"], op["count"]] for op in document["ops"]]
    assert sorted(ops) == sorted(truth["ops"])


def test_the_output_lines_are_a_log(run: Run, session: Path, tmp_path: Path) -> None:
    lines = run("log", session, "--format", "lines").out
    again = tmp_path / "again.log"
    again.write_text(lines)

    assert "total_loss: (AddN): /job:localhost/replica:0/task:0/device:CPU:0" in lines.splitlines()
    assert len(lines.splitlines()) == 301
    assert run("log", again, "--format", "lines").out == lines


def test_several_files_are_one_run(run: Run, fixtures: Path) -> None:
    apart = [
        fixtures / "logs" / "2.20.0" / f"session.{stream}.log" for stream in ("stdout", "stderr")
    ]

    assert "750 records, 375 placements of 222 ops" in run("log", *apart).out


def test_standard_input(session: Path) -> None:
    command = [sys.executable, "-m", "placement_checks", "log", "-"]
    ran = subprocess.run(command, input=session.read_bytes(), capture_output=True)

    assert ran.stdout.startswith(b"-: 602 records")


def test_no_slow_module_is_loaded(session: Path) -> None:
    program = (
        "import sys\n"
        f"sys.argv = ['placement-checks', 'log', {str(session)!r}]\n"
        "from placement_checks.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "slow = sys.modules.keys() & {'tensorflow', 'numpy', 'rich', 'multiprocessing'}\n"
        "sys.exit(f'{slow} loaded' if slow else 0)"
    )

    assert subprocess.run([sys.executable, "-c", program], capture_output=True).returncode == 0


def test_an_empty_log_has_an_explanation(run: Run, tmp_path: Path) -> None:
    log = tmp_path / "empty.log"
    log.write_bytes(b"")

    ran = run("log", log)
    document = json.loads(run("log", log, "--format", "json").out)

    assert ran.status == 0
    assert ran.out.startswith(f"{log}: no placements; the log is empty: TensorFlow prints")
    assert (document["ops"], document["records"]) == ([], 0)
    assert document["reason"].startswith("the log is empty")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "the log is empty: TensorFlow prints"),
        ("step 1\n", "nothing in it comes from TensorFlow's runtime"),
    ],
)
def test_records_may_be_required(run: Run, tmp_path: Path, text: str, reason: str) -> None:
    log = tmp_path / "a.log"
    log.write_text(text)

    ran = run("log", log, "--require-records")
    document = json.loads(run("log", log, "--require-records", "--format", "json").out)

    assert (ran.status, ran.out) == (2, "")
    assert ran.err.startswith(f"placement-checks: {log} has no placements; {reason}")
    assert document["error"]["kind"] == "input"
    assert document["error"]["fix"].startswith(reason)


def test_required_records_exist(run: Run, session: Path) -> None:
    assert run("log", session, "--require-records") == run("log", session)


def test_the_help_explains_the_exit_status(run: Run) -> None:
    text = " ".join(run("log", "--help").out.split())

    assert "The exit status is 0 even if the log has no records" in text
    assert "--require-records" in text


def test_unread_parts_are_reported_with_the_rest(run: Run, tmp_path: Path) -> None:
    log = tmp_path / "cut.log.gz"
    text = "".join(f"x_{n}: (Add): {DEVICE}\n" for n in range(100_000))
    log.write_bytes(gzip.compress(text.encode())[:-500])

    ran = run("log", log)

    assert ran.status == 0
    assert "records, " in ran.out
    assert ran.err.startswith(f"placement-checks: {log}: its compressed data is cut short")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["nope.log"], "nope.log: there is no such file"),
        (["."], ". is a directory; name the log files in it"),
        (
            [sys.executable],
            "is a binary file, not a log; name a file with the output of the process",
        ),
        ([], "Missing argument 'FILE... | -'; see placement-checks log --help"),
    ],
)
def test_files_that_cannot_be_read_are_errors(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: Sequence[str], error: str
) -> None:
    monkeypatch.chdir(tmp_path)

    ran = run("log", *arguments)
    as_json = run("log", *arguments, "--format", "json")

    assert (ran.status, ran.out) == (2, "")
    assert ran.err.startswith("placement-checks: ")
    assert ran.err.endswith(f"{error}\n")
    assert json.loads(as_json.out)["error"]["message"] in error


def test_verify_reads_a_log(run: Run, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(
        f"{DEVICE} -> device: 0, name: Tesla K40c\n"
        f"w: (VarHandleOp): {DEVICE}\n"
        f"a: (MatMul): {DEVICE}\n"
    )

    ran = run("verify", log)

    assert ran.status == 1
    assert ran.out.splitlines()[0] == f"{log} on gpu*1 (a placement log)"
    assert "BROKEN       variables-on-host\n" in ran.out
    assert "variable w sits on /device:GPU:0, not on /device:CPU:0\n" in ran.out
    everything = run("verify", log, "--all").out
    assert re.search(r"KEPT +no-idle-device +/device:GPU:0 computes with 1 op", everything)
    assert "the program that printed the log: --graph" in " ".join(everything.split())


def test_verify_with_the_number_of_gpus_finds_an_idle_one(run: Run, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(f"a: (MatMul): {DEVICE}\n")

    assert run("verify", log, "--rule", "no-idle-device").status == 2
    assert run("verify", log, "--rule", "no-idle-device", "--gpus", "2").status == 1


def test_verify_with_the_graph_joins_both(run: Run, fixtures: Path, tmp_path: Path) -> None:
    target = f"{fixtures}/programs/graph/mnist.py:build_towers"
    log = tmp_path / "towers.log"
    log.write_text(run("place", target).out)

    ran = run("verify", log, "--graph", target, "--gpus", "2")

    assert ran.status == 0
    assert re.search(r"KEPT +no-fallback\b", ran.out)
    assert re.search(r"KEPT +variables-shared +10 trainable and 32 global variables", ran.out)
    assert re.search(r"KEPT +variables-on-host +32 variables", ran.out)


@pytest.mark.parametrize("options", [(), ("--gpus", "3"), ("--machine", "gpu*3")], ids=" ".join)
def test_the_graph_is_built_for_the_gpus_of_the_log(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: Sequence[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(towers())
    placed = run("place", "train.py:build", "--gpus", "3").out
    Path("log").write_text(f"{DEVICE.replace('GPU:0', 'GPU:2')} -> device: 2\n{placed}")

    ran = run("verify", "log", "--graph", "train.py:build", "--rule", "no-idle-device", *options)

    assert ran.status == 0
    assert "--reference train.py:build" in run("verify", "log", "--graph", "train.py:build").out


def test_a_graph_is_for_logs(run: Run, fixtures: Path) -> None:
    target = f"{fixtures}/programs/graph/mnist.py:build_towers"

    ran = run("verify", target, "--graph", target)

    assert ran.status == 2
    assert ran.err == (
        f"placement-checks: --graph is for placement logs, and {target} is not one; omit it\n"
    )


def test_a_log_without_records_cannot_be_judged(run: Run, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("step 1\n")

    ran = run("verify", log)

    assert ran.status == 2
    assert ran.err.startswith(f"placement-checks: {log} has no placements; nothing in it comes")


def test_a_terminal_shows_a_progress_bar(session: Path, tmp_path: Path) -> None:
    log = tmp_path / "session.log"
    log.write_bytes(session.read_bytes().rstrip())  # the last line has no newline
    program = (
        "import sys, placement_checks.cli.log as log\n"
        f"log._MIN_BYTES, sys.argv = 0, ['placement-checks', 'log', {str(log)!r}]\n"
        "from placement_checks.cli import main; main()"
    )
    terminal, end = pty.openpty()
    ran = subprocess.run(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=end,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "200"},
    )
    os.close(end)

    assert b"session.log" in os.read(terminal, 10_000)
    os.close(terminal)
    assert ran.stdout.startswith(f"{log}: 602 records".encode())


@pytest.mark.parametrize("form", ["text", "lines"])
def test_names_that_the_encoding_lacks_are_escaped(
    session: Path, tmp_path: Path, form: str
) -> None:
    log = tmp_path / "h\udce9.log"
    log.write_bytes(session.read_bytes())
    command = [sys.executable, "-m", "placement_checks", "log", str(log), "--format", form]
    ran = subprocess.run(
        command, capture_output=True, env={**os.environ, "PYTHONIOENCODING": "ascii"}
    )

    assert (ran.returncode, ran.stderr) == (0, b"")


def test_an_empty_log_has_no_lines(run: Run, tmp_path: Path) -> None:
    log = tmp_path / "empty.log"
    log.write_bytes(b"")

    ran = run("log", log, "--format", "lines")

    assert (ran.status, ran.out) == (0, "")
    assert ran.err.startswith(f"placement-checks: {log}: no placements; the log is empty")


def test_a_long_line_without_record_is_no_error(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LOG_LINE", Limit(1000, "bytes"))
    log = tmp_path / "a.log"
    log.write_text("x" * 2_000_000)

    ran = run("log", log)

    assert ran.status == 0
    assert ran.out.startswith(f"{log}: no placements; nothing in it comes from TensorFlow")
    assert ran.err.endswith("a line is longer than 1,000 bytes, and was cut off there\n")


def test_a_pipe_may_be_verified_and_compared(session: Path) -> None:
    log = shlex.quote(str(session))
    command = f"{sys.executable} -m placement_checks diff <(cat {log}) {log}"
    ran = subprocess.run(["bash", "-c", command], capture_output=True)

    assert ran.returncode == 0
    assert b"nothing has moved: 162 ops placed as in" in ran.stdout
