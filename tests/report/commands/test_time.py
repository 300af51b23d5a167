from __future__ import annotations

import io
import json
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs
from rich.console import Console
from support.documents import ROOT, blocks
from support.timings import loop, timing

from placement_checks.core.timing import Simulated, Timing
from placement_checks.report.commands.time import (
    TimingObject,
    figures,
    read_json,
    render_json,
    write,
    write_comparison,
)

QUIET = timing(
    loop(1.02, 1.03, 1.04),
    single=loop(1.0, 1.0, 1.0),
    towers=loop(0.5, 0.6, 0.7),
    contention=loop(1.1, 1.1, 1.1),
    simulated=Simulated(0.9, 0.45),
    overlap=0.97,
)
BUSY = replace(QUIET, rows=512, baseline=loop(1.5, 1.5, 1.5, cpu=[1.0]))


def written(*timings: Timing, width: int = 100) -> list[str]:
    stream = io.StringIO()
    write(timings, Console(file=stream, width=width))
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def test_the_table_has_a_column_for_each_batch() -> None:
    lines = written(QUIET, BUSY)

    assert lines[:12] == [
        "towers, 2 towers, compared with single",
        "on CPU devices of one core each, 2 cores, oneDNN 1, TensorFlow 2.21.0",
        "",
        "             128 rows                     512 rows",
        "one GPU      1,000.0 ms, 128 examples/s   1,000.0 ms, 512 examples/s",
        "towers       600.0 ms, 213 examples/s     600.0 ms, 853 examples/s",
        "baseline     1.03                         1.50",
        "contention   1.10                         1.10",
        "measured     0.600 (0.550 to 0.650)       not measured",
        "efficiency   83%                          -",
        "simulated    0.500                        0.500",
        "overlap      97%                          97%",
    ]


def test_reasons_for_missing_figures_are_below_the_table() -> None:
    lines = written(QUIET, BUSY)

    assert lines[13] == (
        "512 rows: no ratio is measured, the baseline is 1.500, not within 1 ± 0.1: the machine "
        "was busy; time it again when it is quiet"
    )
    assert not any("no ratio is measured" in line for line in written(QUIET))


def test_unusual_lines_of_the_table_are_explained() -> None:
    legend = written(QUIET)[13:]

    names = [line[:12].strip() for line in legend]
    assert names == ["baseline", "contention", "measured", "efficiency", "simulated", "overlap"]
    assert "the median of 3 rounds, in which both programs alternate" in legend[2]


def test_on_gpus_the_single_program_is_its_own_baseline() -> None:
    at = replace(QUIET.at, devices="real", kind="2 x Tesla K40c")
    legend = written(replace(QUIET, at=at, contention=None))[13:]

    assert legend[0] == (
        "baseline    time of one GPU's program divided by its own time; outside 1 ± 0.1 no ratio "
        "is reported"
    )
    assert legend[1].startswith("measured")


@pytest.mark.parametrize("width", [20, 80])
def test_a_narrow_terminal_cuts_nothing_off(width: int) -> None:
    assert written(QUIET, BUSY, width=width) == written(QUIET, BUSY)


def test_a_saved_run_is_compared_batch_by_batch() -> None:
    before = read_json(render_json([QUIET]).encode())
    assert not isinstance(before, int)
    now = replace(QUIET, towers=loop(0.9, 0.9, 0.9))
    stream = io.StringIO()

    write_comparison([now, BUSY], before, "base.json", Console(file=stream))

    assert stream.getvalue().splitlines() == [
        "128 rows against base.json: measured 0.900, was 0.600; simulated 0.500, was 0.500",
        "512 rows against base.json: the file has no run with 2 towers on CPU devices of one "
        "core each",
    ]


def test_changed_conditions_of_a_saved_run_are_reported() -> None:
    before = [
        structs.replace(TimingObject.from_timing(QUIET), tensorflow="2.15.1", measured_ratio=None)
    ]
    stream = io.StringIO()

    write_comparison([QUIET], before, "base.json", Console(file=stream))

    assert stream.getvalue() == (
        "128 rows against base.json: measured 0.600, was not measured; simulated 0.500, was "
        "0.500; TensorFlow 2.21.0 instead of 2.15.1\n"
    )


