"""The reports on a placement log."""

from __future__ import annotations

from placement_checks.logs import Log, Record
from placement_checks.report.commands.log import render_lines, render_text

HOST = "/job:localhost/replica:0/task:0/device"


def test_all_sections_of_the_report() -> None:
    log = Log(
        "a.log",
        {
            Record("x", "Add", f"{HOST}:CPU:0"): 2,
            Record("x", "Add", f"{HOST}:GPU:10"): 1,
            Record("w", "VarHandleOp", f"{HOST}:GPU:2"): 1,
            Record("p", "Mul", ""): 1,
            Record(None, "MatMul", f"{HOST}:GPU:2"): 1200,
        },
        records=2405,
        torn=2,
    )

    assert render_text(log).splitlines() == [
        "a.log: 2,405 records, 1,205 placements of 5 ops",
        "",
        "  device          ops  variables  kinds",
        "  (not placed)      1                 1  Mul 1",
        "  /device:CPU:0     1                 1  Add 1",
        "  /device:GPU:2     2          1      2  VarHandleOp 1, MatMul 1",
        "  /device:GPU:10    1                 1  Add 1",
        "",
        "1 op on more than one device:",
        "  x (Add): /device:CPU:0 (2 times), /device:GPU:10 (1 time)",
        "",
        "2 of 2,407 records are torn, and their other copy is missing: log again with "
        "PYTHONUNBUFFERED=1, and copy whole lines",
    ]


def test_a_log_without_op_types() -> None:
    log = Log("a.log", {Record("x", None, f"{HOST}:CPU:0"): 1}, 1)

    assert render_text(log).splitlines()[-1] == "  /device:CPU:0    1"


def test_lines_are_repeated_as_often_as_the_op_was_placed() -> None:
    log = Log(
        "a.log",
        {
            Record("x", "Add", f"{HOST}:CPU:0"): 2,
            Record("y", None, f"{HOST}:GPU:0"): 1,
            Record(None, "Mul", f"{HOST}:GPU:0"): 1,
        },
        4,
    )

    assert render_lines(log).splitlines() == [
        f"x: (Add): {HOST}:CPU:0",
        f"x: (Add): {HOST}:CPU:0",
        "y: /job:localhost/replica:0/task:0/gpu:0",
        f"Executing op Mul in device {HOST}:GPU:0",
    ]
