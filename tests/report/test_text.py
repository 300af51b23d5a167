from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import StringIO
from typing import Any

import pytest
from graphs import op, placement
from rich.console import Console

from placement_checks import Finding, Verdict, verify
from placement_checks.core.evidence import Evidence
from placement_checks.core.missing import Missing
from placement_checks.core.results import Report
from placement_checks.report.finding_lines import finding_lines
from placement_checks.report.text import write
from placement_checks.util.text import plural


def written(*reports: Report, width: int = 40) -> str:
    """Narrower than the lines, which must not be broken: a terminal does that better."""
    file = StringIO()
    write(reports, Console(file=file, width=width))
    return file.getvalue()


def finding(object: str, **more: Any) -> Finding:
    values = {
        "op": "VarHandleOp",
        "evidence": "assigned",
        "expected": "CPU",
        "found": "GPU",
        "message": f"{object} is [on a GPU]",
        "fix": "pin it",
        "where": "a.py:1",
    }
    return Finding(object, **{**values, **more})


def test_report_of_one_program() -> None:
    graph = placement(
        op("w", "VarHandleOp", "/gpu:0", "GPU:0"),
        op("a", "MatMul", "/gpu:0", "GPU:0", "w"),
        lines={"w": "main.py:9"},
        machine="gpu*1",
    )
    known = Evidence(graph, single_gpu=Missing("its builder takes no num_gpus"))
    rules = ["placeable", "no-fallback", "variables-on-host", "variables-shared", "no-idle-device"]

    assert written(verify(known, only=rules)) == (
        "train.py:build on gpu*1 (TensorFlow's placer, devices that need not exist, strict)\n"
        "\n"
        "  KEPT         placeable\n"
        "  KEPT         no-fallback\n"
        "  BROKEN       variables-on-host  1 variable\n"
        "  NOT CHECKED  variables-shared   variables are read on /device:GPU:0 only, "
        "and its builder takes no num_gpus\n"
        "  KEPT         no-idle-device     /device:GPU:0 computes with 1 op\n"
        "\n"
        "variables-on-host: 1 finding\n"
        "  main.py:9: variable w sits on /device:GPU:0, not on /device:CPU:0; "
        "it asks for /device:GPU:0\n"
        "    fix: create it under tf.device('/cpu:0'); a device function must send VarHandleOp "
        "there as well as Variable and VariableV2\n"
        "\n"
        "1 program, rules: 3 kept, 1 broken, 1 not checked.\n"
    )


@pytest.mark.parametrize(
    ("conditions", "headline"),
    [
        ({}, "p on gpu*2 (TensorFlow's placer, devices that need not exist, strict)"),
        (
            {"placer": "session", "soft": True},
            "p on gpu*2 (TensorFlow's placer, the devices of this machine, soft)",
        ),
        ({"placer": "log"}, "p on gpu*2 (a placement log)"),
        ({"placer": None}, "p on gpu*2, not placed"),
        ({"machine": None}, "p"),
    ],
)
def test_headline_has_the_conditions(conditions: Mapping[str, Any], headline: str) -> None:
    graph = placement(program="p", **conditions)
    assert written(Report(Evidence(graph), [])).splitlines()[0] == headline


def test_counts_are_of_all_programs() -> None:
    kept = Report(Evidence(placement(program="p")), [Verdict("placeable", "kept", "assigned")])
    broken = Report(
        Evidence(placement(program="q")),
        [Verdict("placeable", "broken", "assigned", None, [finding("w")])],
    )
    text = written(kept, broken)
    assert text.index("p on") < text.index("q on") < text.index("placeable: 1 finding")
    assert text.endswith("2 programs, rules: 1 kept, 1 broken, 0 not checked.\n")


def test_nothing_to_report() -> None:
    assert written() == "0 programs, rules: 0 kept, 0 broken, 0 not checked.\n"


def test_markup_of_names_is_left_alone() -> None:
    graph = placement(program="[red]p[/red]")
    assert "[red]p[/red]" in written(Report(Evidence(graph), []))


@pytest.mark.parametrize(
    ("findings", "lines"),
    [
        ([], []),
        ([finding("w")], ["  a.py:1: w is [on a GPU]", "    fix: pin it"]),
        ([finding("w", where=None)], ["  w is [on a GPU]", "    fix: pin it"]),
        (
            [finding("w"), finding("v"), finding("u")],
            ["  a.py:1: w is [on a GPU]", "      and likewise v, u", "    fix: pin it"],
        ),
        (
            [finding("w"), finding("v", where="a.py:2")],
            ["  a.py:1: w is [on a GPU]", "  a.py:2: v is [on a GPU]", "    fix: pin it"],
        ),
        (
            [finding("w"), finding("v", fix="drop it")],
            [
                "  a.py:1: w is [on a GPU]",
                "    fix: pin it",
                "  a.py:1: v is [on a GPU]",
                "    fix: drop it",
            ],
        ),
        (
            [finding("w", path=("x", "y"))],
            ["  a.py:1: w is [on a GPU]", "      x", "      y", "    fix: pin it"],
        ),
    ],
)
def test_finding_lines(findings: Sequence[Finding], lines: Sequence[str]) -> None:
    assert list(finding_lines(findings)) == lines


@pytest.mark.parametrize(
    ("steps", "last"), [(12, "      11"), (13, "      and 1 more, see --format json")]
)
def test_long_paths_are_cut(steps: int, last: str) -> None:
    _, *path, _ = finding_lines([finding("w", path=tuple(map(str, range(steps))))])
    assert path[:12] == [f"      {step}" for step in range(12)]
    assert path[-1] == last


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 findings"), (1, "1 finding"), (2, "2 findings")]
)
def test_counted(number: int, text: str) -> None:
    assert plural(number, "finding") == text