def test_the_json_has_all_figures() -> None:
    document = json.loads(render_json([QUIET, BUSY]))

    quiet, busy = document["timings"]
    assert document["schema"] == 2
    assert quiet["measured_ratio"] == 0.6
    assert quiet["towers"]["wall"] == [0.5, 0.6, 0.7]
    assert quiet["not_measured"] is None
    assert busy["measured_ratio"] is None
    assert busy["not_measured"].startswith("the baseline is 1.500")
    assert busy["simulated_ratio"] == 0.5


def test_the_documentation_shows_the_lines_of_the_table() -> None:
    page = ROOT / "docs" / "timing.md"
    shown = next(block for block in blocks(page) if block.language == "console").printed

    lines = shown.splitlines()[4:-1]
    assert [line[:13] for line in lines] == [line[:13] for line in written(QUIET)[4:12]]


def document_of(timing: Timing) -> dict[str, Any]:
    (document,) = json.loads(render_json([timing]))["timings"]
    assert isinstance(document, dict)
    return document


def test_a_document_has_all_figures_as_plain_values() -> None:
    document = document_of(
        timing(
            loop(1.0, 2.0, cpu=[0.5, 1.0]),
            single=loop(1.0, 2.0),
            towers=loop(0.5, 2.0, cpu=[1.0, 3.0]),
            contention=loop(1.0, 2.4),
            simulated=Simulated(single=4.0, towers=2.0),
            overlap=0.75,
        )
    )

    assert document == {
        "program": "towers",
        "reference": "single",
        "gpus": 2,
        "devices": "simulated",
        "kind": "CPU devices of one core each",
        "cores": 2,
        "tensorflow": "2.21.0",
        "onednn": "1",
        "rows": 128,
        "single": {
            "seconds": 1.5,
            "spread": [1.25, 1.75],
            "examples_per_second": 128 / 1.5,
            "wall": [1.0, 2.0],
            "cpu": [1.0, 2.0],
        },
        "towers": {
            "seconds": 1.25,
            "spread": [0.875, 1.625],
            "examples_per_second": 128 / 1.25,
            "wall": [0.5, 2.0],
            "cpu": [1.0, 3.0],
        },
        "baseline_ratio": 1.0,
        "contention_ratio": 1.1,
        "work_ratio": 0.5,
        "measured_ratio": 0.75,
        "measured_spread": [0.625, 0.875],
        "not_measured": None,
        "efficiency": 1 / 1.5,
        "simulated_ratio": 0.5,
        "simulated_seconds": {"single": 4.0, "towers": 2.0},
        "overlap": 0.75,
    }


def test_a_document_without_a_ratio_has_the_reason() -> None:
    timed = timing(1.11)
    document = document_of(timed)

    assert document["not_measured"] == timed.unmeasured
    assert {name for name, value in document.items() if value is None} == {
        *("measured_ratio", "measured_spread", "efficiency"),
        *("contention_ratio", "simulated_ratio", "simulated_seconds", "overlap"),
    }


def test_a_summary_keeps_the_figures_that_are_known() -> None:
    known = timing(contention=loop(1.2), simulated=Simulated(1.0, 0.5), overlap=0.0)
    unknown = timing(1.11)

    assert figures(known) == {
        "simulated_ratio": 0.5,
        "measured_ratio": 0.5,
        "baseline_ratio": 1.0,
        "contention_ratio": 1.2,
        "work_ratio": 1.0,
        "efficiency": 1.0,
        "overlap": 0.0,
        "rows": 128,
        "gpus": 2,
        "devices": "simulated",
        "kind": "CPU devices of one core each",
        "tensorflow": "2.21.0",
        "onednn": "1",
    }
    assert figures(unknown) == {
        "not_measured": unknown.unmeasured,
        "baseline_ratio": 1.11,
        "work_ratio": 1.0,
        **{
            name: document_of(unknown)[name]
            for name in ("rows", "gpus", "devices", "kind", "tensorflow", "onednn")
        },
    }
